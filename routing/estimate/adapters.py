"""LoRA gradients that a step has yet to allocate, beside boundaries that backward has released by then.

Layer i's pending bytes: experts E_local r ((H + 2F) + (F + H)) b, a linear r (in + out) b. Backward goes from the last layer
down, and at layer i the boundaries above i are released:

    X = max(p_out, max over i of [p_out + sum over j >= i of p_j - sum over j > i of B_j]), never below 0

Source: published (OpenPipe/ART TrainerRank). Several gradient groups are backpropagated one after another, so X lets go of one
group's boundaries only; with one group it is the published form.
"""

from dataclasses import dataclass
from functools import lru_cache

from routing.core.layers import DecoderShape
from routing.core.wave import Adapter
from routing.estimate.executor import BYTES_PER_ELEMENT


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """Bytes outside the decoder, and of all layers from i up, by i."""

    outside: int
    from_layer: tuple[int, ...]

    @property
    def in_decoder(self) -> int:
        """Of all layers together."""
        return self.from_layer[0]


@lru_cache(maxsize=256)
def pending_gradients(shape: DecoderShape, ep: int, adapter: Adapter) -> Pending:
    """What the adapter's gradients take when none is allocated yet."""
    from_layer, above = [], 0
    for layer in reversed(range(shape.num_layers)):
        above += _layer_bytes(shape, ep, adapter, layer)
        from_layer.append(above)
    outside = (shape.hidden_size + shape.vocab_size) if "lm_head" in adapter.targets else 0
    return Pending(outside=outside * adapter.expert_rank * BYTES_PER_ELEMENT, from_layer=tuple(reversed(from_layer)))


def _layer_bytes(shape: DecoderShape, ep: int, adapter: Adapter, layer: int) -> int:
    hidden, ffn = shape.hidden_size, shape.expert_ffn_size
    is_moe = layer in shape.moe_layers
    widths = {**_mixer_widths(shape, layer), **_ffn_widths(hidden, shape.shared_ffn_size if is_moe else shape.dense_ffn_size)}
    if is_moe:
        widths["experts"] = shape.num_experts // ep * ((hidden + 2 * ffn) + (ffn + hidden))
    return sum(widths.get(target, 0) for target in adapter.targets) * adapter.expert_rank * BYTES_PER_ELEMENT


def _mixer_widths(shape: DecoderShape, layer: int) -> dict[str, int]:
    """in + out of each linear of the layer's mixer."""
    hidden = shape.hidden_size
    if shape.mixers[layer] == "gdn" and shape.gdn is not None:
        key, value = shape.gdn.key_width, shape.gdn.value_width
        return {"in_proj_qkv": hidden + 2 * key + value, "in_proj_z": hidden + value, "out_proj": value + hidden}
    query = shape.query_width * (2 if shape.output_gate else 1)
    kv = hidden + shape.kv_width
    return {"q_proj": hidden + query, "k_proj": kv, "v_proj": kv, "o_proj": shape.query_width + hidden}


def _ffn_widths(hidden: int, ffn: int) -> dict[str, int]:
    return {name: hidden + ffn for name in ("gate_proj", "up_proj", "down_proj")} if ffn else {}
