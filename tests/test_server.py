"""A real ``vllm serve`` on CPU: every kind of constraint by every way in, many at once, bad ones between.

One server with a real vocabulary of 128,000 tokens, one with n-gram speculation. Outputs are judged by
``jsonschema``, ``re`` and Lark; the server must answer after every bad request and end cleanly.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.server]

from vllm_guided.demo import async_on_cpu, judges  # noqa: E402
from vllm_guided.demo.model import MissingTokenizer, write_tiny_model  # noqa: E402
from vllm_guided.demo.server import VllmServer  # noqa: E402

MODEL = "tiny"
OPTIONS = [
    "--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "32",
    "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
]  # fmt: skip
START = 900.0  # seconds, on a machine that compiles everything for the first time

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
LARK_SHORT = 'start: "(" start ")" | WORD\nWORD: /[a-z]{1,8}/\n'
EBNF = 'root ::= "<" ("a" | "b" [0-9]{1,3}) ">"\n'
DATE = r"[0-9]{4}-[01][0-9]-[0-3][0-9]"
COLOURS = ["red", "green", "deep blue"]
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<p>",
        "content": {"type": "json_schema", "json_schema": PERSON},
        "end": "</p>",
    },
}
TOOLS = [
    {"type": "function", "function": {"name": "look_up", "parameters": PERSON}},
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}},
                                                   "required": ["n"], "additionalProperties": False}},
    },
]  # fmt: skip


@dataclass
class Case:
    """A request and who judges its text."""

    name: str
    body: dict[str, Any]
    judge: judges.Judge
    path: str = "chat/completions"
    budget: int = 400


def format_of(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def cases() -> list[Case]:
    person, choice, date = judges.json_schema(PERSON), judges.choice(COLOURS), judges.regex(DATE)
    compact = judges.json_schema(PERSON, compact=True)
    word, ebnf = judges.lark(LARK_SHORT), judges.regex(r"<(a|b[0-9]{1,3})>")
    tagged = judges.between("<p>", person, "</p>")
    return [
        Case("response_format json_schema", format_of(PERSON), person),
        Case("response_format json_object", {"response_format": {"type": "json_object"}}, judges.json_object),
        Case("response_format structural_tag", {"response_format": TAG}, tagged),
        Case("structured_outputs json", {"structured_outputs": {"json": PERSON}}, person),
        Case("structured_outputs json, compact",
             {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}, compact),
        Case("structured_outputs regex", {"structured_outputs": {"regex": DATE}}, date),
        Case("structured_outputs choice", {"structured_outputs": {"choice": COLOURS}}, choice),
        Case("structured_outputs Lark", {"structured_outputs": {"grammar": LARK_SHORT}}, word),
        Case("structured_outputs EBNF", {"structured_outputs": {"grammar": EBNF}}, ebnf),
        Case("structured_outputs structural_tag", {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
             tagged),
        Case("guided_json", {"guided_json": PERSON}, person),
        Case("guided_json, as text", {"guided_json": json.dumps(PERSON)}, person),
        Case("guided_json, no blanks", {"guided_json": PERSON, "guided_whitespace_pattern": ""}, compact),
        Case("guided_regex", {"guided_regex": DATE}, date),
        Case("guided_choice", {"guided_choice": COLOURS}, choice),
        Case("guided_grammar", {"guided_grammar": EBNF}, ebnf),
        Case("completions, guided_regex", {"guided_regex": DATE}, date, "completions"),
        Case("completions, response_format", format_of(PERSON), person, "completions"),
        Case("responses, guided_json", {"guided_json": PERSON}, person, "responses"),
        Case("responses, text.format",
             {"text": {"format": {"type": "json_schema", "name": "x", "schema": PERSON}}},
             person, "responses"),
        Case("vllm_xargs", {"vllm_xargs": {"guided_choice": COLOURS}}, choice),
    ]  # fmt: skip


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("a regex that is none", {"guided_regex": "(a"}, "guided|regex|structured"),
    ("a schema that is none", {"guided_json": {"type": "strin"}}, "type"),
    ("a schema nothing satisfies", {"guided_json": {"type": "integer", "minimum": 3, "maximum": 1}}, ""),
    ("no JSON", {"guided_json": "{"}, "JSON"),
    ("a grammar without a start", {"guided_grammar": 'a: "x"\n'}, "start"),
    ("an unknown rule", {"structured_outputs": {"grammar": "root ::= nothing\n"}}, "nothing"),
    ("no choices", {"structured_outputs": {"choice": []}}, "choice"),
    ("two constraints", {"guided_regex": "a", "guided_choice": ["b"]}, "one constraint"),
    ("another backend", {"guided_regex": "a", "guided_decoding_backend": "xgrammar"}, "vllm_guided"),
    ("a structural tag that is none",
     {"response_format": {"type": "structural_tag", "format": {"type": "what"}}}, "what"),
    ("beam search", {"guided_regex": "a+", "use_beam_search": True, "n": 2, "temperature": 0}, "beam search"),
    ("a remote reference", {"guided_json": {"$ref": "https://example.com/x.json"}}, "example.com"),
    ("an unknown key", {"structured_outputs": {"regex": "a", "regx": "b"}}, "has no 'regx'"),
    ("a format and a constraint", {"structured_outputs": {"json": {}}, **format_of(PERSON)}, "leave one out"),
    ("no token that is allowed", {"guided_regex": "[b-z]{3}", "allowed_token_ids": [5]}, "allowed_token_ids"),
]  # fmt: skip


@dataclass
class Reply:
    status: int
    texts: list[str] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)
    message: str = ""
    raw: dict[str, Any] = field(default_factory=dict)


class Client:
    """The plain HTTP of the OpenAI API, so that nothing stands between the test and the answer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            f"{self.url}/v1/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with self.opener.open(request, timeout=300) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ask(self, body: dict[str, Any], path: str = "chat/completions", budget: int = 400) -> Reply:
        given = {"model": MODEL, "temperature": 1, **body}
        if path == "chat/completions":
            given = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": budget, **given}
        elif path == "completions":
            # Not one token: beside drafts of others, vLLM 0.32 on CPU samples token 0 for such a prompt,
            # whatever the backend.
            given = {"prompt": "Hello there, my friend", "max_tokens": budget, **given}
        else:
            given = {"input": "Hello", "max_output_tokens": budget, **given}
        status, answer = self.post(path, given)
        if status != 200:
            return Reply(status, message=answer["error"]["message"], raw=answer)
        if path == "responses":
            parts = [part for item in answer["output"] for part in item.get("content") or []]
            finish = ["stop" if answer["status"] == "completed" else "length"]
            return Reply(200, ["".join(part["text"] for part in parts)], finish, raw=answer)
        choices = answer["choices"]
        texts = [
            choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices
        ]
        return Reply(200, texts, [choice["finish_reason"] for choice in choices], raw=answer)

    def accepted_drafts(self) -> float:
        """How many draft tokens the server has accepted."""
        return self.counted("vllm:spec_decode_num_accepted_tokens_total")

    def counted(self, name: str) -> float:
        """The sum of a series of the server's metrics."""
        with self.opener.open(f"{self.url}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def check(self, case: Case) -> None:
        reply = self.ask(case.body, case.path, case.budget)
        assert reply.status == 200, (case.name, reply.message)
        for text, finish in zip(reply.texts, reply.finish, strict=True):
            if finish == "stop":
                assert case.judge(text) is None, (case.name, text, case.judge(text))
            else:
                assert case.judge is judges.json_object, (case.name, finish, text)


def start(folder: Path, *options: str) -> VllmServer:
    model = folder / "model"
    model.mkdir()
    try:
        write_tiny_model(model)
    except MissingTokenizer as error:
        pytest.skip(str(error))
    return VllmServer(model, [*OPTIONS, *options], folder, timeout=START)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with start(tmp_path_factory.mktemp("server"), "--guided-decoding-backend", "vllm_guided") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: VllmServer) -> Client:
    return Client(server.url)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_way_in(client: Client, case: Case) -> None:
    client.check(case)


@pytest.mark.parametrize(("name", "body", "message"), BAD, ids=[entry[0] for entry in BAD])
def test_a_bad_request_is_refused_and_the_next_answered(
    client: Client, name: str, body: dict[str, Any], message: str
) -> None:
    import re

    reply = client.ask(body, budget=16)
    assert reply.status == 400, reply
    assert re.search(message, reply.message), reply.message
    assert client.ask({"guided_choice": COLOURS}).texts[0] in COLOURS


def test_sixteen_at_once_with_bad_ones_between(client: Client, server: VllmServer) -> None:
    def bad(entry: tuple[str, dict[str, Any], str]) -> None:
        assert client.ask(entry[1], budget=16).status == 400, entry[0]

    with ThreadPoolExecutor(16) as pool:
        good = [pool.submit(client.check, case) for case in (cases() * 2)[:32]]
        refused = [pool.submit(bad, entry) for entry in BAD]
        for future in [*good, *refused]:
            future.result()
    assert server.alive()


def test_several_outputs_of_one_request(client: Client) -> None:
    reply = client.ask({"guided_json": PERSON, "n": 3})
    assert len(reply.texts) == 3
    for text in reply.texts:
        assert judges.json_schema(PERSON)(text) is None, text


def test_a_batch_of_conversations(client: Client) -> None:
    messages = [[{"role": "user", "content": text}] for text in ("one", "two")]
    body = {"model": MODEL, "messages": messages, "guided_choice": COLOURS, "max_tokens": 16}
    status, answer = client.post("chat/completions/batch", body)
    assert status == 200, answer
    assert [choice["message"]["content"] in COLOURS for choice in answer["choices"]] == [True, True]


def test_streaming(server: VllmServer) -> None:
    openai = pytest.importorskip("openai")
    http = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http) as api:
        stream = api.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=400,
            stream=True,
            extra_body={"guided_json": PERSON},
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert judges.json_schema(PERSON)(text) is None, text


@pytest.mark.parametrize(
    ("tool_choice", "options", "names"),
    [
        ("required", {"parallel_tool_calls": False}, {"look_up", "add"}),
        ({"type": "function", "function": {"name": "add"}}, {"parallel_tool_calls": False}, {"add"}),
        ({"type": "function", "function": {"name": "look_up"}}, {}, {"look_up"}),
    ],
    ids=["required", "named", "named, by schema"],
)
def test_tool_calls(client: Client, tool_choice: Any, options: dict[str, Any], names: set[str]) -> None:
    # Without "strict", vLLM constrains the call, but not its arguments.
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    reply = client.ask({"tools": tools, "tool_choice": tool_choice, **options}, budget=500)
    assert reply.status == 200, reply.message
    calls = reply.raw["choices"][0]["message"]["tool_calls"]
    assert calls, reply.raw
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    for call in calls:
        assert call["function"]["name"] in names
        judge = judges.json_schema(schemas[call["function"]["name"]])
        assert judge(call["function"]["arguments"]) is None, call


def test_a_constraint_beside_a_forced_call_is_refused(client: Client) -> None:
    forced = {"tools": TOOLS, "tool_choice": "required"}
    for constraint in ({"guided_regex": "a"}, {"structured_outputs": {"regex": "a"}}):
        reply = client.ask({**forced, **constraint})
        assert reply.status == 400 and "tool_choice forces a call" in reply.message, reply


def test_half_a_surrogate_pair_in_a_schema(client: Client) -> None:
    schema = {"enum": ["\ud800", "\ud801"]}
    for given in ({"structured_outputs": {"json": schema}}, {"guided_json": schema}):
        reply = client.ask(given)
        assert reply.status == 200 and json.loads(reply.texts[0]) in schema["enum"], reply


@pytest.mark.parametrize(
    "extra",
    [{"min_tokens": 40}, {"ignore_eos": True, "max_tokens": 60}, {"stop_token_ids": [7]}, {"temperature": 0}],
    ids=str,
)
def test_sampling_options_leave_the_output_valid(client: Client, extra: dict[str, Any]) -> None:
    reply = client.ask({"guided_regex": DATE, **extra})
    assert reply.status == 200, reply.message
    assert judges.regex(DATE)(reply.texts[0]) is None, reply.texts


def test_an_unconstrained_request_is_left_alone(client: Client) -> None:
    reply = client.ask({}, budget=20)
    assert reply.status == 200 and reply.raw["usage"]["completion_tokens"] <= 20


def figures(server: VllmServer, awaited: str) -> dict[str, float]:
    """Our figures in the server's endpoint, once ``awaited`` is not 0: they come within a second or two."""
    deadline = time.monotonic() + 30
    while True:
        with urllib.request.urlopen(f"{server.url}/metrics") as reply:
            lines = [line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if line[:1] != "#"]
        found = {name: float(value) for name, value in lines if name.startswith("vllm_guided_")}
        if found.get(awaited) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def test_the_endpoint_has_our_figures(client: Client, server: VllmServer) -> None:
    """Counted in the engine core's process, shown by the API server's."""
    found = figures(server, 'vllm_guided_rows_total{sent_as="number"}')
    assert found['vllm_guided_rows_total{sent_as="number"}'] > 100
    assert 'vllm_guided_rows_total{sent_as="whole"}' not in found
    assert 0 < found["vllm_guided_rows_sent_total"] < found['vllm_guided_rows_total{sent_as="number"}']
    assert found["vllm_guided_fill_steps_total"] >= found["vllm_guided_accept_steps_total"] > 0
    assert found["vllm_guided_fill_seconds_total"] > 0 and found["vllm_guided_accept_seconds_total"] > 0
    assert found['vllm_guided_table_rows{engine="0"}'] > 0
    assert found['vllm_guided_runtime_bytes{engine="0"}'] > 0


def test_nothing_went_wrong_inside(client: Client, server: VllmServer) -> None:
    client.check(cases()[0])
    log = server.log()
    for text in (
        "one by one",
        "own loop",
        "kernel failed",
        "does not fit",
        "ends with an error",
        "Traceback",
    ):
        assert text not in log, log[log.index(text) - 2000 :][:4000]


def test_messages_take_no_constraint_but_their_own(client: Client) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
    status, answer = client.post("messages", {**body, "structured_outputs": {"regex": "a"}})
    assert status == 400 and "output_config.format" in answer["error"]["message"]
    shape = {"format": {"type": "json_schema", "schema": {"const": 12}}}
    status, answer = client.post("messages", {**body, "output_config": shape})
    assert status == 200 and answer["content"][0]["text"] == "12"


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
def test_a_refusal_in_a_stream_says_why(client: Client, path: str) -> None:
    """After ``test_nothing_went_wrong_inside``: vLLM logs these with their traceback."""
    schema = {"type": "integer", "minimum": 3, "maximum": 1}
    shape = {"type": "json_schema", "schema": schema}
    messages = [{"role": "user", "content": "Hi"}]
    given = {
        "chat/completions": {"messages": messages, "guided_json": schema},
        "completions": {"prompt": "Hello there", "guided_json": schema},
        "responses": {"input": "Hello", "guided_json": schema},
        "messages": {"messages": messages, "max_tokens": 9, "output_config": {"format": shape}},
    }
    body = {"model": MODEL, "stream": True, **given[path]}
    request = urllib.request.Request(
        f"{client.url}/v1/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with client.opener.open(request, timeout=60) as reply:
        stream = reply.read().decode()
    assert "error" in stream and "no JSON value fits" in stream, stream
    assert client.ask({"guided_choice": COLOURS}).texts[0] in COLOURS


def test_speculation_two_workers_and_a_clean_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    workers = 2 if len(cores) > 1 else 1
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "|".join(map(str, cores[:workers])))
    monkeypatch.setenv("VLLM_GUIDED_LOOKAHEAD", "1")
    speculation = {
        "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1,
    }  # fmt: skip
    running = start(
        tmp_path,
        "--tensor-parallel-size",
        str(workers),
        "--speculative-config",
        json.dumps(speculation),
        "--structured-outputs-config",
        '{"disable_any_whitespace": true}',
        "--structured-outputs-config.backend",
        "vllm_guided",
    )
    with running:
        client = Client(running.url)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(client.check, cases()[:-1] * 2))
        assert client.ask({"guided_regex": "(a"}).status == 400
        for _ in range(3):
            reply = client.ask({"guided_json": PERSON})
            assert judges.json_schema(PERSON, compact=True)(reply.texts[0]) is None, reply.texts
        for _ in range(10):
            # What is drafted from a text that repeats itself is nearly all that the constraint allows.
            if client.accepted_drafts() > 0:
                break
            assert client.ask({"guided_regex": "(q7~){60}"}).texts[0].startswith("q7~")
        assert client.accepted_drafts() > 0
        assert running.alive()
        log = running.log()
        assert "mask rows lie with each worker" in log
        assert figures(running, "vllm_guided_masks_ahead_total")["vllm_guided_masks_ahead_total"] > 0
        for text in ("own loop", "ends with an error", "is refused now", "Traceback"):
            assert text not in log, log[log.index(text) - 2000 :][:4000]
    assert not running.alive() and not running.left_behind


def test_a_step_ahead_and_preempted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Async scheduling, which GPUs have by default, with memory for one long request alone."""
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    async_on_cpu.install(tmp_path / "plugin")
    little = ["--block-size", "32", "--num-gpu-blocks-override", "36"]
    running = start(tmp_path, *little, "--guided-decoding-backend", "vllm_guided")
    with running:
        client = Client(running.url)
        for _ in range(5):
            with ThreadPoolExecutor(32) as pool:
                list(pool.map(client.check, cases()[:-1] * 2))
            if client.counted("vllm:num_preemptions_total") > 0:
                break
        assert client.counted("vllm:num_preemptions_total") > 0
        log = running.log()
        assert async_on_cpu.SIGN in log
        for text in ("own loop", "ends with an error", "Unexpected: grammar rejected", "Traceback"):
            assert text not in log, log[log.index(text) - 2000 :][:4000]
