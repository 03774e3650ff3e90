"""One tiny random policy for the room, loaded once."""

import pytest
import torch

from routing.measure.policy import load_policy, resolve_policy
from tests.policies import write_tiny_policy


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return write_tiny_policy(tmp_path_factory.mktemp("policies") / "tiny")


@pytest.fixture(scope="session")
def tiny_policy(tiny_folder):
    return load_policy(resolve_policy(str(tiny_folder)), device=torch.device("cpu"), dtype=torch.float32)
