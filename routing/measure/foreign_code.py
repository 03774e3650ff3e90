"""What in a configuration would have transformers run code that is not its own: refused before anything is built from it."""

from collections.abc import Iterator
from typing import Any

# Attention and experts that transformers carries. Any other name, at any depth, is taken for a repository of kernels, which
# is downloaded and run where the package `kernels` is installed.
_IMPLEMENTATIONS = frozenset({"eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm"})
_IMPLEMENTATION_KEYS = frozenset({"attn_implementation", "experts_implementation"})


def refuse_foreign_code(config: Any) -> None:
    """ValueError naming the key of a parsed `config.json` that asks for code from elsewhere."""
    if isinstance(config, dict) and "auto_map" in config:
        raise ValueError("it asks for code of its own (auto_map)")
    for key, name in _implementations(config):
        if name not in _IMPLEMENTATIONS:
            raise ValueError(f"it asks for code of its own ({key}: {name[:60]!a}); take the key out of the file")


def _implementations(config: Any) -> Iterator[tuple[str, str]]:
    """(key, name) of every implementation that is named anywhere in `config`; a name may stand for each part of a model."""
    waiting = [(False, "", config)]
    while waiting:
        is_named, key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(is_named or inner.lstrip("_") in _IMPLEMENTATION_KEYS, inner, item) for inner, item in value.items()]
        elif isinstance(value, list):
            waiting += [(is_named, key, item) for item in value]
        elif is_named and isinstance(value, str):
            yield key, value
