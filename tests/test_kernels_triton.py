"""The Triton kernel without a GPU: run by Triton's interpreter, and compiled ahead of time and read.

The interpreter is chosen when Triton is imported, so those tests, in ``interpreted_kernels.py``, run in a
process of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from vllm_guided.kernels import triton_kernel  # noqa: E402

HERE = Path(__file__).parent
SIZES = {"*i16": 2, "*i32": 4, "*i64": 8}


POINTERS = ("indices_ptr", "row_ids_ptr", "starts_ptr")
# How a launch may say which mask and which row: the pointers it gives.
WAYS = {
    "row i": (),
    "rows": ("indices_ptr",),
    "table": ("row_ids_ptr",),
    "rows and table": ("indices_ptr", "row_ids_ptr"),
    "requests": ("indices_ptr", "starts_ptr"),
    "requests and table": POINTERS,
}


def compile_kernel(
    logits: str,
    target: int | GPUTarget,
    *,
    token_stride: int | None = 1,
    way: str = "rows and table",
    numbers: str = "*i32",
) -> Any:
    """The kernel for logits of a type, with nothing known of addresses, widths and strides."""
    kernel = triton_kernel.mask_rows_kernel
    size = SIZES[logits]
    constants: dict[str, int | None] = {
        "CHUNK": triton_kernel.CHUNK_BYTES // size,
        "BLOCK": triton_kernel.BLOCK_BYTES // size,
    }
    if token_stride is not None:
        constants["token_stride"] = token_stride
    constants.update({name: None for name in POINTERS if name not in WAYS[way]})
    types = {"logits_ptr": logits, "mask_ptr": "*i32", **dict.fromkeys(POINTERS, numbers)}
    if logits == "*i64":
        types["masked"] = "i64"
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names
    }
    source = triton.compiler.ASTSource(kernel, signature, constants)
    if isinstance(target, int):
        target = GPUTarget("cuda", target, 32)
    return triton.compile(source, target=target, options={"num_warps": triton_kernel.WARPS})


def accesses(ptx: str) -> dict[str, int]:
    """How many instructions there are of each kind of access to memory: ``st.global.v4.b32`` and so on."""
    counts: dict[str, int] = {}
    for instruction in re.findall(r"\b(?:ld|st)\.(?:global|local|shared)[\w.:]*", ptx):
        counts[instruction] = counts.get(instruction, 0) + 1
    return counts


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("logits", ["*i16", "*i32", "*i64"])
def test_whole_vectors_and_no_local_memory(logits: str, way: str, capability: int) -> None:
    """Every chunk is loaded and stored by one 16-byte instruction, whatever the strides and the width."""
    compiled = compile_kernel(logits, capability, way=way)
    ptx = compiled.asm["ptx"]
    found = accesses(ptx)
    vector = "v2.b64" if logits == "*i64" else "v4.b32"
    chunks = triton_kernel.BLOCK_BYTES // triton_kernel.CHUNK_BYTES // (triton_kernel.WARPS * 32)
    stores = {name: count for name, count in found.items() if name.startswith("st.")}
    # one more: the tokens at a row's ends that fill no chunk
    assert stores == {f"st.global.{vector}": chunks, f"st.global.b{8 * SIZES[logits]}": 1}
    assert found[f"ld.global.{vector}"] == chunks
    assert not re.search(r"\.local\b", ptx), "an array lies in local memory"
    assert not re.search(r"\b(LDL|STL)\b", compiled.asm["sass"]), "registers were spilled"
    assert "bar.sync" not in ptx and compiled.metadata.shared == 0, "threads wait for each other"
    for line in ptx.splitlines():
        if re.search(rf"(ld|st)\.global\.{re.escape(vector)}", line):
            assert re.search(r"@!?%p\d+ ", line), f"without a predicate: {line}"


@pytest.mark.parametrize("way", WAYS)
def test_row_numbers_of_64_bits_compile(way: str) -> None:
    ptx = compile_kernel("*i16", 90, way=way, numbers="*i64").asm["ptx"]
    assert accesses(ptx)["st.global.v4.b32"] > 0


@pytest.mark.parametrize(("architecture", "lanes"), [("gfx942", 64), ("gfx1201", 32)])
@pytest.mark.parametrize("logits", ["*i16", "*i32"])
def test_whole_vectors_on_amd(logits: str, architecture: str, lanes: int) -> None:
    target = GPUTarget("hip", architecture, lanes)
    text = compile_kernel(logits, target, way="requests and table").asm["amdgcn"]
    chunks = triton_kernel.BLOCK_BYTES // triton_kernel.CHUNK_BYTES // (triton_kernel.WARPS * lanes)
    assert len(re.findall(r"\bglobal_store_(?:dwordx4|b128)\b", text)) == chunks
    assert len(re.findall(r"\bglobal_store_\w+", text)) == chunks + 1
    assert not re.search(r"\bscratch_(?:load|store)", text)


def test_tokens_that_do_not_lie_side_by_side_compile() -> None:
    found = accesses(compile_kernel("*i32", 80, token_stride=None).asm["ptx"])
    assert found["st.global.b32"] > 1
    assert "st.global.v4.b32" not in found


class Hopper:
    """As much of a driver as compiling for a launch asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What launches would run, each compiled with the launcher's own arguments, but nothing launched."""
    kernel = triton_kernel.mask_rows_kernel
    found: list[Any] = []

    def run(*arguments: object, warmup: bool, **options: object) -> None:
        found.append(type(kernel).run(kernel, *arguments, warmup=True, **options))

    monkeypatch.setattr(kernel, "run", run)
    monkeypatch.setattr(kernel, "device_caches", defaultdict(kernel.create_binder))
    monkeypatch.setattr(triton.runtime.driver, "_active", Hopper())
    return found


def test_one_compilation_for_all_sizes(compiled: list[Any]) -> None:
    """No batch of another shape compiles again."""
    for dtype in (torch.bfloat16, torch.float16):
        for rows, tokens in [(1, 1), (1, 311), (4, 320), (16, 4096), (17, 4097)]:
            logits = torch.zeros((2 * rows, tokens + 3), dtype=dtype)[::2, 3:]
            masks = torch.zeros((rows, 130), dtype=torch.int32)[:, 1 : 1 + (tokens + 31) // 32]
            triton_kernel.apply(logits, masks, None, None)
    assert len(compiled) == 10
    assert len({id(code) for code in compiled}) == 1
    assert accesses(compiled[0].asm["ptx"])["st.global.v4.b32"] > 0


def test_serving_compiles_nothing(compiled: list[Any]) -> None:
    """The warm-up has compiled every way a worker launches, whatever the sizes are then."""
    triton_kernel.warmup(torch.device("cpu"))
    warm = {id(code) for code in compiled}
    assert len(warm) == 2 * len(WAYS)
    table = torch.zeros((100, 4008), dtype=torch.int32)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for requests, positions in [(1, 1), (1, 4), (7, 4), (16, 1), (256, 16)]:
            logits = torch.zeros((requests * positions, 400), dtype=dtype)[:, :384]
            numbers = torch.arange(requests * positions, dtype=torch.int32)[1:]
            starts = torch.arange(requests + 1, dtype=torch.int32)
            masks = torch.zeros((len(numbers), 4008), dtype=torch.int32)
            triton_kernel.apply(logits, masks, None, numbers)
            triton_kernel.apply(logits, table, numbers, numbers)
            triton_kernel.apply(logits, masks, None, numbers, starts, positions)
            triton_kernel.apply(logits, table, numbers, numbers, starts, positions)
    assert {id(code) for code in compiled} == warm


def test_interpreted() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "interpreted_kernels.py"],
        cwd=HERE,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout and "skipped" not in done.stdout
