"""The compile service: the same verdicts as in the process, one job for equal ones, found again later.

The twin of everything is ``compile_constraint`` in this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import corpora
import error_cases
import pytest
import random_schemas
from compile_services import LIMIT, SLOW, Running, until

from vllm_guided import constraints, handoff, packing, store
from vllm_guided.automaton.automaton import Automaton
from vllm_guided.compile_service import processes
from vllm_guided.compile_service.blocking import BlockingCompileService
from vllm_guided.compile_service.client import Unavailable
from vllm_guided.compile_service.find import spec_of
from vllm_guided.compile_service.protocol import Job, Outcome, dump_job, dump_outcome, load_job, load_outcome
from vllm_guided.compile_service.settings import Settings, from_environment
from vllm_guided.errors import GrammarError, InvalidConstraint

pytestmark = pytest.mark.usefixtures("service_folder")


def in_process(job: Job) -> Automaton | GrammarError:
    try:
        return constraints.compile_constraint(job.kind, spec_of(job.kind, job.text), **dict(job.options))
    except GrammarError as error:
        return error


def described(error: GrammarError) -> tuple[type, str, str, str]:
    return type(error), error.message, error.where, str(error)


def jobs_of_the_catalogues() -> Iterator[Job]:
    """Every error that a text can meet."""
    for kind in error_cases.KINDS:
        for row in error_cases.rows(kind):
            text = error_cases.constraint(row)
            options = row.get("options", {})
            if row.get("limits") or not all(isinstance(v, str | bool) for v in options.values()):
                continue
            if kind in ("choice", "json_schema", "structural_tag") and not isinstance(text, str):
                text = json.dumps(text)
            if isinstance(text, str) and len(text) < 20_000 and kind != "choice":
                yield Job(kind, text, tuple(sorted(options.items())))


def jobs_of_the_corpora() -> Iterator[Job]:
    if corpora.DATA.exists():
        for name, count in (("maskbench", 120), ("suite", 120), ("peers", 120), ("peer_errors", 100)):
            for case in corpora.sample(corpora.CORPORA[name](), count):
                text = case.constraint
                if case.kind in ("choice", "json_schema", "structural_tag") and not isinstance(text, str):
                    text = json.dumps(text)
                if isinstance(text, str) and not case.options and case.kind in constraints.FRONTENDS:
                    yield Job(case.kind, text, ())


def jobs_at_random() -> Iterator[Job]:
    for seed in range(100):
        yield Job("json_schema", json.dumps(random_schemas.document(random.Random(seed), 2020)), ())


def test_verdicts_and_automata_are_those_of_the_process(running: Running) -> None:
    jobs = [*jobs_of_the_catalogues(), *jobs_of_the_corpora(), *jobs_at_random()]
    assert len(jobs) > 200

    async def all_at_once() -> list[Outcome | BaseException]:
        asked = (running.service.compile(replace(job, wants_content=True)) for job in jobs)
        return await asyncio.gather(*asked, return_exceptions=True)

    outcomes = running.run(all_at_once())
    refused = 0
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert isinstance(outcome, Outcome) and outcome.fault is None, (job, outcome)
        expected = in_process(job)
        if isinstance(expected, GrammarError):
            assert outcome.error is not None, (job, expected)
            assert described(outcome.error) == described(expected), job
            refused += 1
            continue
        assert outcome.error is None and outcome.content is not None, (job, outcome.error)
        assert outcome.symbols == expected.symbols
        assert outcome.content == b"".join(packing.pack(expected)), job
        found = handoff.load(job.key)
        assert found is not None and b"".join(packing.pack(found)) == outcome.content, job
    assert 50 < refused < len(jobs) - 50


def test_a_fault_of_the_compiler_is_neither_verdict(running: Running) -> None:
    outcome = running.compile(Job("choice", "not JSON", ()))
    assert outcome.error is None and "JSONDecodeError" in (outcome.fault or "")
    assert running.compile(Job("regex", "a", ())).fault is None


def test_messages_come_back() -> None:
    job = Job("grammar", "root ::= \ud800", (("a", None), ("b", True)), True)
    assert load_job(dump_job(job)) == job
    error = InvalidConstraint("no \ud800", where="#/a")
    back = load_outcome(dump_outcome(Outcome(error, seconds=0.5, last=True, passing=True)))
    assert back.error is not None and described(back.error) == described(error)
    assert (back.seconds, back.last, back.passing) == (0.5, True, True)

    class OfAFrontend(InvalidConstraint):
        pass

    back = load_outcome(dump_outcome(Outcome(OfAFrontend("x"))))
    assert type(back.error) is InvalidConstraint


def test_keys_tell_constraints_apart() -> None:
    jobs = [
        Job(kind, text, options)
        for kind in ("regex", "grammar")
        for text in ("a", "b", "", "a\ud800")
        for options in ((), (("x", True),), (("x", None),), (("x", False),))
    ]
    assert len({job.key for job in jobs}) == len(jobs)
    assert len({replace(job, wants_content=True).key for job in jobs} - {job.key for job in jobs}) == 0


def test_equal_jobs_under_way_are_one(running: Running) -> None:
    async def many() -> list[Outcome]:
        return await asyncio.gather(
            *(running.service.compile(Job("regex", "[ab]{3}", ())) for _ in range(50))
        )

    outcomes = running.run(many())
    assert len({id(outcome) for outcome in outcomes}) == 1
    assert running.compile(Job("regex", "[ab]{3}", ())).source == "handoff"


def test_what_a_service_compiled_is_on_disk_for_the_next(running: Running, service_folder: Path) -> None:
    assert running.compile(Job("regex", "[ab]{3}", ())).source == "compiled"
    until(lambda: list(service_folder.glob(f"{store.KIND}-*.bin")), "no copy on disk")
    assert constraints.identify("regex", "[ab]{3}", {})[0]
    running.service.close()
    until(lambda: not processes._open, "not closed")
    # The memory folder went with the last that held it.
    until(lambda: handoff.load(Job("regex", "[ab]{3}", ()).key) is None, "still handed over")
    with pytest.raises(Unavailable):
        running.compile(Job("regex", "[ab]{3}", ()))
    second = Running(running.loop, Settings())
    try:
        assert second.compile(Job("regex", "[ab]{3}", ())).source == "disk"
        # White space of JSON is no other constraint on disk.
        assert second.compile(Job("json_schema", '{"type": "null"}', ())).source == "compiled"
        until(lambda: len(list(service_folder.glob(f"{store.KIND}-*.bin"))) == 2, "no copy on disk")
        assert second.compile(Job("json_schema", '{"type":"null"}', ())).source == "disk"
    finally:
        second.service.close()


@pytest.mark.parametrize("damage", [b"", b"x" * 100])
def test_damaged_files_are_compiled_again(running: Running, service_folder: Path, damage: bytes) -> None:
    job = Job("regex", "[ab]{3}", ())
    assert running.compile(job).source == "compiled"
    until(lambda: list(service_folder.glob(f"{store.KIND}-*.bin")), "no copy on disk")
    place = handoff.memory_folder(service_folder)
    files = list(service_folder.glob("*.bin")) + (list(place[0].glob("*.bin")) if place else [])
    assert len(files) == 2
    for file in files:
        file.write_bytes(damage)
    assert handoff.load(job.key) is None
    assert running.compile(job).source == "compiled"
    assert handoff.load(job.key) is not None


def test_without_any_place_for_files(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The automaton then comes with the answer."""
    monkeypatch.setenv(store.ENVIRONMENT, "0")
    running = Running(loop, Settings())
    try:
        outcome = running.compile(Job("regex", "ab", (), True))
        assert outcome.content is not None
        assert packing.unpack(bytearray(outcome.content)) is not None
    finally:
        running.service.close()


def test_from_threads() -> None:
    service = BlockingCompileService(Settings())
    try:
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(lambda n: service.compile(Job("regex", f"a{n % 20}", ())), range(60)))
        assert all(outcome.error is None for outcome in outcomes)
    finally:
        service.close()


def test_a_loop_may_ask_the_service_of_another() -> None:
    events: list[str] = []
    service = BlockingCompileService(Settings(), events.append)
    try:
        assert service.compile(Job("regex", "a", ())).error is None
        assert asyncio.run(service.service.compile(Job("regex", "b", ()))).error is None
        assert service.compile(Job("regex", "c", ())).error is None
        assert events == ["started"]

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(service.service.compile(SLOW), 0.2)

        asyncio.run(give_up())
        until(lambda: not service.service._flights, "nobody waits, but it is compiled")
    finally:
        service.close()


def test_a_loop_that_another_loop_takes_the_service_from(running: Running) -> None:
    """The first loop stands still and may never run again."""
    waiting = running.loop.create_task(running.service.compile(SLOW))
    running.run(asyncio.sleep(0))
    outcome = asyncio.run(running.service.compile(Job("regex", "a", ())))
    assert outcome.error is None
    with pytest.raises(Unavailable):
        running.run(waiting)


def test_who_waits_when_a_service_is_closed_is_told() -> None:
    service = BlockingCompileService(Settings())
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(service.compile, SLOW)
        until(lambda: service.service._flights, "it does not begin")
        service.close()
        with pytest.raises(Unavailable):
            answer.result(LIMIT)


def test_the_client_loads_no_compiler() -> None:
    program = """
        import sys
        import vllm_guided.compile_service.blocking, vllm_guided.vllm.compiled
        heavy = {"numba", "llvmlite", "torch", "vllm", "lark"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=LIMIT)


def test_the_zygote_loads_neither_vllm_nor_torch() -> None:
    program = """
        import sys
        from vllm_guided.compile_service.zygote import warm_up
        warm_up()
        heavy = {"torch", "vllm", "pydantic", "transformers"} & set(sys.modules)
        assert not heavy, heavy
        import threading, os
        assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1
    """
    environment = {**os.environ, **processes.ENVIRONMENT}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=LIMIT, env=environment
    )


def test_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_environment() == Settings()
    monkeypatch.setenv("VLLM_GUIDED_COMPILE_SECONDS", "40")
    monkeypatch.setenv("VLLM_GUIDED_COMPILE_MB", "100")
    monkeypatch.setenv("VLLM_GUIDED_COMPILE_WORKERS", "3")
    chosen = from_environment()
    assert chosen is not None
    assert (chosen.cpu_seconds, chosen.memory_bytes, chosen.workers) == (40.0, 100 << 20, 3)
    assert chosen.wall_seconds == 80.0
    monkeypatch.setenv("VLLM_GUIDED_COMPILE_SECONDS", "soon")
    assert (from_environment() or chosen).cpu_seconds == Settings.cpu_seconds
    for name in ("SECONDS", "MB", "WORKERS"):
        monkeypatch.setenv(f"VLLM_GUIDED_COMPILE_{name}", "inf")
    chosen = from_environment()
    assert chosen == Settings(1024, cpu_seconds=86_400, wall_seconds=172_800, memory_bytes=1 << 40)
    monkeypatch.setenv("VLLM_GUIDED_COMPILE_WORKERS", "0")
    assert from_environment() is None
