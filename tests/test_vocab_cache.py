"""The cache directory and its files: damage, races, limits, places that cannot be written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from vllm_guided import cachedir
from vllm_guided.cachedir import cache_directory, read_entry, write_entry
from vllm_guided.vocab import store
from vllm_guided.vocab.trie import TokenTrie
from vllm_guided.vocab.vocabulary import Vocabulary


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv(cachedir.ENVIRONMENT, str(path))
    return path


@pytest.fixture
def stored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As ``folder``, with vocabularies of any size stored there."""
    monkeypatch.setattr(store, "MIN_TOKENS", 0)
    return folder


# -- where -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "xdg", "home", "expected"),
    [
        ("mine", "xdg", "home", "mine"),
        ("", "xdg", "home", "xdg/vllm_guided"),
        ("", "", "home", "home/.cache/vllm_guided"),
        ("file/below", "xdg", "home", "xdg/vllm_guided"),  # cannot be made: file is a file
        ("file/below", "file/xdg", "home", "home/.cache/vllm_guided"),
        ("file/below", "file/xdg", "file/home", "tmp/vllm_guided-UID"),
    ],
)
def test_the_first_writable_place_is_taken(
    chosen: str, xdg: str, home: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for name, value in ((cachedir.ENVIRONMENT, chosen), ("XDG_CACHE_HOME", xdg), ("HOME", home)):
        monkeypatch.setenv(name, str(tmp_path / value) if value else "")
    assert cache_directory() == tmp_path / expected.replace("UID", str(os.getuid()))
    assert (tmp_path / expected.replace("UID", str(os.getuid()))).is_dir()


def test_a_relative_xdg_path_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cachedir.ENVIRONMENT, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/path")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "vllm_guided"


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_temporary_directory_that_others_can_write_is_not_used(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    planted = tmp_path / f"vllm_guided-{os.getuid()}"
    planted.mkdir()
    planted.chmod(mode)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in (cachedir.ENVIRONMENT, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "file" / "x"))
    assert cache_directory() is None
    assert read_entry("kind", "key") is None
    assert write_entry("kind", "key", [b"content"], keep=3) is False


# -- entries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x", b"y" * 100_000])
def test_an_entry_is_read_back(content: bytes, folder: Path) -> None:
    assert read_entry("kind-v1", "a") is None
    assert write_entry("kind-v1", "a", [content[:3], content[3:]], keep=3)
    assert read_entry("kind-v1", "a") == content
    assert read_entry("kind-v2", "a") is None
    assert [path.name for path in folder.iterdir()] == ["kind-v1-a.bin"]


def test_a_directory_cleaned_away_is_made_again(folder: Path) -> None:
    assert write_entry("kind", "key", [b"x"], keep=3)
    shutil.rmtree(folder)
    assert read_entry("kind", "key") is None
    assert write_entry("kind", "key", [b"x"], keep=3)
    assert read_entry("kind", "key") == b"x"


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:10],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: flip(data, 0),
        lambda data: flip(data, 12),
        lambda data: flip(data, len(data) - 1),
        lambda data: b"\0" * len(data),
    ],
)
def test_a_damaged_entry_reads_as_absent_and_is_written_anew(damage: object, folder: Path) -> None:
    write_entry("kind", "key", [b"some content"], keep=3)
    path = folder / "kind-key.bin"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert read_entry("kind", "key") is None
    assert write_entry("kind", "key", [b"some content"], keep=3)
    assert read_entry("kind", "key") == b"some content"


def test_an_entry_under_another_name_reads_as_absent(folder: Path) -> None:
    write_entry("kind", "key", [b"content"], keep=3)
    (folder / "kind-key.bin").rename(folder / "kind-other.bin")
    assert read_entry("kind", "other") is None


def test_a_folder_in_the_place_of_an_entry_is_no_failure(folder: Path) -> None:
    (folder / "kind-key.bin" / "inner").mkdir(parents=True)
    assert read_entry("kind", "key") is None
    assert write_entry("kind", "key", [b"content"], keep=3) is False
    assert [path.name for path in folder.iterdir()] == ["kind-key.bin"]


def test_only_the_entries_used_last_are_kept(folder: Path) -> None:
    for number in range(4):
        write_entry("kind", f"k{number}", [b"x"], keep=4)
        os.utime(folder / f"kind-k{number}.bin", (number, number))
    write_entry("other", "k", [b"x"], keep=1)
    read_entry("kind", "k0")
    write_entry("kind", "k4", [b"x"], keep=3)
    assert {path.stem for path in folder.iterdir()} == {"kind-k0", "kind-k3", "kind-k4", "other-k"}


def test_what_dead_writers_left_is_removed(folder: Path) -> None:
    folder.mkdir()
    old, young = folder / ".kind-abc.tmp", folder / ".kind-def.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * cachedir.STALE_SECONDS,) * 2)
    write_entry("kind", "key", [b"x"], keep=3)
    assert not old.exists() and young.exists()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a.b", "a b"])
def test_names_cannot_leave_the_directory(name: str, folder: Path) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        write_entry("kind", name, [b"x"], keep=1)
    with pytest.raises(ValueError, match="letters, digits"):
        read_entry(name, "key")


def test_readers_and_writers_at_once_see_whole_entries(folder: Path) -> None:
    contents = [bytes([letter]) * 200_000 for letter in b"abc"]
    write_entry("kind", "key", [contents[0]], keep=2)

    def work(content: bytes) -> None:
        for _ in range(15):
            assert write_entry("kind", "key", [content], keep=2)
            assert bytes(read_entry("kind", "key") or b"") in contents

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, contents * 2))
    assert [path.name for path in folder.iterdir()] == ["kind-key.bin"]


WRITER = """
import sys
from vllm_guided.vocab import store
from vllm_guided.vocab.vocabulary import Vocabulary
store.MIN_TOKENS = 0
for _ in range(5):
    vocabulary = Vocabulary([b"%d" % i for i in range(2000)] + [None], stop_token_ids=[2000])
    assert vocabulary.trie.node_tokens[0] == 0 and len(vocabulary.trie.node_tokens) == 2000
"""


def test_processes_that_start_together_share_one_file(stored: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", WRITER]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert len(list(stored.iterdir())) == 1


# -- tries -----------------------------------------------------------------------------------------

TOKENS = [b"a", b"ab", b"ab", b"abc", b"b", b"\0\xff", None]


def arrays(trie: TokenTrie) -> dict[str, list[int]]:
    return {name: getattr(trie, name).tolist() for name in TokenTrie.__slots__}


def test_a_stored_trie_is_the_built_one(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Vocabulary(TOKENS, stop_token_ids=[6])
    assert len(list(stored.iterdir())) == 1
    monkeypatch.setattr(TokenTrie, "build", None)  # a second build would fail
    read = Vocabulary(TOKENS, stop_token_ids=[6])
    assert arrays(read.trie) == arrays(built.trie)
    for name in TokenTrie.__slots__:
        one, other = getattr(read.trie, name), getattr(built.trie, name)
        assert one.dtype == other.dtype and one.flags.writeable and one.flags.c_contiguous, name


@pytest.mark.parametrize(
    "tokens",
    [
        [b"a", b"ab", b"ab", b"abc", b"b", b"\0\xfe", None],
        [b"ab", b"a", b"ab", b"abc", b"b", b"\0\xff", None],
        [b"a", b"ab", b"ab", b"abc", b"b", None, b"\0\xff"],
    ],
)
def test_other_tokens_are_another_entry(tokens: list[bytes | None], stored: Path) -> None:
    Vocabulary(TOKENS, stop_token_ids=[6])
    other = Vocabulary(tokens, stop_token_ids=[tokens.index(None)])
    assert len(list(stored.iterdir())) == 2
    ids = [i for i, token in enumerate(tokens) if token]
    assert arrays(other.trie) == arrays(TokenTrie.build(ids, [token for token in tokens if token]))


def test_a_damaged_trie_is_built_anew(stored: Path) -> None:
    expected = arrays(Vocabulary(TOKENS, stop_token_ids=[6]).trie)
    (path,) = stored.iterdir()
    whole = path.read_bytes()
    path.write_bytes(flip(whole, len(whole) // 2))
    assert arrays(Vocabulary(TOKENS, stop_token_ids=[6]).trie) == expected
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"", b"1234", np.int64(3).tobytes(), np.int64(-1).tobytes() + b"x" * 40])
def test_an_entry_of_another_shape_is_built_anew(content: bytes, stored: Path) -> None:
    expected = arrays(Vocabulary(TOKENS, stop_token_ids=[6]).trie)
    (path,) = stored.iterdir()
    assert write_entry(store.KIND, path.stem.rpartition("-")[2], [content], keep=3)
    assert arrays(Vocabulary(TOKENS, stop_token_ids=[6]).trie) == expected


def test_small_vocabularies_are_not_stored(folder: Path) -> None:
    Vocabulary(TOKENS, stop_token_ids=[6])
    assert not folder.exists()
