"""Constraints of requests: the older fields, the newer ones, and what each becomes."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest

from vllm_guided.errors import GrammarError
from vllm_guided.vllm import selection
from vllm_guided.vllm.engine import Constraint, constraint_from
from vllm_guided.vllm.guided_fields import GuidedFieldError, take_fields, to_structured_outputs

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


class Model:
    """As a pydantic model class."""

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return SCHEMA


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({}, None),
        ({"guided_decoding_backend": "vllm_guided"}, None),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": "{}"}, {"json": "{}"}),
        ({"guided_json": True}, {"json": "true"}),
        ({"guided_json": Model}, {"json": SCHEMA}),
        ({"guided_json": "{}", "guided_whitespace_pattern": " "}, {"json": "{}", "whitespace_pattern": " "}),
        ({"guided_regex": "[ab]+"}, {"regex": "[ab]+"}),
        ({"guided_regex": ""}, {"regex": ""}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_choice": ("a",)}, {"choice": ["a"]}),
        ({"guided_grammar": "start: \"a\""}, {"grammar": "start: \"a\""}),
        ({"guided_regex": "a", "guided_decoding_backend": "vllm_guided"}, {"regex": "a"}),
        ({"guided_regex": "a", "guided_decoding_backend": "auto:no-fallback"}, {"regex": "a"}),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "vllm_guided:disable-any-whitespace"},
         {"json": SCHEMA, "disable_any_whitespace": True}),
    ],
)  # fmt: skip
def test_older_fields(fields: dict[str, Any], arguments: dict[str, Any] | None) -> None:
    assert to_structured_outputs(fields) == arguments


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex: .* and guided_json is one already"),
        ({"guided_json": 3}, "guided_json: it must be a JSON Schema .* not int"),
        ({"guided_json": [1]}, "not list"),
        ({"guided_regex": {}}, "guided_regex: it must be a string, not dict"),
        ({"guided_choice": "ab"}, "guided_choice: it must be a list of strings, not str"),
        ({"guided_choice": ["a", 1]}, "guided_choice: item 1 must be a string, not int"),
        ({"guided_grammar": []}, "guided_grammar: it must be a string"),
        ({"guided_whitespace_pattern": " "}, "it needs guided_json"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "it goes with guided_json"),
        ({"guided_json": {}, "guided_whitespace_pattern": 1}, "must be a regular expression"),
        ({"guided_regex": "a", "guided_decoding_backend": "xgrammar"}, "'vllm_guided' for every request"),
        ({"guided_decoding_backend": 1}, "for every request"),
        ({"guided_decoding_backend": "auto:fast"}, "unknown option 'fast'"),
    ],
)
def test_older_fields_that_are_wrong(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(GuidedFieldError, match=message):
        to_structured_outputs(fields)


@pytest.mark.parametrize("name", ["guided_jsn", "guided_json_object", "guided_structural_tag"])
def test_fields_that_do_not_exist_are_not_left_out_in_silence(name: str) -> None:
    with pytest.raises(GuidedFieldError, match=f"{name}: there is no such field; there are guided_json, "):
        take_fields({name: {}, "other": 1})
    assert take_fields({name: None, "guided_json": "{}"}) == {"guided_json": "{}"}


def test_taking_fields_removes_them() -> None:
    source = {"guided_json": None, "guided_regex": "a", "kept": 1, "other": 2}
    assert take_fields(source) == {"guided_regex": "a"}
    assert source == {"kept": 1, "other": 2}
    assert take_fields(None) == {}


# --- the constraint of vLLM's parameters -------------------------------------------------------------


def params(**arguments: Any) -> Any:
    sampling_params = pytest.importorskip("vllm.sampling_params")
    return sampling_params.StructuredOutputsParams(**arguments)


class Config:
    def __init__(self, **options: bool) -> None:
        self.disable_any_whitespace = options.get("compact", False)
        self.disable_additional_properties = options.get("closed", False)


@pytest.mark.parametrize(
    ("arguments", "config", "expected"),
    [
        ({"json": {"a": "é"}}, Config(), Constraint("json_schema", '{"a": "\\u00e9"}')),
        ({"json": '{"a": 1}'}, Config(), Constraint("json_schema", '{"a": 1}')),
        ({"json": {}}, Config(compact=True), Constraint("json_schema", "{}", any_whitespace=False)),
        ({"json": {}, "disable_any_whitespace": True}, Config(),
         Constraint("json_schema", "{}", any_whitespace=False)),
        ({"json": {}}, Config(closed=True), Constraint("json_schema", "{}", additional_properties=False)),
        ({"json": {}, "disable_additional_properties": True}, Config(),
         Constraint("json_schema", "{}", additional_properties=False)),
        ({"json": {}, "whitespace_pattern": "\n"}, Config(),
         Constraint("json_schema", "{}", whitespace_pattern="\n")),
        ({"json": {}, "whitespace_pattern": ""}, Config(compact=True),
         Constraint("json_schema", "{}", any_whitespace=False)),
        ({"json": {}, "whitespace_pattern": "", "disable_any_whitespace": True}, Config(),
         Constraint("json_schema", "{}", any_whitespace=False)),
        ({"json_object": True}, Config(), Constraint("json_object")),
        ({"json_object": True, "whitespace_pattern": " "}, Config(),
         Constraint("json_schema", '{"type": "object"}', whitespace_pattern=" ")),
        ({"regex": "a"}, Config(), Constraint("regex", "a")),
        ({"choice": ["a", "b"]}, Config(), Constraint("choice", '["a", "b"]')),
        ({"grammar": "g"}, Config(), Constraint("grammar", "g")),
        ({"structural_tag": "{}"}, Config(), Constraint("structural_tag", "{}")),
        ({"regex": "a"}, None, Constraint("regex", "a")),
    ],
)  # fmt: skip
def test_constraints(arguments: dict[str, Any], config: Any, expected: Constraint) -> None:
    assert constraint_from(params(**arguments), config) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"json_object": False}, "json_object must be true"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern goes with a JSON constraint"),
        ({"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}, "exclude each other"),
    ],
)
def test_constraints_that_are_wrong(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        constraint_from(params(**arguments), None)


def test_blanks_on_a_server_whose_json_has_none() -> None:
    with pytest.raises(GrammarError, match="this server's JSON has no blanks"):
        constraint_from(params(json={}, whitespace_pattern=" "), Config(compact=True))


@pytest.mark.parametrize(
    ("constraint", "spec", "options"),
    [
        (Constraint("json_schema", "{}"), "{}",
         {"any_whitespace": True, "additional_properties": None, "whitespace_pattern": None,
          "property_order": "schema"}),
        (Constraint("json_schema", "{}", whitespace_pattern=" "), "{}",
         {"any_whitespace": True, "additional_properties": None, "whitespace_pattern": " ",
          "property_order": "schema"}),
        (Constraint("json_schema", "{}", property_order="any"), "{}",
         {"any_whitespace": True, "additional_properties": None, "whitespace_pattern": None,
          "property_order": "any"}),
        (Constraint("structural_tag", "{}"), "{}", {"any_whitespace": True,
          "additional_properties": None, "property_order": "schema"}),
        (Constraint("json_object", any_whitespace=False), None, {"any_whitespace": False}),
        (Constraint("choice", '["a"]', any_whitespace=False), ["a"], {}),
        (Constraint("regex", "a"), "a", {}),
    ],
)  # fmt: skip
def test_what_the_engine_is_asked(constraint: Constraint, spec: Any, options: dict[str, Any]) -> None:
    assert (constraint.spec, constraint.options) == (spec, options)


def test_order_of_members_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Constraint("json_schema").property_order == "schema"
    monkeypatch.setenv("VLLM_GUIDED_PROPERTY_ORDER", "any")
    assert constraint_from(params(json={}), None).property_order == "any"
    monkeypatch.setenv("VLLM_GUIDED_PROPERTY_ORDER", "random")
    with pytest.raises(GrammarError, match="VLLM_GUIDED_PROPERTY_ORDER"):
        constraint_from(params(json={}), None)


# --- HTTP bodies -------------------------------------------------------------------------------------

FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm.config")
    monkeypatch.setattr(selection, "_active", True)


def sampling_params(kind: str, body: dict[str, Any]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import (
        BatchChatCompletionRequest,
        ChatCompletionRequest,
    )
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    messages = [{"role": "user", "content": "hi"}]
    if kind == "chat":
        request = ChatCompletionRequest.model_validate({"messages": messages, **body})
    elif kind == "batch":
        batch = BatchChatCompletionRequest.model_validate({"messages": [messages], **body})
        request = batch.to_chat_completion_request(messages)
    elif kind == "completion":
        request = CompletionRequest.model_validate({"prompt": "hi", **body})
    else:
        request = ResponsesRequest.model_validate({"input": "hi", **body})
    first = request.to_sampling_params(16, {})
    assert request.extract_structured_outputs() == first.structured_outputs
    return first


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("kind", ["chat", "batch", "completion", "responses"])
@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"guided_json": SCHEMA}, "json", SCHEMA),
        ({"guided_regex": "a"}, "regex", "a"),
        ({"guided_choice": ["a"]}, "choice", ["a"]),
        ({"guided_grammar": "g"}, "grammar", "g"),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " "}, "whitespace_pattern", " "),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "vllm_guided"}, "json", SCHEMA),
        ({"guided_json": None, "guided_regex": "a"}, "regex", "a"),
        ({"structured_outputs": {"regex": "b"}}, "regex", "b"),
    ],
)
def test_bodies(kind: str, body: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(sampling_params(kind, body).structured_outputs, field) == value


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("kind", ["chat", "batch", "completion"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"guided_json": SCHEMA, "response_format": FORMAT}, "response_format is one already"),
        ({"guided_json": SCHEMA, "structured_outputs": {"regex": "a"}}, "structured_outputs is one already"),
        ({"guided_json": 1}, "must be a JSON Schema"),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "outlines"}, "for every request"),
    ],
)
def test_bodies_that_are_wrong(kind: str, body: dict[str, Any], message: str) -> None:
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match=message):
        sampling_params(kind, body)


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("kind", ["chat", "batch", "completion", "responses"])
@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (
            {"regex": "a", "regx": "b"},
            "structured_outputs has no 'regx'; it has json, regex, choice, grammar",
        ),
        ({"json": SCHEMA, "strict": True}, "has no 'strict'"),
        ({"json": SCHEMA, "disable_fallback": True, "_backend": None, "_backend_was_auto": False}, None),
        ({"json": SCHEMA, "other": None}, None),
    ],
)
def test_unknown_keys_of_a_constraint(kind: str, constraint: dict[str, Any], message: str | None) -> None:
    from vllm.exceptions import VLLMValidationError

    if message is None:
        assert sampling_params(kind, {"structured_outputs": constraint}).structured_outputs.json == SCHEMA
        return
    with pytest.raises(VLLMValidationError, match=message) as caught:
        sampling_params(kind, {"structured_outputs": constraint})
    assert caught.value.parameter == "structured_outputs"


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"structured_outputs": {"json": {}}, "response_format": FORMAT}, "leave one out"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "leave one out"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "'json_object' has no 'schema'"),
        ({"response_format": {"type": "text", "json_schema": {"schema": SCHEMA}}}, "'text' has no"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "has no schema; write"),
        ({"text": {"format": {"type": "json_object"}}}, "its place is response_format"),
    ],
)  # fmt: skip
def test_what_vllm_would_leave_out(kind: str, body: dict[str, Any], message: str) -> None:
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match=message):
        sampling_params(kind, body)


@pytest.mark.usefixtures("active")
def test_what_vllm_would_leave_out_of_responses() -> None:
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match=r"its place is text\.format"):
        sampling_params("responses", {"response_format": FORMAT})
    for kind in ("json_object", "text"):
        with pytest.raises(
            VLLMValidationError, match=rf"text\.format of type '{kind}' has no 'schema'; write"
        ):
            sampling_params("responses", {"text": {"format": {"type": kind, "schema": SCHEMA}}})


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize(
    "shape", [None, {"type": "json_object"}, {"type": "json_schema", "name": "x", "schema": SCHEMA}]
)
def test_formats_of_responses(shape: dict[str, Any] | None) -> None:
    found = sampling_params("responses", {"text": {"format": shape}}).structured_outputs
    assert (found is None) == (shape is None)


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"structured_outputs": {"json_object": True}, "response_format": {"type": "json_object"}},
         "json_object"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}}, "regex"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, "json"),
        ({"text": {"verbosity": "low"}, "structured_outputs": {"regex": "a"}}, "regex"),
    ],
)  # fmt: skip
def test_what_is_let_through(body: dict[str, Any], field: str) -> None:
    assert getattr(sampling_params("chat", body).structured_outputs, field) is not None


def test_without_selection_bodies_are_vllm_s(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm.config")
    monkeypatch.setattr(selection, "_active", False)
    assert sampling_params("chat", {"structured_outputs": {"regex": "a", "other": 1}}).structured_outputs


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, None),
        (
            {"structured_outputs": {"regex": "a"}},
            "has no structured_outputs; its constraint is output_config",
        ),
        ({"response_format": FORMAT}, "has no response_format"),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, "has no output_format"),
        ({"output_format": None}, None),
        ({"guided_regex": "a"}, "has no guided_regex"),
        ({"guided_regex": None}, None),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, None),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "no schema, or an empty one"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "no schema, or an empty one"),
        ({"output_config": {"effort": "low"}}, None),
    ],
)
@pytest.mark.parametrize("is_active", [True, False])
def test_messages(monkeypatch: pytest.MonkeyPatch, body: Any, message: str | None, is_active: bool) -> None:
    pytest.importorskip("vllm")
    from vllm_guided.vllm import bodies

    class AnthropicServingMessages:
        async def create_messages(self, request: Any, raw_request: Any = None) -> Any:
            return "done"

        def create_error_response(self, fault: Exception) -> Any:
            return fault

    class Raw:
        async def json(self) -> Any:
            return body

    monkeypatch.setattr(selection, "_active", is_active)
    module = ModuleType("a_vllm")
    module.AnthropicServingMessages = AnthropicServingMessages  # type: ignore[attr-defined]
    bodies.check_messages(module)
    answer = asyncio.run(AnthropicServingMessages().create_messages(None, Raw()))
    if message is None or not is_active:
        assert answer == "done"
    else:
        assert message in str(answer)
    assert asyncio.run(AnthropicServingMessages().create_messages(None)) == "done"


@pytest.mark.usefixtures("active")
def test_responses_take_one_constraint() -> None:
    from vllm.exceptions import VLLMValidationError

    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    with pytest.raises(VLLMValidationError, match=r"text\.format is one already"):
        sampling_params("responses", {"guided_regex": "a", "text": text})
    assert sampling_params("responses", {"text": text}).structured_outputs.json == SCHEMA


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("kind", ["chat", "batch", "completion"])
def test_a_schema_as_response_format(kind: str) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    assert sampling_params(kind, {"response_format": shape}).structured_outputs.json == SCHEMA


@pytest.mark.usefixtures("active")
def test_a_free_text_format_goes_with_a_guided_field() -> None:
    body = {"guided_regex": "a", "response_format": {"type": "text"}}
    assert sampling_params("chat", body).structured_outputs.regex == "a"


def test_without_selection_the_fields_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm.config")
    monkeypatch.setattr(selection, "_active", False)
    assert sampling_params("chat", {"guided_json": SCHEMA}).structured_outputs is None


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_forced_tool_call_goes_before_a_guided_field(tool_choice: Any) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers.abstract_tool_parser import ToolParser

    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    body = {"messages": [], "tools": tools, "tool_choice": tool_choice, "guided_regex": "a"}
    request = ChatCompletionRequest.model_validate(body)
    request.extract_structured_outputs()
    parser = object.__new__(type("Parser", (ToolParser,), {}))
    request = parser.adjust_request(request)
    assert request.to_sampling_params(16, {}).structured_outputs.json


# --- offline -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ({"guided_json": SCHEMA}, "json", SCHEMA),
        ({"guided_json": Model}, "json", SCHEMA),
        ({"guided_choice": ["a"]}, "choice", ["a"]),
    ],
)
def test_own_sampling_params(arguments: dict[str, Any], field: str, value: Any) -> None:
    vllm = pytest.importorskip("vllm.sampling_params")
    from vllm_guided.vllm.sampling_params import SamplingParams

    made = SamplingParams(max_tokens=5, **arguments)
    assert type(made) is vllm.SamplingParams and isinstance(made, SamplingParams)
    assert made.max_tokens == 5 and getattr(made.structured_outputs, field) == value
    assert SamplingParams(temperature=0.5) == vllm.SamplingParams(temperature=0.5)


def test_own_sampling_params_take_one_constraint() -> None:
    pytest.importorskip("vllm.sampling_params")
    from vllm_guided.vllm.sampling_params import SamplingParams

    with pytest.raises(ValueError, match="one constraint"):
        SamplingParams(guided_regex="a", structured_outputs=params(regex="b"))
    with pytest.raises(ValueError, match="one constraint"):
        SamplingParams(guided_regex="a", guided_json={})


@pytest.mark.parametrize(
    "kind", ["chat_completion.protocol:ChatCompletionRequest", "completion.protocol:CompletionRequest"]
)
def test_beam_search_on_a_server_takes_no_constraint(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """vLLM would leave it out without a word."""
    from importlib import import_module

    pytest.importorskip("vllm")
    from vllm.exceptions import VLLMValidationError

    from vllm_guided.vllm import requests

    place, _, name = kind.partition(":")
    module = import_module(f"vllm.entrypoints.openai.{place}")
    original = getattr(module, name)
    request_class = type("Copy", (original,), {"to_beam_search_params": original.to_beam_search_params})
    requests._refuse_beam_search(request_class)
    fields = {
        "model": "m",
        "prompt": "p",
        "messages": [{"role": "user", "content": "p"}],
        "use_beam_search": True,
    }
    if name == "CompletionRequest":
        del fields["messages"]
    else:
        del fields["prompt"]
    bound = request_class(**fields, structured_outputs={"regex": "a"})
    free = request_class(**fields)
    monkeypatch.setattr(selection, "_active", True)
    with pytest.raises(VLLMValidationError, match="beam search"):
        bound.to_beam_search_params(9, {})
    assert free.to_beam_search_params(9, {}).max_tokens == 9
    monkeypatch.setattr(selection, "_active", False)
    assert bound.to_beam_search_params(9, {}).max_tokens == 9
