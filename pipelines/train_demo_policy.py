"""Trains the demo policy on the retail trajectories and writes it beside itself as it was before training.

    python -m pipelines.train_demo_policy TRAJECTORIES/tau*_retail_*.json --out data/demo

Writes OUT/policy-untrained and OUT/policy (config, BF16 safetensors, tokenizer with the chat template beside this script) and
OUT/policy/training.json (curve, split, held-out losses, expert entropies). The same seed, files, thread count, versions and
kind of processor give the same weights. No trajectory text is written: weights and byte-pair merges only.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import __version__ as tokenizers_version
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
from transformers import __version__ as transformers_version

from pipelines.demo_policy.model import (
    balance_loss,
    demo_config,
    entropies,
    evaluate,
    next_token_losses,
    round_to_bf16,
    routed_rows,
    router_outputs,
    save_policy,
)
from pipelines.demo_policy.text import CHAT_TEMPLATE, Ids, encode, split_texts, train_tokenizer, unigram_losses
from routing.core.errors import InputError, RoutingError


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How the policy is trained. The last `long_share` of the steps see long windows, since trajectories are long."""

    steps: int = 300
    seed: int = 20260101
    threads: int = 1
    windows: int = 8
    window_tokens: int = 512
    long_windows: int = 2
    long_window_tokens: int = 4096
    long_share: float = 0.1
    peak_learning_rate: float = 6e-3
    weight_decay: float = 0.1
    balance_coefficient: float = 0.001  # router_aux_loss_coef of the Qwen MoE models
    held_out_tenths: int = 1
    curve_every: int = 20
    curve_windows: int = 16
    curve_window_tokens: int = 1024


def sample_windows(
    stream: torch.Tensor, offsets: torch.Tensor, num_windows: int, window_tokens: int, generator: torch.Generator
) -> torch.Tensor:
    """[num_windows, window_tokens] cut from the stream; a draw near a trajectory's start begins the window at its first token.

    `offsets` holds where each trajectory begins, and the stream's length last. A window longer than its trajectory goes on
    into the next one.
    """
    draws = torch.randint(len(stream), (num_windows,), generator=generator)
    index = torch.searchsorted(offsets, draws, right=True) - 1
    latest = torch.maximum(offsets[index], offsets[index + 1] - window_tokens)
    starts = torch.clamp(draws - window_tokens // 2, offsets[index], latest).clamp(max=len(stream) - window_tokens)
    return torch.stack([stream[start : start + window_tokens] for start in starts.tolist()])


def learning_rate(step: int, plan: Plan) -> float:
    """Linear warm-up over the first 5% of the steps, then a cosine down to a twentieth of the peak."""
    warm_up = max(1, plan.steps // 20)
    if step < warm_up:
        return plan.peak_learning_rate * (step + 1) / warm_up
    done = (step - warm_up) / max(1, plan.steps - warm_up)
    return plan.peak_learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def make_optimizer(model: Qwen3_5MoeForCausalLM, plan: Plan) -> torch.optim.Optimizer:
    """AdamW; vectors (norms, decay rates, biases) are not decayed."""
    weights = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": plan.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=plan.peak_learning_rate, betas=(0.9, 0.95), fused=True)


def train(
    model: Qwen3_5MoeForCausalLM, train_ids: Sequence[Ids], curve_windows_BT: torch.Tensor, plan: Plan
) -> list[dict[str, float]]:
    """Trains in place and returns the curve.

    Its rows are step, tokens, train_loss (mean since the last row), held_out_loss (on `curve_windows_BT`) and
    lowest_expert_entropy (of the least even layer, there), in nats.
    """
    stream = torch.from_numpy(np.concatenate(train_ids))
    offsets = torch.tensor([0, *np.cumsum([len(ids) for ids in train_ids])])
    generator = torch.Generator().manual_seed(plan.seed)
    optimizer = make_optimizer(model, plan)
    curve: list[dict[str, float]] = []
    since: list[float] = []
    tokens, started = 0, time.monotonic()
    for step in range(plan.steps):
        is_long = step >= plan.steps * (1 - plan.long_share)
        shape = (plan.long_windows, plan.long_window_tokens) if is_long else (plan.windows, plan.window_tokens)
        windows_BT = sample_windows(stream, offsets, *shape, generator)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, plan)
        with router_outputs(model) as routers:
            loss = next_token_losses(model, windows_BT).mean()
            (loss + plan.balance_coefficient * balance_loss(routers)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += windows_BT.numel()
        since.append(loss.item())
        if (step + 1) % plan.curve_every == 0 or step + 1 == plan.steps:
            with torch.no_grad(), router_outputs(model) as routers:
                held_out = next_token_losses(model, curve_windows_BT).mean().item()
                lowest = min(entropies(routed_rows(routers)))
            row = {"step": step + 1, "tokens": tokens, "train_loss": sum(since) / len(since), "held_out_loss": held_out}
            curve.append(row | {"lowest_expert_entropy": lowest})
            since.clear()
            rate = tokens / (time.monotonic() - started)
            print(f"{json.dumps(curve[-1])} {rate:.0f} tokens/s", file=sys.stderr, flush=True)
    return curve


def curve_windows(held_out: Sequence[Ids], plan: Plan) -> torch.Tensor:
    """[windows, tokens] from the middle of held-out trajectories spread over the files."""
    long_enough = [ids for ids in held_out if len(ids) > 2 * plan.curve_window_tokens]
    if not long_enough:
        raise InputError(f"no held-out trajectory has {2 * plan.curve_window_tokens} tokens, so there is no curve to draw")
    every = max(1, len(long_enough) // plan.curve_windows)
    chosen = long_enough[::every][: plan.curve_windows]
    return torch.stack([torch.from_numpy(ids[len(ids) // 2 :][: plan.curve_window_tokens]) for ids in chosen])


def train_demo(paths: Sequence[Path], out: Path, *, config: Qwen3_5MoeTextConfig, plan: Plan) -> dict[str, Any]:
    """Trains, writes both policies under `out` and returns the report that it also writes."""
    started = time.monotonic()
    torch.set_num_threads(plan.threads)
    torch.use_deterministic_algorithms(True)
    template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    train_texts, held_out_texts = split_texts(paths, template, plan.held_out_tenths)
    tokenizer = train_tokenizer([text for texts in train_texts.values() for text in texts], template, config.vocab_size)
    train_ids, held_out_ids = (
        encode(tokenizer, [text for texts in part.values() for text in texts]) for part in (train_texts, held_out_texts)
    )
    unigram_loss, unigram_loss_after = unigram_losses(train_ids, held_out_ids, config.vocab_size)

    torch.manual_seed(plan.seed)
    config._experts_implementation = "grouped_mm"  # the eager loop over experts is half as fast
    model = Qwen3_5MoeForCausalLM(config)
    round_to_bf16(model)
    save_policy(model, tokenizer, out / "policy-untrained")
    before = evaluate(model, held_out_ids)
    curve = train(model, train_ids, curve_windows(held_out_ids, plan), plan)
    round_to_bf16(model)
    save_policy(model, tokenizer, out / "policy")
    after = evaluate(model, held_out_ids)

    report = {
        "source_files": [describe_file(path) for path in paths],
        "plan": asdict(plan),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "split": {
            "rule": f"a unit is held out where int(sha256(unit)[:8], big-endian) % 10 < {plan.held_out_tenths}",
            "train_units": len(train_texts),
            "train_trajectories": len(train_ids),
            "train_tokens": sum(map(len, train_ids)),
            "held_out_units": sorted(held_out_texts),
            "held_out_trajectories": len(held_out_ids),
            "held_out_tokens": sum(map(len, held_out_ids)),
        },
        "tokens_trained_on": curve[-1]["tokens"],
        "nats_per_held_out_token": {
            "unigram": unigram_loss,
            "before": before.loss,
            "after": after.loss,
            "after_over_unigram": after.loss / unigram_loss,
        },
        "nats_per_held_out_token_after_the_first_turn": {
            "unigram": unigram_loss_after,
            "before": before.loss_after_first_turn,
            "after": after.loss_after_first_turn,
            "after_over_unigram": after.loss_after_first_turn / unigram_loss_after,
        },
        "expert_entropy_nats_by_layer": {
            "even": math.log(config.num_experts),
            "before": entropies(before.routed_rows_LE),
            "after": entropies(after.routed_rows_LE),
        },
        "curve": curve,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers_version,
            "tokenizers": tokenizers_version,
        },
        "weights": [describe_file(out / name / "model.safetensors") for name in ("policy-untrained", "policy")],
        "elapsed_s": round(time.monotonic() - started, 1),
    }
    target = out / "policy" / "training.json"
    temporary = target.with_name("training.json.tmp")
    temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, target)
    return report


def describe_file(path: Path) -> dict[str, Any]:
    """Name with its folder, size and sha256."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"file": f"{path.parent.name}/{path.name}", "bytes": path.stat().st_size, "sha256": digest}


def main() -> int:
    """Trains on the files given; the report's main figures go to stdout."""
    parser = argparse.ArgumentParser(description="Train the demo policy on retail trajectories.")
    parser.add_argument("trajectories", nargs="+", type=Path, help="trajectory files, in any format that `routing measure` reads")
    parser.add_argument("--out", type=Path, default=Path("data/demo"), help="where policy/ and policy-untrained/ are written")
    parser.add_argument("--steps", type=int, default=Plan().steps)
    parser.add_argument("--seed", type=int, default=Plan().seed)
    parser.add_argument("--threads", type=int, default=Plan().threads)
    asked = parser.parse_args()
    plan = replace(Plan(), steps=asked.steps, seed=asked.seed, threads=asked.threads)
    try:
        report = train_demo(asked.trajectories, asked.out, config=demo_config(), plan=plan)
    except RoutingError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps({key: value for key, value in report.items() if key != "curve"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
