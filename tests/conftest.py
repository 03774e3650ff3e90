"""What all tests share: one thread for torch, no hub, and the real trajectories where they are."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

pytest_plugins = ("tests.faults",)

# How long an example takes says how busy the machine is. Each example writes its files anew: it may share the test's folder.
_UNCHECKED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("untimed", deadline=None, suppress_health_check=_UNCHECKED)
settings.load_profile("untimed")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Two spinning threads are slower than one on a small machine."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_trajectories() -> Path:
    """The folder of real agent runs that lies beside the checkout; skips where it doesn't."""
    folder = REPOSITORY.parent / "shared" / "trajectories"
    if not folder.is_dir():
        pytest.skip("the real trajectories (../shared/trajectories) are not beside this checkout")
    return folder
