"""Which expert-parallel rank owns which expert. Other placements change imbalances; a figure without one means contiguous blocks.

    contiguous    rank r of n owns the E/n experts from r * E/n: the placement that every stack starts from
    round-robin   rank r of n owns the experts e with e mod n = r
    file          what a file says, layer by layer, for one EP size

Every rank owns equally many. For n dividing m a rank of n is whole ranks of m under the first two, so that what holds along
divisors holds for them; a file's placement is of one EP size, and says nothing of another.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from routing.core.errors import InputError
from routing.core.fields import FieldError, put, sequence, whole

PLACEMENT = "contiguous"
ROUND_ROBIN = "round-robin"
FILE_PREFIX = "file sha256:"
NAME_PATTERN = rf"^(?:{PLACEMENT}|{ROUND_ROBIN}|{FILE_PREFIX}[0-9a-f]{{64}})$"
DEFAULT_EP_SIZES = (2, 4, 8)

Kind = Literal["contiguous", "round-robin", "file"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlacement:
    """The rank of every expert of one MoE layer, in the order of the experts; all 0-based."""

    layer: int
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        put(self, "layer", whole(("layer",), self.layer))
        ranks = sequence(("ranks",), self.ranks)
        put(self, "ranks", tuple(whole(("ranks", place), rank) for place, rank in enumerate(ranks)))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementFile:
    """What a placement file holds: one EP size, and every MoE layer's experts in equal numbers on each of its ranks."""

    ep: int
    layers: tuple[LayerPlacement, ...]

    def __post_init__(self) -> None:
        put(self, "ep", whole(("ep",), self.ep, low=2, high=4096))
        if not self.layers:
            raise FieldError(("layers",), "names no layer")
        seen: set[int] = set()
        for place, one in enumerate(self.layers):
            owned = [one.ranks.count(rank) for rank in range(self.ep)]
            if one.layer in seen:
                raise FieldError(("layers", place, "layer"), f"{one.layer} is there twice")
            if len(one.ranks) != len(self.layers[0].ranks):
                what = f"{len(one.ranks)} experts, the first layer has {len(self.layers[0].ranks)}"
                raise FieldError(("layers", place, "ranks"), what)
            if sum(owned) != len(one.ranks):
                raise FieldError(("layers", place, "ranks"), f"a rank is above {self.ep - 1}, the last of ep={self.ep}")
            if len(set(owned)) != 1:
                raise FieldError(("layers", place, "ranks"), f"unequal numbers of experts by rank: {str(owned)[:60]}")
            seen.add(one.layer)

    @property
    def content_hash(self) -> str:
        """sha256 over the EP size and the ranks, layers in order."""
        body = [self.ep, sorted((one.layer, one.ranks) for one in self.layers)]
        return hashlib.sha256(json.dumps(body).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """One of the three; `file` is there for the third alone."""

    kind: Kind
    file: PlacementFile | None = None

    @property
    def name(self) -> str:
        """What a table records: the kind, or of a file its content hash."""
        return self.kind if self.file is None else f"{FILE_PREFIX}{self.file.content_hash}"

    def ranks(self, layer: int, *, ep: int, num_experts: int) -> tuple[int, ...]:
        """The rank of every expert of a MoE layer; `ep` divides the experts, and is the file's own."""
        if self.kind == "contiguous":
            return tuple(expert // (num_experts // ep) for expert in range(num_experts))
        if self.kind == "round-robin":
            return tuple(expert % ep for expert in range(num_experts))
        assert self.file is not None
        return next(one.ranks for one in self.file.layers if one.layer == layer)

    def positions(self, *, num_layers: int, num_experts: int, num_blocks: int) -> list[int]:
        """Every expert's place in an order that puts the experts of a block side by side, decoder layer after decoder layer.

        Empty where the experts are in that order; a layer that a file does not place keeps its own.
        """
        width = num_experts // num_blocks
        if self.kind == "contiguous":
            return []
        if self.file is None:
            return [expert % num_blocks * width + expert // num_blocks for expert in range(num_experts)] * num_layers
        placed = {one.layer: one.ranks for one in self.file.layers}
        found = []
        for layer in range(num_layers):
            ranks = placed.get(layer)
            by_place = range(num_experts) if ranks is None else sorted(range(num_experts), key=ranks.__getitem__)
            positions = {expert: position for position, expert in enumerate(by_place)}
            found += [positions[expert] for expert in range(num_experts)]
        return found

    def owner(self, block: int, *, ep: int, num_blocks: int) -> int:
        """The rank of `ep` that a block belongs to; neighbouring blocks, or under round-robin every ep-th."""
        return block % ep if self.kind == "round-robin" else block // (num_blocks // ep)

    def require_fits(self, *, moe_layers: tuple[int, ...], num_experts: int, eps: tuple[int, ...]) -> None:
        """InputError where a file is of another EP size, number of experts or set of layers; the other kinds always fit."""
        if self.file is None:
            return
        if eps != (self.file.ep,):
            asked = ", ".join(map(str, eps))
            mine = self.file.ep
            raise InputError(f"--placement: the file is of EP {mine} and says nothing of EP {asked}; ask for --ep {mine}")
        placed = len(self.file.layers[0].ranks)
        if placed != num_experts:
            raise InputError(f"--placement: the file places {placed} experts, the model has {num_experts}")
        layers = tuple(sorted(one.layer for one in self.file.layers))
        if layers != moe_layers:
            where = next(layer for layer in (*layers, *moe_layers) if (layer in layers) != (layer in moe_layers))
            has = "the model has no such MoE layer" if where in layers else "the file leaves it out"
            raise InputError(f"--placement: layer {where}: {has}")


CONTIGUOUS = Placement(kind="contiguous")
STRIDED = Placement(kind="round-robin")


def recorded_placement(name: str, given: Placement | None) -> Placement:
    """The placement that a table records; what was `given` for it must be the same, and a file must be given.

    InputError for another, and for a file that was not given: a table holds its hash alone.
    """
    if given is not None and given.name != name:
        raise InputError(f"--placement: {given.name} is not the table's, which is {name}")
    if name.startswith(FILE_PREFIX) and given is None:
        raise InputError(f"the table is of a placement in a file ({name}), name that file: --placement FILE")
    return given or (STRIDED if name == ROUND_ROBIN else CONTIGUOUS)


def valid_ep_sizes(num_experts: int) -> tuple[int, ...]:
    """Every EP size above 1 that divides the experts."""
    return tuple(n for n in range(2, num_experts + 1) if num_experts % n == 0)


def require_ep_size(ep: int, num_experts: int, *, name: str = "--ep") -> int:
    """`ep`, or InputError where it doesn't divide the experts.

    `expert // (num_experts // ep)` is silently wrong where ep does not divide: extra ranks appear, or experts vanish.
    """
    if ep not in valid_ep_sizes(num_experts):
        known = ", ".join(str(n) for n in valid_ep_sizes(num_experts))
        why = "imbalance at EP 1 is exactly 1.0" if ep == 1 else f"it does not divide {num_experts} experts"
        why = "no group has so few ranks" if ep < 1 else why
        raise InputError(f"{name}: {ep} is refused, {why}; valid sizes: {known}")
    return ep


def default_ep_sizes(num_experts: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(those of 2, 4, 8 that divide the experts, those that don't)."""
    fitting = tuple(n for n in DEFAULT_EP_SIZES if num_experts % n == 0)
    return fitting, tuple(n for n in DEFAULT_EP_SIZES if num_experts % n)
