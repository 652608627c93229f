"""Time the bitmask kernels beside xgrammar's, vLLM's and plain torch, in one run.

    python benchmarks/kernels.py              # the GPU if there is one, else the CPU
    python benchmarks/kernels.py --quick      # 256 rows only, fewer rounds
    python benchmarks/kernels.py --device cpu --rows 256 --dtype bfloat16

Every round calls each kernel once, in a random order; the tables show medians. Logits and masks are as many
copies of the same as do not fit a cache, used in turn, since a step finds them so after its forward pass. On
a GPU each call is timed by events around several launches that the host has made before the first one runs,
and its bandwidth stands beside that of a copy on the device. The bytes counted are those that no kernel can
avoid: the mask is read, and each chunk of 16 bytes of logits (a line of 64 on the CPU) that it restricts is
written, and read if some of it is allowed. Logits are checked against the definition first.

"table" takes the masks by number, -1 where a row allows everything; "requests" finds each mask's row of
logits from where its request's rows begin.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _report
import numpy as np
import torch
from vllm_guided.kernels import reference

from vllm_guided import kernels

MASKS = {
    "12 allowed": "a choice, a digit, a bracket",
    "half": "one half of the vocabulary, then the other",
    "94 %": "inside a string",
    "random": "random bits",
    "mixed": "a batch: half 12 allowed, a quarter 94 %, a quarter everything",
    "all": "reasoning, or a free request",
}
CACHE_BYTES = {"cpu": 64 << 20}
GPU_CACHE_BYTES = 512 << 20
"""What the copies of the logits take at least, so that none is found in a cache."""
COPIES = 64
"""How many there are at most."""
LAUNCHES = 10
"""In one measurement on a GPU."""


@dataclass
class Measurement:
    """One kernel on one input: microseconds, and what they make."""

    device: str
    dtype: str
    rows: int
    tokens: int
    mask: str
    kernel: str
    microseconds: float
    gigabytes_per_second: float


def make_bits(kind: str, rows: int, tokens: int, random: np.random.Generator) -> np.ndarray:
    """Which tokens are allowed, as booleans [rows, tokens]."""
    if kind == "mixed":
        kinds = ["12 allowed", "12 allowed", "94 %", "all"]
        return np.concatenate([make_bits(kinds[i % 4], 1, tokens, random) for i in range(rows)])
    if kind == "all":
        return np.ones((rows, tokens), dtype=bool)
    if kind == "half":
        return np.tile(np.arange(tokens) < tokens // 2, (rows, 1))
    share = {"12 allowed": 12 / tokens, "random": 0.5, "94 %": 0.94}[kind]
    return random.random((rows, tokens), dtype=np.float32) < share


def pack(bits: np.ndarray) -> torch.Tensor:
    """Booleans as bitmask rows."""
    padded = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 32)))
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32).copy())


def necessary_bytes(bits: np.ndarray, size: int, unit: int) -> int:
    """Bytes that must move if memory is written in units of ``unit`` bytes."""
    lanes = unit // size
    allowed = np.pad(bits, ((0, 0), (0, -bits.shape[1] % lanes))).reshape(len(bits), -1, lanes).sum(axis=2)
    written = int((allowed < lanes).sum())
    read = int(((allowed < lanes) & (allowed > 0)).sum())
    return (written + read) * unit + bits.size // 8


def contestants(
    device: torch.device, rows: int, free: np.ndarray
) -> dict[str, Callable[[torch.Tensor, torch.Tensor], Any]]:
    """The kernels, by name. Each takes logits and masks for all rows, of which those ``free`` allow all."""
    numbers = torch.arange(rows, dtype=torch.int32, device=device)
    row_ids = torch.where(torch.from_numpy(free).to(device), -1, numbers)
    starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
    table = kernels.apply_token_bitmask_table_inplace
    found: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
        "vllm_guided": kernels.apply_token_bitmask_inplace,
        "vllm_guided, table": lambda logits, masks: table(logits, masks, row_ids),
        "vllm_guided, table, requests": lambda logits, masks: table(
            logits, masks, row_ids, numbers, row_starts=starts
        ),
        "torch": reference.apply_token_bitmask_vectors,
    }
    if device.type != "cpu":
        found["vLLM"] = vllm_kernel(numbers, starts)
    try:
        import xgrammar
    except ImportError:
        print("xgrammar is not installed: left out")
        return found
    backends = ["cpu"] if device.type == "cpu" else ["triton", "cuda"]
    for backend in backends:

        def call(logits: torch.Tensor, masks: torch.Tensor, backend: str = backend) -> None:
            xgrammar.apply_token_bitmask_inplace(logits, masks, backend=backend)

        found[f"xgrammar {backend}"] = call
    if device.type == "cpu":
        found["vLLM's path for xgrammar"] = as_vllm_calls_xgrammar
    return found


def vllm_kernel(numbers: torch.Tensor, starts: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    """The kernel of vLLM's second model runner, launched as vLLM 0.32 does, one position a request."""

    def call(logits: torch.Tensor, masks: torch.Tensor) -> None:
        from vllm.v1.worker.gpu.structured_outputs import _apply_grammar_bitmask_kernel

        tokens, block = logits.shape[1], 8192
        _apply_grammar_bitmask_kernel[(len(masks), -(-tokens // block))](
            logits, logits.stride(0), numbers, starts, masks, masks.stride(0), tokens,
            MASK_STRIDE=1, BLOCK_SIZE=block,
        )  # fmt: skip

    return call


def as_vllm_calls_xgrammar(logits: torch.Tensor, masks: torch.Tensor) -> None:
    """What vLLM does on a CPU: other dtypes than float32 go there and back, and indices are a list."""
    import xgrammar

    if logits.dtype == torch.float32:
        xgrammar.apply_token_bitmask_inplace(logits, masks, indices=list(range(len(logits))))
    else:
        copy = logits.to(torch.float32)
        xgrammar.apply_token_bitmask_inplace(copy, masks, indices=list(range(len(logits))))
        logits.copy_(copy.to(logits.dtype))


def microseconds(call: Callable[[], Any], device: torch.device) -> float:
    """The time of one call."""
    if device.type == "cpu":
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6
    gpu: Any = torch.get_device_module(device)
    first, last = gpu.Event(enable_timing=True), gpu.Event(enable_timing=True)
    gpu.synchronize()
    if hasattr(gpu, "_sleep"):
        # A millisecond or two, so that the host is done with launching when the first one runs.
        gpu._sleep(3_000_000)
    first.record()
    for _ in range(LAUNCHES):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e3 / LAUNCHES


def medians(calls: dict[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, float]:
    """The median time of each call over some rounds, in an order that changes; one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    chance = random.Random(0)
    for round_number in range(-1, rounds):
        for name in chance.sample(list(calls), len(calls)):
            spent = microseconds(calls[name], device)
            if round_number >= 0:
                times[name].append(spent)
    return {name: statistics.median(values) for name, values in times.items()}


class InTurn:
    """Calls a kernel on one copy of the logits and masks after the other."""

    def __init__(self, kernel: Callable[[Any, Any], Any], copies: list[tuple[Any, Any]]) -> None:
        self.kernel, self.copies, self.turn = kernel, copies, 0

    def __call__(self) -> None:
        self.turn = (self.turn + 1) % len(self.copies)
        self.kernel(*self.copies[self.turn])


def measure(
    device: torch.device, dtype: torch.dtype, rows: int, tokens: int, kind: str, rounds: int
) -> list[Measurement]:
    """All kernels on one input."""
    bits = make_bits(kind, rows, tokens, np.random.default_rng(0))
    masks = pack(bits).to(device)
    logits = torch.randn(rows, tokens, dtype=torch.float32).to(dtype).to(device)
    expected = logits.clone()
    reference.apply_token_bitmask_vectors(expected, masks)
    size, name_of_device = logits.element_size(), device_name(device)
    count = min(COPIES, max(1, CACHE_BYTES.get(device.type, GPU_CACHE_BYTES) // (rows * tokens * size)))
    copies = [(logits.clone(), masks.clone()) for _ in range(count)]
    calls: dict[str, Callable[[], Any]] = {}
    for name, kernel in contestants(device, rows, bits.all(axis=1)).items():
        got = logits.clone()
        try:
            kernel(got, masks)
        except Exception as error:  # a peer's kernel that does not run here must not end the others' run
            print(f"{name} does not run: {error}")
            continue
        if not torch.equal(got, expected):
            print(f"{name} is WRONG on {rows} x {tokens} {dtype} ({kind}): left out")
            continue
        calls[name] = InTurn(kernel, copies)
    moved = {name: necessary_bytes(bits, size, 64 if device.type == "cpu" else 16) for name in calls}
    target = torch.empty_like(logits)
    calls["copy"] = InTurn(lambda logits, masks: target.copy_(logits), copies)
    moved["copy"] = 2 * rows * tokens * size
    return [
        Measurement(
            device=name_of_device,
            dtype=str(dtype).removeprefix("torch."),
            rows=rows,
            tokens=tokens,
            mask=kind,
            kernel=name,
            microseconds=spent,
            gigabytes_per_second=moved[name] / spent / 1e3,
        )
        for name, spent in medians(calls, device, rounds).items()
    ]


def device_name(device: torch.device) -> str:
    """What to call a device in the results."""
    if device.type == "cpu":
        return "cpu"
    return str(torch.get_device_module(device).get_device_name())


def show(measurements: list[Measurement]) -> None:
    """One input's table: time, bandwidth, and how many times as long as ours."""
    first = measurements[0]
    title = f"{first.rows} rows x {first.tokens} tokens, {first.dtype}, {first.mask} ({MASKS[first.mask]})"
    ours = next((m.microseconds for m in measurements if m.kernel == "vllm_guided"), float("nan"))
    rows = [
        [m.kernel, f"{m.microseconds:,.1f}", f"{m.gigabytes_per_second:.1f}", f"{m.microseconds / ours:.2f}"]
        for m in sorted(measurements, key=lambda m: m.microseconds)
    ]
    _report.table(title, ["kernel", "microseconds", "GB/s", "times ours"], rows)


def keep(measurements: list[Measurement], out: Path) -> None:
    """The raw numbers, and a chart of the largest batch: a group of bars a mask, an axis a dtype."""
    most = max(m.rows for m in measurements)
    dtypes = list(dict.fromkeys(m.dtype for m in measurements))
    masks = [kind for kind in MASKS if any(m.mask == kind for m in measurements)]

    def draw(figure: Any, axes: Any) -> None:
        for axis, dtype in zip(axes, dtypes, strict=True):
            values: dict[str, list[float]] = {}
            for name in dict.fromkeys(m.kernel for m in measurements):
                found = {
                    m.mask: m.microseconds
                    for m in measurements
                    if (m.kernel, m.dtype, m.rows) == (name, dtype, most)
                }
                values[name] = [found.get(kind, float("nan")) for kind in masks]
            _report.bars(axis, masks, values, y="microseconds")
            axis.set(title=f"{most} rows, {dtype}")

    name = f"kernels-{'cpu' if measurements[0].device == 'cpu' else 'gpu'}"
    _report.keep(out, name, {"measurements": [vars(m) for m in measurements]}, draw, len(dtypes))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    parser.add_argument("--device", default=accelerator.type if accelerator else "cpu")
    parser.add_argument("--rows", type=int, nargs="+", help="default: 1 16 256; quick: 256")
    parser.add_argument("--tokens", type=int, default=128_256)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], help="names of torch dtypes")
    parser.add_argument("--masks", nargs="+", default=list(MASKS), choices=list(MASKS), metavar="MASK")
    parser.add_argument("--rounds", type=int, help="default: 15; quick: 5")
    parser.add_argument("--quick", action="store_true", help="a minute or so on two cores")
    parser.add_argument("--out", type=Path, default=_report.RESULTS, help="folder for chart and raw numbers")
    options = parser.parse_args()
    rounds = options.rounds or (5 if options.quick else 15)
    device = torch.device(options.device)
    kernels.warmup(device)
    if device.type == "cpu":
        print(f"CPU, {torch.get_num_threads()} threads (xgrammar's kernel uses one)")
    else:
        print(device_name(device))
    everything: list[Measurement] = []
    for name in options.dtype:
        for rows in options.rows or ([256] if options.quick else [1, 16, 256]):
            for kind in options.masks:
                found = measure(device, getattr(torch, name), rows, options.tokens, kind, rounds)
                show(found)
                everything += found
    keep(everything, options.out)


if __name__ == "__main__":
    main()
