"""`make bench`, the fit's part: processor time, wall time and peak memory of the two cases that a refresh must afford.

Made: one policy of 40 layers x 256 experts over 3.5M tokens of one stratum, EP 2/4/8 at three batch sizes, judged by halves.
Retail: `routing fit --per-layer` over both demo policies on the eight retail files, where their runs are there.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pipelines.timing import spent_by
from routing.core.allowance import Generated
from routing.core.batches import BATCH_SIZES
from routing.core.observed import MeasuredRun, ObservedWorsts
from routing.core.shapes import ModelShape
from routing.fit.counts import Counts
from routing.fit.recut import real_batches
from routing.fit.table import fit_runs

EPS = (2, 4, 8)
NUM_LAYERS, NUM_EXPERTS, TOP_K = 40, 256, 8
NUM_UNITS, TRAJECTORIES_A_UNIT, SEGMENTS, SEGMENT_TOKENS = 115, 7, 4, 1_085  # 115 x 7 x 4 x 1,085 = 3.49M
RETAIL = (Path("runs/retail-trained"), Path("runs/retail-untrained"))
LIMIT_MADE_S, LIMIT_RETAIL_S, LIMIT_RETAIL_GB = 60, 300, 4


def made_counts() -> Counts:
    """Trajectories behind one shared prompt; a unit leans to some blocks, a trajectory a little more (simulated)."""
    rng = np.random.default_rng(20261130)
    num_trajectories = NUM_UNITS * TRAJECTORIES_A_UNIT
    own = 1 + np.arange(num_trajectories * SEGMENTS).reshape(num_trajectories, SEGMENTS)
    segments = np.concatenate([np.zeros((num_trajectories, 1), dtype=np.int64), own], axis=1)
    leaning = rng.gamma(60, size=(NUM_UNITS, 1, max(EPS), NUM_LAYERS)) * rng.gamma(
        200, size=(NUM_UNITS, TRAJECTORIES_A_UNIT * SEGMENTS, max(EPS), NUM_LAYERS)
    )
    shares = np.concatenate([np.ones((1, max(EPS), NUM_LAYERS)), leaning.reshape(-1, max(EPS), NUM_LAYERS)])
    rows = SEGMENT_TOKENS * TOP_K
    loads = np.floor(rows * shares / shares.sum(axis=1, keepdims=True))
    loads[:, 0] += rows - loads.sum(axis=1)
    return Counts(
        trajectory_ids=np.repeat(np.arange(num_trajectories), 1 + SEGMENTS),
        segment_ids=segments.ravel(),
        num_tokens=np.full(segments.size, SEGMENT_TOKENS),
        units_T=np.repeat(np.arange(NUM_UNITS), TRAJECTORIES_A_UNIT),
        strata_T=np.zeros(num_trajectories, dtype=np.int64),
        unit_names=tuple(f"made/{unit}" for unit in range(NUM_UNITS)),
        stratum_names=("made",),
        layers=tuple(range(NUM_LAYERS)),
        loads_SBL=loads,
    )


def made_run(counts: Counts) -> MeasuredRun:
    """The run that these counts would be of."""
    batches = {size: real_batches(counts, batch_tokens=size, eps=EPS) for size in BATCH_SIZES}
    return MeasuredRun(
        run="made",
        label="simulated",
        policy="made/40x256",
        revision="made",
        weights_sha256="made",
        shape=ModelShape(
            num_layers=NUM_LAYERS,
            moe_layers=counts.layers,
            num_experts=NUM_EXPERTS,
            top_k=TOP_K,
            hidden_size=2048,
            expert_ffn_size=512,
        ),
        dtype="bfloat16",
        segment_tokens=SEGMENT_TOKENS,
        view="packed",
        order="corpus",
        content_hash="made",
        corpus_hash="made",
        is_finished=True,
        observed=tuple(
            ObservedWorsts(
                ep=ep,
                batch_tokens=size,
                num_tokens=size * found.num_batches,
                dropped_tokens=0,
                units=counts.units,
                worsts=found.worsts(ep),
                top_experts=(),
            )
            for ep in EPS
            for size, found in batches.items()
        ),
    )


def made_case() -> float:
    """Processor seconds of the fit with its judgement, from counts in memory."""
    counts = made_counts()
    run = made_run(counts)
    generated = Generated(tool_version="bench", tool_commit=None, generated_at="2026-01-01T00:00:00Z")
    began, clock = time.process_time(), time.perf_counter()
    table, _ = fit_runs([run], counts=[counts], model_name=run.policy, generated=generated)
    spent_s = time.process_time() - began
    print(
        f"fit, {counts.num_tokens_packed / 1e6:.2f}M tokens, {NUM_LAYERS} layers x {NUM_EXPERTS} experts, "
        f"{len(table.entries)} entries: {spent_s:.1f} s of processor time (limit {LIMIT_MADE_S} s), "
        f"{time.perf_counter() - clock:.1f} s by the clock"
    )
    return spent_s


def retail_case() -> tuple[float, float]:
    """(Processor seconds, peak GB) of `routing fit --per-layer` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "routing", "fit", *map(str, RETAIL), "--per-layer", "--out", f"{folder}/fit.yaml"]
        clock = time.perf_counter()
        spent = spent_by(command)
    if spent.exit_code:
        raise SystemExit(f"routing fit ended with {spent.exit_code}")
    spent_s, peak_gb = spent.processor_s, spent.peak_bytes / 1e9
    print(
        f"fit, eight-strata retail pair with every layer: {spent_s:.1f} s of processor time (limit {LIMIT_RETAIL_S} s), "
        f"{time.perf_counter() - clock:.1f} s by the clock, peak {peak_gb:.2f} GB (limit {LIMIT_RETAIL_GB} GB)"
    )
    return spent_s, peak_gb


def main() -> None:
    """Prints the figures; exits 1 where one is above its limit."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    failed = ["made"] if made_case() >= LIMIT_MADE_S else []
    absent = [str(folder) for folder in RETAIL if not folder.is_dir()]
    if absent:
        print(f"fit, retail pair: skipped, not here: {', '.join(absent)}")
    else:
        spent_s, peak_gb = retail_case()
        failed += ["retail"] if spent_s >= LIMIT_RETAIL_S or peak_gb >= LIMIT_RETAIL_GB else []
    if failed:
        raise SystemExit(f"too slow or too large: {', '.join(failed)}")


if __name__ == "__main__":
    main()
