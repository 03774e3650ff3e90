"""Conversations to text through a chat template: a tokenizer's own, or a template alone."""

from collections.abc import Callable, Mapping
from typing import Any

from routing.core.errors import InputError
from routing.corpus.documents import RefusedError
from routing.corpus.strict_json import escape

Messages = list[dict[str, object]]
Tools = list[object] | None
# Messages and tools to one text without a generation prompt; RefusedError where the template doesn't take them.
ChatRenderer = Callable[[Messages, Tools], str]


def tokenizer_renderer(tokenizer: Any) -> ChatRenderer:
    """Renders through the tokenizer's own chat template; InputError at the first conversation where it has none."""
    template = getattr(tokenizer, "chat_template", None)
    source = "\n".join(template.values()) if isinstance(template, Mapping) else template

    def render(messages: Messages, tools: Tools) -> str:
        if not source:
            raise InputError("the tokenizer has no chat template and the corpus holds messages; name one that has, --tokenizer")
        text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=False)
        return text

    return lambda messages, tools: _render(render, messages, tools, source=source or "")


def template_renderer(chat_template: str) -> ChatRenderer:
    """Renders through a template alone, as a tokenizer without special tokens would."""
    from transformers.utils import chat_template_utils

    # untyped: the function is annotated to return a str and returns a pair
    render_template: Any = chat_template_utils.render_jinja_template

    def render(messages: Messages, tools: Tools) -> str:
        rendered, _ = render_template(
            conversations=[messages], tools=tools, chat_template=chat_template, add_generation_prompt=False
        )
        text: str = rendered[0]
        return text

    return lambda messages, tools: _render(render, messages, tools, source=chat_template)


def _render(render: ChatRenderer, messages: Messages, tools: Tools, *, source: str) -> str:
    from jinja2 import TemplateSyntaxError

    try:
        return render(messages, tools)
    except InputError:
        raise
    except TemplateSyntaxError as error:
        raise InputError(f"the chat template does not compile: line {error.lineno}: {escape(str(error.message))}") from None
    except RecursionError:
        raise RefusedError("too_deep", "nested too deeply for the chat template") from None
    except Exception as error:  # templates come with models: what they raise is theirs to choose
        # A message may quote the conversation; one that stands in the template itself, or speaks of types, does not.
        message = str(error)
        said = f": {escape(message)}" if message in source or isinstance(error, TypeError) else ""
        raise RefusedError("template", f"the chat template raised {type(error).__name__}{said}") from None
