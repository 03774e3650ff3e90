"""Text for the demo policy: rendered trajectories split by task, and the tokenizer learned from them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from routing.core.errors import InputError
from routing.corpus.load import render_texts

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
MAX_POSITIONS = 131_072
# The pre-tokenizer pattern of the Qwen tokenizers: single digits, so long order and item ids cost no vocabulary.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

Ids = npt.NDArray[np.int64]


def is_held_out(unit: str, tenths: int) -> bool:
    """Whether all trajectories of this unit stay out of training; by hash, so that adding files moves no unit."""
    return int.from_bytes(hashlib.sha256(unit.encode()).digest()[:8], "big") % 10 < tenths


def split_texts(paths: Sequence[Path], template: str, held_out_tenths: int) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """(train, held out): the rendered texts of each unit, exact repeats dropped."""
    parts: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    seen: set[str] = set()
    for document in render_texts(paths, chat_template=template):
        if document.text not in seen:
            seen.add(document.text)
            parts[is_held_out(document.unit, held_out_tenths)].setdefault(document.unit, []).append(document.text)
    if not all(parts):
        raise InputError(f"{paths[0]}: no unit is {'held out' if parts[0] else 'left to train on'}; give files with more tasks")
    return parts


def train_tokenizer(texts: Sequence[str], template: str, vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most `vocab_size` words, special tokens included."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Ids]:
    """Token ids of each text, int64."""
    encoded = tokenizer.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.asarray(one.ids, dtype=np.int64) for one in encoded]


def first_turn_tokens(token_ids: Ids) -> int:
    """Length of the opening turn with its end mark; 0 where no turn ends."""
    ends = np.flatnonzero(token_ids == SPECIAL_TOKENS.index("<|im_end|>"))
    return int(ends[0]) + 1 if len(ends) else 0


def unigram_losses(train: Sequence[Ids], held_out: Sequence[Ids], vocab_size: int) -> tuple[float, float]:
    """(all, after the first turn) nats a token of the held-out tokens under the train frequencies, one added to every count."""
    counts = np.bincount(np.concatenate(train), minlength=vocab_size) + 1
    nats = -np.log(counts / counts.sum())
    after = [nats[ids[max(1, first_turn_tokens(ids)) :]] for ids in held_out]
    return float(np.concatenate([nats[ids[1:]] for ids in held_out]).mean()), float(np.concatenate(after).mean())
