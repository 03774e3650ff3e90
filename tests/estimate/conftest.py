"""The published model, its estimator at the published allowance, and the published waves."""

import pytest

from routing.core.layers import DecoderShape
from routing.core.wave import Wave
from routing.stages.estimator import Estimator
from routing.store.model_shapes import find_shape
from tests.estimate import waves
from tests.estimate.tables import table_of


@pytest.fixture(scope="session")
def shape() -> DecoderShape:
    """Qwen3.6-35B-A3B."""
    return find_shape(waves.MODEL)


@pytest.fixture(scope="session")
def estimator(shape: DecoderShape) -> Estimator:
    """1.4 at EP 2 for every batch from 2,000 rows, as published."""
    return Estimator(shape=shape, table=table_of(shape, {(2, 2000): "1.4"}))


@pytest.fixture(scope="session")
def flat_wave() -> Wave:
    """The published case: no GDN rows, no executor stages."""
    return waves.flat_wave()


@pytest.fixture(scope="session")
def ranked_wave() -> Wave:
    """The same wave with each rank's own layouts and what its attention executor ran."""
    return waves.ranked_wave()
