"""Compiled constraints on disk: the same again in another process, and nothing worse than a miss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vllm_guided import cachedir, constraints, packing, store
from vllm_guided.automaton import automaton as automaton_module
from vllm_guided.automaton.automaton import Automaton
from vllm_guided.constraints import compile_constraint
from vllm_guided.grammar import ir
from vllm_guided.numba_setup import numba_cache_directory

KEY = bytes(range(16))

CONSTRAINTS: list[tuple[str, Any]] = [
    ("json_schema", {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}),
    ("json_schema", {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}),
    ("json_schema", {"type": "array", "items": {"type": "integer"}, "maxItems": 1000}),
    ("json_object", None),
    ("regex", r"\d{4}-(a|é|\u4e00){2,300}"),
    ("regex", ""),
    ("choice", ["yes", "no", "ü"]),
    ("grammar", 'start: "a" start | "b" <|tool|>'),
    ("ebnf", 'root ::= "(" root ")" | [a-z]'),
    ("structural_tag", {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": ["<t"], "tags": [
            {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
        ]},
    }),
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(cachedir.ENVIRONMENT, str(tmp_path))
    monkeypatch.setattr(store, "WORTH_SECONDS", -1.0)
    monkeypatch.setattr(store, "_written_since_pruning", None)
    constraints.clear_cache()
    yield tmp_path
    constraints.clear_cache()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{store.KIND}-*.bin"))


def assert_same(one: Automaton, other: Automaton) -> None:
    for field in fields(Automaton):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all(), field.name
            assert b.flags.aligned and b.flags.carray, field.name
        else:
            assert a == b and type(a) is type(b), field.name


@pytest.mark.parametrize(("kind", "spec"), CONSTRAINTS)
def test_round_trip(kind: str, spec: Any) -> None:
    automaton = compile_constraint(kind, spec)
    back = packing.unpack(bytearray().join(packing.pack(automaton)))
    assert back is not None
    assert_same(automaton, back)


def test_every_kind_of_plain_value_comes_back() -> None:
    symbol = ir.SpecialToken(names=frozenset({"b", "a"}), ids=((1, 2), (5, 5)))
    values: list[Any] = [
        None, True, 0, -1, 1.5, "text \ud800 ü", b"", b"\0\xff", (), (1, (2, "x")), (b"ab", b"cd"),
        (b"a", b"bc"), frozenset({"x", "y"}), {"a": (1,), 2: b"x"}, symbol, (symbol, symbol),
    ]  # fmt: skip
    for value in values:
        arrays: list[Any] = []
        back = packing._value(json.loads(json.dumps(packing._plain(value, arrays))), arrays)
        assert back == value and type(back) is type(value)
    with pytest.raises(TypeError, match="holds a object"):
        packing._plain(object(), [])


def test_second_process_reads_what_the_first_compiled(folder: Path) -> None:
    program = (
        "from vllm_guided import constraints, store\n"
        "store.WORTH_SECONDS = -1.0\n"
        "built = []\n"
        "build = constraints.build_automaton\n"
        "constraints.build_automaton = lambda grammar: built.append(1) or build(grammar)\n"
        "a = constraints.compile_constraint('json_schema', {'type': 'object', 'properties': {'a': {}}})\n"
        "print(len(built), a.state_count, a.content_key.hex())\n"
    )
    # The compiled functions are taken along, or they would be compiled anew.
    compiled = Path(numba_cache_directory(Path(automaton_module.__file__).parent))
    (folder / compiled.name).symlink_to(compiled)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env=dict(os.environ),
        ).stdout.split()
        for _ in range(2)
    ]
    assert [output[0] for output in outputs] == ["1", "0"]
    assert outputs[0][1:] == outputs[1][1:]
    assert len(files(folder)) == 1


def test_stored_is_used_and_matches_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_constraint("regex", "a{2,7}|b")
    constraints.clear_cache()
    monkeypatch.setattr(constraints, "build_automaton", lambda grammar: pytest.fail("compiled again"))
    assert_same(first, compile_constraint("regex", "a{2,7}|b"))


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "header", "other key", "folder"])
def test_damaged_files_are_misses_and_are_replaced(folder: Path, damage: str) -> None:
    automaton = compile_constraint("regex", "a{2,7}|b")
    (path,) = files(folder)
    whole = path.read_bytes()
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "short":
        path.write_bytes(whole[:-9])
    elif damage == "flipped":
        path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    elif damage == "header":
        path.write_bytes(b"x" + whole[1:])
    elif damage == "other key":
        assert store.save(KEY, compile_constraint("regex", "other"))
        other = next(file for file in files(folder) if file != path)
        path.write_bytes(other.read_bytes())
    else:
        path.unlink()
        path.mkdir()
    constraints.clear_cache()
    assert_same(automaton, compile_constraint("regex", "a{2,7}|b"))
    if damage != "folder":
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0" * 8, b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]", (4).to_bytes(8, "little") + b"null",
    ],
)  # fmt: skip
def test_content_of_another_shape_is_a_miss(content: bytes) -> None:
    assert packing.unpack(bytearray(content)) is None


def test_fields_of_another_version_are_a_miss() -> None:
    parts = packing.pack(compile_constraint("regex", "ab"))
    header = json.loads(parts[1])
    for change in ("less", "more", "kind", "type"):
        values = dict(header["values"])
        described = [list(item) for item in header["arrays"]]
        if change == "less":
            del values["names"]
        elif change == "more":
            values["new"] = 1
        elif change == "kind":
            values["names"] = ["pickle", "x"]
        else:
            described[0][0] = "|O"
        text = json.dumps({"values": values, "arrays": described}).encode()
        text += b" " * (-len(text) % 8)
        content = bytearray().join([len(text).to_bytes(8, "little"), text, *parts[2:]])
        assert packing.unpack(content) is None, change


def test_another_version_is_another_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_constraint("regex", "ab")
    monkeypatch.setattr(store, "compiler_version", lambda: b"another version")
    constraints.clear_cache()
    compile_constraint("regex", "ab")
    assert len(files(folder)) == 2


def test_budget_in_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "budget_bytes", lambda: 64 << 10)
    for number in range(60):
        compile_constraint("choice", [f"{number} {k}" for k in range(20)])
        used = sum(file.stat().st_size for file in files(folder))
        assert used <= 64 << 10
    assert len(files(folder)) > 3
    # What alone would take a large part of the budget is not stored.
    before = len(files(folder))
    compile_constraint("choice", [f"{'x' * k}" for k in range(600)])
    assert len(files(folder)) <= before


def test_used_last_is_kept_longest(folder: Path) -> None:
    for number in range(4):
        cachedir.write_entry("kind", f"k{number}", [b"x" * 1000])
        os.utime(folder / f"kind-k{number}.bin", (number, number))
    cachedir.read_entry("kind", "k0")
    cachedir.prune_entries("kind", max_bytes=2100)
    assert sorted(file.name for file in folder.glob("kind-*")) == ["kind-k0.bin", "kind-k3.bin"]


def test_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.ENVIRONMENT, "0")
    compile_constraint("regex", "ab")
    assert not files(folder)
    monkeypatch.setenv(store.ENVIRONMENT, "plenty")
    assert store.budget_bytes() == store.DEFAULT_MEGABYTES << 20


def test_what_compiles_quickly_is_not_stored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WORTH_SECONDS", 1000.0)
    compile_constraint("regex", "ab")
    assert not files(folder)


def test_no_folder_is_no_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachedir, "cache_directory", lambda: None)
    assert compile_constraint("regex", "ab").state_count
    assert store.load(KEY) is None and not store.save(KEY, compile_constraint("regex", "ab"))


def test_many_threads_at_once(folder: Path) -> None:
    automaton = compile_constraint("regex", "a{2,7}|b")

    def use(number: int) -> None:
        assert store.save(KEY, automaton)
        found = store.load(KEY)
        assert found is not None
        assert_same(automaton, found)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(64)))
    assert not list(folder.glob(".*.tmp"))


def test_folders_of_old_compiled_code_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachedir, "FRESH_SECONDS", -1.0)
    for number in range(6):
        (folder / f"numba-{number}").mkdir()
        (folder / f"numba-{number}" / "code.nbc").write_bytes(b"x")
        os.utime(folder / f"numba-{number}", (number, number))
    (folder / "other-1").mkdir()
    cachedir.prune_folders("numba", keep=2, spare=folder / "numba-0")
    assert sorted(path.name for path in folder.iterdir()) == ["numba-0", "numba-4", "numba-5", "other-1"]
    monkeypatch.setattr(cachedir, "FRESH_SECONDS", 1e12)
    cachedir.prune_folders("numba", keep=0, spare=folder / "numba-0")
    assert (folder / "numba-5").is_dir()


def test_same_text_again_is_found_without_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"type":  "object"}'
    automaton = compile_constraint("json_schema", text)
    assert compile_constraint("json_schema", '{"type":"object"}') is automaton
    monkeypatch.setattr(constraints, "_read", lambda *_: pytest.fail("parsed again"))
    assert compile_constraint("json_schema", text) is automaton
    with pytest.raises(pytest.fail.Exception):
        compile_constraint("json_schema", text, any_whitespace=False)
    with pytest.raises(pytest.fail.Exception):
        compile_constraint("regex", text)


def test_bounded_memory_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "TEXTS_KEPT", 4)
    for number in range(20):
        compile_constraint("regex", f"a{number}")
    assert len(constraints._keys) <= 4
