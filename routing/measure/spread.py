"""A policy larger than one GPU: its layers spread by accelerate over all that this process sees, the CPU and the disk after them.

The layers run one after the other, each where it was put, so no rank waits for another; what is offloaded is copied to a GPU for
every batch.
"""

import atexit
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import nn

from routing.core.errors import InputError
from routing.core.worker import Worker
from routing.measure.capture import find_experts

_PLANS = ("tp", "ep", "tensor_parallel", "expert_parallel", "tp_plan", "ep_plan")


def require_device_map(device_map: str | None, *, device: str, has_adapter: bool, worker: Worker) -> None:
    """InputError for what `--device-map` can't do, or can't do together with the other flags."""
    if device_map is None:
        return
    import accelerate  # noqa: F401  # its absence is told before the corpus is read

    if device_map in _PLANS:
        raise InputError(
            f"--device-map: {device_map!r}: transformers' parallel plans are not taken: their ranks run every batch together, "
            "where workers here share nothing, and under an expert-parallel plan a rank sees no ids but its own; auto spreads "
            "whole layers"
        )
    if device_map != "auto":
        raise InputError(f"--device-map: {device_map[:40]!r} is not known; auto")
    if device != "auto":
        raise InputError(f"--device-map: auto takes every device there is, --device {device} one; leave one of the two out")
    if has_adapter:
        raise InputError(
            "--device-map: an adapter over layers on several devices is not proven to route alike; measure it on one device, "
            "or merge it into a checkpoint of its own"
        )
    if worker.num_sharing > 1:
        raise InputError(
            f"--device-map: {worker.num_sharing} workers of one torchrun would each take all GPUs of the machine; start one a "
            "machine (torchrun --nproc-per-node 1), or give each its own (srun --gpus-per-task)"
        )


def placement_arguments(device_map: str | None) -> dict[str, Any]:
    """What `from_pretrained` is told; a folder for weights that fit nowhere else lives in TMPDIR as long as this process."""
    if device_map is None:
        return {}
    scratch = tempfile.mkdtemp(prefix="routing-offload-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return {"device_map": device_map, "offload_folder": scratch}


def layers_by_device(model: nn.Module, device: str) -> dict[str, int]:
    """MoE layers by where their weights are; `device` holds all of a model that was not spread."""
    placed: Mapping[str, str | int] = getattr(model, "hf_device_map", {"": device})
    found = Counter(_place(experts.name, placed) for experts in find_experts(model))
    return dict(sorted(found.items()))


def _place(name: str, placed: Mapping[str, str | int]) -> str:
    """Of the module `name`: the device of the longest entry that it is, or is inside."""
    entry = max((one for one in placed if not one or name == one or name.startswith(f"{one}.")), key=len)
    device = placed[entry]
    return f"cuda:{device}" if isinstance(device, int) else str(device)
