"""The figures in docs/estimator.md are those that the estimator gives."""

from dataclasses import replace

import pytest

from routing.estimate.result import Term
from routing.estimate.sources import SOURCES
from routing.stages.estimator import Estimator
from tests.conftest import REPOSITORY
from tests.estimate.tables import table_of

TEXT = (REPOSITORY / "docs" / "estimator.md").read_text()


def row(start):
    return next(line for line in TEXT.splitlines() if line.startswith(f"| {start}"))


def over(num_bytes):
    return f"{100 * (num_bytes / 22.67e9 - 1):+.1f}%"


def test_every_term_is_described():
    described = [name for name in SOURCES if f"`{name}`" in TEXT]
    assert described == list(SOURCES)
    assert {"name", "rows", "bytes"} <= set(Term.__slots__)


@pytest.mark.parametrize("case", ["flat", "ranked", "even", "layers"])
def test_the_published_table_holds_the_priced_bytes(case, shape, estimator, flat_wave, ranked_wave):
    if case == "flat":
        estimate, lines = (
            estimator.price(flat_wave),
            ("EP2/CP2 real data, 40 layers, cold, mixer priced flat", "the same without"),
        )
        assert f"{estimate.total_without_hybridep_bytes:,} bytes, {over(estimate.total_without_hybridep_bytes)}" in row(lines[1])
        shown = f"{estimate.total_bytes:,} bytes, {over(estimate.total_bytes)}"
    elif case == "ranked":
        estimate, lines = estimator.price(ranked_wave), ("EP2/CP2 real data, 40 layers, cold, per rank",)
        shown = f"{estimate.total_bytes:,} bytes, {over(estimate.total_bytes)}, rank {estimate.binding_rank} binds"
    elif case == "even":
        estimate = Estimator(shape=shape, table=table_of(shape, {(2, 2000): "1.0"})).price(flat_wave)
        lines, fraction = ("the same sum at allowance 1.0",), estimate.total_without_hybridep_bytes / 22.67e9 - 1
        shown = f"{estimate.total_without_hybridep_bytes:,} bytes, {fraction:+.2%}"
    else:
        values = {(2, 2000): "1.4"} | {(2, 2000, layer): "1.1" for layer in range(40)}
        estimate = Estimator(shape=shape, table=table_of(shape, values)).price(replace(ranked_wave), per_layer=True)
        lines = ("per rank, all layers at 1.1",)
        shown = (
            f"{estimate.total_bytes:,} bytes, {over(estimate.total_bytes)}, {over(estimate.total_without_hybridep_bytes)} without"
        )
    assert shown in row(lines[0])
