"""Every MoE family of transformers on a tiny random model, against a truth of its own: experts whose weights are NaN.

The tokens whose output turns NaN when one expert's weights do are those that the expert computed, whatever the ids say.
T tokens, K experts a token, S sequences, L MoE layers, E experts.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipelines.write_docs import architectures_text
from routing.measure.attention import go_on_without_mask
from routing.measure.capture import ExpertCounter, ExpertsModule, find_experts
from routing.measure.geometry import Geometry, read_geometry, text_decoder
from routing.measure.policy import LoadedPolicy, as_policy
from routing.measure.probe import is_trusted, probe_cache
from routing.measure.refusals import REASONS
from tests.conftest import REPOSITORY
from tests.measure.families import FAMILIES, TRIED_WITH, tiny_config
from tests.measure.tiny import MAX_POSITIONS, NUM_EXPERTS, NUM_LAYERS, TOP_K

LENGTHS = (23, 14)
LONG = (150, 70)  # beyond the windows, blocks and chunks (64) that layers work in


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyModel:
    """A family's decoder in float32, what our code read of it, and two sequences of token ids."""

    decoder: nn.Module
    geometry: Geometry
    experts: tuple[ExpertsModule, ...]
    sequences: tuple[Tensor, ...]


def build(model_type, **more) -> TinyModel:
    from transformers import CONFIG_MAPPING, AutoModel

    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {model_type}")
    config = tiny_config(model_type, **more)
    torch.manual_seed(0)
    decoder = text_decoder(AutoModel.from_config(config, dtype=torch.float32)).eval()
    _draw_weights(decoder)
    return TinyModel(
        decoder=decoder,
        geometry=read_geometry(config, where=model_type),
        experts=find_experts(decoder),
        sequences=tuple(torch.randint(3, 96, (length,)) for length in LENGTHS),
    )


def going_on(model: TinyModel) -> LoadedPolicy:
    """The same as a policy whose passes may go on from its cache."""
    go_on_without_mask(model.decoder, on=True)
    return as_policy(model.decoder, top_k=model.geometry.shape.top_k, device=torch.device("cpu"))


def long_sequences():
    """The same ids for whoever asks, in whatever order tests run."""
    drawn = torch.Generator().manual_seed(0)
    return [torch.randint(3, 96, (length,), generator=drawn) for length in LONG]


@torch.no_grad()
def _draw_weights(decoder):
    """Spread matrices, and biases of routers that matter: many families start with zeros, under which every token ties."""
    matrices = [parameter for parameter in decoder.parameters() if parameter.ndim > 1]
    biases = [one for one in (*decoder.parameters(), *decoder.buffers()) if one.shape == (NUM_EXPERTS,)]
    for tensor in (*matrices, *biases):
        tensor.normal_(0, 0.3)
    for name, table in decoder.named_buffers():
        if name.endswith("tid2eid"):  # a checkpoint brings it: the experts of each token id
            table.copy_(torch.rand(len(table), NUM_EXPERTS).argsort(-1)[:, : table.shape[1]])


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request):
    """(what the table says, the model) of one family at a time."""
    return FAMILIES[request.param], build(request.param)


def count_rows(model: TinyModel, sequences, *, records=None):
    """Counts [S, L, E] of right-padded rows without an attention mask; `records` takes each experts module's inputs."""
    longest = max(map(len, sequences))
    ids_ST = torch.zeros((len(sequences), longest), dtype=torch.long)
    slot_ST = torch.full((len(sequences), longest), len(sequences))
    for row, ids_T in enumerate(sequences):
        ids_ST[row, : len(ids_T)] = ids_T
        slot_ST[row, : len(ids_T)] = row
    handles = [] if records is None else [_record(one, records) for one in model.experts]
    with ExpertCounter(model.experts, top_k=model.geometry.shape.top_k) as counter, torch.inference_mode():
        counter.begin(slot_ST.flatten(), segment_ids=range(len(sequences)))
        model.decoder(input_ids=ids_ST, use_cache=False)
        counts_SLE = counter.collect()
    for handle in handles:
        handle.remove()
    return counts_SLE, slot_ST.flatten()


def _record(experts, records):
    def keep(_module, args, kwargs):
        records[experts.layer] = (args, kwargs)

    return experts.module.register_forward_pre_hook(keep, with_kwargs=True)


def _tokens_of_expert(module, inputs, expert):
    """[T]: the output has a NaN when the weights of `expert` are NaN."""
    args, kwargs = inputs
    # Vectors are norms that experts share; a matrix is one part an expert, along its first dimension.
    kept = [(parameter, parameter.detach().clone()) for parameter in module.parameters() if parameter.ndim > 1]
    with torch.no_grad():
        for parameter, _ in kept:
            parameter.view(NUM_EXPERTS, -1)[expert] = torch.nan
    with torch.inference_mode():
        output = module(*args, **kwargs)
    with torch.no_grad():
        for parameter, values in kept:
            parameter.copy_(values)
    return output.reshape(-1, output.shape[-1]).isnan().any(-1)


def _truth(model: TinyModel, records, slot_T):
    """Counts [S, L, E] from poisoned weights alone."""
    counts_SLE = torch.zeros(len(LENGTHS), len(model.experts), NUM_EXPERTS, dtype=torch.int32)
    for place, one in enumerate(model.experts):
        for expert in range(NUM_EXPERTS):
            used_T = _tokens_of_expert(one.module, records[one.layer], expert)
            counts_SLE[:, place, expert] = torch.bincount(slot_T[used_T], minlength=len(LENGTHS) + 1)[: len(LENGTHS)]
    return counts_SLE


def _layers_with_experts(decoder):
    """From the names of parameters alone: decoder layers whose weights lie under `experts`, shared ones apart."""
    names = [name for name, _ in decoder.named_parameters() if re.search(r"\bexperts\.", name) and "shared_experts" not in name]
    return tuple(sorted({int(next(part for part in name.split(".") if part.isdigit())) for name in names}))


def _use(model: TinyModel, implementation):
    """Sets the experts implementation where the modules dispatch on it."""
    for one in model.experts:
        if hasattr(one.module, "config"):
            one.module.config._experts_implementation = implementation


def test_each_expert_is_counted_with_the_tokens_that_its_poisoned_weights_reach(family):
    known, model = family
    for implementation in known.implementations:
        _use(model, implementation)
        records = {}
        counts_SLE, slot_T = count_rows(model, model.sequences, records=records)
        assert torch.equal(counts_SLE, _truth(model, records, slot_T)), implementation


def test_every_routed_row_of_a_token_and_no_padding_is_counted(family):
    known, model = family
    counts_SLE, _ = count_rows(model, model.sequences)
    rows_SL = torch.tensor(LENGTHS)[:, None] * TOP_K
    assert torch.equal(counts_SLE.sum(-1), rows_SL.expand(-1, len(known.layers)))


def test_the_shape_is_what_the_configuration_was_given(family):
    known, model = family
    shape = model.geometry.shape
    assert (shape.num_layers, shape.num_experts, shape.top_k, shape.hidden_size) == (NUM_LAYERS, NUM_EXPERTS, TOP_K, 32)
    down_size = NUM_EXPERTS * shape.hidden_size * shape.expert_ffn_size
    assert all(any(matrix.numel() == down_size for matrix in one.module.parameters()) for one in model.experts)
    assert model.geometry.max_positions == MAX_POSITIONS
    assert shape.moe_layers == known.layers == _layers_with_experts(model.decoder)


def test_padded_rows_without_a_mask_route_as_the_sequences_alone(family):
    _, model = family
    sequences = long_sequences()
    together_SLE, _ = count_rows(model, sequences)
    alone_SLE = torch.cat([count_rows(model, [one])[0] for one in sequences])
    assert torch.equal(together_SLE, alone_SLE)


def test_prefixes_are_computed_once_where_the_document_says(family):
    known, model = family
    policy = going_on(model)
    sequences = [one.numpy() for one in long_sequences()]
    with ExpertCounter(policy.experts, top_k=policy.top_k) as counter:
        probe = probe_cache(policy, counter, sequences)
    go_on_without_mask(model.decoder, on=False)
    assert ("prefix-once" if is_trusted(probe, torch.float32) else "whole") == known.walk, probe


def test_the_document_says_what_the_model_shows(family):
    known, model = family
    dispatches = all(hasattr(one.module, "has_gate") for one in model.experts)
    assert known.implementations == (("eager", "grouped_mm") if dispatches else ("eager",))
    assert known.shared == any("shared" in name for name, _ in model.decoder.named_modules())


def test_a_top_1_router_is_counted_once_a_token():
    model = build("qwen3_moe", num_experts_per_tok=1)
    records = {}
    counts_SLE, slot_T = count_rows(model, model.sequences, records=records)
    assert torch.equal(counts_SLE, _truth(model, records, slot_T))
    assert counts_SLE.sum(-1).tolist() == [[length] * NUM_LAYERS for length in LENGTHS]


def test_no_architecture_of_the_installed_transformers_is_forgotten():
    import transformers
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    if transformers.__version__ != TRIED_WITH:
        pytest.skip(f"the table is of transformers {TRIED_WITH}")
    models = Path(transformers.__file__).parent / "models"
    # An argument of ids, or a class of experts of another design. ViTPose routes by data set, it is no language model.
    with_experts = re.compile(r"top_k_index|router_indices|^class \w*(?:Experts|MoE|Moe|SparseMLP)\w*\(nn", re.MULTILINE)
    found = {path.parent.name for path in models.glob("*/modeling_*.py") if with_experts.search(path.read_text())}
    known = {model_type_to_module_name(model_type) for model_type in (*FAMILIES, *REASONS)}
    assert found - known == {"vitpose_backbone"}


def test_the_documented_list_is_the_tested_one():
    assert (REPOSITORY / "docs/architectures.md").read_text() == architectures_text()
