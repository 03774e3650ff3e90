"""From the counts of two runs to a file of allowances, every number worked by hand."""

from decimal import Decimal

from routing.core.allowance import Generated
from routing.fit.table import fit_runs
from routing.store.allowances import read_table, write_table
from tests.stores import measured_run, write_tiny_run

GENERATED = Generated(tool_version="0.1.0", tool_commit=None, generated_at="2025-01-01T00:00:00Z")


def test_counts_become_a_table_that_reads_back(tmp_path):
    # Four segments of 10 tokens, one expert each token. Batches of 20: segments 0 and 1, then 2 and 3.
    tree = {"paths": [[0, 1], [2, 3]], "segment_tokens": [10] * 4, "num_experts": 4, "top_k": 1}
    even, first, last = [3, 2, 3, 2], [4, 2, 2, 2], [2, 2, 2, 4]
    base = write_tiny_run(
        tmp_path / "base", loads={(0, 0): first, (1, 0): first, (2, 0): even, (3, 0): even}, label="base", **tree
    )
    tuned = write_tiny_run(
        tmp_path / "tuned", loads={(0, 0): even, (1, 0): last, (2, 0): last, (3, 0): last}, label="tuned", **tree
    )
    asked = {"eps": [2, 4], "batch_sizes": [40, 20, 10]}
    runs = [measured_run(run, **asked) for run in (base, tuned)]
    table, cautions = fit_runs(runs, model_name="toy", generated=GENERATED)

    # Base, batch 0: experts 8, 4, 4, 4: EP 2 12 x 2 / 20 = 1.2, EP 4 8 x 4 / 20 = 1.6. Tuned, batch 1: 4, 4, 4, 8: the same,
    # so the first run is named. 1 + 1.35 x 0.2 = 1.27 -> 1.3; 1 + 1.35 x 0.6 = 1.81 -> 1.9. Batches of 10: the same segments.
    assert {(entry.ep, entry.batch_tokens): entry.allowance for entry in table.entries} == {
        (2, 20): Decimal("1.3"),
        (4, 20): Decimal("1.9"),
        (2, 10): Decimal("1.3"),
        (4, 10): Decimal("1.9"),
    }
    worst = table.entries[1].evidence.observed_max
    assert (worst.label, worst.batch, worst.layer, worst.rank, worst.imbalance) == ("base", 0, 0, 0, Decimal("1.6"))
    assert [(one.expert, one.routed_rows) for one in worst.top_experts] == [(0, 8)]
    assert [caution.code for caution in cautions if caution.code == "size_left_out"] == ["size_left_out"]
    assert any(warning.startswith("low_evidence") for warning in table.entries[0].evidence.warnings)

    write_table(tmp_path / "allowances.yaml", table)
    assert read_table(tmp_path / "allowances.yaml") == table
