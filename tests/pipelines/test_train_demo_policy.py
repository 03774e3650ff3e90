"""Training the demo policy: the split, the losses it is judged by, and that a seed gives the same weights again."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from pipelines.demo_policy.model import balance_loss, demo_config, entropies, routed_rows  # noqa: E402
from pipelines.demo_policy.text import first_turn_tokens, is_held_out, split_texts, unigram_losses  # noqa: E402
from pipelines.train_demo_policy import Plan, curve_windows, learning_rate, sample_windows, train_demo  # noqa: E402
from routing.core.errors import InputError  # noqa: E402

SHOP = Path(__file__).resolve().parents[2] / "data" / "demo" / "trajectories" / "shop.jsonl"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
END = 2  # the id of <|im_end|>


def short_rows(folder: Path, *, num_tasks: int) -> Path:
    """The first turns after the policy of every attempt at some simulated tasks, without tools."""
    rows = [json.loads(line) for line in SHOP.read_text(encoding="utf-8").splitlines()]
    tasks = sorted({row["task_id"] for row in rows})[:num_tasks]
    kept = [row | {"messages": row["messages"][1:12], "tools": None} for row in rows if row["task_id"] in tasks]
    path = folder / "short.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    return path


def test_the_unigram_model_counts_train_tokens_and_leaves_out_what_nothing_predicts():
    train, held_out = [np.array([0, 0, 1, END])], [np.array([1, 0, END, 1])]
    # counts + 1: 3, 2, 2 of 7; the first held-out token has nothing before it, the last alone lies after the first turn
    expected = -(math.log(3 / 7) + 2 * math.log(2 / 7)) / 3
    assert unigram_losses(train, held_out, 3) == pytest.approx((expected, -math.log(2 / 7)))


def test_the_first_turn_ends_with_its_end_mark():
    assert first_turn_tokens(np.array([1, 9, END, 1, 9, END])) == 3
    assert first_turn_tokens(np.array([1, 9])) == 0


def test_the_balance_loss_is_one_a_layer_when_even_and_the_number_of_experts_when_one_takes_all():
    even = (torch.zeros(4, 4), torch.tensor([[0, 1], [2, 3], [0, 1], [2, 3]]))
    one_takes_all = (torch.tensor([[100.0, 0, 0, 0]] * 2), torch.tensor([[0], [0]]))
    assert balance_loss([even]).item() == pytest.approx(1.0)
    assert balance_loss([even, one_takes_all]).item() == pytest.approx(1.0 + 4.0)


def test_two_uneven_layers_are_not_even_together():
    first, second = torch.tensor([[9.0, 9, 0, 0]]), torch.tensor([[0.0, 0, 9, 9]])
    pooled_even = [(first, torch.tensor([[0, 1]])), (second, torch.tensor([[2, 3]]))]
    assert balance_loss(pooled_even).item() == pytest.approx(4.0, rel=1e-3)  # 2.0 a layer


def test_entropy_is_the_logarithm_of_the_experts_that_share_evenly():
    routers = [(torch.zeros(2, 4), torch.tensor([[0, 1], [2, 3]])), (torch.zeros(2, 4), torch.tensor([[0, 1], [0, 1]]))]
    assert routed_rows(routers).tolist() == [[1, 1, 1, 1], [2, 2, 0, 0]]
    assert entropies(routed_rows(routers)) == pytest.approx([math.log(4), math.log(2)])


def test_a_window_lies_in_one_trajectory_and_starts_of_trajectories_are_seen():
    stream, offsets = torch.arange(30), torch.tensor([0, 10, 30])
    windows = sample_windows(stream, offsets, 500, 4, torch.Generator().manual_seed(1))
    starts = set(windows[:, 0].tolist())
    assert starts == set(range(0, 7)) | set(range(10, 27))  # the last window of four begins at 10 - 4, or at 30 - 4
    assert all(window.tolist() == list(range(window[0], window[0] + 4)) for window in windows)


def test_a_trajectory_shorter_than_the_window_is_read_from_its_start():
    stream, offsets = torch.arange(40), torch.tensor([0, 3, 6, 40])
    windows = sample_windows(stream, offsets, 200, 8, torch.Generator().manual_seed(1))
    assert {0, 3} <= set(windows[:, 0].tolist())
    assert not {1, 2, 4, 5} & set(windows[:, 0].tolist())


def test_the_learning_rate_rises_then_falls_to_a_twentieth():
    plan = Plan(steps=100, peak_learning_rate=1.0)
    rates = [learning_rate(step, plan) for step in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0.05 < rates[-1] < 0.06


def test_a_unit_is_held_out_or_trained_on_with_all_its_attempts(tmp_path):
    train, held_out = split_texts([short_rows(tmp_path, num_tasks=12)], TEMPLATE, held_out_tenths=5)
    assert not train.keys() & held_out.keys()
    assert len(train) + len(held_out) == 12
    assert all(unit.startswith("shop/") and is_held_out(unit, 5) for unit in held_out)


def test_a_split_without_a_held_out_unit_is_refused(tmp_path):
    with pytest.raises(InputError, match="no unit is held out"):
        split_texts([short_rows(tmp_path, num_tasks=3)], TEMPLATE, held_out_tenths=0)


def test_corpora_without_a_long_held_out_trajectory_have_no_curve():
    with pytest.raises(InputError, match="curve"):
        curve_windows([np.arange(5)], Plan(curve_window_tokens=8))


@pytest.fixture
def _torch_settings_kept():
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_torch_settings_kept")
def test_a_seed_gives_the_same_weights_and_report_and_another_seed_others(tmp_path):
    plan = Plan(
        steps=6,
        threads=1,
        windows=2,
        window_tokens=64,
        long_windows=1,
        long_window_tokens=128,
        held_out_tenths=4,
        curve_every=3,
        curve_windows=2,
        curve_window_tokens=32,
    )
    corpus = short_rows(tmp_path, num_tasks=8)
    reports = []
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        config = demo_config(vocab_size=320)
        config.num_hidden_layers, config.layer_types = 2, ["linear_attention", "full_attention"]
        config.num_experts, config.num_experts_per_tok, config.hidden_size = 8, 2, 32
        asked = Plan(**{field: getattr(plan, field) for field in plan.__dataclass_fields__} | {"seed": seed})
        reports.append(train_demo([corpus], tmp_path / name, config=config, plan=asked))
        reports[-1].pop("elapsed_s")
    first, again, other = reports
    assert first == again
    assert [row["step"] for row in first["curve"]] == [3, 6]
    assert first["nats_per_held_out_token"]["after"] < first["nats_per_held_out_token"]["before"]
    assert first["weights"][0]["sha256"] != first["weights"][1]["sha256"]
    assert {entry["sha256"] for entry in first["weights"]}.isdisjoint(entry["sha256"] for entry in other["weights"])
