"""The second runner's way over a device, with Triton's interpreter; run by ``test_vllm_second_runner.py``.

The streams are lists: what would run on each, in order, with what it waits for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_vllm_second_runner import KINDS, Step
from vllm_guided.kernels import cpu, triton_kernel

from vllm_guided.vllm import second_runner

assert os.environ.get("TRITON_INTERPRET") == "1"


class Streams:
    """Two streams, and which of them is current."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.main, self.copy = self.stream("main"), self.stream("copy")
        self.current = self.main
        monkeypatch.setattr(torch.cuda, "stream", self.entered)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)

    def stream(self, name: str) -> Any:
        return SimpleNamespace(
            name=name, wait_stream=lambda other: self.events.append(f"{name} waits for {other.name}")
        )

    @contextlib.contextmanager
    def entered(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def note(self, what: str) -> None:
        self.events.append(f"{what} on {self.current.name}")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams(monkeypatch)

    def launch(logits: Any, bitmask: Any, row_ids: Any, indices: Any, starts: Any, positions: int) -> None:
        made.note("kernel")
        triton_kernel.apply(logits, bitmask, row_ids, indices, starts, positions)

    monkeypatch.setattr(cpu, "apply", launch)  # logits here are on the CPU, as the interpreter wants
    return made


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize(("strided", "drafts"), KINDS)
def test_logits_and_order(strided: bool, drafts: bool, by_number: bool, streams: Streams) -> None:
    for seed in range(25):
        step = Step(seed, strided=strided, drafts=drafts)
        step.worker.copy_stream = streams.copy
        step.worker.vllm_guided_numbers = torch.full(
            (2 * len(step.worker.logits_indices),), 99, dtype=torch.int32
        )
        sent: list[int] = []

        def send(data: Any, out: Any, sent: list[int] = sent) -> Any:
            streams.note("copy")
            sent.append(data.nbytes)
            return out.copy_(torch.from_numpy(data))

        logits = step.logits.clone()
        places = second_runner.find_places(step.worker, step.batch, step.masked)
        masks, rows = (step.numbers, torch.from_numpy(step.table)) if by_number else (step.whole.copy(), None)
        second_runner._send_and_mask(send, step.worker, logits, step.batch, places, masks, rows)
        assert torch.equal(logits, step.expected()), seed
        copies = 1 if by_number else 2
        assert streams.events == [
            *["copy on copy"] * copies,
            "main waits for copy",
            "kernel on main",
            "copy waits for main",
        ]
        streams.events.clear()
        if by_number:
            assert sum(sent) == 8 * len(places)  # a place and a row number each
