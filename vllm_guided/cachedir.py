"""The cache directory, and small checked files in it.

In: names and bytes. Out: the same bytes in a later process, or nothing. A cache entry is written to a
temporary file and renamed, so that readers see a whole entry or none, whatever else runs; its checksum
covers its name and content, so that a damaged, truncated or misplaced file reads as absent and is
written anew. Every kind of entry keeps a bounded number of files. Nothing here raises for a disk that is
full, read-only or gone: a cache that fails is a cache that is empty.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import xxhash

logger = logging.getLogger(__name__)

ENVIRONMENT = "VLLM_GUIDED_CACHE_DIR"
MAGIC = b"VGUIDED1"
DIGEST_BYTES = 16
STALE_SECONDS = 3600.0
"""A temporary file this old was left by a process that died."""

FRESH_SECONDS = 86_400.0
"""A folder used this recently is not removed."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def cache_directory() -> Path | None:
    """The directory for files that later processes may use, made if need be; None if none is writable.

    The first that can be written of: ``$VLLM_GUIDED_CACHE_DIR``, ``$XDG_CACHE_HOME/vllm_guided``,
    ``~/.cache/vllm_guided``, and a directory of this user's own under the system's temporary one.
    """
    return _find(os.environ.get(ENVIRONMENT), os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME"))


@lru_cache(maxsize=8)
def _find(chosen: str | None, xdg: str | None, home: str | None) -> Path | None:
    candidates: list[Path] = []
    if chosen:
        candidates.append(Path(chosen).expanduser().absolute())
    if xdg and os.path.isabs(xdg):  # the XDG specification has relative paths ignored
        candidates.append(Path(xdg) / "vllm_guided")
    with suppress(RuntimeError):  # no home directory can be found
        candidates.append(Path.home() / ".cache" / "vllm_guided")
    for path in candidates:
        if is_usable(path):
            return path
        if chosen and path is candidates[0]:
            logger.warning("%s=%s cannot be written to, trying other places", ENVIRONMENT, chosen)
    path = Path(tempfile.gettempdir()) / f"vllm_guided-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    if is_usable(path) and is_private(path):
        return path
    logger.warning("no cache directory can be written to: set %s to a writable one", ENVIRONMENT)
    return None


def is_usable(path: Path) -> bool:
    """Whether files can be created in ``path``, which is made if it does not exist."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(prefix=".probe-", dir=path)
        os.close(handle)
        os.unlink(probe)
    except OSError:
        return False
    return True


def is_private(path: Path) -> bool:
    """Whether nobody else can put files there: the temporary directory is everybody's."""
    info = path.lstat()
    owned = not hasattr(os, "getuid") or info.st_uid == os.getuid()
    return owned and stat.S_ISDIR(info.st_mode) and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_trusted(info: os.stat_result) -> bool:
    """Whether a file is this user's, or the system's: what is read is used by compiled code as it is.

    A folder in a place that is everybody's may have gone since it was looked at, and be another's now.
    """
    return not hasattr(os, "getuid") or info.st_uid in (os.getuid(), 0)


def read_entry(
    kind: str, key: str, *, directory: Path | None = None, at_most: int | None = None
) -> bytearray | None:
    """The content last written under ``kind`` (which names its format's version) and ``key``.

    None where there is none, where it has more than ``at_most`` bytes, or where the file is damaged or
    another user's. Counts as a use of the entry. The directory is the cache's unless another is given; so it
    is for all functions here.
    """
    path = _path(kind, key, directory)
    # Most often there is none, which costs less to ask than an error of ``open``.
    if path is None or not os.access(path, os.R_OK):
        return None
    try:
        with open(path, "rb") as file:
            header = file.read(len(MAGIC) + DIGEST_BYTES)
            info = os.fstat(file.fileno())
            size = info.st_size - len(header)
            if not _is_trusted(info):
                return None
            if at_most is not None and size > at_most:
                return None
            content = bytearray(size)
            if file.readinto(content) != len(content):
                return None
    except (OSError, ValueError):
        return None
    if header != MAGIC + _digest(path.name, [content]):
        logger.info("the cache file %s is damaged and will be written anew", path)
        return None
    with suppress(OSError):
        os.utime(path)
    return content


def write_entry(
    kind: str,
    key: str,
    content: Iterable[bytes | bytearray | memoryview],
    *,
    keep: int | None = None,
    directory: Path | None = None,
) -> bool:
    """Store the joined ``content`` and drop the least recently used entries of ``kind`` beyond ``keep``.

    Without ``keep`` nothing is dropped: call ``prune_entries`` now and then.

    Returns:
        Whether it was stored.
    """
    path = _path(kind, key, directory)
    if path is None:
        return False
    parts = list(content)
    temporary = ""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may have been cleaned away since
        handle, temporary = tempfile.mkstemp(prefix=f".{kind}-", suffix=".tmp", dir=path.parent)
        with open(handle, "wb") as file:
            file.write(MAGIC + _digest(path.name, parts))
            for part in parts:
                file.write(part)
        os.replace(temporary, path)
    except OSError as error:
        logger.info("the cache file %s could not be written: %s", path, error)
        with suppress(OSError):
            os.unlink(temporary)
        return False
    if keep is not None:
        prune_entries(kind, keep=keep, directory=directory)
    return True


def _path(kind: str, key: str, directory: Path | None) -> Path | None:
    if not _NAME.fullmatch(kind) or not _NAME.fullmatch(key):
        raise ValueError(f"a cache entry's kind and key are letters, digits, - and _, not {kind!r}, {key!r}")
    directory = directory or cache_directory()
    return None if directory is None else directory / f"{kind}-{key}.bin"


def _digest(name: str, parts: Iterable[bytes | bytearray | memoryview]) -> bytes:
    digest = xxhash.xxh3_128(name.encode())
    for part in parts:
        digest.update(part)
    return digest.digest()


def prune_entries(
    kind: str, *, keep: int | None = None, max_bytes: int | None = None, directory: Path | None = None
) -> None:
    """Remove what exceeds ``keep`` entries or ``max_bytes`` of ``kind``, least recently used first.

    What writers that died left goes, too.
    """
    directory = directory or cache_directory()
    if directory is None:
        return
    entries: list[tuple[float, int, str]] = []
    now = time.time()
    with suppress(OSError), os.scandir(directory) as found:
        for file in found:
            with suppress(OSError):  # another process may have removed it
                if file.name.startswith(f"{kind}-") and file.name.endswith(".bin"):
                    entries.append((file.stat().st_mtime, file.stat().st_size, file.path))
                elif file.name.startswith(f".{kind}-") and now - file.stat().st_mtime > STALE_SECONDS:
                    os.unlink(file.path)
    total = 0
    for number, (_, size, path) in enumerate(sorted(entries, reverse=True)):
        total += size
        if (keep is not None and number >= keep) or (max_bytes is not None and total > max_bytes):
            with suppress(OSError):
                os.unlink(path)


def prune_folders(prefix: str, *, keep: int, spare: Path) -> None:
    """Remove the folders ``PREFIX-…`` of the cache directory but for ``spare`` and the ``keep`` used last.

    Those used within a day stay: a process that runs may still need them.
    """
    directory = cache_directory()
    if directory is None:
        return
    found: list[tuple[float, Path]] = []
    with suppress(OSError):
        for path in directory.glob(f"{prefix}-*"):
            with suppress(OSError):
                if path.is_dir() and not path.is_symlink() and path != spare:
                    found.append((path.stat().st_mtime, path))
    for used, path in sorted(found, reverse=True)[keep:]:
        if time.time() - used > FRESH_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
