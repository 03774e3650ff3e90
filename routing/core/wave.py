"""A wave: what one rank group computes between two optimizer steps, as a planner laid it out.

Refused at the door: a count that is none, rows for another number of ranks, a stage that can't be, a setting that the
published formulas don't cover. Rows are tokens of a layout; ranks, layers and groups are 0-based.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from routing.core.fields import FieldError, FieldPath, boolean, imbalance, put, sequence, whole
from routing.core.layers import Mixer

STACKS = ("megatron-te", "transformers")
GDN_KERNELS = ("fused", "fallback")
TARGETS = (
    "experts",
    *("q_proj", "k_proj", "v_proj", "o_proj"),
    *("in_proj_qkv", "in_proj_z", "out_proj"),
    *("gate_proj", "up_proj", "down_proj"),
    "lm_head",
)
# Settings that people have and the formulas don't: a sentence is better than "no such field".
NOT_COVERED = {
    "capacity_factor": "capacity factors are not priced: every routed row is, none is dropped",
    "fp8": "FP8 is not priced: every tensor counts as BF16",
    "dtype": "only BF16 is priced; no field says so",
    "dispatcher": "only HybridEP (EP > 1) and the local all-to-all (EP 1) are priced; no field says so",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Parallel sizes. `ep_group_is_cp_group` is told by the sizes where it isn't given: EP and CP of one size are one group."""

    ep: int
    cp: int
    tp: int = 1
    pp: int = 1
    etp: int = 1
    ep_group_is_cp_group: bool | None = None

    def __post_init__(self) -> None:
        for name in ("ep", "cp", "tp", "pp", "etp"):
            put(self, name, whole((name,), getattr(self, name), low=1, high=4096))
        for name in ("tp", "pp", "etp"):
            if getattr(self, name) > 1:
                raise FieldError((name,), f"{getattr(self, name)} is not priced; the published formulas are for {name}: 1")
        if self.cp == 3:
            raise FieldError(("cp",), "3 is not priced; 1 and 2 are by rank, 4 and more by a coarser floor")
        if self.ep_group_is_cp_group is None:
            put(self, "ep_group_is_cp_group", self.ep == self.cp)
        boolean(self, "ep_group_is_cp_group")
        if self.ep_group_is_cp_group and self.ep > 1 and self.ep != self.cp:
            raise FieldError(("ep_group_is_cp_group",), f"true, and ep={self.ep} is another size than cp={self.cp}")

    @property
    def shares_rows(self) -> bool:
        """Whether experts see the even share of the whole group's rows."""
        return self.ep > 1 and bool(self.ep_group_is_cp_group)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """LoRA: `expert_rank` is the rank of every target; `pending_gradients` where this step has yet to allocate them."""

    expert_rank: int
    pending_gradients: bool = True
    targets: tuple[str, ...] = ("experts",)

    def __post_init__(self) -> None:
        put(self, "expert_rank", whole(("expert_rank",), self.expert_rank, low=0, high=4096))
        boolean(self, "pending_gradients")
        put(self, "targets", sequence(("targets",), self.targets))
        for place, target in enumerate(self.targets):
            if target not in TARGETS:
                raise FieldError(("targets", place), f"{str(target)[:40]!r} is none of {', '.join(TARGETS)}")
        if len(set(self.targets)) != len(self.targets):
            raise FieldError(("targets",), "names a target twice")


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """Imbalance (busiest / even share) already seen: of the worst layer, or of every decoder layer (null for dense ones)."""

    share: Decimal | None = None
    share_by_layer: tuple[Decimal | None, ...] | None = None

    def __post_init__(self) -> None:
        if (self.share is None) == (self.share_by_layer is None):
            raise FieldError((), "one of share and share_by_layer")
        if self.share is not None:
            put(self, "share", imbalance(("share",), self.share))
        if self.share_by_layer is not None:
            by_layer = sequence(("share_by_layer",), self.share_by_layer)
            checked = (None if one is None else imbalance(("share_by_layer", at), one) for at, one in enumerate(by_layer))
            put(self, "share_by_layer", tuple(checked))
            if all(one is None for one in self.share_by_layer):
                raise FieldError(("share_by_layer",), "holds no share")

    @property
    def worst(self) -> Decimal:
        """The worst layer's."""
        shares = self.share_by_layer if self.share is None else (self.share,)
        return max(one for one in shares or () if one is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One flex attention call of the context-parallel executor: logical query and key rows, and their planned lengths."""

    kind: Literal["local", "remote"]
    q: int
    k: int
    q_len: int
    k_len: int

    def __post_init__(self) -> None:
        if self.kind not in ("local", "remote"):
            raise FieldError(("kind",), f"{str(self.kind)[:40]!r} is neither local nor remote")
        for name in ("q", "k", "q_len", "k_len"):
            put(self, name, whole((name,), getattr(self, name)))
        for rows, planned in (("q", "q_len"), ("k", "k_len")):
            if getattr(self, planned) < getattr(self, rows):
                raise FieldError((planned,), f"{getattr(self, planned)} is below {rows}={getattr(self, rows)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Sequences packed and computed together; `attention_rows`, `gdn_rows` and `attention_stages` have an item a CP rank."""

    attention_rows: tuple[int, ...]
    longest_packed_tokens: int
    gradient: bool = True
    gdn_rows: tuple[int, ...] | None = None
    attention_stages: tuple[tuple[Stage, ...], ...] | None = None

    def __post_init__(self) -> None:
        boolean(self, "gradient")
        for name in ("attention_rows", "gdn_rows"):
            if getattr(self, name) is not None:
                rows = sequence((name,), getattr(self, name))
                put(self, name, tuple(whole((name, rank), one) for rank, one in enumerate(rows)))
        if not sum(self.attention_rows):
            raise FieldError(("attention_rows",), "no rank holds a row")
        put(self, "longest_packed_tokens", whole(("longest_packed_tokens",), self.longest_packed_tokens, low=1))
        if self.attention_stages is not None:
            self._check_stages(self.attention_stages)

    def _check_stages(self, by_rank: tuple[tuple[Stage, ...], ...]) -> None:
        name = "attention_stages"
        ranks = sequence((name,), by_rank)
        stages = tuple(sequence((name, rank), one) for rank, one in enumerate(ranks))
        put(self, name, stages)
        if len(stages) < len(self.attention_rows):
            raise FieldError((name,), f"has {len(stages)} ranks, attention_rows has {len(self.attention_rows)}")
        if len(stages) > len(self.attention_rows):
            raise FieldError(("attention_rows",), f"has {len(self.attention_rows)} ranks, {name} has {len(stages)}")
        for rank, rows in enumerate(self.attention_rows):
            _check_rank_stages((name, rank), stages[rank], rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What the caller gets back a logical row; `k` entries of `top_k`."""

    kind: Literal["target_logprob", "top_k", "logits", "hidden"]
    rows: int
    k: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("target_logprob", "top_k", "logits", "hidden"):
            raise FieldError(("kind",), f"{str(self.kind)[:40]!r} is none of target_logprob, top_k, logits, hidden")
        put(self, "rows", whole(("rows",), self.rows))
        if self.k is not None:
            put(self, "k", whole(("k",), self.k, low=1, high=10**7))
        elif self.kind == "top_k":
            raise FieldError(("k",), "top_k needs it, the entries a row")


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The LM head over `projected_rows` in chunks; `targets` where a loss is backpropagated through it."""

    projected_rows: int
    targets: bool = True

    def __post_init__(self) -> None:
        put(self, "projected_rows", whole(("projected_rows",), self.projected_rows))
        boolean(self, "targets")


@dataclass(frozen=True, kw_only=True, slots=True)
class TermSwitches:
    """Terms to leave out, for figures that are older than they are."""

    cold_transients: bool = True
    adapter_gradients: bool = True

    def __post_init__(self) -> None:
        for name in self.__slots__:
            boolean(self, name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wave:
    """Everything that the price of a step depends on beside the model and the allowances.

    `gdn_kernels` is fallback where the transformers stack runs GDN layers in PyTorch's float32 code.
    """

    model: str
    topology: Topology
    groups: tuple[Group, ...]
    stack: str = "megatron-te"
    gdn_kernels: str = "fused"
    adapter: Adapter | None = None
    te_workspaces_held: bool = False
    first_gradient_execution: bool = True
    observed: Observed | None = None
    held_hybridep_rows: int = 0
    layer_inputs: tuple[Mixer, ...] | None = None
    outputs: tuple[Output, ...] = ()
    head: Head | None = None
    terms: TermSwitches = TermSwitches()

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not 0 < len(self.model) <= 300 or not self.model.isprintable():
            raise FieldError(("model",), f"{str(self.model)[:40]!r} is no name of a model")
        if self.stack not in STACKS:
            raise FieldError(("stack",), f"{str(self.stack)[:40]!r} is no stack that is priced; {' and '.join(STACKS)} are")
        if self.gdn_kernels not in GDN_KERNELS:
            raise FieldError(("gdn_kernels",), f"{str(self.gdn_kernels)[:40]!r} is neither fused nor fallback")
        if self.gdn_kernels == "fallback" and self.stack != "transformers":
            raise FieldError(("gdn_kernels",), f"fallback is PyTorch's code of the transformers stack, stack is {self.stack}")
        boolean(self, "te_workspaces_held")
        boolean(self, "first_gradient_execution")
        put(self, "held_hybridep_rows", whole(("held_hybridep_rows",), self.held_hybridep_rows))
        for name in ("groups", "outputs"):
            put(self, name, sequence((name,), getattr(self, name)))
        if not self.groups:
            raise FieldError(("groups",), "no group")
        self._check_ranks()
        if self.layer_inputs is not None:
            put(self, "layer_inputs", sequence(("layer_inputs",), self.layer_inputs))
            for layer, layout in enumerate(self.layer_inputs):
                if layout not in ("attention", "gdn"):
                    raise FieldError(("layer_inputs", layer), f"{str(layout)[:40]!r} is neither attention nor gdn")
        if self.observed is not None and self.topology.ep == 1 and self.observed.worst > 1:
            raise FieldError(("observed",), f"share {self.observed.worst} at ep=1, where one rank has every row")

    def _check_ranks(self) -> None:
        num_ranks = self.topology.cp
        for at, group in enumerate(self.groups):
            for name in ("attention_rows", "gdn_rows"):
                rows = getattr(group, name)
                if rows is not None and len(rows) != num_ranks:
                    raise FieldError(("groups", at, name), f"rows of {len(rows)} ranks, topology.cp is {num_ranks}")
            if group.attention_stages is not None and num_ranks == 1:
                raise FieldError(("groups", at, "attention_stages"), "the executor runs them at cp=2, topology.cp is 1")


def _check_rank_stages(path: FieldPath, stages: tuple[Stage, ...], rows: int) -> None:
    if sum(stage.kind == "local" for stage in stages) > 1:
        raise FieldError(path, "two local stages")
    for at, stage in enumerate(stages):
        if stage.kind == "local" and not stage.q == stage.k == rows:
            what = f"a local stage of q={stage.q}, k={stage.k} is not the rank's own {rows} rows"
            raise FieldError((*path, at), what)
        if stage.q > rows:
            raise FieldError((*path, at, "q"), f"{stage.q} queries of a rank with {rows} rows")
    run = [stage for stage in stages if stage.q and stage.k]
    for name in ("q", "k"):
        covered = sum(getattr(stage, name) for stage in run)
        if covered < rows:
            raise FieldError(path, f"stages with {covered} {name} rows leave out some of the rank's own {rows}")
