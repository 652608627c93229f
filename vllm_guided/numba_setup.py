"""How this package compiles with numba: ahead of use, cached on disk, without the GIL.

numba's own cache has two faults for a server: it lies beside the source (which may be read-only),
and it looks only at the file of the outermost function, so a change in a called function is missed.
Here the cache lies in the package's cache directory, in a folder named by the content of all sources
beside the function's own. Only our functions go there: numba's setting is put back.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import xxhash
from numba.core import config as numba_config
from numba.core.bytecode import FunctionIdentity
from numba.extending import intrinsic

from vllm_guided.cachedir import cache_directory, prune_folders

#: Folders of other sources or versions that stay: a few versions side by side, two folders of sources each.
FOLDERS_KEPT = 48


@functools.cache
def numba_cache_directory(folder_of_sources: Path) -> str:
    """The folder for code compiled from one source folder, or "" where nothing can be written.

    Compiled functions only call compiled functions of their own folder, so its content is the key.
    """
    digest = xxhash.xxh64(numba.__version__.encode())
    for file in [Path(__file__), *sorted(folder_of_sources.glob("*.py"))]:
        digest.update(file.read_bytes())
    base = cache_directory()
    if base is None:
        return ""
    folder = base / f"numba-{digest.hexdigest()}"
    try:
        if folder.is_dir():
            with suppress(OSError):
                os.utime(folder)  # in use: others are removed first
        else:
            folder.mkdir(parents=True, exist_ok=True)
            prune_folders("numba", keep=FOLDERS_KEPT, spare=folder)
    except OSError:
        return ""
    return str(folder) if os.access(folder, os.W_OK) else ""


def _call_of(dispatcher: Any) -> Callable[..., Any]:
    """A function for compiled code that calls ``dispatcher``'s one compiled form by its symbol.

    numba links the code of whatever a function calls into the function's own module and optimises all of
    it again, so the cost of compiling grows with the square of the depth of calls. Here the callee is only
    declared; the linker of the process, which holds it already, finds it. (Both lie in the same folder of
    the cache, so they are from the same sources.)
    """
    (compiled,) = dispatcher.overloads.values()
    signature, description = compiled.signature, compiled.fndesc

    def code(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        callee = context.declare_function(builder.module, description)
        status, result = context.call_conv.call_function(
            builder, callee, description.restype, description.argtypes, arguments
        )
        with builder.if_then(status.is_error, likely=False):
            context.call_conv.return_status_propagate(builder, status)
        return result

    # An intrinsic must spell its arguments out.
    names = ", ".join(f"a{k}" for k in range(len(signature.args)))
    scope: dict[str, Any] = {"signature": signature, "code": code}
    exec(f"def typed(typing_context, {names}):\n    return signature, code", scope)
    called: Callable[..., Any] = intrinsic(scope["typed"])
    return called


def jit(
    signature: Any = None, *, apart: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``numba.njit`` with an explicit signature, cached on disk, releasing the GIL.

    Without a signature the function is inlined by LLVM into its callers (helpers).

    Args:
        apart: compiled once and called by its symbol, never inlined; for compiled callers only.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        before, ids = numba_config.CACHE_DIR, FunctionIdentity._unique_ids
        numba_config.CACHE_DIR = numba_cache_directory(Path(function.__code__.co_filename).parent) or before
        try:
            settings = {"cache": True, "nogil": True, **options}
            arguments = () if signature is None else (signature,)
            # numba numbers functions as they come, and the number is part of the symbol. Callers in the
            # cache know a function by its symbol, so it must be the same in every process.
            number = xxhash.xxh32_intdigest(f"{function.__module__}.{function.__qualname__}".encode())
            FunctionIdentity._unique_ids = itertools.count(number << 16)
            compiled: Callable[..., Any] = numba.njit(*arguments, **settings)(function)
            return _call_of(compiled) if apart else compiled
        finally:
            numba_config.CACHE_DIR, FunctionIdentity._unique_ids = before, ids

    return decorate


def without_dispatch(function: Any) -> Callable[..., int]:
    """``function``'s one compiled form, called without a look at its arguments' types.

    For arguments that are of these types for certain: that look is half of what a short function takes.
    """
    (compiled,) = function.overloads.values()
    called: Callable[..., int] = compiled.entry_point
    return called
