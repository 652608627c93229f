"""Every structural tag vLLM's registry builds: a call written by hand in the model's format, and wrong ones.

The calls say what each model's own output looks like; the tags come from the vLLM that is installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import naive
import pytest

from vllm_guided.frontends.structural_tag import structural_tag_grammar

registry = pytest.importorskip("vllm.tool_parsers.structural_tag_registry")
protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")

pytestmark = pytest.mark.slow

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
Arguments = dict[str, Any]


def as_json(arguments: Arguments) -> str:
    return json.dumps(arguments)


def dsml(arguments: Arguments, space: str = "") -> str:
    return "".join(
        f'<｜DSML｜{space}parameter name="{name}" string="{"true" if name == "city" else "false"}">{value}'
        f"</｜DSML｜{space}parameter>\n"
        for name, value in arguments.items()
    )


def pairs(arguments: Arguments) -> str:
    return "".join(
        f"<arg_key>{name}</arg_key><arg_value>{value}</arg_value>" for name, value in arguments.items()
    )


def k3(arguments: Arguments) -> str:
    return "".join(
        f'<|open|>argument key="{name}" type="{"string" if name == "city" else "number"}"<|sep|>{value}'
        "<|close|>argument<|sep|>"
        for name, value in arguments.items()
    )


def hermes(name: str, arguments: Arguments, word: str = "tool_call") -> str:
    return f'<{word}>\n{{"name": "{name}", "arguments": {as_json(arguments)}}}\n</{word}>'


def qwen_xml(name: str, arguments: Arguments) -> str:
    body = "\n".join(f"<parameter={key}>\n{value}\n</parameter>" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}\n</function>\n</tool_call>"


def mimo(name: str, arguments: Arguments) -> str:
    body = "".join(f"<parameter={key}>{value}</parameter>" for key, value in arguments.items())
    return f"<tool_call><function={name}>{body}</function></tool_call>"


def minimax(name: str, arguments: Arguments) -> str:
    body = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in arguments.items())
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
    "mimo": "<think>hm</think>",
}
RIGHT = {"city": "Rome", "days": 3}
NOTHING_BUT_TEXT = "no tool"
# vLLM's own tags leave argument values of these free, or do not say which must be there.
FREE_VALUES = {"hy_v4"}
FREE_CHOICE = {"kimi_k3"}


def build(model: str, choice: str, reasoning: bool) -> dict[str, Any]:
    tools = [
        protocol.ChatCompletionToolsParam.model_validate(
            {"type": "function", "function": {"name": name, "parameters": PARAMETERS, "strict": True}}
        )
        for name in ("get_weather", "get_time")
    ]
    wanted: Any = choice
    if choice == "named":
        wanted = protocol.ChatCompletionNamedToolChoiceParam.model_validate(
            {"type": "function", "function": {"name": "get_weather"}}
        )
    tag = registry.get_model_structural_tag(model, tools, wanted, reasoning)
    form: dict[str, Any] = tag.model_dump(mode="json")
    return form


#: Registered only once vLLM's gpt-oss parser is imported; its tags are among the peers' cases.
ELSEWHERE = {"harmony"}


def test_every_model_is_here() -> None:
    known = registry.SUPPORTED_STRUCTURAL_TAG_MODELS | set(registry._VLLM_STRUCTURAL_TAG_REGISTRY)
    known -= ELSEWHERE
    assert known <= set(CALLS), known - set(CALLS)


@pytest.mark.parametrize("reasoning", [False, True], ids=["answer", "reasoning"])
@pytest.mark.parametrize("choice", ["auto", "required", "named"])
@pytest.mark.parametrize("model", CALLS)
def test_tag(model: str, choice: str, reasoning: bool) -> None:
    grammar = structural_tag_grammar(build(model, choice, reasoning))
    before = THINKING.get(model, "") if reasoning else ""
    if choice != "auto":
        before += BLANKS_BEFORE.get(model, "")

    def accepts(call: str) -> bool:
        return naive.accepts(grammar, (before + call).encode())

    call = CALLS[model]
    assert accepts(call("get_weather", RIGHT))
    assert accepts(call("get_time", RIGHT)) == (choice != "named")
    assert not accepts(call("get_nothing", RIGHT))
    assert accepts(call("get_weather", {"city": "Rome"})) == (model in FREE_CHOICE)
    assert accepts(call("get_weather", {"city": "Rome", "days": "many"})) == (model in FREE_VALUES)
    if model != "kimi_k3":
        assert accepts(NOTHING_BUT_TEXT) == (choice == "auto")
