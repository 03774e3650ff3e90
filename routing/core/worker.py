"""Which of several workers a process is: as torchrun and Slurm say it in the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from routing.core.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """Worker `index` of `count`, numbered from 0; `local_rank` is its place among those of its machine.

    `num_sharing` workers see the same GPUs: all of one torchrun on a machine. Slurm may show each task its own.
    """

    index: int = 0
    count: int = 1
    local_rank: int = 0
    num_sharing: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.index < self.count and self.local_rank >= 0):
            raise InputError(f"worker {self.index} of {self.count}, local rank {self.local_rank}: no such worker")

    @property
    def name(self) -> str:
        """For people, who count from 1."""
        return f"worker {self.index + 1} of {self.count}"


ALONE = Worker()


def worker_of(environment: Mapping[str, str]) -> Worker:
    """The worker that the environment describes; the only one where it says nothing.

    torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, before srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID.
    A job array deals first between its tasks, then inside each: SLURM_ARRAY_TASK_ID, _COUNT, _MIN and _STEP. InputError names
    a variable that is no number.
    """
    inner = _ranks(environment, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    if inner is not None:
        inner = replace(inner, num_sharing=_number(environment, "LOCAL_WORLD_SIZE", "1"))
    else:  # SLURM_NTASKS is set outside a step too, where one process runs
        inner = _ranks(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID") or ALONE
    if "SLURM_ARRAY_TASK_ID" not in environment or "SLURM_ARRAY_TASK_COUNT" not in environment:
        return inner
    first, step = (_number(environment, f"SLURM_ARRAY_TASK_{name}", default) for name, default in (("MIN", "0"), ("STEP", "1")))
    task = (_number(environment, "SLURM_ARRAY_TASK_ID") - first) // max(1, step)
    outer = Worker(index=task, count=_number(environment, "SLURM_ARRAY_TASK_COUNT"))
    return replace(inner, index=outer.index * inner.count + inner.index, count=outer.count * inner.count)


def _ranks(environment: Mapping[str, str], rank: str, count: str, local: str) -> Worker | None:
    if rank not in environment or count not in environment:
        return None
    return Worker(
        index=_number(environment, rank), count=_number(environment, count), local_rank=_number(environment, local, "0")
    )


def _number(environment: Mapping[str, str], name: str, default: str = "") -> int:
    text = environment.get(name, default)
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InputError(f"{name}: {text[:20]!a} is no number of a worker; it is set by torchrun or Slurm, unset it otherwise")
    return int(text)
