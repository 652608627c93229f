"""The API server's constraints are judged off its event loop; the check then finds the verdict.

``AsyncLLM`` is a stand-in with the methods that are adapted; the parameters, the check and the errors are
vLLM's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm.sampling_params")
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from vllm_guided import handoff
from vllm_guided.compile_service import client, settings
from vllm_guided.compile_service.protocol import Job, Outcome
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.vllm import compiled, counters, metrics, precheck
from vllm_guided.vllm.engine import Constraint, constraint_from
from vllm_guided.vllm.selection import UnexpectedVllm

MODEL = SimpleNamespace(is_diffusion=False, get_vocab_size=lambda: 100)
BAD_SCHEMA = '{"type": "integer", "minimum": 3, "maximum": 1}'


def config(backend: str = "vllm_guided") -> Any:
    options = SimpleNamespace(
        backend=backend, disable_any_whitespace=False, disable_additional_properties=False
    )
    return SimpleNamespace(structured_outputs_config=options)


class AsyncLLM:
    """What of vLLM's class is used."""

    def __init__(self, vllm_config: Any, fails: bool = False) -> None:
        self.vllm_config = vllm_config
        self.added: list[str] = []
        if fails:
            raise RuntimeError("no engine")

    async def add_request(self, request_id: str, prompt: Any, params: Any, priority: int = 0) -> str:
        if self.vllm_config.structured_outputs_config.backend == "vllm_guided":
            params._validate_structured_outputs(MODEL, self.vllm_config.structured_outputs_config, object())
        self.added.append(request_id)
        return request_id

    def shutdown(self, timeout: float | None = None) -> None:
        self.added.clear()


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """An adapted class; nothing is remembered from before."""
    monkeypatch.setattr(metrics, "publish", lambda: None)
    monkeypatch.setattr(compiled, "verdicts", compiled.Verdicts(1 << 20))
    monkeypatch.setattr(compiled, "automata", compiled.AutomatonCache(1 << 24))
    monkeypatch.setattr(counters, "_values", {})
    monkeypatch.setattr(handoff, "load", lambda key: None)
    kind = type("AsyncLLM", (AsyncLLM,), dict(vars(AsyncLLM)))
    precheck.judge_before_check(SimpleNamespace(AsyncLLM=kind))  # type: ignore[arg-type]
    return kind


@pytest.fixture
def server(front: Any) -> Iterator[Any]:
    made = front(config())
    yield made
    made.shutdown()


@pytest.fixture
def no_process_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "automaton_in_process", lambda job: pytest.fail("compiled on the loop"))


def params(**arguments: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputsParams(**arguments))


def ask(server: Any, *requests: Any, **options: Any) -> list[Any]:
    """The answers to requests that come at once."""

    async def all_of_them() -> list[Any]:
        asked = (server.add_request(str(n), "", one, **options) for n, one in enumerate(requests))
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)

    return asyncio.run(all_of_them())


@pytest.mark.usefixtures("no_process_compiles")
def test_the_check_finds_the_verdict(server: Any) -> None:
    answers = ask(server, params(regex="[ab]+"), params(json={"type": "null"}), SamplingParams(), priority=3)
    assert answers == ["0", "1", "2"]
    assert counters.value("compiles", where="service") + counters.value("cache_hits", level="disk") == 2
    assert ask(server, params(regex="[ab]+")) == ["0"]
    assert counters.value("cache_hits", level="memory") == 1
    assert counters.value("compile_service_events", event="started") == 1
    assert ask(server, params(regex="[ab]{2}")) == ["0"]  # on another event loop


@pytest.mark.usefixtures("no_process_compiles")
def test_the_older_fields_count(server: Any) -> None:
    given = SamplingParams(extra_args={"guided_choice": ["a", "b"], "kept": 1})
    assert ask(server, given) == ["0"]
    assert given.structured_outputs.choice == ["a", "b"]


def expected(given: SamplingParams) -> str:
    """What the check says when it compiles by itself."""
    with pytest.raises(VLLMValidationError) as caught:
        given._validate_structured_outputs(MODEL, config().structured_outputs_config, object())
    return str(caught.value)


REFUSED: list[dict[str, Any]] = [
    {"regex": "("},
    {"json": BAD_SCHEMA},
    {"json": "{"},
    {"grammar": "root ::= nothing"},
    {"structural_tag": json.dumps({"type": "structural_tag", "format": {"type": "what"}})},
    {"json": {"$ref": "https://example.com/x.json"}},
]


def test_refusals_are_the_same_400s(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [expected(params(**arguments)) for arguments in REFUSED]
    monkeypatch.setattr(compiled, "verdicts", compiled.Verdicts(1 << 20))
    monkeypatch.setattr(compiled, "automaton_in_process", lambda job: pytest.fail("compiled on the loop"))
    for _ in range(2):
        answers = ask(server, *(params(**arguments) for arguments in REFUSED))
        assert all(isinstance(answer, VLLMValidationError) for answer in answers), answers
        assert [str(answer) for answer in answers] == messages
    assert counters.value("refusals") == 3 * len(REFUSED)
    assert counters.value("refusals", reason="invalid") > counters.value("refusals", reason="unsupported") > 0


def test_what_cannot_be_read_is_left_to_the_check(server: Any) -> None:
    answers = ask(
        server, params(json_object=False), SamplingParams(extra_args={"guided_json": 1}), SamplingParams()
    )
    assert [type(answer) for answer in answers] == [VLLMValidationError, VLLMValidationError, str]
    assert ask(server, SimpleNamespace(_validate_structured_outputs=lambda *_: None)) == ["0"]  # for pooling


def test_a_full_queue_is_503(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def compile_(self: Any, job: Job) -> Outcome:
        raise client.Overloaded

    monkeypatch.setattr(client.CompileService, "compile", compile_)
    (answer,) = ask(server, params(regex="a"))
    assert getattr(answer, "http_status", None) == 503 and "Too many constraints" in str(answer)
    assert counters.value("refusals", reason="too_many") == 1

    from vllm import exceptions

    monkeypatch.delattr(exceptions, "GracefulHTTPError")
    (answer,) = ask(server, params(regex="a"))
    assert isinstance(answer, VLLMValidationError)


@pytest.mark.parametrize("how", ["switched off", "fails"])
def test_without_a_service_a_thread_compiles(
    front: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    if how == "fails":
        monkeypatch.setattr(client, "Zygote", lambda _: (_ for _ in ()).throw(OSError("no process")))
    else:
        monkeypatch.setenv(settings.WORKERS, "0")
    monkeypatch.setattr(compiled, "_warned", False)
    threads = set()
    original = compiled.automaton_in_process

    def compile_(job: Job) -> Any:
        threads.add(threading.current_thread())
        return original(job)

    monkeypatch.setattr(compiled, "automaton_in_process", compile_)
    server = front(config())
    with caplog.at_level("WARNING", "vllm.vllm_guided"):
        answers = ask(server, params(regex="a"), params(regex="("), params(regex="b"))
    assert [type(answer) for answer in answers] == [str, VLLMValidationError, str]
    assert len(threads) == 1 and threading.main_thread() not in threads
    assert sum("own processes" in record.message for record in caplog.records) == 1
    server.shutdown()


def test_a_fault_is_logged_and_is_no_refusal(
    server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def compile_(self: Any, job: Job) -> Outcome:
        return Outcome(fault="Traceback: of the compiler")

    monkeypatch.setattr(client.CompileService, "compile", compile_)
    (answer,) = ask(server, params(regex="a"))
    assert isinstance(answer, compiled.CompilerFault)
    assert "of the compiler" in caplog.text
    assert counters.value("refusals") == 0


def test_a_client_that_goes_is_waited_for_by_nobody(server: Any) -> None:
    slow = params(choice=[f"{number * 7919 % 1000003}" for number in range(300_000)])

    async def go() -> None:
        task = asyncio.ensure_future(server.add_request("0", "", slow))
        service = server._vllm_guided_compile_service
        while not any(worker.flight for worker in service._workers.values()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not service._flights
        assert await server.add_request("1", "", params(regex="a")) == "1"

    asyncio.run(asyncio.wait_for(go(), 60))
    assert counters.value("compile_service_events", event="cancelled") == 1
    assert server.added == ["1"]


def test_the_service_ends_with_its_front(front: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(client.CompileService, "close", lambda service: closed.append(service))
    server = front(config())
    server.shutdown(timeout=3)
    assert closed == [server._vllm_guided_compile_service]
    with pytest.raises(RuntimeError, match="no engine"):
        front(config(), fails=True)
    assert len(closed) == 2
    for service in closed:
        monkeypatch.undo()
        service.close()


def test_other_backends_have_none(front: Any) -> None:
    server = front(config("xgrammar"))
    assert server._vllm_guided_compile_service is None
    assert ask(server, params(regex="a")) == ["0"]
    server.shutdown()
    assert not compiled.verdicts.held


def test_vllm_s_own_class_fits() -> None:
    from vllm.v1.engine import async_llm

    assert async_llm.AsyncLLM.add_request.__wrapped__.__name__ == "add_request"
    with pytest.raises(UnexpectedVllm, match="add_request"):
        precheck.judge_before_check(SimpleNamespace(AsyncLLM=object))  # type: ignore[arg-type]


# -- verdicts, and the engine core's side ----------------------------------------------------------


def test_verdicts_are_bounded() -> None:
    verdicts = compiled.Verdicts(10_000)
    for number in range(100):
        verdicts.put(number.to_bytes(16, "big"), InvalidConstraint("x" * 100) if number % 2 else ())
        assert verdicts.held <= 10_000
    assert verdicts.get((99).to_bytes(16, "big")) is not None and verdicts.get(bytes(16)) is None
    verdicts.put((99).to_bytes(16, "big"), ())
    verdicts.clear()
    assert verdicts.held == 0
    # The one that was just found is there for the check after it, whatever its size.
    verdicts.put(bytes(16), InvalidConstraint("x" * 100_000))
    assert verdicts.get(bytes(16)) is not None
    verdicts.put(bytes(15), ())
    assert verdicts.get(bytes(16)) is None and verdicts.held < 10_000


def test_as_many_may_wait_for_the_thread_as_for_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "verdicts", compiled.Verdicts(10_000))
    monkeypatch.setattr(settings.Settings, "quick_queue", 2)
    go_on = threading.Event()
    monkeypatch.setattr(compiled, "_verdict_in_process", lambda job: go_on.wait(60))

    async def go() -> None:
        jobs = [Job("regex", text, ()) for text in "abc"]
        waiting = [asyncio.ensure_future(compiled.judge(job, None)) for job in jobs[:2]]
        await asyncio.sleep(0)
        with pytest.raises(client.Overloaded):
            await compiled.judge(jobs[2], None)
        waiting[1].cancel()
        await asyncio.wait(waiting[1:])
        last = asyncio.ensure_future(compiled.judge(jobs[2], None))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(waiting[0], last)

    asyncio.run(go())
    assert compiled._waiting == 0


def test_a_refusal_in_this_process_that_is_due_to_the_moment_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "verdicts", compiled.Verdicts(10_000))
    job = constraint_from(StructuredOutputsParams(regex="a"), None).job

    def refuse(job: Any) -> Any:
        raise ConstraintTooComplex("no time", passing=True)

    monkeypatch.setattr(compiled, "automaton_in_process", refuse)
    with pytest.raises(ConstraintTooComplex):
        compiled.symbols_of(job)
    assert compiled.verdicts.get(job.key) is not None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + compiled.PASSING_SECONDS + 1)
    assert compiled.verdicts.get(job.key) is None


def test_passing_verdicts_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = compiled.Verdicts(10_000)
    verdicts.put(b"lasting", ())
    verdicts.put(b"passing", InvalidConstraint("no"), 100.0)
    assert verdicts.get(b"passing") is not None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 101)
    assert verdicts.get(b"passing") is None and verdicts.get(b"lasting") == ()
    verdicts.put(b"passing", ())
    assert verdicts.get(b"passing") == ()


def test_the_engine_maps_what_the_server_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "verdicts", compiled.Verdicts(1 << 20))
    monkeypatch.setattr(counters, "_values", {})
    monkeypatch.setattr(compiled, "own_service", lambda: pytest.fail("asked its own service"))
    monkeypatch.setattr(
        compiled, "_compile_in_process", lambda job, hand_over: pytest.fail("compiled in the process")
    )
    monkeypatch.setattr(compiled, "automata", compiled.AutomatonCache(1 << 24))
    job = constraint_from(StructuredOutputsParams(json={"type": "boolean"}), None).job

    async def serve() -> None:
        service = client.CompileService()
        await compiled.judge(job, service)
        for _ in range(2):
            assert compiled.automaton_of(job).state_count
        service.close()

    asyncio.run(asyncio.wait_for(serve(), 60))
    assert counters.value("cache_hits", level="handoff") >= 1


def test_at_hand_is_what_is_in_memory_or_handed_over_and_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VLLM_GUIDED_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "automata", compiled.AutomatonCache(1 << 24))
    job, other = Constraint("regex", "[cd]{9}").job, Constraint("regex", "[ef]{9}").job
    with contextlib.closing(handoff.hold()):
        assert compiled.automaton_at_hand(job) is None
        for one in (job, other):
            compiled.automaton_in_process(one)
        assert compiled.automaton_at_hand(job) is not None
        compiled.automata.clear()
        with monkeypatch.context() as smaller:
            smaller.setattr(compiled, "AT_HAND_BYTES", 10)
            assert compiled.automaton_at_hand(job) is None
        found = compiled.automaton_at_hand(other)
        assert found is not None and compiled.automata.at_hand(other.key) is found
        with pytest.raises(InvalidConstraint):
            compiled.automaton_of(Constraint("regex", "(").job)
        assert compiled.automaton_at_hand(Constraint("regex", "(").job) is None


def test_an_engine_alone_asks_its_own_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "verdicts", compiled.Verdicts(1 << 20))
    monkeypatch.setattr(compiled, "automata", compiled.AutomatonCache(1 << 24))
    monkeypatch.setattr(handoff, "load", lambda key: None)
    monkeypatch.setattr(
        compiled, "_compile_in_process", lambda job, hand_over: pytest.fail("compiled in the process")
    )
    assert compiled.automaton_of(Constraint("regex", "[ab]{7}").job).state_count
    with pytest.raises(InvalidConstraint, match="unclosed group"):
        compiled.automaton_of(Constraint("regex", "(").job)
    service = compiled.own_service()
    assert service is not None
    service.close()
    monkeypatch.setattr(compiled, "_service", None)


def test_an_engine_without_a_service_compiles(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "automata", compiled.AutomatonCache(1 << 24))
    monkeypatch.setattr(handoff, "load", lambda key: None)
    monkeypatch.setattr(compiled, "_service", None)
    monkeypatch.setattr(compiled, "_warned", False)
    monkeypatch.setattr(client, "Zygote", lambda _: (_ for _ in ()).throw(OSError("no process")))
    with caplog.at_level("WARNING", "vllm.vllm_guided"):
        for text in ("[ab]{8}", "[ab]{9}"):
            assert compiled.automaton_of(Constraint("regex", text).job).state_count
    assert sum("own processes" in record.message for record in caplog.records) == 1
    service = compiled.own_service()
    assert service is not None
    service.close()
    monkeypatch.setattr(compiled, "_service", None)
