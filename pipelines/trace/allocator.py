"""What PyTorch's own allocators say a call took at most, above what was allocated before it."""

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def cpu_peak(call: Callable[[], object]) -> int:
    """Bytes by the CPU allocator's events, as the profiler records them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    alive = most = 0
    results: Any = recorded.profiler
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    return most
