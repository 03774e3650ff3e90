"""Every check returns no row on a sound run, and finds what it is there for."""

import pyarrow as pa
import pytest

from routing.core.errors import CheckFailedError
from routing.query.checks import LOADS_CHECKS, TREE_CHECKS, require_checks, run_checks
from routing.store.run import RunWriter, open_run, writing
from tests.stores import LOADS, MODEL, TREE, sha, write_tiny_run


def _failed(run):
    """Names of the checks that fail, with their first violation."""
    return {result.name: result.first[0] for result in run_checks(run) if result.num_violations}


def _run_with(folder, **changes):
    return write_tiny_run(folder, **TREE, **MODEL, loads=LOADS | changes.pop("loads", {}), **changes)


def _replace(run, table, **columns):
    """Writes one table of the run again with other columns, hashes and all: what a faulty writer would leave."""
    rows = run.read(table)
    for name, values in columns.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values, rows.schema.field(name).type))
    with writing(run.folder):
        RunWriter(run.folder, run.manifest).commit(table, 0, rows)
    return open_run(run.folder)


def test_a_sound_run_passes_every_check(tmp_path):
    results = require_checks(_run_with(tmp_path / "run"))
    assert [result.name for result in results] == [*TREE_CHECKS, *LOADS_CHECKS]
    assert all(result.num_violations == 0 and result.first == () for result in results)


def test_a_violation_names_the_check_the_layer_and_the_segment(tmp_path):
    run = _run_with(tmp_path / "run", loads={(1, 3): [1, 1, 1, 0], (2, 3): [3, 1, 1, 0]})
    with pytest.raises(CheckFailedError) as caught:
        require_checks(run)
    assert str(caught.value) == (
        f"{run.folder}: check rows_conserved fails in 2 places, the first: "
        "segment_id=1 layer=3 routed_rows=3 expected_routed_rows=4; measure this run again"
    )


# Public reports, on a segment of 4 tokens that sends 2 rows each: 8 rows a layer. How each came about, and what was counted.
CONSERVATION = {
    "padding rows of a captured graph counted (vLLM 38128)": ("one padded token more in a segment of 4", [5, 3, 1, 1]),
    "padding all sent to expert 0 (prime-rl 3350, verl 7524, slime 822)": ("two rows more on expert 0", [6, 2, 1, 1]),
    "the last token of each request lost (SGLang 12823, 20964)": ("the rows of 3 of 4 tokens", [3, 1, 1, 1]),
    "counts multiplied by the ranks (vLLM 22167)": ("every count of a layer doubled", [8, 4, 2, 2]),
    "a warm-up batch counted (vLLM 56716)": ("two rows of another batch added", [4, 3, 2, 1]),
    "only each token's first expert counted": ("half of the rows", [2, 1, 1, 0]),
    "a shared expert counted": ("a row more a token", [4, 4, 2, 2]),
    "counts that are all zero": ("a layer of zeros", [0, 0, 0, 0]),
}
CONSERVED = "exit 1, the layer and the segment named with rows and top-k x tokens"


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(rows, marks=pytest.mark.fault(report, how=how, tries=1, outcome=CONSERVED), id=report)
        for report, (how, rows) in CONSERVATION.items()
    ],
)
def test_rows_are_top_k_times_tokens(tmp_path, rows):
    """vLLM 38128, 22167, 56716; SGLang 12823, 20964; prime-rl 3350, verl 7524, slime 822: none of these is 4 x 2 rows."""
    failed = _failed(_run_with(tmp_path / "run", loads={(0, 1): rows}))
    assert failed["rows_conserved"] == f"segment_id=0 layer=1 routed_rows={sum(rows)} expected_routed_rows=8"


@pytest.mark.fault(
    "every layer written to slot 0, or later layers overwritten with zeros (SGLang 32105, vLLM 35623)",
    how="a run with the loads of one of two layers, and with zeros for the second",
    tries=2,
    outcome="exit 1, the layer that is not there or not conserved named; not 1.0",
)
def test_every_layer_written_to_one_slot_is_no_answer(tmp_path):
    """SGLang 32105: all layers in slot 0. vLLM 35623: later layers overwritten with zeros."""
    one_slot = {key: rows for key, rows in LOADS.items() if key[1] == 1}
    run = write_tiny_run(tmp_path / "slot", **TREE, **MODEL, loads=one_slot)
    assert _failed(run) == {"loads_dense": "segment_id=0 layer=3 num_experts=0 expected_num_experts=4"}
    zeros = {key: rows if key[1] == 1 else [0] * 4 for key, rows in LOADS.items()}
    run = write_tiny_run(tmp_path / "zeros", **TREE, **MODEL, loads=zeros)
    assert set(_failed(run)) == {"rows_conserved"}


@pytest.mark.fault(
    "an expert that was not counted",
    how="a part that lacks one expert of one layer",
    tries=1,
    outcome="exit 1, check, segment and layer named",
)
def test_a_layer_or_an_expert_that_was_not_counted_is_found(tmp_path):
    run = write_tiny_run(tmp_path / "run", **TREE, **MODEL, loads={**LOADS, (2, 3): [3, 2, 1]})
    assert _failed(run) == {"loads_dense": "segment_id=2 layer=3 num_experts=3 expected_num_experts=4"}


@pytest.mark.fault(
    "one of two micro-batches recorded (megablocks 113)",
    how="a finished run without the loads of one of three segments",
    tries=1,
    outcome="exit 1, the segment named; in an unfinished run it is pending",
)
def test_a_segment_without_loads_is_pending_in_an_unfinished_run_only(tmp_path):
    """megablocks 113: one of two micro-batches recorded."""
    some = {key: rows for key, rows in LOADS.items() if key[0] < 2}
    assert _failed(write_tiny_run(tmp_path / "pending", **TREE, **MODEL, loads=some, is_finished=False)) == {}
    finished = write_tiny_run(tmp_path / "finished", **TREE, **MODEL, loads=some)
    assert _failed(finished) == {"loads_dense": "segment_id=2 layer=1 num_experts=0 expected_num_experts=4"}
    half = {key: rows for key, rows in LOADS.items() if key != (1, 3)}
    run = write_tiny_run(tmp_path / "half", **TREE, **MODEL, loads=half, is_finished=False)
    assert _failed(run) == {"loads_dense": "segment_id=1 layer=3 num_experts=0 expected_num_experts=4"}


def test_a_run_without_loads_yet_passes_and_one_without_tables_has_nothing_to_check(tmp_path):
    run = write_tiny_run(tmp_path / "run", **TREE, **MODEL, loads=[], is_finished=False, planned_load_parts=3)
    assert _failed(run) == {}
    with writing(run.folder):
        RunWriter(run.folder, run.manifest).update(parts=())
    assert run_checks(open_run(run.folder)) == ()


@pytest.mark.fault(
    "loads of a dense layer, an unknown layer, segment or expert, and a negative count",
    how="a part with such a row",
    tries=5,
    outcome="exit 1, check, segment and layer named",
)
@pytest.mark.parametrize(
    ("loads", "first"),
    [
        ({(0, 2): [4, 2, 1, 1]}, "segment_id=0 layer=2 num_strays=0 least_routed_rows=1"),
        ({(0, 0): [0, 0, 0, 0]}, "segment_id=0 layer=0 num_strays=0 least_routed_rows=0"),  # a dense layer as zero rows
        ({(3, 1): [4, 2, 1, 1]}, "segment_id=3 layer=1 num_strays=0 least_routed_rows=1"),
        ({(0, 1): [4, 4, 1, -1]}, "segment_id=0 layer=1 num_strays=0 least_routed_rows=-1"),
        ({(0, 1): [4, 2, 1, 1, 0]}, "segment_id=0 layer=1 num_strays=1 least_routed_rows=0"),
    ],
    ids=["layer", "dense layer", "segment", "negative", "expert"],
)
def test_loads_name_what_the_model_and_the_tree_have(tmp_path, loads, first):
    assert _failed(_run_with(tmp_path / "run", loads=loads, content_hash_text=sha("none")))["loads_in_range"] == first


def test_a_negative_expert_is_no_expert(tmp_path):
    run = _run_with(tmp_path / "run")
    experts = [-1, *run.read("loads")["expert"].to_pylist()[1:]]
    failed = _failed(_replace(run, "loads", expert=experts))
    assert failed["loads_in_range"] == "segment_id=0 layer=1 num_strays=1 least_routed_rows=1"
    assert failed["loads_dense"] == "segment_id=0 layer=1 num_experts=3 expected_num_experts=4"


@pytest.mark.fault(
    "more rows on an expert than there are tokens",
    how="a part that gives one expert 5 rows of 4 tokens",
    tries=1,
    outcome="exit 1, check, segment and layer named",
)
def test_an_expert_gets_a_token_at_most_once(tmp_path):
    failed = _failed(_run_with(tmp_path / "run", loads={(0, 1): [5, 1, 1, 1]}))
    assert failed == {"loads_within_tokens": "segment_id=0 layer=1 most_routed_rows=5 num_tokens=4"}


@pytest.mark.fault(
    "segments, trajectories or paths that contradict each other",
    how="one column of one table replaced",
    tries=15,
    outcome="exit 1, the check named",
)
@pytest.mark.parametrize(
    ("table", "columns", "check"),
    [
        ("segments", {"segment_id": [0, 1, 1]}, "segments_numbered"),
        ("segments", {"segment_hash": [sha("a"), sha("b"), sha("b")]}, "segments_numbered"),
        ("segments", {"num_tokens": [4, 2, 0]}, "segments_numbered"),
        ("segments", {"first_position": [0, 4, 5]}, "segments_follow_parents"),
        ("segments", {"parent_segment_id": [None, 0, 9]}, "segments_follow_parents"),
        ("segments", {"parent_segment_id": [None, 0, None]}, "segments_follow_parents"),
        ("trajectories", {"trajectory_id": [0, 2]}, "trajectories_numbered"),
        ("trajectories", {"trajectory_hash": [sha("a"), sha("a")]}, "trajectories_numbered"),
        ("trajectories", {"num_tokens": [6, 8]}, "trajectory_tokens"),
        ("paths", {"position": [0, 1, 0, 2]}, "paths_follow_parents"),
        ("paths", {"position": [0, 1, 0, 0]}, "paths_follow_parents"),
        ("paths", {"segment_id": [0, 1, 0, 7]}, "paths_follow_parents"),
        ("paths", {"segment_id": [0, 1, 1, 2]}, "paths_follow_parents"),
        ("paths", {"trajectory_id": [0, 0, 5, 5]}, "paths_follow_parents"),
        ("paths", {"segment_id": [0, 1, 0, 1]}, "segments_used"),
    ],
)
def test_a_tree_that_contradicts_itself_is_found(tmp_path, table, columns, check):
    run = _replace(_run_with(tmp_path / "run"), table, **columns)
    assert check in _failed(run)
    with pytest.raises(CheckFailedError):
        require_checks(run)
