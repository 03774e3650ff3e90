"""A policy under a LoRA adapter of peft: the base model's weights untouched, the adapter computed beside them as in training.

Merging it instead would round its part away in BF16. Safetensors only; every tensor of the adapter must find its place.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from routing.core.errors import InputError
from routing.measure.geometry import told_as
from routing.store.files import read_json_object

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"


def require_adapter(folder: Path) -> list[Path]:
    """The files that make the adapter in `folder`; InputError where it is no LoRA of peft in safetensors."""
    import peft  # noqa: F401  # its absence is told before the corpus is read

    config, weights = folder / CONFIG_NAME, folder / WEIGHTS_NAME
    if not config.is_file():
        raise InputError(f"--adapter: {folder}: no {CONFIG_NAME}; name a folder that peft's save_pretrained wrote")
    if not weights.is_file():
        raise InputError(f"--adapter: {folder}: no {WEIGHTS_NAME}; safetensors only")
    declared = read_json_object(config, what="an adapter's configuration")
    kind = str(declared.get("peft_type"))
    if kind != "LORA" or declared.get("megatron_config"):
        raise InputError(f"--adapter: {folder}: of type {kind[:40]!a}, or for Megatron; only LoRA on transformers is measured")
    return [config, weights]


def apply_adapter(model: nn.Module, folder: Path) -> None:
    """Puts the adapter's layers into `model`, in place; InputError where one tensor has no place in it, or a place no tensor."""
    import peft
    from safetensors.torch import load_file

    with told_as(f"--adapter: {folder}: not loaded"):
        stored = load_file(folder / WEIGHTS_NAME)
        wrapped: Any = peft.PeftModel.from_pretrained(model, str(folder), is_trainable=False)
        placed = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    odd = sorted(name for name in stored.keys() | placed.keys() if not _is_same(stored.get(name), placed.get(name)))
    if odd:
        raise InputError(
            f"--adapter: {folder}: {len(odd)} tensors without a place in this policy or the reverse, first {odd[0][:120]!a}; "
            "an adapter of another model"
        )


def _is_same(stored: torch.Tensor | None, placed: torch.Tensor | None) -> bool:
    if stored is None or placed is None or stored.shape != placed.shape:
        return False
    return torch.equal(stored.float(), placed.detach().float().cpu())  # peft keeps half-precision adapters in float32
