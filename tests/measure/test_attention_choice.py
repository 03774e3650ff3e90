"""Flash attention is taken where it is installed and made for model, device and type, and nowhere else."""

import pytest
import torch
from transformers.utils import import_utils

from routing.measure.attention import use_flash_attention
from tests.measure.test_families import build

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.mark.parametrize(("model_type", "device", "dtype", "installed", "chosen"), [
    ("qwen3_moe", CUDA, torch.bfloat16, True, "flash_attention_2"),
    ("qwen3_5_moe_text", CUDA, torch.float16, True, "flash_attention_2"),
    ("qwen3_moe", CUDA, torch.bfloat16, False, "sdpa"),
    ("qwen3_moe", CUDA, torch.float32, True, "sdpa"),
    ("qwen3_moe", CPU, torch.bfloat16, True, "sdpa"),
    ("gpt_oss", CUDA, torch.bfloat16, True, "eager"),  # it asks for a kernel of its own from the hub
])
def test_flash_attention_is_taken_where_it_is_installed_and_fits(model_type, device, dtype, installed, chosen, monkeypatch):
    model = build(model_type).decoder
    monkeypatch.setattr(import_utils, "is_flash_attn_2_available", lambda: installed)
    # The library's own look at the GPU, which there is none of here.
    monkeypatch.setattr(type(model), "_check_and_adjust_attn_implementation", lambda _self, wanted, **_: wanted)
    use_flash_attention(model, device=device, dtype=dtype)
    assert model.config._attn_implementation == chosen
