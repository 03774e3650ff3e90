"""Importing the routes that a measured run would have counted gives that run, whatever kind of file they lie in."""

import inspect
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file

from routing.core.errors import CheckFailedError, InputError
from routing.query.checks import require_checks
from routing.recorded.routes import AskedRepairs
from routing.stages.begin import MeasureRequest
from routing.stages.import_routes import RoutesRequest, import_routes
from routing.stages.measure import measure
from routing.store.content import require_content
from routing.store.run import RunWriter, open_run, require_finished
from tests.stages.conftest import Listener

NUM_ROWS = 24


@pytest.fixture(scope="module")
def recorded_rows(policy_folder, corpus_file):
    """The corpus with the ids that the model handed its experts, taken by hooks of this test and nothing of ours."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32).eval()
    taken = []

    def keep(module, args, kwargs):
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        taken.append(bound["top_k_index"].numpy())

    experts = [one for one in model.modules() if "top_k_index" in inspect.signature(one.forward).parameters]
    for one in experts:
        one.register_forward_pre_hook(keep, with_kwargs=True)
    rows = []
    with torch.inference_mode():
        for line in corpus_file.read_text().splitlines():
            row = json.loads(line)
            taken.clear()
            model(input_ids=torch.tensor([row["input_ids"]]), use_cache=False)
            rows.append({**row, "routed_experts": np.stack(taken, axis=1).astype(np.uint8)})
    return rows


@pytest.fixture(scope="module")
def measured_manifest(policy_folder, corpus_file, tmp_path_factory):
    """The manifest of the same corpus measured by forward passes."""
    out = tmp_path_factory.mktemp("measured") / "measured"
    request = MeasureRequest(
        policy=str(policy_folder),
        corpus=(corpus_file,),
        out=out,
        label=None,
        tokenizer=None,
        format=None,
        domain=None,
        segment_tokens=32,
        max_tokens=None,
        device="cpu",
        dtype="auto",
        on_bad_line="stop",
        command=("test",),
    )
    measure(request, Listener())
    return open_run(out).manifest


@pytest.fixture
def take(policy_folder, tmp_path):
    """Imports files into a run of the test's folder."""

    def call(*files, out="run", layers=None, skip_bad=False, **flags):
        asked = {"drop_last": False, "fill_prefixes": False, "drop_shared_expert": False, **flags}
        request = RoutesRequest(
            files=files,
            model=policy_folder / "config.json",
            out=tmp_path / out,
            label=None,
            engine="a test",
            domain=None,
            segment_tokens=32,
            asked=AskedRepairs(layers=layers, **asked),
            skip_bad=skip_bad,
            command=("test",),
        )
        result = import_routes(request, lambda _: None)
        return result, open_run(tmp_path / out)

    return call


def as_json(rows, path):
    path.write_text("".join(json.dumps({**row, "routed_experts": row["routed_experts"].tolist()}) + "\n" for row in rows))


def as_parquet(rows, path):
    columns = {
        "input_ids": pa.array([row["input_ids"] for row in rows], pa.list_(pa.int32())),
        "routed_experts": pa.array([row["routed_experts"].tolist() for row in rows], pa.list_(pa.list_(pa.list_(pa.uint8())))),
        "task_id": [row["task_id"] for row in rows],
        "domain": [row["domain"] for row in rows],
    }
    pq.write_table(pa.table(columns), path)


def as_art(rows, path):
    """A group of each row, the whole of it sampled after one token, and a group without trajectories."""
    trajectories = []
    for row in rows:
        choice = {
            "message": {"role": "assistant", "content": ""},
            "prompt_token_ids": row["input_ids"][:1],
            "completion_token_ids": row["input_ids"][1:],
            "routed_experts": row["routed_experts"].tolist(),
        }
        trajectory = {"messages_and_choices": [choice], "task_id": row["task_id"], "domain": row["domain"]}
        trajectories.append(json.dumps(trajectory))
    texts = [*trajectories, None]
    columns = {"format_version": [2] * len(texts), "group_index": range(len(texts)), "trajectory_json": texts}
    pq.write_table(pa.table({**columns, "messages": pa.nulls(len(texts))}), path)


def end_to_end(rows):
    return {
        "input_ids": np.concatenate([np.array(row["input_ids"], np.int32) for row in rows]),
        "routed_experts": np.concatenate([row["routed_experts"] for row in rows]),
        "lengths": np.array([len(row["input_ids"]) for row in rows]),
    }


def padded(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids, mask = (np.zeros((len(rows), longest), np.int64) for _ in range(2))
    routes = np.zeros((len(rows), longest, *rows[0]["routed_experts"].shape[1:]), np.uint8)
    for place, row in enumerate(rows):
        size = len(row["input_ids"])
        # padded on the left, as rollouts are
        ids[place, -size:], mask[place, -size:], routes[place, -size:] = row["input_ids"], 1, row["routed_experts"]
    return {"input_ids": ids, "attention_mask": mask, "routed_experts": routes}


def named(rows):
    arrays = {}
    for place, row in enumerate(rows):
        arrays[f"{place:03d}.input_ids"] = np.array(row["input_ids"], np.int32)
        arrays[f"{place:03d}.routed_experts"] = row["routed_experts"]
    return arrays


WRITERS = {
    "rows.jsonl": as_json,
    "rows.parquet": as_parquet,
    "art-v2.parquet": as_art,
    "flat.npz": lambda rows, path: np.savez(path, **end_to_end(rows)),
    "padded.npz": lambda rows, path: np.savez(path, **padded(rows)),
    "padded.safetensors": lambda rows, path: save_file(padded(rows), path),
    "named.safetensors": lambda rows, path: save_file(named(rows), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_import_has_the_measured_content_hash(name, recorded_rows, measured_manifest, take, tmp_path):
    WRITERS[name](recorded_rows, tmp_path / name)
    result, run = take(tmp_path / name)
    require_content(run)
    assert run.manifest.content_hash == measured_manifest.content_hash
    assert run.manifest.shape == measured_manifest.shape
    assert (result.origin, result.trajectories, result.missing_layers, result.repairs) == ("recorded", NUM_ROWS, (), {})
    assert run.manifest.recording.engine == "a test"
    assert [(file.rows, file.kept, file.refused) for file in run.manifest.corpus.files] == [(NUM_ROWS, NUM_ROWS, 0)]


@pytest.mark.parametrize(
    ("version", "text", "what"),
    [(3, "{}", "row 0: 'format_version' is 3, not 2"), (2, "[1]", "row 0: 'trajectory_json' is no JSON object")],
)
def test_an_art_file_of_another_make_is_refused(take, tmp_path, version, text, what):
    pq.write_table(pa.table({"format_version": [version], "trajectory_json": [text]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"a\.parquet: {what}$"):
        take(tmp_path / "a.parquet")


def test_checks_units_and_prefixes_are_those_of_the_measured_run(recorded_rows, measured_manifest, take, tmp_path):
    as_json(recorded_rows, tmp_path / "rows.jsonl")
    _, run = take(tmp_path / "rows.jsonl")
    require_checks(run)
    assert run.manifest.corpus.tokens_packed == measured_manifest.corpus.tokens_packed
    assert set(run.read("trajectories")["unit"].to_pylist()) == {f"made/{task}" for task in range(6)}


def cached(rows, *, but):
    """The rows with zeros for their first 60 tokens, except those at `but`: a prefix cache held them."""
    found = []
    for place, row in enumerate(rows):
        routes = row["routed_experts"].copy()
        if place not in but:
            routes[:60] = 0
        found.append({**row, "routed_experts": routes})
    return found


def test_cached_prefixes_come_from_the_sequence_that_computed_them(recorded_rows, measured_manifest, take, tmp_path):
    as_json(cached(recorded_rows, but=range(6)), tmp_path / "cached.jsonl")  # one of each family
    with pytest.raises(CheckFailedError, match=r"cached.jsonl: row 6: no routes for the first 60 of \d+ tokens"):
        take(tmp_path / "cached.jsonl")
    result, run = take(tmp_path / "cached.jsonl", fill_prefixes=True)
    assert run.manifest.content_hash == measured_manifest.content_hash
    assert result.repairs == {"prefix_tokens_absent": 60 * (NUM_ROWS - 6)}


def test_a_cached_prefix_that_nobody_computed_is_a_fault(recorded_rows, take, tmp_path):
    as_json(cached(recorded_rows, but=range(1, 6)), tmp_path / "cached.jsonl")  # the family of row 0 has none
    with pytest.raises(CheckFailedError, match="row 0: no other sequence recorded the first 60 tokens"):
        take(tmp_path / "cached.jsonl", fill_prefixes=True)
    result, run = take(tmp_path / "cached.jsonl", fill_prefixes=True, skip_bad=True)
    assert (result.trajectories, result.refused) == (20, 4)
    assert {one.reason for one in run.manifest.corpus.refusals} == {"tokens_missing"}
    require_checks(run)


def test_a_fault_stops_the_import_or_is_left_out_and_counted(recorded_rows, take, tmp_path):
    rows = [dict(row) for row in recorded_rows[:4]]
    rows[2]["routed_experts"] = rows[2]["routed_experts"].copy()
    rows[2]["routed_experts"][3, 1] = 5
    as_json([*rows, rows[0]], tmp_path / "rows.jsonl")
    with pytest.raises(CheckFailedError, match=r"rows\.jsonl: row 2: token 3, layer 1: ids 5, 5, one expert twice"):
        take(tmp_path / "rows.jsonl")
    assert not (tmp_path / "run").exists()
    result, run = take(tmp_path / "rows.jsonl", skip_bad=True)
    assert (result.trajectories, result.refused) == (3, 2)
    assert [(one.source_row, one.reason) for one in run.manifest.corpus.refusals] == [(2, "expert_twice"), (4, "exact_repeat")]


def test_layers_that_are_not_in_the_file_are_said_to_be_missing(recorded_rows, take, tmp_path):
    rows = [{**row, "routed_experts": row["routed_experts"][:, [1, 3]]} for row in recorded_rows]
    as_json(rows, tmp_path / "rows.jsonl")
    result, run = take(tmp_path / "rows.jsonl", layers=(1, 3))
    require_checks(run)
    assert run.manifest.shape.moe_layers == (1, 3)
    assert result.missing_layers == (0, 2)


def test_one_layer_in_every_slot_is_refused(recorded_rows, take, tmp_path):
    rows = [{**row, "routed_experts": row["routed_experts"][:, [0, 1, 1, 3]]} for row in recorded_rows]
    as_json(rows, tmp_path / "rows.jsonl")
    with pytest.raises(CheckFailedError, match="layers 1 and 2 hold the same experts"):
        take(tmp_path / "rows.jsonl")


def test_shared_tokens_that_another_batch_routed_otherwise_are_counted(recorded_rows, measured_manifest, take, tmp_path):
    rows = [dict(row) for row in recorded_rows]
    routes = rows[6]["routed_experts"] = rows[6]["routed_experts"].copy()  # of the family of row 0
    routes[7, 2] = (routes[7, 2].astype(int).sum() + 1 + np.arange(2)) % 8
    if set(routes[7, 2]) == set(recorded_rows[6]["routed_experts"][7, 2]):
        routes[7, 2] = (routes[7, 2] + 3) % 8
    as_json(rows, tmp_path / "rows.jsonl")
    result, run = take(tmp_path / "rows.jsonl")
    assert result.repairs == {"shared_tokens_differ": 1}
    assert run.manifest.content_hash == measured_manifest.content_hash


def test_a_batch_without_a_mask_and_lengths_that_do_not_add_up_are_refused(recorded_rows, take, tmp_path):
    batch = padded(recorded_rows[:2])
    del batch["attention_mask"]
    np.savez(tmp_path / "batch.npz", **batch)
    flat = end_to_end(recorded_rows[:2])
    flat["lengths"][0] += 1
    np.savez(tmp_path / "flat.npz", **flat)
    negative = end_to_end(recorded_rows[:2])
    negative["lengths"] = np.array([len(negative["input_ids"]) + 5, -5])
    np.savez(tmp_path / "negative.npz", **negative)
    np.savez(tmp_path / "longer.npz", **end_to_end(recorded_rows[:2]), attention_mask=np.ones(10**4))
    np.savez(tmp_path / "objects.npz", routed_experts=np.array([{}], dtype=object))
    for name, said in (
        ("batch", "attention_mask"),
        ("flat", "lengths sum to"),
        ("negative", "lengths holds -5 at 1"),
        ("longer", r"attention_mask of shape \[10000\]"),
        ("objects", "no .npz of plain arrays"),
    ):
        with pytest.raises(InputError, match=said):
            take(tmp_path / f"{name}.npz")


def test_a_column_that_is_there_twice_is_refused(recorded_rows, take, tmp_path):
    as_parquet(recorded_rows[:1], tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    pq.write_table(table.append_column("routed_experts", table["routed_experts"]), tmp_path / "rows.parquet")
    with pytest.raises(InputError, match=r"rows\.parquet: has the column 'routed_experts' twice"):
        take(tmp_path / "rows.parquet")


@pytest.mark.parametrize("arrays", [padded, end_to_end])
@pytest.mark.parametrize(("key", "other"), [("routed_experts", "topk_ids"), ("input_ids", "tokens")])
def test_arrays_of_one_meaning_that_differ_are_refused(recorded_rows, take, tmp_path, arrays, key, other):
    held = arrays(recorded_rows[:2])
    np.savez(tmp_path / "two.npz", **held, **{other: held[key][::-1]})
    with pytest.raises(InputError, match=rf"two\.npz: {key} and {other} differ"):
        take(tmp_path / "two.npz")


@pytest.mark.parametrize("padding", [float("nan"), 2, -float("inf")])
def test_a_batch_whose_mask_is_no_mask_is_refused(recorded_rows, take, tmp_path, padding):
    batch = padded(recorded_rows[:2])
    mask = batch["attention_mask"].astype(float)
    mask[mask == 0] = padding
    np.savez(tmp_path / "batch.npz", **{**batch, "attention_mask": mask})
    with pytest.raises(CheckFailedError, match="zeros and ones"):
        take(tmp_path / "batch.npz")


def test_padding_of_one_sequence_and_of_sequences_end_to_end_is_no_token(recorded_rows, take, tmp_path):
    flat = end_to_end(recorded_rows[:2])
    mask = np.ones(len(flat["input_ids"]), int)
    mask[[0, 1, -1]] = 0
    np.savez(tmp_path / "flat.npz", **flat, attention_mask=mask)
    _, run = take(tmp_path / "flat.npz", out="flat")
    assert run.manifest.corpus.tokens_logical == len(mask) - 3
    first = recorded_rows[0]
    row = {**first, "attention_mask": [0, 0] + [1] * (len(first["input_ids"]) - 2)}
    as_json([row], tmp_path / "row.jsonl")
    _, run = take(tmp_path / "row.jsonl", out="row")
    assert run.manifest.corpus.tokens_logical == len(first["input_ids"]) - 2


def test_an_import_that_stops_leaves_nothing_to_query_and_begins_again(
    recorded_rows, measured_manifest, take, tmp_path, monkeypatch
):
    as_json(recorded_rows, tmp_path / "rows.jsonl")
    commit = RunWriter.commit

    def fail(self, table, index, *args, **options):
        if table == "loads":
            raise KeyboardInterrupt
        commit(self, table, index, *args, **options)

    monkeypatch.setattr(RunWriter, "commit", fail)
    with pytest.raises(KeyboardInterrupt):
        take(tmp_path / "rows.jsonl")
    with pytest.raises(InputError, match="unfinished, 0 of 1 parts; run the same routing import again"):
        require_finished(open_run(tmp_path / "run"))
    monkeypatch.undo()
    assert take(tmp_path / "rows.jsonl")[1].manifest.content_hash == measured_manifest.content_hash
    with pytest.raises(InputError, match="holds a finished run of recorded loads"):
        take(tmp_path / "rows.jsonl")
