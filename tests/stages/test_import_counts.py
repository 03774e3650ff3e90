"""Counts that others publish or dump become runs whose answers NumPy gives too; what can't be true is named."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file

from routing.core.errors import CheckFailedError, InputError
from routing.query.checks import require_checks
from routing.query.imbalance import imbalance_rows
from routing.stages.import_counts import CountsRequest, import_counts
from routing.store.run import open_run
from tests.policies import tiny_config

LAYERS, NUM_EXPERTS, TOP_K, NUM_TOKENS = (0, 7, 15), 64, 8, 500


@pytest.fixture(scope="module")
def public_counts():
    """[units, layers, experts] as a router of 64 experts, top-8, gives them; three of sixteen layers, as public files hold."""
    draw = np.random.default_rng(5)
    liking = draw.gumbel(size=(1, len(LAYERS), 1, NUM_EXPERTS))
    chosen = np.argsort(-(liking + draw.gumbel(size=(4, len(LAYERS), NUM_TOKENS, NUM_EXPERTS))), axis=-1)[..., :TOP_K]
    return np.stack([[np.bincount(layer.ravel(), minlength=NUM_EXPERTS) for layer in unit] for unit in chosen])


def rows_of(counts, layers=LAYERS, **more):
    return [
        {"unit": f"u{unit}", "layer": layer, "expert": expert, "routed_rows": int(counts[unit, place, expert]), **more}
        for unit in range(len(counts))
        for place, layer in enumerate(layers)
        for expert in range(counts.shape[2])
    ]


def write_csv(path, rows):
    path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    return path


@pytest.fixture
def take(tmp_path):
    def call(*files, out="run", **changes):
        values = {"num_tokens": NUM_TOKENS, "top_k": TOP_K, "num_experts": None, "model": None, "label": None, "engine": None}
        request = CountsRequest(files=files, out=tmp_path / out, command=("test",), **{**values, **changes})
        return import_counts(request, lambda _: None), open_run(tmp_path / out)

    return call


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_imbalances_agree_with_numpy_to_the_last_digit(kind, public_counts, take, tmp_path):
    path = tmp_path / f"counts.{kind}"
    if kind == "csv":
        write_csv(path, rows_of(public_counts))
    else:
        pq.write_table(pa.Table.from_pylist(rows_of(public_counts)), path)
    result, run = take(path)
    require_checks(run)
    assert (result.origin, result.layers, result.experts, result.missing_layers) == ("recorded", 3, 64, None)
    assert {"tokens", "prefixes", "layers of the model"} <= set(result.unknown)
    rows, cautions = imbalance_rows(run, eps=(2, 4, 8, 16), batch_sizes=(NUM_TOKENS, 2 * NUM_TOKENS))
    for row in rows:
        ep, units = row["ep"], row["batch_tokens"] // NUM_TOKENS
        batches = public_counts.reshape(4 // units, units, 3, NUM_EXPERTS).sum(1)
        ranks = batches.reshape(len(batches), 3, ep, -1).sum(-1)
        ratios = ranks.max(-1) * ep / ranks.sum(-1)
        assert row["worst_imbalance"] == ratios.max()
        batch, place = np.argwhere(ratios == ratios.max())[0]
        assert (row["worst_batch"], row["worst_layer"]) == (batch, LAYERS[place])
    assert [one.code for one in cautions][:2] == ["recorded", "layers_unknown"]


def test_a_model_says_which_layers_are_missing(take, tmp_path):
    tiny_config().save_pretrained(tmp_path / "model")  # layers 0 to 3, 8 experts, top-2
    counts = np.array([[[3, 2, 1, 0, 0, 0, 0, 0], [0, 0, 3, 0, 0, 1, 1, 1]]])
    path = write_csv(tmp_path / "counts.csv", rows_of(counts, layers=(1, 3), num_tokens=3))
    result, run = take(path, num_tokens=None, top_k=None, model=tmp_path / "model")
    assert result.missing_layers == (0, 2)
    assert run.manifest.shape.hidden_size == 32
    (_, caution, *_) = imbalance_rows(run, eps=(2,), batch_sizes=(3,))[1]
    assert caution.message == "run: worst of 2 of 4 MoE layers; not recorded: 0, 2"
    for flags, said in (({"top_k": 3}, "--top-k: 3"), ({"num_experts": 9, "top_k": None}, "--num-experts: 9")):
        with pytest.raises(InputError, match=said):
            take(path, out="other", num_tokens=None, model=tmp_path / "model", **flags)


# One unit of 4 tokens, top-2, layers 0 and 1, 4 experts.
GOOD = np.array([[[4, 2, 1, 1], [2, 2, 2, 2]]])


def altered(place, row):
    counts = GOOD.copy()
    counts[0, place] = row
    return counts


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (altered(1, [2, 2, 2, 1]), "unit 'u0', layer 1: 7 routed rows, 4 tokens x top-2 are 8"),
        (altered(1, [0, 0, 0, 0]), "nothing was recorded here"),
        (altered(1, [3, 1, 1, 1]), "one token less: the last one is missing"),
        (altered(1, [4, 4, 2, 2]), "a shared expert is counted"),
        (altered(1, [4, 4, 4, 4]), "2 times as many: counted by as many ranks"),
        (altered(1, [5, 1, 1, 1]), "8 routed rows, 4 tokens x top-2 are 8, at most 4 an expert"),
    ],
)
def test_counts_that_can_not_be_true_are_named_with_the_likely_fault(counts, said, take, tmp_path):
    path = write_csv(tmp_path / "counts.csv", rows_of(counts, layers=(0, 1)))
    with pytest.raises(CheckFailedError) as caught:
        take(path, num_tokens=4, top_k=2)
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "flags", "said"),
    [
        (lambda rows: rows.append(dict(rows[0])), {}, "expert 0): given twice"),
        (lambda rows: rows.pop(), {}, "--num-experts"),
        (lambda rows: rows[0].update(routed_rows=-1), {}, "negative"),
        (lambda rows: rows[0].update(routed_rows=1.5), {}, "no table of counts"),
        (lambda rows: rows[0].update(expert=9), {"num_experts": 4}, "expert 9 is beyond 4 experts"),
        (lambda rows: [row.pop("expert") for row in rows], {}, "no column expert"),
        (lambda rows: None, {"num_tokens": None}, "--num-tokens N, or a column"),
        (lambda rows: None, {"top_k": None}, "--top-k K"),
        (lambda rows: [row.update(num_tokens=4) for row in rows], {}, "leave --num-tokens out"),
        (lambda rows: [row.update(num_tokens=4 + row["layer"]) for row in rows], {"num_tokens": None}, "differs within the unit"),
    ],
)
def test_a_table_that_leaves_something_open_is_refused(change, flags, said, take, tmp_path):
    rows = rows_of(GOOD, layers=(0, 1))
    change(rows)
    path = write_csv(tmp_path / "counts.csv", rows)
    with pytest.raises(InputError) as caught:
        take(path, **{"num_tokens": 4, "top_k": 2, **flags})
    assert said in str(caught.value)


def test_experts_without_a_row_have_none_where_the_sum_proves_it(take, tmp_path):
    rows = [row for row in rows_of(altered(0, [4, 4, 0, 0]), layers=(0, 1)) if row["routed_rows"]]
    _, run = take(write_csv(tmp_path / "counts.csv", rows), num_tokens=4, top_k=2, num_experts=4)
    assert run.read("loads")["routed_rows"].to_pylist() == [4, 4, 0, 0, 2, 2, 2, 2]


def test_layers_that_hold_the_same_counts_everywhere_are_one_layer_recorded_twice(public_counts, take, tmp_path):
    path = write_csv(tmp_path / "counts.csv", rows_of(public_counts[:, [0, 1, 0]]))
    with pytest.raises(CheckFailedError, match="layers 0 and 15 hold the same experts"):
        take(path)


def sglang_dump(path, counts):
    torch.save({"rank": 0, "logical_count": torch.tensor(counts), "average_utilization_rate_over_window": None}, path)
    return path


def test_a_dump_of_sglang_has_a_unit_for_each_step_and_no_dense_or_idle_one(take, tmp_path):
    # [steps, layers, experts], top-2: layer 0 is dense, step 1 idle, steps 0 and 2 are of 4 and 2 tokens
    counts = np.zeros((3, 3, 4), dtype=np.int64)
    counts[0, 1:], counts[2, 1:] = [[4, 2, 1, 1], [2, 2, 2, 2]], [[1, 1, 2, 0], [0, 2, 0, 2]]
    result, run = take(sglang_dump(tmp_path / "recorder.pt", counts), num_tokens=None, top_k=2)
    assert run.read("trajectories")["num_tokens"].to_pylist() == [4, 2]
    assert run.manifest.shape.moe_layers == (1, 2)
    assert result.repairs == {"dense_layers_dropped": 1, "empty_units_dropped": 1}
    assert run.read("loads")["routed_rows"].to_pylist() == [4, 2, 1, 1, 2, 2, 2, 2, 1, 1, 2, 0, 0, 2, 0, 2]
    counts[2, 2, 1] = 1
    with pytest.raises(CheckFailedError, match="step 2, layer 2: 3 routed rows, layer 1 has 4"):
        take(sglang_dump(tmp_path / "bad.pt", counts), out="other", num_tokens=None, top_k=2)


class Runs:
    """What a pickle can make happen."""

    def __reduce__(self):
        return (print, ("run by a pickle",))


@pytest.mark.fault(
    "a recorder's dump that is a pickle of more than tensors",
    how="one that would print when loaded",
    tries=1,
    outcome="refused; nothing ran",
)
def test_a_pickle_of_more_than_tensors_is_not_loaded(take, tmp_path, capsys):
    torch.save({"logical_count": Runs()}, tmp_path / "recorder.pt")
    with pytest.raises(InputError, match="such could run code and is not loaded"):
        take(tmp_path / "recorder.pt", num_tokens=None)
    assert capsys.readouterr().out == ""


def trtllm_dump(folder, *ranks):
    folder.mkdir()
    (folder / "meta_info.json").write_text(json.dumps({"num_experts": 4, "num_experts_per_token": 2}))
    for rank, counts in enumerate(ranks):
        save_file({key: np.array(value) for key, value in counts.items()}, folder / f"rank{rank}.safetensors")
    return folder


def test_a_statistic_of_tensorrt_llm_is_summed_over_ranks(take, tmp_path):
    one = {"100_3": [1, 1, 0, 0], "100_4": [0, 0, 1, 1], "101_3": [1, 0, 1, 0], "101_4": [0, 1, 0, 1]}
    two = {"100_3": [2, 1, 1, 0], "100_4": [2, 2, 0, 0], "101_3": [0, 1, 1, 0], "101_4": [1, 0, 0, 1]}
    result, run = take(trtllm_dump(tmp_path / "stat", one, two), num_tokens=None, top_k=None)
    assert (result.layers, result.top_k) == (2, 2)
    assert run.read("trajectories")["num_tokens"].to_pylist() == [3, 2]
    assert run.read("loads")["routed_rows"].to_pylist() == [3, 2, 1, 0, 2, 2, 1, 1, 1, 1, 2, 0, 1, 1, 0, 2]
    with pytest.raises(CheckFailedError, match="all 2 ranks hold the same counts"):
        take(trtllm_dump(tmp_path / "alike", one, one), out="other", num_tokens=None, top_k=None)
