"""What a client is told of a constraint that its other parameters contradict, and in a stream of events."""

from __future__ import annotations

import asyncio
import json
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm.v1.engine.output_processor")
pytest.importorskip("openai.types.responses")
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.sampling_params import SamplingParams

from vllm_guided.vllm import contradictions, event_streams, selection


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_active", True)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, None),
        ({"temperature": 0.0}, None),
        ({"allowed_token_ids": [1]}, "allowed_token_ids of this request"),
        ({"bad_words": ["x"]}, "bad_words of this request"),
        ({"bad_words": ["x"], "allowed_token_ids": [1]}, "allowed_token_ids and bad_words of this"),
    ],
)
def test_reasons(given: dict[str, Any], named: str | None) -> None:
    found = contradictions.reason(SamplingParams(**given))
    assert found is None if named is None else found is not None and named in found


def processor(done: list[str]) -> Any:
    class OutputProcessor:
        def __init__(self, states: dict[str, Any]) -> None:
            self.request_states = states

        def process_outputs(self, engine_core_outputs: Any, *rest: Any) -> Any:
            for output in engine_core_outputs:
                state = self.request_states.pop(output.request_id, None)
                done.append(output.request_id)
                if state is not None and state.queue is not None:
                    state.queue.put("an output")
            return rest

    module = ModuleType("a_vllm")
    module.OutputProcessor = OutputProcessor  # type: ignore[attr-defined]
    contradictions.tell_clients(module)
    return OutputProcessor


@pytest.mark.usefixtures("active")
def test_the_reason_reaches_the_request_alone() -> None:
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.output_processor import RequestOutputCollector

    text = contradictions.reason(SamplingParams(allowed_token_ids=[1]))

    async def go() -> None:
        queues = {name: RequestOutputCollector(RequestOutputKind.DELTA, name) for name in "abc"}
        states = {name: SimpleNamespace(queue=queue) for name, queue in queues.items()}
        done: list[str] = []
        made = processor(done)({**states, "offline": SimpleNamespace(queue=None)})
        outputs = [
            SimpleNamespace(request_id="a", finish_reason=2, stop_reason=text),
            SimpleNamespace(request_id="b", finish_reason=None, stop_reason=None),
            SimpleNamespace(request_id="c", finish_reason=0, stop_reason="a stop string"),
            SimpleNamespace(request_id="gone", finish_reason=2, stop_reason=text),
            SimpleNamespace(request_id="offline", finish_reason=2, stop_reason=text),
        ]
        assert made.process_outputs(outputs, 1, 2) == (1, 2)
        assert done == ["a", "b", "c", "gone", "offline"]
        with pytest.raises(VLLMValidationError, match="allowed_token_ids of this request") as caught:
            await queues["a"].get()
        assert caught.value.parameter == "allowed_token_ids"
        assert [await queues[name].get() for name in "bc"] == ["an output"] * 2

    asyncio.run(go())


def stream(fault: Exception | None, constraint: Any) -> list[Any]:
    class OpenAIServingResponses:
        async def responses_stream_generator(self, request: Any, sampling_params: Any, *rest: Any) -> Any:
            yield SimpleNamespace(type="response.created")
            yield SimpleNamespace(type="response.in_progress")
            if fault is not None:
                raise fault
            yield SimpleNamespace(type="response.completed")

    module = ModuleType("a_vllm")
    module.OpenAIServingResponses = OpenAIServingResponses  # type: ignore[attr-defined]
    event_streams.tell_refusals(module)

    async def go() -> list[Any]:
        params = SimpleNamespace(structured_outputs=constraint)
        events = OpenAIServingResponses().responses_stream_generator(None, params)
        return [event async for event in events]

    return asyncio.run(go())


@pytest.mark.usefixtures("active")
def test_a_refusal_is_an_event() -> None:
    assert [event.type for event in stream(None, "x")][-1] == "response.completed"
    *_, last = stream(VLLMValidationError("no such thing", parameter="structured_outputs"), "x")
    assert (last.type, last.param) == ("error", "structured_outputs") and "no such thing" in last.message
    assert (last.code, last.sequence_number) == ("BadRequestError", 2)
    *_, last = stream(GracefulHTTPError("later", 503), "x")  # type: ignore[arg-type]
    assert (last.code, last.message, last.param) == ("ServiceUnavailableError", "later", None)
    with pytest.raises(RuntimeError):
        stream(RuntimeError("the engine is dead"), "x")


def test_other_streams_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_active, constraint in ((False, "x"), (True, None)):
        monkeypatch.setattr(selection, "_active", is_active)
        with pytest.raises(VLLMValidationError):
            stream(VLLMValidationError("no"), constraint)


def messages(chunks: list[str]) -> list[str]:
    class AnthropicServingMessages:
        async def message_stream_converter(self, generator: Any) -> Any:
            async for chunk in generator:
                assert "error" not in json.loads(chunk.removeprefix("data: "))
                yield f"event of {chunk}"

    module = ModuleType("a_vllm")
    module.AnthropicServingMessages = AnthropicServingMessages  # type: ignore[attr-defined]
    event_streams.tell_refusals_of_messages(module)

    async def go() -> list[str]:
        async def given() -> Any:
            for chunk in chunks:
                yield chunk

        return [event async for event in AnthropicServingMessages().message_stream_converter(given())]

    return asyncio.run(go())


@pytest.mark.parametrize(("code", "kind"), [(400, "invalid_request_error"), (503, "api_error")])
def test_an_error_in_a_stream_of_messages(monkeypatch: pytest.MonkeyPatch, code: int, kind: str) -> None:
    monkeypatch.setattr(selection, "_active", True)
    assert messages(["data: {}\n\n"]) == ["event of data: {}\n\n"]
    error = json.dumps({"error": {"message": "no such thing", "type": "x", "param": None, "code": code}})
    first, last = messages(["data: {}\n\n", f"data: {error}\n\n", "data: {}\n\n"])
    assert first == "event of data: {}\n\n"
    told = json.loads(last.removeprefix("event: error\ndata: "))
    assert told == {"type": "error", "error": {"type": kind, "message": "no such thing"}}
    monkeypatch.setattr(selection, "_active", False)
    with pytest.raises(AssertionError):
        messages([f"data: {error}\n\n"])
