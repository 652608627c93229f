"""Every structural tag vLLM's registry builds: a call written by hand in the model's format, and wrong ones.

The calls (:mod:`tool_calls`) say what each model's own output looks like; the tags come from the vLLM that is
installed, for each ``tool_choice``, with and without reasoning, strict and not.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import vocabularies
from tool_calls import BLANKS_BEFORE, CALLS, THINKING, answer

import vllm_guided as vg

registry = pytest.importorskip("vllm.tool_parsers.structural_tag_registry")
protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
# brings the model harmony into the registry
pytest.importorskip("vllm.parser.harmony")

pytestmark = pytest.mark.slow

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
RIGHT = {"city": "Rome", "days": 3}
DEEP = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F"]},
        "place": {
            "type": "object",
            "properties": {
                "lat": {"type": "number"},
                "names": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["lat", "names"],
            "additionalProperties": False,
        },
        "alert": {"type": "boolean"},
    },
    "required": ["place"],
    "additionalProperties": False,
}
PLACE = {"lat": 1.5, "names": ["a", "b"]}
# arguments of a tool with the schema above, and whether they are right
DEEP_ARGUMENTS = [
    ({"place": PLACE}, True),
    ({"unit": "C", "place": PLACE, "alert": True}, True),
    ({"unit": "K", "place": PLACE}, False),
    ({"place": {"lat": 1.5}}, False),
    ({"place": {**PLACE, "names": [1]}}, False),
    ({"place": PLACE, "alert": "perhaps"}, False),
    ({"unit": "C"}, False),
    ({"place": PLACE, "other": 1}, False),
]
CHOICES = ("auto", "required", "named")

# What vLLM's own tags of these models leave open, so that no backend could refuse it:
# HY V4's argument values are free text ("each <arg_value> body stays free text");
FREE_VALUES = {"hy_v4"}
# Kimi K3's tag wants at least one argument where some are required, but does not say which.
FREE_CHOICE = {"kimi_k3"}
# Tools that are not strict have free arguments in the tags of all models but these, which look at the
# schema's first level all the same.
SHALLOW = {"glm_4_7", "hy_v4"}


def build(
    model: str,
    choice: str,
    reasoning: bool,
    *,
    parameters: dict[str, Any] = PARAMETERS,
    strict: bool | None = True,
    single: bool = False,
    suffix: str = "",
) -> dict[str, Any] | None:
    """The tag as vLLM hands it over."""
    tools = [
        protocol.ChatCompletionToolsParam.model_validate(
            {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}
        )
        for name in ("get_weather", "get_time")
    ]
    wanted: Any = choice
    if choice == "named":
        wanted = protocol.ChatCompletionNamedToolChoiceParam.model_validate(
            {"type": "function", "function": {"name": "get_weather"}}
        )
    tag = registry.get_model_structural_tag(model, tools, wanted, reasoning, suffix)
    if tag is None:
        return None
    if single:
        registry.limit_to_single_tool_call(tag)
    form: dict[str, Any] = tag.model_dump(mode="json")
    return form


class Judge:
    """Says whether a tag takes an output, by the product itself."""

    compiler: vg.GrammarCompiler | None = None

    def __init__(self, tag: dict[str, Any] | None) -> None:
        assert tag is not None
        if Judge.compiler is None:
            Judge.compiler = vg.GrammarCompiler(vocabularies.tiny()[1])
        self.matcher = Judge.compiler.compile_structural_tag(tag).matcher()

    def __call__(self, output: str) -> bool:
        self.matcher.reset()
        return self.matcher.accept_bytes(output.encode()) and self.matcher.is_accepting()


def before(model: str, choice: str, reasoning: bool) -> str:
    """What a model writes ahead of its call."""
    blanks = BLANKS_BEFORE.get(model, "") if choice != "auto" else ""
    return (THINKING.get(model, "") if reasoning else "") + blanks


def test_every_model_is_here() -> None:
    known = registry.SUPPORTED_STRUCTURAL_TAG_MODELS | set(registry._VLLM_STRUCTURAL_TAG_REGISTRY)
    assert known <= set(CALLS), known - set(CALLS)


@pytest.mark.parametrize("reasoning", [False, True], ids=["answer", "reasoning"])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("model", CALLS)
def test_tag(model: str, choice: str, reasoning: bool) -> None:
    accepts, call = Judge(build(model, choice, reasoning)), CALLS[model]
    start = before(model, choice, reasoning)
    assert accepts(start + call("get_weather", RIGHT))
    assert accepts(start + call("get_time", RIGHT)) == (choice != "named")
    assert not accepts(start + call("get_nothing", RIGHT))
    assert accepts(start + call("get_weather", {"city": "Rome"})) == (model in FREE_CHOICE)
    assert accepts(start + call("get_weather", {"city": "Rome", "days": "many"})) == (model in FREE_VALUES)
    assert not accepts(start + call("get_weather", {}))
    assert accepts(start + answer(model)) == (choice == "auto")


@pytest.mark.parametrize("model", sorted(set(CALLS) - FREE_VALUES - FREE_CHOICE))
def test_arguments(model: str) -> None:
    accepts, call = Judge(build(model, "required", False, parameters=DEEP)), CALLS[model]
    start = before(model, "required", False)
    for arguments, right in DEEP_ARGUMENTS:
        assert accepts(start + call("get_weather", arguments)) is right, arguments


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("model", CALLS)
def test_one_call_only(model: str, choice: str) -> None:
    """``parallel_tool_calls: false``."""
    accepts, call = Judge(build(model, choice, True, single=True)), CALLS[model]
    start = before(model, choice, True)
    assert accepts(start + call("get_weather", RIGHT))
    twice = call("get_weather", RIGHT) + call("get_weather", RIGHT)
    assert accepts(start + twice) == (model in FREE_VALUES)
    assert not accepts(start + call("get_nothing", RIGHT))


@pytest.mark.parametrize("choice", ["required", "named"])
@pytest.mark.parametrize("model", CALLS)
def test_tools_that_are_not_strict(model: str, choice: str) -> None:
    assert build(model, "auto", False, strict=None) is None
    accepts, call = Judge(build(model, choice, False, strict=None)), CALLS[model]
    start = before(model, choice, False)
    assert accepts(start + call("get_weather", RIGHT))
    assert not accepts(start + call("get_nothing", RIGHT))
    assert not accepts(start + answer(model))
    if model not in SHALLOW:
        assert accepts(start + call("get_weather", {"town": "Rome"}))


SPECIAL = re.compile(r"<[|｜/]?[\w:｜▁|]+>|｜DSML｜")


class TokenJudge:
    """Says whether a tag takes an output in which what looks like a special token is one."""

    def __init__(self, tag: dict[str, Any] | None, *texts: str) -> None:
        assert tag is not None
        names = sorted({name for text in texts for name in SPECIAL.findall(text)})
        self.special = {name: 256 + place for place, name in enumerate(names)}
        known = [bytes([byte]) for byte in range(256)]
        vocabulary = vg.Vocabulary(
            [*known, *(None for _ in names), None],
            stop_token_ids=[256 + len(names)],
            special_tokens=self.special,
        )
        self.matcher = vg.GrammarCompiler(vocabulary).compile_structural_tag(tag).matcher()

    def __call__(self, output: str) -> bool:
        tokens: list[int] = []
        for part in re.split(f"({SPECIAL.pattern})", output):
            tokens.extend([self.special[part]] if part in self.special else part.encode())
        self.matcher.reset()
        return self.matcher.accept_tokens(tokens) and self.matcher.is_accepting()


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("model", CALLS)
def test_with_special_tokens(model: str, choice: str) -> None:
    """The same with a vocabulary that has the model's markers as tokens, as the model's own has."""
    call, start = CALLS[model], before(model, choice, True)
    right = start + call("get_weather", RIGHT)
    accepts = TokenJudge(build(model, choice, True), right, answer(model))
    assert accepts(right)
    assert not accepts(start + call("get_nothing", RIGHT))
    assert not accepts(start + call("get_weather", {}))
    assert accepts(start + call("get_weather", {"city": "Rome", "days": "many"})) == (model in FREE_VALUES)
    assert accepts(start + answer(model)) == (choice == "auto")
    for name in accepts.special:  # a marker as a token has no place in a value
        assert not accepts(right.replace("Rome", f"Ro{name}me")), name


def test_suffixed_tokens() -> None:
    accepts = Judge(build("hy_v4", "required", True, suffix=":1a2b"))
    call = CALLS["hy_v4"]("get_weather", RIGHT)
    assert not accepts(THINKING["hy_v4"] + call)
    for word in ("tool_calls", "tool_call", "arg_key", "arg_value"):
        call = call.replace(f"{word}>", f"{word}:1a2b>")
    assert accepts("hm</think:1a2b>" + call)
