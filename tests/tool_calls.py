"""Tool calls written by hand in each model's own format, for the tags that vLLM's registry builds.

``CALLS[model](name, arguments)`` is one call of a tool; what stands before it, and where a model thinks, is
in the other tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Arguments = dict[str, Any]


def as_json(arguments: Any) -> str:
    return json.dumps(arguments)


def written(value: Any) -> str:
    """A value where strings stand as they are."""
    return value if isinstance(value, str) else json.dumps(value)


def kind(value: Any) -> str:
    """The word for a value's type that Kimi K3 writes."""
    words: dict[type, str] = {str: "string", bool: "boolean", dict: "object", list: "array"}
    return words.get(type(value), "number")


def dsml(arguments: Arguments, space: str = "") -> str:
    return "".join(
        f'<｜DSML｜{space}parameter name="{name}" string="{as_json(isinstance(value, str))}">{written(value)}'
        f"</｜DSML｜{space}parameter>\n"
        for name, value in arguments.items()
    )


def pairs(arguments: Arguments) -> str:
    return "".join(
        f"<arg_key>{name}</arg_key><arg_value>{written(value)}</arg_value>"
        for name, value in arguments.items()
    )


def k3(arguments: Arguments) -> str:
    return "".join(
        f'<|open|>argument key="{name}" type="{kind(value)}"<|sep|>{written(value)}<|close|>argument<|sep|>'
        for name, value in arguments.items()
    )


def hermes(name: str, arguments: Arguments, word: str = "tool_call") -> str:
    return f'<{word}>\n{{"name": "{name}", "arguments": {as_json(arguments)}}}\n</{word}>'


def qwen_xml(name: str, arguments: Arguments) -> str:
    body = "\n".join(f"<parameter={key}>\n{written(value)}\n</parameter>" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}\n</function>\n</tool_call>"


def mimo(name: str, arguments: Arguments) -> str:
    body = "".join(f"<parameter={key}>{written(value)}</parameter>" for key, value in arguments.items())
    return f"<tool_call><function={name}>{body}</function></tool_call>"


def minimax(name: str, arguments: Arguments) -> str:
    body = "".join(
        f'<parameter name="{key}">{written(value)}</parameter>\n' for key, value in arguments.items()
    )
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{body}</invoke>\n</minimax:tool_call>'


CALLS: dict[str, Callable[[str, Arguments], str]] = {
    "deepseek_r1": lambda name, arguments: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{as_json(arguments)}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v3_1": lambda name, arguments: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{as_json(arguments)}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>"
    ),
    "deepseek_v3_2": lambda name, arguments: (
        f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="{name}">\n{dsml(arguments)}</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>"
    ),
    "deepseek_v4": lambda name, arguments: (
        f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{name}">\n{dsml(arguments)}</｜DSML｜invoke>\n'
        "</｜DSML｜tool_calls>"
    ),
    "deepseek_v4_1": lambda name, arguments: (
        f'<｜DSML｜ calls>\n<｜DSML｜ invoke name="{name}">\n{dsml(arguments, " ")}</｜DSML｜ invoke>\n'
        "</｜DSML｜ calls>"
    ),
    "glm_4_7": lambda name, arguments: f"<tool_call>{name}{pairs(arguments)}</tool_call>",
    "harmony": lambda name, arguments: (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{as_json(arguments)}"
    ),
    "hermes": hermes,
    "hy_v4": lambda name, arguments: (
        f"<tool_calls><tool_call>{name}{pairs(arguments)}</tool_call></tool_calls>"
    ),
    "kimi": lambda name, arguments: (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
        f"{as_json(arguments)}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "kimi_k3": lambda name, arguments: (
        f'ok<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="{name}" index="0"<|sep|>'
        f"{k3(arguments)}<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
    ),
    "llama": lambda name, arguments: f'{{"name": "{name}", "parameters": {as_json(arguments)}}}',
    "longcat": lambda name, arguments: hermes(name, arguments, "longcat_tool_call"),
    "mimo": mimo,
    "minimax": minimax,
    "plamo3": lambda name, arguments: (
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>"
        f"{name}<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json"
        f"<|plamo:msg|>{as_json(arguments)}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
        "<|plamo:end_tool_requests:plamo|>"
    ),
    "qwen_3": hermes,
    "qwen_3_5": qwen_xml,
    "qwen_3_coder": qwen_xml,
}
BLANKS_BEFORE = {  # a required call comes behind these
    "deepseek_v3_2": "\n\n",
    "deepseek_v4": "\n\n",
    "deepseek_v4_1": "\n\n",
    "minimax": "\n",
}
THINKING = {
    **dict.fromkeys(("deepseek_r1", "deepseek_v3_1", "glm_4_7", "hy_v4", "kimi"), "hm</think>"),
    **dict.fromkeys(("deepseek_v3_2", "deepseek_v4", "deepseek_v4_1"), "hm</think>"),
    **dict.fromkeys(("qwen_3", "qwen_3_5", "qwen_3_coder"), "hm</think>\n\n"),
    "harmony": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
    "mimo": "<think>hm</think>",
}
ANSWERS = {
    "harmony": "<|channel|>final<|message|>no tool",
    "kimi_k3": "no tool<|close|>response<|sep|><|close|>message<|sep|>",
}


def answer(model: str) -> str:
    """An answer without a call."""
    return ANSWERS.get(model, "no tool")
