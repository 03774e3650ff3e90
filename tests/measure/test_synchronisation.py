"""What a batch reads back from its device: on CUDA each reading waits until the device has done all it was given."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from routing.corpus.tree import build_tree
from routing.measure import anchors as anchors_module
from routing.measure.anchors import find_anchors
from routing.measure.budget import Budget
from routing.measure.capture import ExpertCounter
from routing.measure.forward import measure_part
from routing.measure.plan import plan_parts
from routing.measure.prefixes import HeldCaches, for_rows
from tests.measure.test_families import build, going_on

# Their results, or the shapes of their results, are numbers that Python needs before it can go on.
READS = {"_local_scalar_dense", "nonzero", "bincount", "is_nonzero", "equal", "masked_select", "unique_dim", "_unique2"}


class Readings(TorchDispatchMode):
    """Notes what layers read back, but not inside the experts, which on the CPU are not those that CUDA runs."""

    def __init__(self, policy):
        super().__init__()
        self.found, self._listens = [], False
        # The counter hooks first: what it does before the experts run is noted.
        for module, listens in [(one, True) for one in policy.model.layers] + [(one.module, False) for one in policy.experts]:
            module.register_forward_pre_hook(lambda *_, now=listens: self._listen(now))
            module.register_forward_hook(lambda *_, now=not listens: self._listen(now))

    def _listen(self, now):
        self._listens = now

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(one is not None and one.dtype == torch.bool for one in args[1])
        if self._listens and (name in READS or by_mask):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def sequences():
    draw = np.random.default_rng(3)
    stem = draw.integers(3, 96, 60)
    return [np.concatenate([stem, draw.integers(3, 96, length)]).astype(np.int32) for length in (70, 40, 65)]


@pytest.mark.parametrize("model_type", ["qwen3_moe", "qwen3_5_moe_text"])
@pytest.mark.parametrize("once", [False, True])
def test_no_layer_reads_anything_back(model_type, once, sequences, monkeypatch):
    monkeypatch.setattr(anchors_module, "MIN_SAVED_TOKENS", 20)
    policy = going_on(build(model_type))
    tree = build_tree(sequences, segment_tokens=32)
    parts = plan_parts(tree, tokens_per_part=10**9)
    held = HeldCaches(anchors=find_anchors(tree, parts), budget_bytes=10**9) if once else None
    with ExpertCounter(policy.experts, top_k=policy.top_k) as counter, Readings(policy) as readings:
        loads_SLE = measure_part(policy, counter, parts[0], tree, sequences, Budget(tokens_per_batch=4096), held=held)
    assert int(loads_SLE.sum()) == tree.tokens_packed * policy.top_k * len(policy.experts)
    assert readings.found == []


def test_repeating_rows_of_a_cache_copies_nothing_to_its_device():
    """An index made on the host is copied once a layer, and each copy waits."""
    policy = going_on(build("qwen3_moe"))
    with torch.inference_mode():
        cache = policy.model(input_ids=torch.ones((1, 5), dtype=torch.long), use_cache=True).cache
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.to("meta"), layer.values.to("meta")

    class NoCopies(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func.overloadpacket.__name__ not in {"_to_copy", "copy_"}
            return func(*args, **(kwargs or {}))

    with NoCopies():
        repeated = for_rows(cache, 3, torch.device("meta"))
    assert {layer.keys.shape[0] for layer in repeated.layers} == {3}
