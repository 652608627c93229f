"""A real server under hostile constraints: others' requests are answered, and nothing is left behind."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.server]

from test_server import COLOURS, MODEL, PERSON, Client, start  # noqa: E402

from vllm_guided.demo import judges  # noqa: E402
from vllm_guided.demo.server import VllmServer  # noqa: E402

SECONDS = 1.0
"""Budget of a compile on this server."""


def hostile(number: int) -> str:
    """A grammar that takes seconds to compile; each number another one."""
    rules = [f'r{i}: "x{i}"+' for i in range(50)]
    words = (f'"w{i}" r{i % 50}' for i in range(20_000))
    return f"// {number}\nstart: {'|'.join(words)}\n" + "\n".join(rules) + "\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_GUIDED_COMPILE_SECONDS", str(SECONDS))
        folder = tmp_path_factory.mktemp("server")
        with start(folder, "--guided-decoding-backend", "vllm_guided") as running:
            yield running
    assert_none_left(folder)


def service_processes(folder: Path) -> dict[int, str]:
    """The compile services' processes of the server with this folder, by number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            name = (path / "comm").read_text().strip()
            if name.startswith("guided-") and str(folder).encode() in (path / "environ").read_bytes():
                found[int(path.name)] = name
        except OSError:
            continue
    return found


def assert_none_left(folder: Path) -> None:
    end = time.monotonic() + 30
    while left := service_processes(folder):
        assert time.monotonic() < end, f"processes of the compile service outlive the server: {left}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def client(server: VllmServer) -> Client:
    return Client(server.url)


def figures(server: VllmServer) -> dict[str, float]:
    """This package's figures at the endpoint."""
    with urllib.request.urlopen(f"{server.url}/metrics") as reply:
        lines = [line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if line[:1] != "#"]
    return {name: float(value) for name, value in lines if name.startswith("vllm_guided_")}


def until(server: VllmServer, name: str, least: float, labels: str = "") -> dict[str, float]:
    """The figures once those of this name and with this text among their labels sum up to ``least``."""
    end = time.monotonic() + 30
    while True:
        found = figures(server)
        if (
            sum(v for k, v in found.items() if k.startswith(f"vllm_guided_{name}_total") and labels in k)
            >= least
        ):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.3)


def test_constraints_are_compiled_by_the_service(server: VllmServer, client: Client) -> None:
    schemas = [{**PERSON, "title": str(number)} for number in range(12)]

    def ask(schema: dict[str, Any]) -> None:
        reply = client.ask({"guided_json": schema})
        assert reply.status == 200 and judges.json_schema(schema)(reply.texts[0]) is None, reply

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, schemas))
    until(server, "compiles", 12, 'where="service"')
    # The engine core found all of them; a few samples are its own, from its start.
    found = until(server, "cache_hits", 12, 'level="handoff"')
    assert not any('kind="json_schema",where="process"' in k and v > 2 for k, v in found.items()), found
    names = list(service_processes(Path(server._folder)).values())
    assert names.count("guided-zygote") == 1 and names.count("guided-compile") >= 2


def test_a_hostile_constraint_is_refused_and_holds_up_nobody(server: VllmServer, client: Client) -> None:
    """Six at once, while other constraints come one after another."""
    done: list[float] = []

    def ask_hostile(number: int) -> None:
        reply = client.ask({"guided_grammar": hostile(number)}, budget=8)
        done.append(time.monotonic())
        assert reply.status == 400 and "takes more than 1 seconds" in reply.message, reply

    with ThreadPoolExecutor(7) as pool:
        begin = time.monotonic()
        refused = [pool.submit(ask_hostile, number) for number in range(6)]
        answered = 0
        while len(done) < 3:
            choice = [*COLOURS, f"colour {answered}"]
            reply = client.ask({"guided_choice": choice})
            assert reply.texts[0] in choice
            answered += 1
            assert time.monotonic() - begin < 120
        for future in refused:
            future.result()
    assert answered >= 3
    assert server.alive()
    until(server, "compile_service_events", 6, "out_of_time")
    # The verdict is remembered.
    assert client.ask({"structured_outputs": {"grammar": hostile(0)}}, budget=8).status == 400
    until(server, "refusals", 7, 'reason="too_complex"')


def test_a_client_that_goes_ends_its_compile(server: VllmServer, client: Client) -> None:
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8,
        "guided_grammar": hostile(100),
    }  # fmt: skip
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with pytest.raises((urllib.error.URLError, TimeoutError)):
        urllib.request.urlopen(request, timeout=0.7)
    until(server, "compile_service_events", 1, "cancelled")
    assert client.ask({"guided_choice": COLOURS}).texts[0] in COLOURS


def test_a_service_that_is_killed_comes_back(server: VllmServer, client: Client) -> None:
    import os
    import signal

    for process, name in service_processes(Path(server._folder)).items():
        if name == "guided-zygote":
            os.kill(process, signal.SIGKILL)
    for number in range(4):
        choice = [*COLOURS, f"after {number}"]
        assert client.ask({"guided_choice": choice}).texts[0] in choice
    assert "Traceback" not in server.log() and "own processes" not in server.log()


def test_each_api_server_has_its_own(tmp_path: Path) -> None:
    with start(tmp_path, "--guided-decoding-backend", "vllm_guided", "--api-server-count", "2") as running:
        client = Client(running.url)
        for number in range(8):
            choice = [*COLOURS, f"colour {number}"]
            assert client.ask({"guided_choice": choice}).texts[0] in choice
            assert client.ask({"guided_regex": "("}, budget=8).status == 400
        names = list(service_processes(tmp_path).values())
        assert names.count("guided-zygote") == 2
        # Whichever of them answers adds up what all processes have counted.
        until(running, "compiles", 8)
        until(running, "fill_steps", 1)
        assert "own processes" not in running.log()
    assert_none_left(tmp_path)
