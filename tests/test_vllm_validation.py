"""Validation in the API server: ours when our backend is configured, vLLM's own otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import stub_engine

from vllm_guided.errors import InvalidConstraint
from vllm_guided.vllm import compiled, engine, selection, validation

pytest.importorskip("vllm.sampling_params")
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

MODEL = SimpleNamespace(is_diffusion=False, get_vocab_size=lambda: 100)
TOKENIZER = object()


def config(backend: str = "vllm_guided", **options: Any) -> Any:
    return SimpleNamespace(
        backend=backend,
        **{"disable_any_whitespace": False, "disable_additional_properties": False, **options},
    )


def validate(params: SamplingParams, model: Any = MODEL, tokenizer: Any = TOKENIZER, **options: Any) -> None:
    params._validate_structured_outputs(model, config(**options), tokenizer)


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_engine.install(monkeypatch.setattr)


def with_constraint(**arguments: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputsParams(**arguments))


def test_a_good_constraint_is_marked_as_ours() -> None:
    params = with_constraint(regex="a")
    validate(params)
    validate(params)
    assert params.structured_outputs._backend == "vllm_guided"


def test_a_reused_automatic_choice_is_taken_over() -> None:
    params = with_constraint(regex="a")
    params.structured_outputs._backend = "xgrammar"
    params.structured_outputs._backend_was_auto = True
    validate(params)
    assert params.structured_outputs._backend == "vllm_guided"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"regex": stub_engine.BAD}, "here: the stub refuses this"),
        ({"json": {"title": stub_engine.BAD}}, "here: the stub refuses this"),
        ({"json_object": False}, "json_object must be true"),
    ],
)
def test_a_bad_constraint_is_the_client_s_error(arguments: dict[str, Any], message: str) -> None:
    for _ in range(2):
        with pytest.raises(VLLMValidationError, match=message):
            validate(with_constraint(**arguments))


def test_what_a_server_cannot_do_is_the_client_s_error() -> None:
    with pytest.raises(VLLMValidationError, match="diffusion"):
        validate(with_constraint(regex="a"), model=SimpleNamespace(is_diffusion=True))
    with pytest.raises(VLLMValidationError, match="tokenizer"):
        validate(with_constraint(regex="a"), tokenizer=None)
    other = with_constraint(regex="a")
    other.structured_outputs._backend = "xgrammar"
    with pytest.raises(VLLMValidationError, match="for every request"):
        validate(other)


def test_no_constraint_is_fine() -> None:
    validate(SamplingParams())
    validate(SamplingParams(extra_args={"other": 1}))


def test_extra_args_become_the_constraint() -> None:
    given = {"guided_choice": ["a", "b"], "kept": 1}
    params = SamplingParams(extra_args=given)
    validate(params)
    assert params.structured_outputs.choice == ["a", "b"]
    assert params.extra_args == {"kept": 1}
    assert given == {"guided_choice": ["a", "b"], "kept": 1}
    validate(params)
    only = SamplingParams(extra_args={"guided_regex": "a"})
    validate(only)
    assert only.extra_args is None


@pytest.mark.parametrize(
    ("extra_args", "message"),
    [
        ({"guided_json": 1}, "guided_json: it must be"),
        ({"guided_regex": stub_engine.BAD}, "the stub refuses"),
        ({"guided_regex": "a", "guided_json": "{}"}, "one constraint"),
        ({"guided_decoding_backend": "outlines"}, "for every request"),
    ],
)
def test_wrong_extra_args(extra_args: dict[str, Any], message: str) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        validate(SamplingParams(extra_args=extra_args))


def test_extra_args_beside_a_constraint() -> None:
    params = with_constraint(regex="a")
    params.extra_args = {"guided_regex": "b"}
    with pytest.raises(VLLMValidationError, match="structured_outputs is one already"):
        validate(params)


def test_other_backends_are_validated_by_vllm() -> None:
    params = with_constraint(regex="[0-9]+")
    validate(params, backend="xgrammar")
    assert params.structured_outputs._backend == "xgrammar"
    with pytest.raises(VLLMValidationError):
        validate(with_constraint(json={"type": "integer", "multipleOf": 3}), backend="xgrammar")


@pytest.mark.parametrize("active", [True, False])
def test_structural_tags_are_shown_to_xgrammar_only_without_us(
    monkeypatch: pytest.MonkeyPatch, active: bool
) -> None:
    from vllm.entrypoints.generate.base import protocol

    monkeypatch.setattr(selection, "_active", active)
    tag = '{"type": "structural_tag", "format": {"type": "only_we_know"}}'
    if active:
        protocol.validate_structural_tag_payload(tag, parameter="x")
    else:
        with pytest.raises(VLLMValidationError):
            protocol.validate_structural_tag_payload(tag, parameter="x")
    with pytest.raises(VLLMValidationError):
        protocol.validate_structural_tag_payload("", parameter="x")


def test_constraints_beside_tools_are_judged_by_us(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.parser import abstract_parser

    params = StructuredOutputsParams(json={"type": "integer", "multipleOf": 3})
    monkeypatch.setattr(selection, "_active", False)
    assert not abstract_parser._xgrammar_supports(params)
    monkeypatch.setattr(selection, "_active", True)
    assert abstract_parser._xgrammar_supports(params)
    assert not abstract_parser._xgrammar_supports(StructuredOutputsParams(json="{"))
    bad = StructuredOutputsParams(regex=stub_engine.BAD)
    key = engine.constraint_from(bad, None).job.key
    monkeypatch.setattr(compiled, "verdicts", compiled.Verdicts(1 << 20))
    compiled.verdicts.put(key, InvalidConstraint("no"))
    assert not abstract_parser._xgrammar_supports(bad)


@pytest.mark.parametrize("choice", ["required", SimpleNamespace(function="f")])
def test_constraints_beside_forced_calls_are_refused(monkeypatch: pytest.MonkeyPatch, choice: Any) -> None:
    """vLLM would leave them out; no constraint, and calls that are not forced, are let through."""

    class Parser:
        def adjust_request(self, request: Any) -> Any:
            return self._apply_structural_tag(request)

        def _apply_structural_tag(self, request: Any) -> Any:
            return "applied"

    class OfOneModel(Parser):
        """Has put its own tag there by then, in place of a ``response_format``."""

        def adjust_request(self, request: Any) -> Any:
            request.structured_outputs = StructuredOutputsParams(structural_tag="{}")
            return super().adjust_request(request)

    validation.refuse_beside_forced_calls(SimpleNamespace(DelegatingParser=Parser))  # type: ignore[arg-type]
    validation.refuse_beside_forced_calls(SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(selection, "_active", True)

    def request(constraint: Any, tool_choice: Any = choice, tools: Any = ("f",)) -> Any:
        return SimpleNamespace(
            tools=tools,
            tool_choice=tool_choice,
            structured_outputs=constraint,
            extract_structured_outputs=str,
        )

    constraint = StructuredOutputsParams(regex="a")
    assert OfOneModel().adjust_request(request(None)) == "applied"
    with pytest.raises(VLLMValidationError, match="tool_choice forces a call"):
        Parser()._apply_structural_tag(request(constraint))
    for fine in (request(None), request(constraint, "auto"), request(constraint, "none"),
                 request(constraint, None), request(constraint, choice, None)):  # fmt: skip
        assert Parser()._apply_structural_tag(fine) == "applied"
    monkeypatch.setattr(selection, "_active", False)
    assert Parser()._apply_structural_tag(request(constraint)) == "applied"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, (False, False)),
        ({"disable_any_whitespace": True}, (True, False)),
        ({"disable_additional_properties": True}, (False, True)),
        ({"whitespace_pattern": ""}, (True, False)),
        ({"whitespace_pattern": "[ ]"}, None),
    ],
)
@pytest.mark.parametrize("is_active", [True, False])
def test_options_beside_calls_that_may_come(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], kept: Any, is_active: bool
) -> None:
    """vLLM makes a structural tag of tools and constraint, and leaves the options of the constraint out."""

    class Parser:
        def adjust_request(self, request: Any) -> Any:
            return self._apply_structural_tag(request)

        def _apply_structural_tag(self, request: Any) -> Any:
            request.structured_outputs = StructuredOutputsParams(structural_tag="{}")
            return request

    validation.refuse_beside_forced_calls(SimpleNamespace(DelegatingParser=Parser))  # type: ignore[arg-type]
    monkeypatch.setattr(selection, "_active", is_active)
    constraint = StructuredOutputsParams(json={}, **options)
    request = SimpleNamespace(
        tools=("f",), tool_choice="auto", structured_outputs=constraint, extract_structured_outputs=str
    )
    if kept is None and is_active:
        with pytest.raises(VLLMValidationError, match="whitespace_pattern does not go together with tools"):
            Parser().adjust_request(request)
        return
    made = Parser().adjust_request(request).structured_outputs
    expected = kept if is_active else (False, False)
    assert (made.disable_any_whitespace, made.disable_additional_properties) == expected


def test_a_schema_goes_to_the_engine_as_ascii_text() -> None:
    """vLLM's messages cannot hold half a surrogate pair."""
    import msgspec

    params = with_constraint(json={"const": "\ud800", "title": "é"})
    validate(params)
    assert params.structured_outputs.json == '{"const": "\\ud800", "title": "\\u00e9"}'
    assert msgspec.msgpack.encode(params.structured_outputs.json)
    validate(params)


class NamedTokens:
    all_special_tokens = ("<eos>",)

    def get_added_vocab(self) -> dict[str, int]:
        return {"<tool>": 7}


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("start: <tool> <eos>\n", None),
        ("start: <other>\n", "no special token '<other>'; it has '<eos>', '<tool>'"),
        ("start: <[7]>\n", None),
        ("start: <[100]>\n", "not all below 100"),
    ],
)
def test_special_tokens_are_looked_up(
    monkeypatch: pytest.MonkeyPatch, grammar: str, message: str | None
) -> None:
    monkeypatch.undo()
    if message is None:
        validate(with_constraint(grammar=grammar), tokenizer=NamedTokens())
        return
    with pytest.raises(VLLMValidationError, match=message):
        validate(with_constraint(grammar=grammar), tokenizer=NamedTokens())
