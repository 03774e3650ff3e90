"""How unevenly Mixture-of-Experts models route real tokens, and the memory that a training run must allow for it."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; at run time a name is imported when it is first used
    from routing.core.allowance import AllowanceTable as AllowanceTable
    from routing.core.errors import CheckFailedError as CheckFailedError
    from routing.core.errors import DamagedDataError as DamagedDataError
    from routing.core.errors import InputError as InputError
    from routing.core.errors import RoutingError as RoutingError
    from routing.core.errors import StorageError as StorageError
    from routing.core.layers import DecoderShape as DecoderShape
    from routing.core.shapes import ModelShape as ModelShape
    from routing.core.wave import Topology as Topology
    from routing.core.wave import Wave as Wave
    from routing.estimate.result import Estimate as Estimate
    from routing.guard.watch import AllowanceGuard as AllowanceGuard
    from routing.stages.estimator import Estimator as Estimator
    from routing.stages.frames import Run as Run
    from routing.stages.frames import fit as fit
    from routing.stages.frames import open_run as open_run
    from routing.store.allowances import read_table as read_table
    from routing.store.waves import read_wave as read_wave


def __getattr__(name: str) -> Any:
    from importlib import import_module

    from routing.api import NAMES

    if name not in NAMES:
        raise AttributeError(f"module 'routing' has no attribute {name!r}")
    return getattr(import_module(NAMES[name]), name)


def __dir__() -> list[str]:
    from routing.api import NAMES

    return sorted({*globals(), *NAMES})


class _Package(ModuleType):
    """`routing.fit` is the function. The room of that name is imported by its modules, `from routing.fit.table import ...`."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "fit" and isinstance(value, ModuleType)):  # what an import of the room would set
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
