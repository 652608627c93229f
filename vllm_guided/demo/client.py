"""Sends one case with the official OpenAI client and judges what comes back."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from vllm_guided.demo.cases import Case

MODEL = "tiny"
PROMPT = "Please answer."
MAX_TOKENS = 800
REQUEST_TIMEOUT = 120.0


@dataclass
class Answer:
    """What the server sent back: the output, how it ended, and what it cost."""

    text: str = ""
    finish: str = ""
    tokens: int = 0
    seconds: float = 0.0
    chunks: int = 0


@dataclass
class Outcome:
    """A case, its answer, and the verdict: ``wrong`` is None where all is as it should be."""

    case: Case
    answer: Answer
    wrong: str | None


def open_client(url: str) -> Any:
    """The OpenAI client for a server at ``url``: no proxy, no retries, a timeout."""
    from openai import DefaultHttpxClient, OpenAI

    direct = DefaultHttpxClient(trust_env=False, timeout=REQUEST_TIMEOUT)
    return OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, http_client=direct)


def ask(client: Any, case: Case) -> Outcome:
    """Send ``case`` and judge the answer. Never raises for what the server does."""
    from openai import APIError, BadRequestError

    start = time.monotonic()
    answer = Answer()
    try:
        _SENDERS[case.endpoint](client, case, answer)
    except BadRequestError as error:
        answer.text = _error_message(error)
        answer.finish = "400"
    except APIError as error:
        answer.text = f"{type(error).__name__}: {error}"
        answer.finish = "error"
    answer.seconds = time.monotonic() - start
    return Outcome(case, answer, _verdict(case, answer))


def _error_message(error: Any) -> str:
    body = error.body if isinstance(error.body, dict) else {}
    return str(body.get("message") or error)


def _verdict(case: Case, answer: Answer) -> str | None:
    if case.judge is None:
        if answer.finish != "400":
            return f"accepted, but must be refused (finish: {answer.finish})"
        return None if case.refusal in answer.text else f"the message does not name {case.refusal!r}"
    if answer.finish in ("400", "error"):
        return "refused"
    if answer.finish == "length":
        return f"not finished after {answer.tokens} tokens"
    if case.stream and answer.chunks == 0:
        return "nothing was streamed"
    try:
        return case.judge(answer.text)
    except (ValueError, TypeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"


def _chat(client: Any, case: Case, answer: Answer) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    arguments: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": MAX_TOKENS, **case.body}
    if case.stream:
        stream = client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **arguments
        )
        calls = _read_chat_stream(stream, answer)
    else:
        reply = client.chat.completions.create(**arguments)
        message = reply.choices[0].message
        answer.text, answer.finish = message.content or "", str(reply.choices[0].finish_reason)
        answer.tokens = reply.usage.completion_tokens
        calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    if "tools" in case.body:
        answer.text = json.dumps(
            [{"name": name, "arguments": text} for name, text in calls], ensure_ascii=False
        )


def _read_chat_stream(stream: Any, answer: Answer) -> list[tuple[str, str]]:
    """Fill ``answer`` from a stream's chunks; the tool calls' names and arguments, put together."""
    calls: dict[int, tuple[str, str]] = {}
    for chunk in stream:
        if chunk.usage:
            answer.tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            answer.chunks += bool(choice.delta.content or choice.delta.tool_calls)
            answer.text += choice.delta.content or ""
            answer.finish = str(choice.finish_reason or answer.finish)
            for call in choice.delta.tool_calls or []:
                name, text = calls.get(call.index, ("", ""))
                calls[call.index] = (
                    name + (call.function.name or ""),
                    text + (call.function.arguments or ""),
                )
    return [calls[index] for index in sorted(calls)]


def _completions(client: Any, case: Case, answer: Answer) -> None:
    arguments: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": MAX_TOKENS, **case.body}
    if not case.stream:
        reply = client.completions.create(**arguments)
        answer.text, answer.finish = reply.choices[0].text, str(reply.choices[0].finish_reason)
        answer.tokens = reply.usage.completion_tokens
        return
    stream = client.completions.create(stream=True, stream_options={"include_usage": True}, **arguments)
    for chunk in stream:
        if chunk.usage:
            answer.tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            answer.chunks += bool(choice.text)
            answer.text += choice.text or ""
            answer.finish = str(choice.finish_reason or answer.finish)


def _responses(client: Any, case: Case, answer: Answer) -> None:
    reply = client.responses.create(model=MODEL, input=PROMPT, max_output_tokens=MAX_TOKENS, **case.body)
    answer.text = reply.output_text
    answer.finish = "stop" if reply.status == "completed" else "length"
    answer.tokens = reply.usage.output_tokens if reply.usage else 0


_SENDERS = {"chat": _chat, "completions": _completions, "responses": _responses}
