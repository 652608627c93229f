"""The demo from start to end: model, server, requests, table, and nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from vllm_guided.demo import setup_cpu
from vllm_guided.demo.cases import all_cases
from vllm_guided.demo.client import MODEL, Outcome, ask, open_client
from vllm_guided.demo.model import MissingTokenizer, write_tiny_model
from vllm_guided.demo.report import results_table, summary
from vllm_guided.demo.server import START_TIMEOUT, ServerFailed, VllmServer

BACKEND = "vllm_guided"
LONGEST_FOLDER = 40  # bytes of the path in which the demo makes its own folder
LOG_SHOWN = 3000  # characters
PLAIN_WIDTH = 140  # columns where the output is no terminal
SERVER_OPTIONS = [
    "--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "32",
    "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
]  # fmt: skip


def run_demo(
    backend: str = BACKEND,
    timeout: float = START_TIMEOUT,
    console: Console | None = None,
    keep_log: Path | None = None,
) -> int:
    """Run the demo; 0 when every output is valid and every bad request is refused.

    Args:
        backend: the server's structured-output backend.
        timeout: seconds that the server may take to start.
        console: where to print; standard output by default.
        keep_log: copy the server's log to this file at the end.
    """
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, PLAIN_WIDTH)
    if problems := setup_cpu.problems():
        console.print("[bold red]vLLM cannot run in this environment:[/]")
        for problem in problems:
            console.print(f"  - {problem}")
        console.print(
            "Mend it with [bold]bash scripts/setup_cpu.sh .venv[/] in a clone of the repository, or:"
        )
        for command in ("-m pip install 'vllm-guided[cpu]'", "-m vllm_guided.demo.setup_cpu"):
            console.print(f"  {sys.executable} {command}", markup=False, highlight=False)
        return 2
    with _signals_as_exceptions():
        try:
            return _run(console, backend, timeout, keep_log)
        except MissingTokenizer as error:
            console.print(f"[bold red]{escape(str(error))}[/]")
            return 2
        except ServerFailed as error:
            console.print(Panel(escape(error.log_tail), title="the server's last words", border_style="red"))
            console.print(f"[bold red]The server failed:[/] {escape(str(error))}")
            return 2
        except KeyboardInterrupt:
            console.print("[yellow]Interrupted; the server is stopped and its files are gone.[/]")
            return 130


def _run(console: Console, backend: str, timeout: float, keep_log: Path | None) -> int:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="vllm-guided-", dir=_short_folder(), ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        model = folder / "model"
        model.mkdir()
        server = VllmServer(model, [*SERVER_OPTIONS, *backend_options(backend)], folder, timeout=timeout)
        try:
            with _progress(console) as progress:
                task = progress.add_task("a tiny random Llama", total=None)
                write_tiny_model(model)
                server.report = _reporter(console, progress, task)
                progress.update(task, description="vllm serve: starting")
                with server:
                    progress.update(task, description="vllm serve: ready", total=1, completed=1)
                    ready = time.monotonic() - start
                    alone, together, seconds = _ask_all(server, progress)
                    alive, log = server.alive(), server.log()[-LOG_SHOWN:]
        finally:
            if keep_log is not None:
                keep_log.write_text(server.log(), encoding="utf-8")
    console.print(results_table(alone))
    console.print(summary(alone, together, seconds))
    total = time.monotonic() - start
    console.print(f"The server was ready after {ready:.0f} s; {total:.0f} s in all.")
    if server.left_behind:
        console.print(f"[bold red]Processes that would not end:[/] {sorted(server.left_behind)}")
        return 2
    console.print("No process and no file is left behind.")
    if not alive:
        console.print(Panel(escape(log), title="the server ended before it was told to", border_style="red"))
        return 2
    return 1 if any(outcome.wrong for outcome in [*alone, *together]) else 0


def _short_folder() -> str | None:
    """Where to make the demo's folder: vLLM's sockets lie in it, and their paths have 107 bytes at most."""
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER and Path("/tmp").is_dir():
        return "/tmp"
    return None


def backend_options(backend: str) -> list[str]:
    """The options that make ``backend`` the server's; ours by its short flag, which the plugin adds."""
    if backend == BACKEND:
        return ["--guided-decoding-backend", backend]
    return ["--structured-outputs-config.backend", backend]


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TimeElapsedColumn(), console=console, transient=True,
    )  # fmt: skip


def _reporter(console: Console, progress: Progress, task: Any) -> Any:
    def report(stage: str) -> None:
        progress.update(task, description=f"vllm serve: {stage}")
        if not console.is_terminal:
            console.print(f"vllm serve: {stage}")

    return report


def _ask_all(server: VllmServer, progress: Progress) -> tuple[list[Outcome], list[Outcome], float]:
    """Every case alone, then all of them at once; and the seconds of the second round."""
    client = open_client(server.url)
    cases = all_cases()
    alone = []
    task = progress.add_task("one request at a time", total=len(cases))
    for case in cases:
        progress.update(task, description=f"{case.sent_as}: {case.constraint}")
        alone.append(ask(client, case))
        progress.advance(task)
    progress.update(task, description="one request at a time")
    task = progress.add_task("all requests at once", total=len(cases))
    start = time.monotonic()
    together = []
    pool = ThreadPoolExecutor(len(cases))
    try:
        for outcome in pool.map(lambda case: ask(client, case), cases):
            together.append(outcome)
            progress.advance(task)
    finally:  # without waiting: after Ctrl-C the server's end is what ends these requests
        pool.shutdown(wait=False, cancel_futures=True)
    return alone, together, time.monotonic() - start


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that every ``with`` block cleans up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not in the main thread: the caller's business
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
