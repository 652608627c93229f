"""Patching on import: when it happens, what it must not do, and what becomes of its errors."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from vllm_guided.vllm import imports, plugin, selection


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of three modules; ``half`` imports ``other`` in the middle of its body."""
    folder = tmp_path / "a_pack"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "other.py").write_text("import a_pack\nVALUE = 1\nif hasattr(a_pack, 'call'): a_pack.call()\n")
    (folder / "half.py").write_text("BEFORE = 1\nfrom a_pack import other\nAFTER = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "a_pack"
    for name in [name for name in sys.modules if name.split(".")[0] == "a_pack"]:
        del sys.modules[name]


@pytest.fixture
def no_faults(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    faults: list[Exception] = []
    monkeypatch.setattr(selection, "_faults", faults)
    monkeypatch.setattr(selection, "_active", False)
    return faults


def test_patch_runs_after_the_module_and_only_once(package: str) -> None:
    seen: list[int] = []
    imports.when_imported("a_pack.other", lambda module: seen.append(module.VALUE))
    assert seen == [] and "a_pack.other" not in sys.modules
    importlib.import_module("a_pack.other")
    assert seen == [1]
    importlib.import_module("a_pack.other")
    assert seen == [1]


def test_patch_of_a_loaded_module_runs_at_once(package: str) -> None:
    importlib.import_module("a_pack.other")
    seen: list[str] = []
    imports.when_imported("a_pack.other", lambda module: seen.append(module.__name__))
    assert seen == ["a_pack.other"]


def test_patch_of_a_half_loaded_module_waits_for_its_end(package: str) -> None:
    seen: list[int] = []

    def register() -> None:
        assert sys.modules["a_pack.half"].__spec__._initializing  # type: ignore[union-attr]
        imports.when_imported("a_pack.half", lambda module: seen.append(module.AFTER))
        assert sys.modules["a_pack.half"].BEFORE == 1
        assert seen == []

    importlib.import_module("a_pack").call = register  # type: ignore[attr-defined]
    module = importlib.import_module("a_pack.half")
    assert module.AFTER == 2
    assert seen == [2]
    assert type(module) is ModuleType


def test_patches_run_in_order(package: str) -> None:
    seen: list[str] = []
    imports.when_imported("a_pack.other", lambda module: seen.append("first"))
    imports.when_imported("a_pack.other", lambda module: seen.append("second"))
    importlib.import_module("a_pack.other")
    assert seen == ["first", "second"]


def test_a_fault_before_selection_is_kept_for_it(package: str, no_faults: list[Exception]) -> None:
    def patch(module: ModuleType) -> None:
        selection.expect(module, "ABSENT")

    imports.when_imported("a_pack.other", patch)
    importlib.import_module("a_pack.other")
    with pytest.raises(selection.UnexpectedVllm, match=r"does not fit vLLM \S+: a_pack.other has no ABSENT"):
        selection.activate()
    assert not selection.is_active()


def test_a_fault_after_selection_stops_the_import(package: str, no_faults: list[Exception]) -> None:
    selection.activate()

    def patch(module: ModuleType) -> None:
        raise KeyError("x")

    imports.when_imported("a_pack.other", patch)
    with pytest.raises(selection.UnexpectedVllm, match=r"cannot prepare a_pack\.other"):
        importlib.import_module("a_pack.other")


def test_expect_checks_parameters() -> None:
    def function(a: int, b: int) -> None: ...

    owner = ModuleType("owner")
    owner.function = function  # type: ignore[attr-defined]
    assert selection.expect(owner, "function", parameters=("a", "b")) is function
    assert selection.expect(owner, "function", parameters=("a",)) is function
    with pytest.raises(selection.UnexpectedVllm, match=r"owner.function takes \(a, b\) and not \(b\)"):
        selection.expect(owner, "function", parameters=("b",))


def test_registering_never_raises(monkeypatch: pytest.MonkeyPatch, no_faults: list[Exception]) -> None:
    def broken(name: str, patch: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(imports, "when_imported", broken)
    monkeypatch.setattr(plugin, "_registered", False)
    plugin.register()
    assert len(no_faults) == 1
    plugin.register()
    assert len(no_faults) == 1


def test_preparing_answers_none() -> None:
    assert plugin.prepare() is None


def test_every_adapter_exists() -> None:
    for places in plugin.HOOKS.values():
        for place in places:
            module, _, function = place.partition(":")
            source = Path(plugin.__file__).parent / f"{module}.py"
            assert f"\ndef {function}(module: ModuleType)" in source.read_text(), place


def test_registering_imports_nothing_heavy() -> None:
    code = """
        import sys
        from vllm_guided.vllm.plugin import register
        register(); register()
        heavy = {"numba", "llvmlite", "torch", "numpy", "lark", "vllm", "pydantic"} & set(sys.modules)
        assert not heavy, heavy
        assert sum(type(f).__module__ == "vllm_guided.vllm.imports" for f in sys.meta_path) == 1
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.parametrize(
    ("group", "function"), [("vllm.general_plugins", "register"), ("vllm.platform_plugins", "prepare")]
)
def test_vllm_finds_the_entry_points(group: str, function: str) -> None:
    from importlib.metadata import entry_points

    (entry,) = [e for e in entry_points(group=group) if e.name == selection.NAME]
    assert entry.load() is getattr(plugin, function)
