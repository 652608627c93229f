"""Time the bitmask kernels beside xgrammar's and plain torch, in one run.

    python benchmarks/kernels.py              # the GPU if there is one, else the CPU
    python benchmarks/kernels.py --quick      # fewer rows, fewer rounds
    python benchmarks/kernels.py --device cpu --rows 256 --json out.json

Every round calls each kernel once, in an order that changes; the table shows medians. On a GPU each call is
timed by events around several launches, with logits larger than the cache, and its bandwidth stands beside
that of a copy on the device. The bytes counted are those that no kernel can avoid: the mask is
read, and each chunk of 16 bytes of logits (a line of 64 on the CPU) that it restricts is written, and read if
some of it is allowed. Logits are checked against the definition before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm_guided.kernels import reference

from vllm_guided import kernels

MASKS = {
    "12 allowed": "a choice, a digit, a bracket",
    "50 %": "random bits",
    "94 %": "inside a string",
    "mixed": "a batch: half 12 allowed, a quarter 94 %, a quarter everything",
    "all": "reasoning, or a free request",
}


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
    share = {"12 allowed": 12 / tokens, "50 %": 0.5, "94 %": 0.94}[kind]
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


def contestants(device: torch.device, rows: int) -> dict[str, Callable[[torch.Tensor, torch.Tensor], Any]]:
    """The kernels, by name. Each takes logits and masks for all rows."""
    found: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
        "vllm_guided": kernels.apply_token_bitmask_inplace,
        "torch": reference.apply_token_bitmask_vectors,
    }
    row_ids = torch.arange(rows, dtype=torch.int32, device=device)
    found["vllm_guided, table"] = lambda logits, masks: kernels.apply_token_bitmask_table_inplace(
        logits, masks, row_ids
    )
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


def as_vllm_calls_xgrammar(logits: torch.Tensor, masks: torch.Tensor) -> None:
    """What vLLM does on a CPU: other dtypes than float32 go there and back, and indices are a list."""
    import xgrammar

    if logits.dtype == torch.float32:
        xgrammar.apply_token_bitmask_inplace(logits, masks, indices=list(range(len(logits))))
    else:
        copy = logits.to(torch.float32)
        xgrammar.apply_token_bitmask_inplace(copy, masks, indices=list(range(len(logits))))
        logits.copy_(copy.to(logits.dtype))


def microseconds(call: Callable[[], Any], device: torch.device, launches: int) -> float:
    """The time of one call."""
    if device.type == "cpu":
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(launches):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e3 / launches


def medians(
    calls: dict[str, Callable[[], Any]], device: torch.device, rounds: int, launches: int
) -> dict[str, float]:
    """The median time of each call over some rounds, each round in another order; one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for round_number in range(-1, rounds):
        for i in range(len(names)):
            name = names[(i + round_number) % len(names)]
            spent = microseconds(calls[name], device, launches)
            if round_number >= 0:
                times[name].append(spent)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(
    device: torch.device, dtype: torch.dtype, rows: int, tokens: int, kind: str, rounds: int
) -> list[Measurement]:
    """All kernels on one input."""
    bits = make_bits(kind, rows, tokens, np.random.default_rng(0))
    masks = pack(bits).to(device)
    logits = torch.randn(rows, tokens, dtype=torch.float32).to(dtype).to(device)
    expected = logits.clone()
    reference.apply_token_bitmask_vectors(expected, masks)
    calls: dict[str, Callable[[], Any]] = {}
    for name, kernel in contestants(device, rows).items():
        got = logits.clone()
        try:
            kernel(got, masks)
        except Exception as error:  # a peer's kernel that does not run here must not end the others' run
            print(f"{name} does not run: {error}")
            continue
        if not torch.equal(got, expected):
            print(f"{name} is WRONG on {rows} x {tokens} {dtype} ({kind}): left out")
            continue
        calls[name] = lambda kernel=kernel: kernel(logits, masks)
    size = logits.element_size()
    moved = {name: necessary_bytes(bits, size, 64 if device.type == "cpu" else 16) for name in calls}
    target = torch.empty_like(logits)
    calls["copy"] = lambda: target.copy_(logits)
    moved["copy"] = 2 * rows * tokens * size
    launches = 1 if device.type == "cpu" else 10
    return [
        Measurement(
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            dtype=str(dtype).removeprefix("torch."),
            rows=rows,
            tokens=tokens,
            mask=kind,
            kernel=name,
            microseconds=spent,
            gigabytes_per_second=moved[name] / spent / 1e3,
        )
        for name, spent in medians(calls, device, rounds, launches).items()
    ]


def show(measurements: list[Measurement]) -> None:
    """One input's table: time, bandwidth, and how many times as long as ours."""
    first = measurements[0]
    print(f"\n{first.rows} rows x {first.tokens} tokens, {first.dtype}, {first.mask} ({MASKS[first.mask]})")
    print(f"  {'kernel':26}{'us':>12}{'GB/s':>10}{'times ours':>12}")
    ours = next((m.microseconds for m in measurements if m.kernel == "vllm_guided"), float("nan"))
    for m in sorted(measurements, key=lambda m: m.microseconds):
        times = m.microseconds / ours
        print(f"  {m.kernel:26}{m.microseconds:12.1f}{m.gigabytes_per_second:10.1f}{times:12.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, nargs="+", help="default: 1 16 256; quick: 64")
    parser.add_argument("--tokens", type=int, default=128_256)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], help="names of torch dtypes")
    parser.add_argument("--masks", nargs="+", default=list(MASKS), choices=list(MASKS), metavar="MASK")
    parser.add_argument("--rounds", type=int, help="default: 15; quick: 5")
    parser.add_argument("--quick", action="store_true", help="a minute or less on two cores")
    parser.add_argument("--json", help="write the measurements to this file")
    options = parser.parse_args()
    rounds = options.rounds or (5 if options.quick else 15)
    device = torch.device(options.device)
    kernels.warmup(device)
    if device.type == "cpu":
        print(f"CPU, {torch.get_num_threads()} threads (xgrammar's kernel uses one)")
    else:
        print(torch.cuda.get_device_name(device))
    everything: list[Measurement] = []
    for name in options.dtype:
        for rows in options.rows or ([64] if options.quick else [1, 16, 256]):
            for kind in options.masks:
                found = measure(device, getattr(torch, name), rows, options.tokens, kind, rounds)
                show(found)
                everything += found
    if options.json:
        with open(options.json, "w") as file:
            json.dump([vars(m) for m in everything], file, indent=1)


if __name__ == "__main__":
    main()
