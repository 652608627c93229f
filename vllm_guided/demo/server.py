"""A real ``vllm serve`` in a process group of its own, on a free loopback port, that leaves nothing behind.

Every file it writes goes below the folder it is given (TMPDIR, caches, configuration). It ends with the
``with`` block whatever ends that, and with this process even if this one is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

START_TIMEOUT = 600.0  # seconds; 40 to 60 on two cores that have nothing else to do
STOP_GRACE = 20.0  # for the server to end by itself
GROUP_GRACE = 5.0  # for processes that outlive it
COMPILED_FOLDERS = 24  # of compiled functions that are copied, a megabyte or two each
LOG_TAIL = 30  # lines shown when the server fails

#: text in vLLM's log -> what a person is told is going on
STAGES = (
    ("non-default args", "reading its options"),
    ("Resolved architecture", "reading the model's configuration"),
    ("Initializing a V1 LLM engine", "starting the engine"),
    ("Starting to load model", "loading the weights"),
    ("Loading weights took", "weights loaded"),
    ("GPU KV cache size", "allocating the key-value cache"),
    ("init engine", "preparing the structured-output backend"),
    ("Starting vLLM server", "opening the port"),
    ("Application startup complete", "ready"),
)

#: the last line of a traceback, with vLLM's prefixes or without, or a parser's complaint
_REASON = re.compile(
    r"^(?:\(.*?\) )?(?:ERROR .*?\] )?(?:[A-Za-z_.]+ serve: )?([A-Za-z_.]*(?:Error|Exception)|error): .+"
)
_PR_SET_PDEATHSIG = 1


class ServerFailed(RuntimeError):
    """The server did not start; ``log_tail`` holds the last lines it wrote."""

    def __init__(self, reason: str, log_tail: str) -> None:
        super().__init__(reason)
        self.log_tail = log_tail


def free_port() -> int:
    """A port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_environment(folder: Path) -> dict[str, str]:
    """This process's environment with vLLM's CPU traps and everything that could leave files seen to."""
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"}
    places = {name: folder / part for name, part in _PLACES.items()}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    _copy_compiled_functions(places["VLLM_GUIDED_CACHE_DIR"])
    environment.update({name: str(place) for name, place in places.items()})
    environment.update(_SETTINGS)
    return environment


_PLACES = {
    "TMPDIR": "tmp",
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "HF_HOME": "hf",
    "VLLM_GUIDED_CACHE_DIR": "guided-cache",
    "VLLM_CACHE_ROOT": "vllm-cache",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
}
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; an empty value crashes
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class VllmServer:
    """``vllm serve MODEL ARGUMENTS`` as a context manager; ready when the block is entered.

    Args:
        model: folder of the model.
        arguments: further command-line arguments.
        folder: where the log and everything the server writes go; must exist.
        timeout: seconds until a start counts as failed.

    Attributes:
        report: called with a short text whenever the start reaches its next stage.
        left_behind: processes that outlived :meth:`stop`; empty as long as the system can kill them.
        log_path: the server's standard output and error.

    Raises:
        ServerFailed: upon entering the block, when the server ends or is not ready in time.
    """

    def __init__(
        self,
        model: Path,
        arguments: list[str],
        folder: Path,
        timeout: float = START_TIMEOUT,
    ) -> None:
        self.port = free_port()
        self.log_path = folder / "server.log"
        self.left_behind: set[int] = set()
        self.report: Callable[[str], None] = lambda stage: None
        self._segments: set[Path] = set()
        self._folder = folder
        self._timeout = timeout
        self._command = [
            *_vllm_command(),
            "serve",
            str(model),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        self._command += arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        libc = ctypes.CDLL(None)

        def die_with_parent() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=cpu_environment(self._folder),
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def alive(self) -> bool:
        """Whether the server's first process still runs."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Everything the server has written so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._timeout
        stage = -1
        while time.monotonic() < deadline:
            log = self.log()
            self._segments |= _shared_memory(process.pid)
            reached = max((number for number, (text, _) in enumerate(STAGES) if text in log), default=-1)
            if reached > stage:
                stage = reached
                self.report(STAGES[stage][1])
            if process.poll() is not None:
                raise self._failure(f"the server ended with exit status {process.returncode}")
            if _answers(self.url + "/health"):
                return
            time.sleep(0.25)
        raise self._failure(f"the server was not ready after {self._timeout:.0f} seconds")

    def _failure(self, what: str) -> ServerFailed:
        lines = self.log().splitlines()
        causes = [line[found.start(1) :] for line in lines if (found := _REASON.match(line))]
        causes = [cause for cause in causes if "Engine core initialization failed" not in cause]
        return ServerFailed(f"{what}: {causes[-1]}" if causes else what, "\n".join(lines[-LOG_TAIL:]))

    def stop(self) -> None:
        """End the whole process group, gently first, and remove the shared memory it held. Idempotent.

        A second Ctrl-C while it waits skips the waiting.
        """
        process, self._process = self._process, None
        if process is None:
            return
        group = process.pid
        self._segments |= _shared_memory(group)
        try:
            process.terminate()
            _wait_for(lambda: process.poll() is not None, STOP_GRACE)
            _signal_group(group, signal.SIGTERM)
            _wait_for(lambda: not list(_members(group)), GROUP_GRACE)
        finally:
            _signal_group(group, signal.SIGKILL)
            process.wait()
            _wait_for(lambda: not list(_members(group)), GROUP_GRACE)
            self.left_behind = set(_members(group))
            for segment in self._segments:
                with contextlib.suppress(OSError):
                    segment.unlink()


def _copy_compiled_functions(target: Path) -> None:
    """Copy this package's compiled functions, if there are any yet: compiling them takes a minute.

    Their folders are named by the content of the sources, one for each folder of sources.
    """
    chosen = os.environ.get("VLLM_GUIDED_CACHE_DIR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "vllm_guided")
    with contextlib.suppress(OSError):  # somebody else may be cleaning up: then they are compiled anew
        folders = list(Path(chosen or cache).glob("numba-*"))
        newest = sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in newest[:COMPILED_FOLDERS]:
            shutil.copytree(folder, target / folder.name)


def _vllm_command() -> list[str]:
    """The ``vllm`` command of this interpreter's environment."""
    script = Path(sys.executable).with_name("vllm")
    return [str(script)] if script.exists() else [sys.executable, "-m", "vllm.entrypoints.cli.main"]


def _answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _members(group: int) -> Iterator[int]:
    """The live processes (zombies left out) of a process group or of the session it leads."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group, session = entry.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # it ended while we looked
        if group in (int(process_group), int(session)) and state not in "ZX":
            yield int(entry.parent.name)


def _shared_memory(group: int) -> set[Path]:
    """The files below /dev/shm that a process of the group has mapped."""
    found: set[Path] = set()
    for process in _members(group):
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process}/maps").read_text()
            found.update(Path(line) for line in re.findall(r"(/dev/shm/\S+)$", maps, re.MULTILINE))
    return found
