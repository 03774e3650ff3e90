"""A policy spread over devices counts what it counts on one, and each layer's counter lives where the layer runs.

A CPU has no two devices that compute. So accelerate's dispatch is run with layers offloaded to the CPU and the disk, and the
counter over tensors that say they are elsewhere and refuse to meet those of another device.
"""

import multiprocessing
import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from routing.core.errors import CheckFailedError, InputError
from routing.core.worker import Worker
from routing.measure import policy
from routing.measure.capture import ExpertCounter, find_experts
from routing.measure.policy import load_policy, resolve_policy
from routing.measure.spread import layers_by_device, require_device_map
from tests.measure.tiny import tiny_fields
from tests.policies import write_tiny_policy, write_tokenizer

FORK = multiprocessing.get_context("fork")
CPU = torch.device("cpu")
REST = {"embed_tokens": "cpu", "rotary_emb": "cpu", "norm": "cpu", "layers.0": "cpu", "layers.2": "cpu"}
MAPS = {
    "one entry": ({"": "cpu"}, {"cpu": 4}),
    "auto": ("auto", {"cpu": 4}),
    "a layer on disk": ({**REST, "layers.1": "cpu", "layers.3": "disk"}, {"cpu": 3, "disk": 1}),
    "experts apart from their layer": (
        {
            **REST,
            "layers.3": "cpu",
            "layers.1.linear_attn": "disk",
            "layers.1.mlp.experts": "disk",
            **dict.fromkeys((f"layers.1.mlp.{name}" for name in ("gate", "shared_expert", "shared_expert_gate")), "cpu"),
            **dict.fromkeys((f"layers.1.{name}" for name in ("input_layernorm", "post_attention_layernorm")), "cpu"),
        },
        {"cpu": 3, "disk": 1},
    ),
}


def _spread(folder, device_map):
    """The policy with its layers where `device_map` says, as accelerate might have spread them by itself."""
    arguments = policy.placement_arguments
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "placement_arguments", lambda auto: {**arguments(auto), "device_map": device_map})
        return load_policy(resolve_policy(str(folder)), device=CPU, dtype=torch.float32, device_map="auto")


def _counts(model, experts):
    """Routed rows [4, L, E] of four segments of 25 tokens in two rows."""
    ids = torch.randint(0, 256, (2, 50), generator=torch.Generator().manual_seed(1))
    with ExpertCounter(experts, top_k=2) as counter, torch.inference_mode():
        counter.begin(torch.arange(100) // 25, segment_ids=range(4))
        model(input_ids=ids, use_cache=False)
        return counter.collect()


@pytest.mark.parametrize("name", list(MAPS))
def test_a_spread_policy_counts_what_it_counts_on_one_device(tiny_folder, tiny_policy, name):
    device_map, where = MAPS[name]
    spread = _spread(tiny_folder, device_map)
    assert spread.layers_by_device == where
    assert any(one.is_meta for one in spread.model.parameters()) == ("disk" in where)  # what is offloaded is not held
    assert torch.equal(_counts(spread.model, spread.experts), _counts(tiny_policy.model, tiny_policy.experts))


def test_the_text_decoder_of_a_spread_multimodal_policy_counts_alike(tmp_path):
    from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

    config = Qwen3_5MoeConfig(**tiny_fields(Qwen3_5MoeConfig, {"text_config": {"vocab_size": 256, "initializer_range": 0.3}}))
    torch.manual_seed(0)
    Qwen3_5MoeForConditionalGeneration(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    layers = {f"language_model.{name}": place for name, place in {**REST, "layers.1": "disk", "layers.3": "cpu"}.items()}
    one = load_policy(resolve_policy(str(tmp_path)), device=CPU, dtype=torch.float32)
    spread = _spread(tmp_path, {"visual": "cpu", **layers})
    assert (one.layers_by_device, spread.layers_by_device) == (None, {"cpu": 3, "disk": 1})
    assert torch.equal(_counts(spread.model, spread.experts), _counts(one.model, one.experts))


class Elsewhere(torch.Tensor):
    """A tensor on the CPU that says it is on `device`, and meets no tensor of another one unless it is moved."""

    @staticmethod
    def __new__(cls, inner, device):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=device)

    def __init__(self, inner, device):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        (device,) = {one.device for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        device = kwargs.pop("device", None) or device
        args, kwargs = tree_map_only(Elsewhere, lambda one: one.inner, (args, kwargs))
        found = function(*args, **kwargs)
        return found if device == CPU else tree_map_only(torch.Tensor, lambda one: Elsewhere(one, device), found)


class Experts(nn.Module):
    num_experts = 4

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return hidden_states


@pytest.mark.parametrize("home", ["meta:1", "meta:3"])
def test_layers_on_two_devices_are_each_counted_where_they_run(home):
    model = nn.ModuleList(Experts() for _ in range(3))
    places = [torch.device(f"meta:{1 + layer % 2}") for layer in range(3)]
    ids = torch.tensor([[0, 1], [0, 2], [3, 0]])
    slots = torch.tensor([0, 1, 2])  # two segments and padding
    with ExpertCounter(find_experts(model), top_k=2) as counter:
        counter.begin(Elsewhere(slots, torch.device(home)), segment_ids=[41, 42])
        for layer, device in enumerate(places):
            model[layer](None, Elsewhere((ids + layer) % 4, device), Elsewhere(torch.rand(3, 2), device))
        counts = counter.collect()
        assert [counter._counted[layer].rows.device for layer in range(3)] == places
    assert counts.tolist() == [
        [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]],
        [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]],
    ]


def test_a_fault_on_another_device_names_its_layer():
    model = nn.ModuleList(Experts() for _ in range(2))
    with ExpertCounter(find_experts(model), top_k=2) as counter:
        counter.begin(Elsewhere(torch.tensor([0]), torch.device("meta:0")), segment_ids=[7])
        for layer, ids in enumerate(([0, 1], [2, 2])):
            there = torch.device(f"meta:{layer}")
            model[layer](None, Elsewhere(torch.tensor([ids]), there), Elsewhere(torch.tensor([[0.6, 0.4]]), there))
        with pytest.raises(CheckFailedError, match="layer 1, segment 7: 1 tokens of the batch with one expert twice"):
            counter.collect()


def test_the_record_names_the_device_of_each_layer_by_its_nearest_entry():
    model = nn.Module()
    model.layers = nn.ModuleList(nn.ModuleDict({"experts": Experts()}) for _ in range(11))
    on_cpu = {f"layers.{layer}": "cpu" for layer in range(2, 11)}
    model.hf_device_map = {"layers.0": 0, "layers.1": 1, **on_cpu, "layers.3.experts": "disk"}
    assert layers_by_device(model, "cuda:0") == {"cpu": 8, "cuda:0": 1, "cuda:1": 1, "disk": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device_map": "balanced"}, "--device-map: 'balanced' is not known; auto"),
        ({"device_map": "tp"}, "transformers' parallel plans are not taken: their ranks run every batch together"),
        ({"device_map": "expert_parallel"}, "under an expert-parallel plan a rank sees no ids but its own"),
        ({"device": "cuda:1"}, "auto takes every device there is, --device cuda:1 one"),
        ({"has_adapter": True}, "an adapter over layers on several devices is not proven"),
        ({"worker": Worker(index=0, count=8, num_sharing=4)}, "4 workers of one torchrun would each take all GPUs"),
    ],
)
def test_what_a_device_map_can_not_do_is_refused(changes, said):
    request = {"device_map": "auto", "device": "auto", "has_adapter": False, "worker": Worker()}
    require_device_map(**request)
    with pytest.raises(InputError, match=said):
        require_device_map(**{**request, **changes})


def _rank_of_a_plan(rank, store, folder, plan, answers):
    import transformers
    from transformers.distributed import DistributedConfig

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, distributed_config=DistributedConfig(**plan)
        ).base_model
        answers.put(_counts(model, find_experts(model)).tolist())
    except CheckFailedError as error:
        answers.put(str(error))
    os._exit(0)  # a process group of a fork that is torn down waits for threads which it does not have


@pytest.fixture(scope="module")
def plain_moe(tmp_path_factory):
    """A Qwen3-MoE, whose class has both plans."""
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        moe_intermediate_size=8, intermediate_size=16, num_experts=8, num_experts_per_tok=2, initializer_range=0.3,
    )  # fmt: skip
    return write_tiny_policy(tmp_path_factory.mktemp("plans") / "qwen3", config=config)


def _run_plan(folder, plan):
    """What each of two ranks counted, or was refused with."""
    answers = FORK.SimpleQueue()
    store = Path(folder).parent / f"store-{len(plan)}"
    ranks = [FORK.Process(target=_rank_of_a_plan, args=(rank, store, folder, plan, answers)) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(timeout=120)
        assert one.exitcode == 0
    return [answers.get(), answers.get()]


def test_a_tensor_parallel_plan_shows_every_rank_the_ids_of_all(plain_moe):
    one = load_policy(resolve_policy(str(plain_moe)), device=CPU, dtype=torch.float32)
    assert _run_plan(plain_moe, {"tp_size": 2}) == [_counts(one.model, one.experts).tolist()] * 2


def test_an_expert_parallel_plan_is_never_counted_as_if_it_were_the_model(plain_moe):
    """Each rank's experts take ids of their own, half of them beyond its four: the counter refuses both ranks."""
    for said in _run_plan(plain_moe, {"tp_size": 2, "ep_size": 2}):
        assert "ids out of range" in said
        assert "0..3 are its experts)" in said
