"""A decoder's layers as memory pricing sees them: which mixer, which feed-forward part, and their widths."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from routing.core.errors import InputError
from routing.core.shapes import ModelShape

Mixer = Literal["attention", "gdn"]
FeedForward = Literal["moe", "dense"]


class LayerKind(NamedTuple):
    """Layers of one kind cost the same per row."""

    mixer: Mixer
    feed_forward: FeedForward


@dataclass(frozen=True, kw_only=True, slots=True)
class GdnShape:
    """Heads of a gated delta net; dims are elements."""

    num_key_heads: int
    key_head_dim: int
    num_value_heads: int
    value_head_dim: int

    def __post_init__(self) -> None:
        _require_positive(self, self.__slots__)

    @property
    def key_width(self) -> int:
        """Elements of all keys of a row."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Elements of all values of a row."""
        return self.num_value_heads * self.value_head_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderShape:
    """Everything of a model that a term of the memory estimate multiplies; sizes are elements, layers 0-based.

    `shared_ffn_size` and `dense_ffn_size` are 0 where the model has no such part.
    """

    name: str
    mixers: tuple[Mixer, ...]
    moe_layers: tuple[int, ...]
    hidden_size: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    output_gate: bool
    gdn: GdnShape | None
    num_experts: int
    top_k: int
    expert_ffn_size: int
    shared_ffn_size: int
    shared_gated: bool
    dense_ffn_size: int
    vocab_size: int

    def __post_init__(self) -> None:
        _require_positive(self, ("num_query_heads", "num_kv_heads", "head_dim", "vocab_size"))
        routed = self.routed  # refuses what no routed geometry can be
        if self.shared_ffn_size < 0 or self.dense_ffn_size < 0:
            raise InputError(f"shared_ffn_size={self.shared_ffn_size}, dense_ffn_size={self.dense_ffn_size}: negative")
        if "gdn" in self.mixers and self.gdn is None:
            raise InputError("gdn: the model has GDN layers and no GDN heads")
        if len(routed.moe_layers) < routed.num_layers and not self.dense_ffn_size:
            raise InputError("dense_ffn_size=0: the model has dense layers")

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.mixers)

    @property
    def has_gdn(self) -> bool:
        """Whether any layer is a GDN layer."""
        return "gdn" in self.mixers

    @property
    def query_width(self) -> int:
        """Query heads x head dim."""
        return self.num_query_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Key (or value) heads x head dim."""
        return self.num_kv_heads * self.head_dim

    @property
    def routed(self) -> ModelShape:
        """What an allowance table belongs to."""
        return ModelShape(
            num_layers=len(self.mixers),
            moe_layers=self.moe_layers,
            num_experts=self.num_experts,
            top_k=self.top_k,
            hidden_size=self.hidden_size,
            expert_ffn_size=self.expert_ffn_size,
        )

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of every layer."""
        moe = set(self.moe_layers)
        return tuple(LayerKind(mixer, "moe" if layer in moe else "dense") for layer, mixer in enumerate(self.mixers))

    @property
    def input_layouts(self) -> tuple[Mixer, ...]:
        """The layout that each layer's input arrives in: GDN rows between two GDN layers, attention rows otherwise."""
        before = ("attention", *self.mixers)
        return tuple("gdn" if mixer == "gdn" == before[layer] else "attention" for layer, mixer in enumerate(self.mixers))


def _require_positive(record: object, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(record, name) < 1:
            raise InputError(f"{name}={getattr(record, name)} is not positive")
