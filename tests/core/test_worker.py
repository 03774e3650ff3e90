"""A worker is who torchrun or Slurm says it is."""

import pytest

from routing.core.errors import InputError
from routing.core.worker import Worker, worker_of

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
STEP = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "2"}
ARRAY = {"SLURM_ARRAY_TASK_ID": "14", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "10", "SLURM_ARRAY_TASK_STEP": "2"}


@pytest.mark.parametrize(
    ("environment", "worker"),
    [
        ({}, (0, 1, 0)),
        (TORCHRUN, (5, 8, 1)),
        (STEP, (3, 4, 2)),
        ({**STEP, **TORCHRUN}, (5, 8, 1)),  # torchrun started by srun: its ranks are the processes
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1, 0)),  # a batch script outside srun is one process
        (ARRAY, (2, 3, 0)),  # tasks 10, 12, 14
        ({**ARRAY, **STEP}, (2 * 4 + 3, 3 * 4, 2)),
    ],
)
def test_the_environment_says_which_worker_a_process_is(environment, worker):
    index, count, local_rank = worker
    assert worker_of(environment) == Worker(index=index, count=count, local_rank=local_rank)


@pytest.mark.parametrize("text", ["", "-1", "two", "9" * 30])
def test_a_rank_that_is_no_number_names_its_variable(text):
    with pytest.raises(InputError, match="RANK: "):
        worker_of({**TORCHRUN, "RANK": text})


def test_workers_of_one_torchrun_see_the_same_gpus_and_those_of_slurm_may_not():
    assert worker_of({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}).num_sharing == 4
    assert worker_of({**ARRAY, **TORCHRUN, "LOCAL_WORLD_SIZE": "4"}).num_sharing == 4
    assert worker_of({**ARRAY, **STEP}).num_sharing == 1


def test_a_rank_beyond_the_world_is_refused():
    with pytest.raises(InputError, match="worker 8 of 8"):
        worker_of({**TORCHRUN, "RANK": "8"})
