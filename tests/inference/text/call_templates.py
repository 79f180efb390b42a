"""Excerpts of chat templates, one for each format of calls: what they render is what the families' own templates do."""

from __future__ import annotations

from collections.abc import Mapping

HEAD = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.tool_call_id %}{{ m.tool_call_id }}: {% endif %}{{ m.content }}{% set calls = m.tool_calls or [] %}"
)
TAIL = "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
_EACH = "{% for c in calls %}{% set f = c.function %}"
_LINES = "{{ '\n' if not loop.last }}"
_COMMA = "{{ ', ' if not loop.last }}"
_OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_OBJECTS = f"[{_EACH}{_OBJECT}{_COMMA}{{% endfor %}}]"
_ARGUMENTS = "{% for k, v in f.arguments.items() %}"
_PLAIN = "{{ v if v is string else v | tojson }}"
_KEYWORDS = f"{{{{ f.name }}}}({_ARGUMENTS}{{{{ k }}}}={{{{ v | tojson }}}}{_COMMA}{{% endfor %}})"
_SINGLE = "{% if calls | length > 1 %}{{ raise_exception('one call in each turn') }}{% endif %}"
_BARE = (
    "{% macro bare(v) %}{% if v is string %}QUOTE{{ v }}QUOTE"
    "{% elif v is mapping %}{{ '{' }}{% for k, w in v.items() %}{{ k }}:{{ bare(w) }}{{ ',' if not loop.last }}"
    "{% endfor %}{{ '}' }}"
    "{% elif v is iterable %}[{% for w in v %}{{ bare(w) }}{{ ',' if not loop.last }}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)


def _if_called(text: str) -> str:
    return f"{{% if calls %}}{text}{{% endif %}}"


def _function_xml(tag: str, newline: str) -> str:
    value = f"<parameter={{{{ k }}}}>{newline}{_PLAIN}{newline}</parameter>\n"
    return (
        f"{_EACH}<{tag}>\n<function={{{{ f.name }}}}>\n{_ARGUMENTS}{value}{{% endfor %}}</function>\n</{tag}>"
        f"{_LINES}{{% endfor %}}"
    )


def _invoked(mark: str, section: str, said: str) -> str:
    value = f'<{mark}parameter name="{{{{ k }}}}"{said}>{_PLAIN}</{mark}parameter>\n'
    call = f'<{mark}invoke name="{{{{ f.name }}}}">\n{_ARGUMENTS}{value}{{% endfor %}}</{mark}invoke>\n'
    return _if_called(f"<{section}>\n{_EACH}{call}{{% endfor %}}</{section}>")


def _deepseek(call: str, between: str) -> str:
    body = f"{_EACH}<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>{between}{{% endfor %}}"
    return _if_called(f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>")


_SAID = """ string="{{ 'true' if v is string else 'false' }}\""""
_JSON = "{{ f.arguments | tojson }}"
CALLS: Mapping[str, str] = {
    "hermes": f"{_EACH}<tool_call>\n{_OBJECT}\n</tool_call>{_LINES}{{% endfor %}}",
    "llama3": f'{_SINGLE}{_EACH}{{"name": "{{{{ f.name }}}}", "parameters": {_JSON}}}{{% endfor %}}',
    "mistral": _if_called(f"[TOOL_CALLS]{_OBJECTS}"),
    "mistral-args": f"{_EACH}[TOOL_CALLS]{{{{ f.name }}}}[ARGS]{_JSON}{{% endfor %}}",
    "qwen3-coder": _function_xml("tool_call", "\n"),
    "seed-oss": _function_xml("seed:tool_call", ""),
    "glm": (
        f"{_EACH}<tool_call>{{{{ f.name }}}}\n{_ARGUMENTS}<arg_key>{{{{ k }}}}</arg_key>\n"
        f"<arg_value>{_PLAIN}</arg_value>\n{{% endfor %}}</tool_call>{_LINES}{{% endfor %}}"
    ),
    "hunyuan3": _if_called(
        f"<tool_calls:opensource>\n{_EACH}<tool_call:opensource>{{{{ f.name }}}}<tool_sep:opensource>\n{_ARGUMENTS}"
        f"<arg_key:opensource>{{{{ k }}}}</arg_key:opensource>\n<arg_value:opensource>{_PLAIN}</arg_value:opensource>\n"
        f"{{% endfor %}}</tool_call:opensource>{_LINES}{{% endfor %}}{{{{ '\n' }}}}</tool_calls:opensource>"
    ),
    "minimax-m2": _invoked("", "minimax:tool_call", ""),
    "deepseek-v3": _deepseek(f"function<｜tool▁sep｜>{{{{ f.name }}}}\n```json\n{_JSON}\n```", _LINES),
    "deepseek-v3.1": _deepseek(f"{{{{ f.name }}}}<｜tool▁sep｜>{_JSON}", ""),
    "deepseek-v3.2": _invoked("｜DSML｜", "｜DSML｜function_calls", _SAID),
    "deepseek-v4": _invoked("｜DSML｜", "｜DSML｜tool_calls", _SAID),
    "kimi": _if_called(
        f"<|tool_calls_section_begin|>{_EACH}<|tool_call_begin|>{{{{ c.id }}}}<|tool_call_argument_begin|>{_JSON}"
        "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>"
    ),
    "harmony": (
        f"{_SINGLE}{_EACH}<|start|>assistant<|channel|>commentary to=functions.{{{{ f.name }}}} "
        f"<|constrain|>json<|message|>{_JSON}<|call|>{{% endfor %}}"
    ),
    "solar": _if_called(
        f"<|begin|>assistant<|tool_calls|>{_EACH}<|tool_call:begin|>{{{{ c.id }}}}<|tool_call:name|>{{{{ f.name }}}}"
        f"<|tool_call:args|>{_JSON}<|tool_call:end|>{{% endfor %}}<|calls|>"
    ),
    "gemma4": (
        _BARE.replace("QUOTE", '<|"|>')
        + f"{_EACH}<|tool_call>call:{{{{ f.name }}}}{{{{ bare(f.arguments) }}}}<tool_call|>{{% endfor %}}"
    ),
    "function-gemma": (
        _BARE.replace("QUOTE", "<escape>") + f"{_EACH}<start_function_call>call:{{{{ f.name }}}}"
        "{{ bare(f.arguments) }}<end_function_call>{% endfor %}"
    ),
    "granite": _if_called(f"<|tool_call|>{_OBJECTS}"),
    "granite-20b": f"{_EACH}<function_call> {_OBJECT}{_LINES}{{% endfor %}}",
    "phi4": f"{_EACH}<|tool_call|>{_OBJECT}<|/tool_call|>{{% endfor %}}",
    "nemotron": _if_called(f"<TOOLCALL>{_OBJECTS}</TOOLCALL>"),
    "tool-calls": _if_called(f"<tool_calls>{_OBJECTS}</tool_calls>"),
    "cohere": _if_called(
        f'<|START_ACTION|>[\n{_EACH}    {{"tool_call_id": "{{{{ loop.index0 }}}}", "tool_name": "{{{{ f.name }}}}", '
        f'"parameters": {_JSON}}}{{{{ ",\n" if not loop.last }}}}{{% endfor %}}{{{{ "\n]" }}}}<|END_ACTION|>'
    ),
    "apertus": _if_called(
        f'<|tools_prefix|>[{_EACH}{{"{{{{ f.name }}}}": {_JSON}}}{_COMMA}{{% endfor %}}]<|tools_suffix|>'
    ),
    "internlm": f"{_EACH}<|action_start|><|plugin|>\n{_OBJECT}<|action_end|>{{% endfor %}}",
    "gigachat3": f"{_EACH}<|message_sep|>\n\nfunction call<|role_sep|>\n{_OBJECT}{_LINES}{{% endfor %}}",
    "gigachat": f"{_SINGLE}{_EACH}<|function_call|>{_OBJECT}{{% endfor %}}",
    "functionary": f"{_EACH}<function={{{{ f.name }}}}>{_JSON}</function>{{% endfor %}}",
    "lfm2": _if_called(f"<|tool_call_start|>[{_EACH}{_KEYWORDS}{_COMMA}{{% endfor %}}]<|tool_call_end|>"),
    "olmo3": _if_called(f"<function_calls>\n{_EACH}{_KEYWORDS}{_LINES}{{% endfor %}}{{{{ '\n' }}}}</function_calls>"),
    "pythonic": _if_called(f"[{_EACH}{_KEYWORDS}{_COMMA}{{% endfor %}}]"),
}


def template_of(name: str) -> str:
    """Return a chat template that renders calls in the format `name`."""
    return f"{HEAD}{CALLS[name]}{TAIL}"
