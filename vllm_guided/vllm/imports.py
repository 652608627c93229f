"""Run a function when a module is imported, without importing it.

A process should load only the modules it needs: the engine core has no use for the HTTP protocol, the
API server none for the model runner. So nothing is imported in order to be replaced; a finder at the
front of ``sys.meta_path`` lets a module load as usual and then hands it to the functions that wait for
it (PEP 302, PEP 451). A module that is loaded already is handed over at once, and one that is half
loaded at that moment as soon as somebody reads from it.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from vllm_guided.vllm import selection

Patch = Callable[[ModuleType], None]

_waiting: dict[str, list[Patch]] = {}
_lock = threading.RLock()
_own = threading.local()


def when_imported(name: str, patch: Patch) -> None:
    """Call ``patch(module)`` once module ``name`` is loaded: now, or when it is imported.

    What ``patch`` raises never reaches the importer unless our backend is selected; see
    :func:`vllm_guided.vllm.selection.record_fault`.
    """
    with _lock:
        _waiting.setdefault(name, []).append(patch)
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
        module = sys.modules.get(name)
    if module is None:
        return
    if _is_loading(module):
        _watch(module)
    else:
        _loaded(module)


def _loaded(module: ModuleType) -> None:
    """Hand a loaded module to everything that waits for it."""
    with _lock:
        patches = _waiting.pop(module.__name__, [])
    for patch in patches:
        try:
            patch(module)
        except Exception as fault:
            selection.record_fault(f"{module.__name__} ({patch.__name__})", fault)


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Finder(MetaPathFinder):
    """Finds waited-for modules as the other finders would, and wraps the execution of their code."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting or getattr(_own, "searching", False):
            return None
        _own.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            _own.searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _loaded(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Watched(ModuleType):
    """A module whose code still runs; the first read after it is done hands it over."""

    def __getattribute__(self, name: str) -> object:
        if name != "__spec__" and name != "__class__" and name != "__dict__" and not _is_loading(self):
            _release(self)
        return ModuleType.__getattribute__(self, name)


def _watch(module: ModuleType) -> None:
    if type(module) is ModuleType:
        module.__class__ = _Watched  # type: ignore[assignment]


def _release(module: ModuleType) -> None:
    if type(module) is _Watched:
        module.__class__ = ModuleType  # type: ignore[assignment]
        _loaded(module)
