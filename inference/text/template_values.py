"""Values that a chat template can be given beside the messages and the tools."""

from __future__ import annotations

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

# What the tokenizer gives to every template itself, or takes for itself.
_OWN = frozenset({
    "messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now", "chat_template",
    "continue_final_message", "conversation", "max_length", "padding", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "tokenize", "tokenizer_kwargs", "truncation",
})  # fmt: skip


class _Generation(Extension):
    """The tag that marks what a model is trained to write, which changes nothing of the text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_ENVIRONMENT = Environment(extensions=["jinja2.ext.loopcontrols", _Generation], autoescape=False)  # noqa: S701 - no HTML


def value_names(template: str) -> frozenset[str]:
    """Return the names that the Jinja `template` reads and doesn't set, but for what every template is given; none of
    one that can't be read.
    """
    try:
        names = meta.find_undeclared_variables(_ENVIRONMENT.parse(template))
    except TemplateError:
        return frozenset()
    return frozenset(name for name in names - _OWN if not name.endswith(("_token", "_tokens")))
