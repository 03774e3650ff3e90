"""Decoder shapes from Hugging Face `config.json` files: the words of each family, and nothing assumed for absent ones."""

from collections.abc import Mapping
from typing import Any

from routing.core.errors import InputError
from routing.core.layers import DecoderShape, GdnShape, Mixer

Config = Mapping[str, Any]

_QWEN = ("qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text")
_GRANITE = ("granitemoe", "granitemoeshared", "granitemoe_swa")
_ALL_MOE = ("mixtral", "olmoe", "flex_olmo", "phimoe", "minimax_m2", "gpt_oss", *_GRANITE)  # intermediate_size is an expert's
_DENSE_FIRST = ("glm4_moe", "dots1", "sarvam_moe")
_LAYER_LIST = ("exaone_moe", "hy_v3", "mellum")  # mlp_layer_types names each layer
FAMILIES = (*_QWEN, *_ALL_MOE, *_DENSE_FIRST, *_LAYER_LIST, "solar_open", "ernie4_5_moe")

# Families whose attention doubles the query projection to gate its output; the file need not say so.
_OUTPUT_GATED = ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text")
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "moe_k")
_NUM_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_NEEDED = (("num_hidden_layers",), ("hidden_size",), ("num_attention_heads",), ("vocab_size",), _NUM_EXPERTS, _TOP_K)
_MIXERS: dict[str, Mixer] = {"full_attention": "attention", "sliding_attention": "attention", "linear_attention": "gdn"}
_MAX = 10**7


def decoder_shape(config: Config, *, name: str, where: str) -> DecoderShape:
    """The shape in a parsed `config.json`, its text part where it is nested.

    InputError naming `where` for an unknown family with the keys that it lacks, a layer kind that isn't priced, and every key
    that is missing or no whole number.
    """
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise InputError(f"{where}: text_config is no mapping")
    keys = _Keys(text, where)
    family = str(text.get("model_type") or config.get("model_type") or "unnamed")[:40]
    _require_family(family, keys)
    mixers = _mixers(keys)
    moe_layers = _moe_layers(family, keys, len(mixers))
    heads = keys.number("num_attention_heads")
    expert_ffn_size = keys.number("intermediate_size" if family in _ALL_MOE else "moe_intermediate_size")
    shared, gated = _shared(keys, expert_ffn_size)
    try:
        return DecoderShape(
            name=name,
            mixers=mixers,
            moe_layers=moe_layers,
            hidden_size=keys.number("hidden_size"),
            num_query_heads=heads,
            num_kv_heads=keys.number("num_key_value_heads", absent=heads),
            head_dim=_head_dim(keys, heads),
            output_gate=family in _OUTPUT_GATED and text.get("attn_output_gate", True) is True,
            gdn=_gdn(keys) if "gdn" in mixers else None,
            num_experts=keys.number(*_NUM_EXPERTS),
            top_k=keys.number(*_TOP_K),
            expert_ffn_size=expert_ffn_size,
            shared_ffn_size=shared,
            shared_gated=gated,
            dense_ffn_size=keys.number("intermediate_size") if len(moe_layers) < len(mixers) else 0,
            vocab_size=keys.number("vocab_size"),
        )
    except InputError as error:
        raise InputError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from error


class _Keys:
    """A configuration's values by any of several names, each checked once it is asked for."""

    def __init__(self, config: Config, where: str) -> None:
        self.config, self.where = config, where

    def number(self, *names: str, absent: int | None = None) -> int:
        """The whole number under one of `names`; `absent` where there is none."""
        found = next((name for name in names if self.config.get(name) is not None), None)
        if found is None:
            if absent is None:
                raise InputError(f"{self.where}: lacks {' or '.join(names)}")
            return absent
        value = self.config[found]
        if type(value) is not int or not 0 <= value <= _MAX:
            raise InputError(f"{self.where}: {found}: {str(value)[:40]!r} is no whole number from 0 to {_MAX}")
        return value

    def lacking(self) -> list[str]:
        """The names, of those every priced family has, that are not there."""
        return [" or ".join(names) for names in _NEEDED if all(self.config.get(name) is None for name in names)]


def _require_family(family: str, keys: _Keys) -> None:
    lacking = keys.lacking()
    if any(name in keys.config for name in ("kv_lora_rank", "q_lora_rank")):
        raise InputError(f"{keys.where}: {family} has latent attention (kv_lora_rank), a layer kind that is not priced")
    if family not in FAMILIES:
        missing = f"; missing keys: {', '.join(lacking)}" if lacking else "; no key is missing, what its layers keep is unknown"
        raise InputError(f"{keys.where}: model_type {family!r} is no family that is priced ({', '.join(FAMILIES)}){missing}")
    if lacking:
        raise InputError(f"{keys.where}: {family} lacks {', '.join(lacking)}")


def _mixers(keys: _Keys) -> tuple[Mixer, ...]:
    num_layers = keys.number("num_hidden_layers")
    types, interval = keys.config.get("layer_types"), keys.config.get("full_attention_interval")
    if types is None and interval is None:
        if "linear_num_value_heads" in keys.config:
            raise InputError(f"{keys.where}: lacks layer_types or full_attention_interval, which layers are GDN")
        return (_MIXERS["full_attention"],) * num_layers
    if types is None:
        every = max(1, keys.number("full_attention_interval"))
        names = ("full_attention" if layer % every == every - 1 else "linear_attention" for layer in range(num_layers))
        return tuple(_MIXERS[name] for name in names)
    if not isinstance(types, list) or len(types) != num_layers:
        raise InputError(f"{keys.where}: layer_types is no list of num_hidden_layers={num_layers} kinds")
    unknown = next((kind for kind in types if not isinstance(kind, str) or kind not in _MIXERS), None)
    if unknown is not None:
        raise InputError(f"{keys.where}: layer_types: {str(unknown)[:40]!r} is a layer kind that is not priced")
    if "linear_attention" in types and "linear_num_value_heads" not in keys.config:
        raise InputError(f"{keys.where}: its linear attention is no gated delta net (lacks linear_num_value_heads): not priced")
    return tuple(_MIXERS[kind] for kind in types)


def _moe_layers(family: str, keys: _Keys, num_layers: int) -> tuple[int, ...]:
    layers = range(num_layers)
    if family in _QWEN:
        step = max(1, keys.number("decoder_sparse_step", absent=1))
        dense = keys.config.get("mlp_only_layers") or []
        if not isinstance(dense, list):
            raise InputError(f"{keys.where}: mlp_only_layers is no list")
        return tuple(layer for layer in layers if layer not in dense and (layer + 1) % step == 0)
    if family in _DENSE_FIRST:
        return tuple(layers[keys.number("first_k_dense_replace") :])
    if family in _LAYER_LIST:
        kinds = keys.config.get("mlp_layer_types")
        if not isinstance(kinds, list) or len(kinds) != num_layers or not all(kind in ("dense", "sparse") for kind in kinds):
            raise InputError(f"{keys.where}: mlp_layer_types is no list of num_hidden_layers={num_layers}, each dense or sparse")
        return tuple(layer for layer in layers if kinds[layer] == "sparse")
    if family == "ernie4_5_moe":
        start, step = keys.number("moe_layer_start_index"), max(1, keys.number("moe_layer_interval", absent=1))
        end = num_layers - 1 if keys.config.get("moe_layer_end_index") == -1 else keys.number("moe_layer_end_index")
        return tuple(layer for layer in layers if start <= layer <= end and (layer + 1) % step == 0)
    return tuple(layers)


def _shared(keys: _Keys, expert_ffn_size: int) -> tuple[int, bool]:
    """(width of all shared experts together, whether a gate multiplies what they return)."""
    gated = keys.number("shared_expert_intermediate_size", absent=0)
    if gated:
        return gated, True
    if keys.config.get("shared_intermediate_size"):  # Granite names the width itself
        return keys.number("shared_intermediate_size"), False
    return keys.number(*_NUM_SHARED, absent=0) * expert_ffn_size, False


def _head_dim(keys: _Keys, heads: int) -> int:
    hidden = keys.number("hidden_size")
    if keys.config.get("head_dim") is None and (heads < 1 or hidden % heads):
        raise InputError(f"{keys.where}: lacks head_dim, and {hidden} / {heads} is no whole number")
    return keys.number("head_dim", absent=hidden // max(1, heads))


def _gdn(keys: _Keys) -> GdnShape:
    return GdnShape(
        num_key_heads=keys.number("linear_num_key_heads"),
        key_head_dim=keys.number("linear_key_head_dim"),
        num_value_heads=keys.number("linear_num_value_heads"),
        value_head_dim=keys.number("linear_value_head_dim"),
    )
