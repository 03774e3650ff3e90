"""The architectures whose routing can't be taken from the argument of the experts module, each with its reason.

Every other one is taken or refused by what its modules show (`find_experts`, `ExpertCounter`); these can only be known by name.
"""

from typing import Any

from routing.core.errors import InputError

# By `model_type`, of the configuration or of its text part.
REASONS = {
    "diffusion_gemma": "it denoises whole blocks of tokens, each of which sees the later ones",
    "doge": "its router mixes the tokens of a batch, and its experts are rows of an embedding",
    "ernie4_5_vl_moe": "each decoder layer has two sets of experts, for text and for images",
    "inkling2_loop_text": "its layers run several times in one pass, each time with a routing of its own",
    "jetmoe": "its attention is routed too, and its experts are handed sorted rows, no ids",
    "llama4_text": "every token goes through every expert, so that no rows are routed",
    "longcat_flash": "its router also chooses zero-computation experts, whose ids lie beyond those of its experts",
    "nllb-moe": "it is an encoder-decoder whose experts drop tokens above a capacity",
    "openai_privacy_filter": "it labels tokens that see the later ones",
    "switch_transformers": "it is an encoder-decoder whose experts drop tokens above a capacity",
    "zaya": "a token that skips its experts is handed to expert 0 with a weight of 0, as if it had chosen it",
}


def refuse_unproven(config: Any, text: Any, *, where: str) -> None:
    """InputError for an architecture of `REASONS`, and for one whose tokens see later ones; `text` is a part of `config`."""
    for part in (config, text):
        kind = getattr(part, "model_type", None)
        if kind in REASONS:
            raise InputError(f"{where}: routing of {kind} models is not counted, {REASONS[kind]}")
        if getattr(part, "is_causal", True) is False:
            raise InputError(f"{where}: routing of this {kind} model is not counted, its tokens see the later ones (is_causal)")
