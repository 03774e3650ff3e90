"""Two templates of our own and two tokenizers: a real one over bytes, and a cheap one over words for counting."""

import json
import zlib
from pathlib import Path

import pytest

from routing.corpus.load import load_corpus

# As strict as the official templates of Qwen3.5: object arguments only, no unknown role, no later system message, a user.
STRICT_TEMPLATE = """
{%- if not messages %}{{- raise_exception('No messages provided.') }}{%- endif %}
{%- set found = namespace(user=false) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set found.user = true %}{%- endif %}
{%- endfor %}
{%- if not found.user %}{{- raise_exception('No user query found in messages.') }}{%- endif %}
{%- if tools %}{{- '<|tools|>' + (tools | tojson) }}{%- endif %}
{%- for message in messages %}
    {%- if message.content is not string %}{{- raise_exception('Unexpected content type.') }}{%- endif %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- elif message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
    {{- '<|' + message.role + '|>' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<call ' + call.function.name + '>' }}
        {%- for key, value in call.function.arguments | items %}
            {{- '<' + key + '>' + (value if value is string else value | tojson) }}
        {%- endfor %}
    {%- endfor %}
{%- endfor %}
"""


class WordTokenizer:
    """Stands in where only counts matter: an id per word (crc32), rendered by STRICT_TEMPLATE. Two words may share an id."""

    chat_template = STRICT_TEMPLATE

    def __init__(self):
        self.num_encoded = 0

    def __len__(self):
        return 2**31 - 1

    def apply_chat_template(self, messages, *, tools, tokenize, add_generation_prompt):
        from transformers.utils.chat_template_utils import render_jinja_template

        assert not tokenize
        assert not add_generation_prompt
        return render_jinja_template(conversations=[messages], tools=tools, chat_template=self.chat_template)[0][0]

    def __call__(self, texts, *, add_special_tokens, **_):
        assert not add_special_tokens
        self.num_encoded += len(texts)
        return {"input_ids": [[zlib.crc32(word.encode()) % (2**31 - 1) for word in text.split()] for text in texts]}


@pytest.fixture
def words() -> WordTokenizer:
    return WordTokenizer()


@pytest.fixture(scope="session")
def byte_tokenizer():
    """A byte-level tokenizer of 256 tokens and a beginning-of-text token that must never be added."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 256)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", chat_template=STRICT_TEMPLATE)


@pytest.fixture
def write(tmp_path: Path):
    """Writes rows as JSON Lines, another value as JSON, text or bytes as they are; gives the path back."""

    def write(name: str, content: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8", newline="")
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
        else:
            path.write_text(json.dumps(content), encoding="utf-8")
        return path

    return write


@pytest.fixture
def read(byte_tokenizer):
    """(texts, corpus) of files"""

    def read(*paths, **options):
        corpus = load_corpus(paths, tokenizer=byte_tokenizer, **options)
        return [byte_tokenizer.decode(trajectory.token_ids) for trajectory in corpus.trajectories], corpus

    return read
