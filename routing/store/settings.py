"""What a manifest says of how a run came about: the choices that could change a count, and what was found for them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheProbe:
    """Expert ids compared before the run; how many moved with cached prefixes, and by padding alone. `fault` is what failed."""

    num_ids: int
    cache_differs: int
    padding_differs: int
    fault: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchMemory:
    """What `tokens_per_batch` was found from: the device's free bytes, and the most that a pass took for each padded token."""

    free_bytes: int
    bytes_per_token: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The choices that could change a count, and where it ran."""

    segment_tokens: int
    max_tokens: int | None
    device: str
    device_name: str
    dtype: str
    attention_implementation: str | None  # null until the weights are loaded
    experts_implementation: str | None
    kernels: dict[str, bool]
    tokens_per_batch: int  # on CUDA 0 until the weights are loaded
    tokens_per_part: int
    num_threads: int
    seed: int
    walk: str | None = "whole"  # or "prefix-once"; null until the cache is probed and where nothing ran, absent in old runs
    cache_probe: CacheProbe | None = None
    batch_memory: BatchMemory | None = None  # null on the CPU, whose batches hold a number of tokens that is set
    layers_by_device: dict[str, int] | None = None  # of a policy spread by --device-map: MoE layers by where their weights were


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """Of loads that another engine recorded and that were imported: what it was, as `kind` of files, and what they can't tell.

    `missing_layers` are MoE layers of the model that no file holds, null where no configuration said which there are;
    `unknown` names what else is not known; `repairs` counts, by name, what was changed or left out on the way in.
    """

    kind: str  # "routes" or "counts"
    engine: str | None
    missing_layers: tuple[int, ...] | None
    unknown: tuple[str, ...]
    repairs: dict[str, int]
