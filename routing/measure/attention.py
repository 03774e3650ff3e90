"""Which attention runs: flash attention where it is installed, else SDPA, for tokens that go on from a cache without a mask.

A T x T mask is slower than what a shared prefix saves, and flash attention needs none, from a cache or not.
SDPA's causal order counts from the first key, so T new tokens after C cached ones would need a mask of T x (C + T), which SDPA
copies as floats for each row. Where C is small, C rows are put before the queries and dropped from the answer. Else queries go
in blocks, each over the keys up to its own end, with a mask of the block alone that all rows share.

B rows, H heads, D width of a head.
"""

from typing import Any

import torch
from torch import Tensor, nn

_NAME = "sdpa_going_on"
_FLASH = "flash_attention_2"
BLOCK_TOKENS = 256  # pairs of a block that no query needs are half of its square; with fewer the kernel's own blocks are cut


def use_flash_attention(model: nn.Module, *, device: torch.device, dtype: torch.dtype) -> None:
    """Sets a model to it where it is installed and made for the model, the device and the type; others keep what they have.

    A model that names kernels of its own keeps its choice: the library would fetch them from the hub.
    """
    from transformers.utils.import_utils import is_flash_attn_2_available

    own: Any = model
    fits = device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    is_made_for_it = getattr(own, "_supports_flash_attn", False) and not getattr(own, "_compatible_flash_implementations", None)
    if fits and is_made_for_it and is_flash_attn_2_available():
        own.set_attn_implementation(_FLASH)


def go_on_without_mask(model: nn.Module, *, on: bool) -> None:
    """Sets a model that uses SDPA to it, or back; others keep what they have."""
    from transformers import AttentionInterface, AttentionMaskInterface

    config: Any = model.config
    if config._attn_implementation not in ("sdpa", _NAME):
        return
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _mask)
    config._attn_implementation = _NAME if on else "sdpa"


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Of queries [B, H, T, D] over keys [B, H, C + T, D]; the answer is [B, T, H, D], as transformers has it."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    num_new = query.shape[2]
    num_cached = key.shape[2] - num_new
    if attention_mask is not None or num_cached <= 0 or num_new == 1:
        answer, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return answer, None
    if kwargs.get("position_bias") is not None:  # of all queries: neither padded nor in blocks
        raise NotImplementedError("attention with a position bias doesn't go on from a cache here")
    # Padded it takes (C + T)^2 / 2 pairs, in blocks T x (C + T / 2) at 1.1 times the time of a pair (docs/LOG.md).
    if 5 * num_cached <= 3 * num_new:
        padded = torch.nn.functional.pad(query, (0, 0, num_cached, 0))
        answer, _ = sdpa_attention_forward(module, padded, key, value, None, **kwargs)
        return answer[:, num_cached:], None
    answers = []
    for first in range(0, num_new, BLOCK_TOKENS):
        last = min(first + BLOCK_TOKENS, num_new)
        before, seen = num_cached + first, num_cached + last
        later = torch.full((last - first, seen), -torch.inf, dtype=query.dtype, device=query.device).triu(before + 1)
        block, keys, values = query[:, :, first:last], key[:, :, :seen], value[:, :, :seen]
        answers.append(sdpa_attention_forward(module, block, keys, values, later[None, None], **kwargs)[0])
    return torch.cat(answers, dim=1), None


def _mask(
    *,
    q_length: int,
    kv_length: int,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **kwargs: Any,
) -> Tensor | None:
    """The library's mask, but none where the order of C + T tokens is all that it would say."""
    from transformers.masking_utils import sdpa_mask

    plain = allow_is_causal_skip and attention_mask is None and kv_offset == 0 and (local_size is None or kv_length < local_size)
    if plain:
        return None
    mask: Tensor | None = sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        kv_offset=kv_offset,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip,
        **kwargs,
    )
    return mask
