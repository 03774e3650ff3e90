"""Peaks of the transformers stack on one CUDA GPU beside their trace and their price, to data/measured/gpu_peaks.csv.

Run it by hand: python -m pipelines.gpu_peak (random weights, meant for under 8 minutes and 40 GB of GPU memory). Measured are
LoRA steps of an all-attention and a hybrid model at a few layers, by max_memory_allocated above what was allocated before; and
flex attention in the stages of a context-parallel executor, by the bytes that autograd saves, beside the estimator's retention.

--device cpu is for trying it out: tiny shapes, the CPU allocator's own events, rows labelled cpu. Nothing is written before all
of it ran.
"""

import argparse
import importlib.util
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers

from pipelines.flex_stages import kept_bytes
from pipelines.trace.allocator import cpu_peak
from pipelines.trace.geometries import config_of, shape_of
from pipelines.trace.rows import write_rows
from pipelines.trace.step import Step, build, run, trace
from routing.core.config_json import decoder_shape
from routing.core.layers import DecoderShape
from routing.core.wave import Stage
from routing.estimate.autograd import Sizes, peak
from routing.estimate.executor import executor_rates, retained_bytes
from routing.measure.device import cuda_peak

OUT = Path(__file__).resolve().parents[1] / "data" / "measured" / "gpu_peaks.csv"
KERNELS = {"fla": ("flash-linear-attention", "fla-core"), "causal_conv1d": ("causal-conv1d",)}
FIELDS = (
    *("what", "case", "num_layers", "tokens", "expert_rank", "gdn_kernels", "device", "measured_by", "measured_bytes"),
    *("traced_bytes", "priced_bytes", "over_fraction", "torch", "transformers"),
)
MODELS = ("qwen3-30b-a3b", "qwen3.6-35b-a3b")
LAYERS_AND_TOKENS = ((2, 16384), (4, 8192), (4, 16384), (4, 32768))
FALLBACK_LAYERS_AND_TOKENS = ((4, 3072),)  # PyTorch's scan takes long to trace
# the published rank layouts, about a quarter as long: one aligned local stage; an unaligned one and a remote one; both aligned
FLEX_CASES: Mapping[str, tuple[tuple[str, int, int, int, int], ...]] = {
    "one local stage": (("local", 12288, 12288, 12288, 12288),),
    "unaligned, one remote": (("local", 11078, 11078, 11088, 11088), ("remote", 11078, 4126, 11088, 4128)),
    "aligned, one remote": (("local", 12288, 12288, 12288, 12288), ("remote", 12288, 4096, 12288, 4096)),
}
_TINY: Mapping[str, Any] = {
    **{"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 8},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 64, "vocab_size": 512, "num_hidden_layers": 2},
}
_TINY_MODELS: Mapping[str, Mapping[str, Any]] = {
    "tiny attention": {**_TINY, "model_type": "qwen3_moe", "decoder_sparse_step": 1, "mlp_only_layers": []},
    "tiny hybrid": {
        **{**_TINY, "model_type": "qwen3_5_moe_text", "full_attention_interval": 2, "shared_expert_intermediate_size": 64},
        **{"linear_num_key_heads": 2, "linear_key_head_dim": 64, "linear_num_value_heads": 4, "linear_value_head_dim": 64},
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One model at a number of layers and tokens; a `tiny` one has its own layers."""

    model: str
    num_layers: int
    tokens: int
    expert_rank: int = 0

    def config(self) -> Any:
        """A fresh transformers config."""
        if self.model in MODELS:
            return config_of(self.model, self.num_layers)
        keys = dict(_TINY_MODELS[self.model])
        return transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)

    def shape(self) -> DecoderShape:
        """What the pricing sees of it."""
        if self.model in MODELS:
            return shape_of(self.model, self.num_layers)
        return decoder_shape(_TINY_MODELS[self.model], name=self.model, where=self.model)


def gdn_kernels() -> str:
    """The GDN kernels that transformers finds here, named with versions; both of them or it falls back."""
    found = []
    for module, packages in KERNELS.items():
        if importlib.util.find_spec(module) is None:
            return f"fallback ({module} is not there)"
        found.append(" ".join(f"{package} {_version(package)}" for package in packages))
    return ", ".join(found)


def cases(device: torch.device, kernels: str) -> Iterator[Case]:
    """What is measured on `device`."""
    if device.type == "cpu":
        ranks = zip(_TINY_MODELS, (0, 8), strict=True)
        yield from (Case(model=name, num_layers=2, tokens=192, expert_rank=rank) for name, rank in ranks)
        return
    for model in MODELS:
        few = shape_of(model, 4).has_gdn and kernels.startswith("fallback")
        for num_layers, tokens in FALLBACK_LAYERS_AND_TOKENS if few else LAYERS_AND_TOKENS:
            yield Case(model=model, num_layers=num_layers, tokens=tokens)
        num_layers, tokens = FALLBACK_LAYERS_AND_TOKENS[0] if few else LAYERS_AND_TOKENS[1]
        yield Case(model=model, num_layers=num_layers, tokens=tokens, expert_rank=8)


def measure_step(case: Case, device: torch.device, kernels: str) -> dict[str, object]:
    """A row: the second of two equal steps, its trace and its price."""
    shape = case.shape()
    fused = shape.has_gdn and not kernels.startswith("fallback")
    step = Step(num_tokens=case.tokens, expert_rank=case.expert_rank, gdn="mirrored" if fused else "fallback")
    measured = _peak_of_a_second_step(case, step, device)
    traced = trace(case.config(), step, block_bytes=512 if device.type == "cuda" else 1).peak_bytes
    sizes = Sizes(
        tokens=case.tokens,
        pairs=case.tokens * shape.top_k,
        linear_rank=step.linear_rank,
        expert_rank=case.expert_rank,
        fused_gdn=fused,
    )
    by = "max_memory_allocated" if device.type == "cuda" else "allocator events"
    named = kernels if shape.has_gdn else "none"
    start = ("step", case.model, shape.num_layers, case.tokens, case.expert_rank, named, _name(device), by)
    return _row(start, measured, traced, peak(shape, sizes).num_bytes)


def _peak_of_a_second_step(case: Case, step: Step, device: torch.device) -> int:
    with torch.device(device):
        model = build(case.config(), step)
        ids = torch.randint(0, case.shape().vocab_size, (1, case.tokens))
    run(model, step, ids)  # what a first call alone allocates is not the step's
    model.zero_grad(set_to_none=True)
    if device.type == "cpu":
        return cpu_peak(lambda: run(model, step, ids))
    torch.cuda.empty_cache()
    return cuda_peak(lambda: run(model, step, ids))


def measure_flex(case: str, device: torch.device) -> dict[str, object]:
    """A row: what flex attention saves over the stages of `case`, and the estimator's retention; there is no trace of it."""
    tiny = device.type == "cpu"
    shape = shape_of("qwen3.6-35b-a3b", 4)
    stages = [_stage(*sizes, divide=32 if tiny else 1) for sizes in FLEX_CASES[case]]
    measured = kept_bytes(shape, stages, device)
    start = ("flex", case, 1, stages[0].q, 0, "none", _name(device), "saved tensors")
    return _row(start, measured, "", retained_bytes(stages, executor_rates(shape)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures everything, then writes it; progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("pipelines.gpu_peak: torch finds no CUDA GPU; try it out with tiny shapes: --device cpu --out FILE")
    if options.device == "cpu" and options.out == OUT:
        sys.exit(f"pipelines.gpu_peak: {OUT.name} holds GPU measurements; give --device cpu another --out")
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    device = torch.device(options.device)
    kernels = gdn_kernels()
    rows = []
    for case in cases(device, kernels):
        rows.append(measure_step(case, device, kernels))
        print(rows[-1], file=sys.stderr, flush=True)
    for name in FLEX_CASES:
        rows.append(measure_flex(name, device))
        print(rows[-1], file=sys.stderr, flush=True)
    write_rows(options.out, FIELDS, rows)


def _row(start: tuple[object, ...], measured: int, traced: object, priced: int) -> dict[str, object]:
    values = (*start, measured, traced, priced, f"{priced / measured - 1:.5f}", torch.__version__, transformers.__version__)
    return dict(zip(FIELDS, values, strict=True))


def _stage(kind: Any, q: int, k: int, q_len: int, k_len: int, *, divide: int) -> Stage:
    return Stage(kind=kind, q=q // divide, k=k // divide, q_len=-(-q_len // divide), k_len=-(-k_len // divide))


def _name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of no known version"


if __name__ == "__main__":
    main()
