"""A real server for each backend on the tiny model, and the processor time that its processes take."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _data import ROOT

BACKENDS = ("vllm_guided", "xgrammar", "guidance", "outlines")
#: vLLM's processes: the beginning of their titles, and what they are called here.
ROLES = {"VLLM::EngineCor": "engine core", "VLLM::Worker": "worker"}
API = "API server"


def arguments(backend: str, sequences: int = 256, longest: int = 2048) -> list[str]:
    """The options of ``vllm serve`` for a backend."""
    chosen = (
        ["--guided-decoding-backend", backend]
        if backend == "vllm_guided"
        else ["--structured-outputs-config.backend", backend]
    )
    return [
        "--load-format", "dummy", "--dtype", "float32", "--max-model-len", str(longest), "--enforce-eager",
        "--max-num-seqs", str(sequences), "--served-model-name", "tiny", *chosen,
    ]  # fmt: skip


def compile_functions() -> None:
    """Compile this package's functions, of which each server gets a copy, if they are not compiled yet."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "vllm_guided.cli", "warmup"]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.DEVNULL, check=True)


@contextmanager
def server(
    model: Path, backend: str, folder: Path, *extra: str, python_path: tuple[Path, ...] = ()
) -> Iterator[int]:
    """Start one, with this clone's code; its port. ``python_path``: further folders of modules for it."""
    from vllm_guided.demo.server import VllmServer

    folder.mkdir(parents=True, exist_ok=True)
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "VLLM_GUIDED_DISK_CACHE_MB")}
    paths = [*map(str, python_path), str(ROOT), *filter(None, [before["PYTHONPATH"]])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # What a server has compiled goes into its own folder: here the store is as in service.
    os.environ.pop("VLLM_GUIDED_DISK_CACHE_MB", None)
    try:
        with VllmServer(model, [*arguments(backend), *extra], folder) as running:
            yield running.port
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def processor_seconds() -> dict[str, float]:
    """Processor time so far of all processes below this one, by role."""
    parents: dict[int, int] = {}
    spent: dict[int, tuple[str, float]] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = entry.read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        process = int(entry.parent.name)
        parents[process] = int(fields[1])
        spent[process] = (head.partition("(")[2], (int(fields[11]) + int(fields[12])) / tick)
    found: dict[str, float] = {}
    for process, (title, seconds) in spent.items():
        ancestor = parents.get(process, 0)
        while ancestor not in (0, 1, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        if ancestor == os.getpid():
            role = next((role for start, role in ROLES.items() if title.startswith(start)), API)
            found[role] = found.get(role, 0.0) + seconds
    return found
