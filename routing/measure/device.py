"""Where a policy runs: its device and the memory of that, its type, its threads."""

import gc
import os
from collections.abc import Callable
from typing import Any

import torch

from routing.core.errors import InputError
from routing.core.shapes import ModelShape
from routing.measure.geometry import told_as

SMALL_HIDDEN_SIZE = 512


def resolve_device(device: str, *, local_rank: int = 0) -> torch.device:
    """`auto` is CUDA where there is one; a device that isn't there is refused.

    Without a number CUDA is the GPU of the worker's `local_rank`, or the only one that the worker sees.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    with told_as(f"--device: {device!r} is not to be had here"):
        resolved = torch.device(device)
        if resolved.type == "cuda" and resolved.index is None:
            resolved = torch.device("cuda", local_gpu(local_rank, num_gpus=torch.cuda.device_count()))
        torch.empty(1, device=resolved)
    if resolved.type not in ("cpu", "cuda"):
        raise InputError(f"--device: {device!r} holds no computation; cpu or cuda")
    return resolved


def local_gpu(local_rank: int, *, num_gpus: int) -> int:
    """The GPU of a worker; ValueError where its machine has fewer than workers. Slurm may show each its own one only."""
    if num_gpus > 1 and local_rank >= num_gpus:
        raise ValueError(f"{num_gpus} GPUs and a worker of local rank {local_rank}: start as many workers as GPUs")
    return local_rank if num_gpus > 1 else 0


def resolve_dtype(dtype: str, *, device: torch.device, config: Any) -> torch.dtype:
    """`auto` is the checkpoint's type on CUDA, float32 on the CPU, where BF16 is slower and ties at the k-th place are common."""
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype == "auto":
        stored = getattr(config, "dtype", None)
        if device.type == "cuda" and not isinstance(stored, torch.dtype):
            raise InputError(f"--dtype auto: the configuration names no type of its weights; one of {', '.join(known)}")
        return stored if device.type == "cuda" and isinstance(stored, torch.dtype) else torch.float32
    if dtype not in known:
        raise InputError(f"--dtype: {dtype!r} is none of auto, {', '.join(known)}")
    return known[dtype]


def settle_threads(shape: ModelShape, device: torch.device, *, num_workers: int = 1) -> None:
    """One thread for a small policy on the CPU, and for each of several workers, unless OMP_NUM_THREADS says otherwise.

    Its matrices are too small to share: two threads gained nothing on a quiet machine of two cores, and spinning at barriers
    they were 10 times slower beside other work (docs/LOG.md).
    """
    is_small = shape.hidden_size <= SMALL_HIDDEN_SIZE
    if device.type == "cpu" and (is_small or num_workers > 1) and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def num_threads() -> int:
    """Of PyTorch's computation on the CPU, as it stands."""
    return torch.get_num_threads()


def visible_gpus() -> list[dict[str, Any]]:
    """Name and `memory_bytes` of each GPU that PyTorch sees, in its order."""
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [{"name": one.name, "memory_bytes": one.total_memory} for one in found]


def cuda_free_bytes(device: torch.device) -> int:
    """What the device has, and what the caching allocator keeps unused."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def cuda_peak(call: Callable[[], object]) -> int:
    """Bytes by the CUDA caching allocator: max_memory_allocated above memory_allocated."""
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
