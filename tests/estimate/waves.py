"""The published wave as a planner writes it; random models, waves and allowances for the properties."""

from dataclasses import replace
from decimal import Decimal

from hypothesis import strategies as st

from routing.core.layers import DecoderShape, GdnShape
from routing.core.wave import Adapter, Group, Head, Output, Stage, TermSwitches, Topology, Wave

MODEL = "qwen3.6-35b-a3b"
WAVE_TEXT = """\
model: qwen3.6-35b-a3b
stack: megatron-te
topology: {ep: 2, cp: 2, tp: 1, pp: 1, etp: 1, ep_group_is_cp_group: true}
adapter: {expert_rank: 8, pending_gradients: true, targets: [experts]}
te_workspaces_held: false
first_gradient_execution: true
observed: null
held_hybridep_rows: 0
layer_inputs: null
groups:
- gradient: true
  attention_rows: [52480, 44314]
  gdn_rows: [48194, 48600]
  longest_packed_tokens: 96794
  attention_stages:
  - [{kind: local, q: 52480, k: 52480, q_len: 52480, k_len: 52480}]
  - [{kind: local, q: 44314, k: 44314, q_len: 44352, k_len: 44352},
     {kind: remote, q: 44314, k: 16504, q_len: 44352, k_len: 16512}]
outputs: []
head: null
terms: {cold_transients: false, adapter_gradients: false}
"""

ROWS = st.integers(0, 6000)


def flat_wave() -> Wave:
    """The published case: no GDN rows, no executor stages."""
    return Wave(
        model=MODEL,
        topology=Topology(ep=2, cp=2),
        adapter=Adapter(expert_rank=8),
        groups=(Group(attention_rows=(52480, 44314), longest_packed_tokens=96794),),
        terms=TermSwitches(cold_transients=False, adapter_gradients=False),
    )


def ranked_wave() -> Wave:
    """The same wave with each rank's own layouts and what its attention executor ran."""
    stages = (
        (Stage(kind="local", q=52480, k=52480, q_len=52480, k_len=52480),),
        (
            Stage(kind="local", q=44314, k=44314, q_len=44352, k_len=44352),
            Stage(kind="remote", q=44314, k=16504, q_len=44352, k_len=16512),
        ),
    )
    group = replace(flat_wave().groups[0], gdn_rows=(48194, 48600), attention_stages=stages)
    return replace(flat_wave(), groups=(group,))


@st.composite
def shapes(draw, *, all_moe=False):
    """Small decoders: hybrid or all attention, with and without shared experts and dense layers."""
    hybrid = draw(st.booleans())
    num_layers = draw(st.integers(1, 9))
    mixers = tuple("gdn" if hybrid and layer % 4 != 3 else "attention" for layer in range(num_layers))
    dense = 0 if all_moe else draw(st.integers(0, num_layers - 1))
    return DecoderShape(
        name="tiny",
        mixers=mixers,
        moe_layers=tuple(range(dense, num_layers)),
        hidden_size=draw(st.sampled_from([64, 2048])),
        num_query_heads=8,
        num_kv_heads=2,
        head_dim=draw(st.sampled_from([64, 256])),
        output_gate=draw(st.booleans()),
        gdn=GdnShape(num_key_heads=2, key_head_dim=32, num_value_heads=4, value_head_dim=32) if hybrid else None,
        num_experts=draw(st.sampled_from([16, 256])),
        top_k=8,
        expert_ffn_size=draw(st.sampled_from([32, 512])),
        shared_ffn_size=draw(st.sampled_from([0, 128])),
        shared_gated=draw(st.booleans()),
        dense_ffn_size=256,
        vocab_size=1000,
    )


@st.composite
def topologies(draw):
    """EP 1, 2 and 4 at CP 1, 2 and 4, in one group or in two."""
    ep, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    return Topology(ep=ep, cp=cp, ep_group_is_cp_group=None if draw(st.booleans()) and ep == cp else False)


def adapters():
    """None, or LoRA of some rank on the experts."""
    return st.none() | st.builds(Adapter, expert_rank=st.integers(0, 40), pending_gradients=st.booleans())


@st.composite
def groups(draw, topology, shape, *, gradient=True, staged=None, total_rows=None):
    """A group: rows by rank, GDN rows of the same total or none, executor stages or none."""
    cp = topology.cp
    attention = draw(splits(cp, total_rows))
    gdn = draw(st.none() | splits(cp, sum(attention))) if shape.has_gdn else None
    stages = None
    if cp == 2 and (draw(st.booleans()) if staged is None else staged):
        stages = tuple(draw(rank_stages(rows, sum(attention))) for rows in attention)
    longest = draw(st.integers(1, 20000))
    return Group(
        attention_rows=attention, gdn_rows=gdn, attention_stages=stages, longest_packed_tokens=longest, gradient=gradient
    )


@st.composite
def splits(draw, num_ranks, total=None):
    """Rows of each rank, at least one in all."""
    if total is None:
        total = draw(st.integers(1, 12000))
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=num_ranks - 1, max_size=num_ranks - 1)))
    return tuple(end - start for start, end in zip([0, *cuts], [*cuts, total], strict=True))


@st.composite
def rank_stages(draw, rows, total):
    """A local stage of the rank's own rows and up to two remote ones, planned lengths a little above."""
    if rows == 0:
        return ()
    more = st.sampled_from([0, 1, 38])
    stages = [Stage(kind="local", q=rows, k=rows, q_len=rows + draw(more), k_len=rows + draw(more))]
    for _ in range(draw(st.integers(0, 2))):
        q, k = draw(st.integers(0, rows)), draw(st.integers(0, total))
        stages.append(Stage(kind="remote", q=q, k=k, q_len=q + draw(more), k_len=k + draw(more)))
    return tuple(draw(st.permutations(stages)))


@st.composite
def waves(draw, shape, *, single=False, staged=None, topology=None):
    """A wave of `shape`: one gradient group, or up to three groups of either kind."""
    topology = draw(topologies()) if topology is None else topology
    gradients = [True] if single else draw(st.lists(st.booleans(), min_size=1, max_size=3))
    kinds = st.sampled_from(["target_logprob", "top_k", "logits", "hidden"])
    return Wave(
        model=shape.name,
        topology=topology,
        groups=tuple(draw(groups(topology, shape, gradient=one, staged=staged)) for one in gradients),
        adapter=draw(adapters()),
        te_workspaces_held=draw(st.booleans()),
        first_gradient_execution=draw(st.booleans()),
        held_hybridep_rows=draw(st.sampled_from([0, 4096])),
        outputs=tuple(draw(st.lists(st.builds(Output, kind=kinds, rows=ROWS, k=st.just(5)), max_size=2))),
        head=draw(st.none() | st.builds(Head, projected_rows=ROWS, targets=st.booleans())),
        terms=draw(st.builds(TermSwitches, cold_transients=st.booleans(), adapter_gradients=st.booleans())),
    )


def allowances(highest="2.00"):
    """An allowance on a hundredth, from 1 to `highest`."""
    return st.integers(100, int(Decimal(highest) * 100)).map(lambda hundredths: Decimal(hundredths) / 100)
