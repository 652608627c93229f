"""Compiled constraints on their way from one process to another: whole, bounded, and gone at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_guided import cachedir, constraints, handoff, packing, store
from vllm_guided.automaton.automaton import Automaton

KEY = bytes(range(16))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory, and a folder in the place of the memory file system."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv(cachedir.ENVIRONMENT, str(tmp_path / "cache"))
    monkeypatch.setattr(handoff, "MEMORY_FOLDER", memory)
    monkeypatch.setattr(handoff, "_written", {})
    handoff.memory_folder.cache_clear()
    yield tmp_path / "cache"
    handoff.memory_folder.cache_clear()


@pytest.fixture(scope="module")
def automaton() -> Automaton:
    return constraints.compile_constraint("regex", "a{2,7}|b")


def same(one: Automaton | None, other: Automaton) -> bool:
    return one is not None and b"".join(packing.pack(one)) == b"".join(packing.pack(other))


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob(f"{handoff.KIND}-*.bin"))


def test_there_and_back(automaton: Automaton, cache: Path) -> None:
    assert handoff.load(KEY) is None
    assert handoff.save(KEY, packing.pack(automaton))
    assert same(handoff.load(KEY), automaton)
    assert len(files(handoff.MEMORY_FOLDER)) == 1 and not files(cache)


@pytest.mark.parametrize("reason", ["none", "small", "another's", "a link", "full"])
def test_without_a_memory_file_system_the_cache_directory_does(
    automaton: Automaton, cache: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "none":
        monkeypatch.setattr(handoff, "MEMORY_FOLDER", handoff.MEMORY_FOLDER / "nowhere")
    elif reason == "small":
        monkeypatch.setattr(handoff, "MEMORY_SHARE", 1 << 60)
    elif reason == "full":
        monkeypatch.setattr(handoff, "MEMORY_BYTES", 1 << 30)
        place = handoff.memory_folder(cachedir.cache_directory())
        assert place is not None
        place[0].rmdir()
        place[0].write_text("no folder can be made here")
    else:
        place = handoff.memory_folder(cachedir.cache_directory())
        assert place is not None
        place[0].rmdir()
        if reason == "a link":
            other = handoff.MEMORY_FOLDER / "other"
            other.mkdir()
            place[0].symlink_to(other)
        else:
            place[0].mkdir()
            place[0].chmod(0o777)
        handoff.memory_folder.cache_clear()
    assert handoff.save(KEY, packing.pack(automaton))
    assert same(handoff.load(KEY), automaton)
    assert len(files(cache)) == 1 and not files(handoff.MEMORY_FOLDER)


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_damage_is_a_miss(automaton: Automaton, damage: bytes | None) -> None:
    handoff.save(KEY, packing.pack(automaton))
    (file,) = files(handoff.MEMORY_FOLDER)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    assert handoff.load(KEY) is None
    handoff.save(KEY, packing.pack(automaton))
    assert same(handoff.load(KEY), automaton)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users")
def test_what_another_user_left_is_a_miss(automaton: Automaton, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory file system is everybody's, and the folder goes when the last holder does."""
    assert handoff.save(KEY, packing.pack(automaton))
    info = os.stat(next(handoff.MEMORY_FOLDER.rglob("*.bin")))
    assert cachedir._is_trusted(info) and same(handoff.load(KEY), automaton)
    foreign = os.stat_result((*info[:4], info.st_uid + 1234, *info[5:10]))
    monkeypatch.setattr(cachedir.os, "fstat", lambda _: foreign)
    assert handoff.load(KEY) is None


def test_another_version_is_a_miss(automaton: Automaton, monkeypatch: pytest.MonkeyPatch) -> None:
    handoff.save(KEY, packing.pack(automaton))
    monkeypatch.setattr(store, "compiler_version", lambda: b"another version")
    assert handoff.load(KEY) is None


def test_bounded(automaton: Automaton, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by processes that end after one file each, which is what forgetting ``_written`` stands for."""
    budget = 1 << 20
    monkeypatch.setattr(handoff, "MEMORY_BYTES", budget)
    handoff.memory_folder.cache_clear()
    content = [*packing.pack(automaton), bytes(20_000)]
    for number in range(400):
        assert handoff.save(number.to_bytes(16, "big"), content)
        handoff.prune()
        if number > 100:
            handoff._written.clear()
        assert sum(file.stat().st_size for file in files(handoff.MEMORY_FOLDER)) < 2 * budget
    assert not handoff.save(KEY, [bytes(budget)])


def test_the_last_to_hold_it_empties_it(automaton: Automaton) -> None:
    first, second = handoff.hold(), handoff.hold()
    handoff.save(KEY, packing.pack(automaton))
    first.close()
    first.close()
    assert handoff.load(KEY) is not None
    second.close()
    assert handoff.load(KEY) is None and not list(handoff.MEMORY_FOLDER.iterdir())
    assert handoff.save(KEY, packing.pack(automaton)) and handoff.load(KEY) is not None


def test_what_the_killed_left_is_emptied_by_the_next(automaton: Automaton) -> None:
    program = """
        import os, signal, sys
        from pathlib import Path
        from vllm_guided import handoff
        handoff.MEMORY_FOLDER = Path(sys.argv[1])
        held = handoff.hold()
        handoff.save(bytes(16), [b"x"])
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(handoff.MEMORY_FOLDER)], timeout=60)
    assert len(files(handoff.MEMORY_FOLDER)) == 1
    held = handoff.hold()
    assert not files(handoff.MEMORY_FOLDER)
    held.close()


def test_holding_where_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere: Any = handoff.MEMORY_FOLDER / "nowhere"
    monkeypatch.setattr(handoff, "MEMORY_FOLDER", nowhere)
    handoff.hold().close()
