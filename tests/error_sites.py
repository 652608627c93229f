"""Where modules raise their errors, and which of these places an error came through.

In: modules' source, and caught errors. Out: the ``raise`` statements that make a new error (and calls of
helpers that never return), as places; the places on an error's way, the errors behind it included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "vllm_guided"


@dataclass(frozen=True, order=True)
class Site:
    """A statement that raises."""

    path: str
    first: int
    last: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.first}: {self.text}"


def sites(patterns: list[str]) -> list[Site]:
    """The places where the modules (globs below the package) make an error."""
    found: list[Site] = []
    for pattern in patterns:
        for path in sorted(PACKAGE.glob(pattern)):
            source = path.read_text()
            tree = ast.parse(source)
            helpers = set(_helpers(tree))
            for node in ast.walk(tree):
                call = _new_error(node, helpers)
                if call is not None:
                    text = " ".join((ast.get_source_segment(source, call) or "").split())
                    name = path.relative_to(PACKAGE).as_posix()
                    found.append(Site(name, node.lineno, node.end_lineno or node.lineno, text[:150]))
    return found


def _helpers(tree: ast.AST) -> Iterator[str]:
    """Functions that never return: their callers are the places, not they."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef)
            and isinstance(node.returns, ast.Name)
            and node.returns.id == "NoReturn"
        ):
            yield node.name


def _new_error(node: ast.AST, helpers: set[str]) -> ast.expr | None:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        function = node.exc.func
        # raise type(error)(...) passes another error on; AssertionError and the like are for no user
        if isinstance(function, ast.Name) and function.id.endswith("Error"):
            return None
        if isinstance(function, ast.Call) or _name(function) == "placed":
            return None
        return node.exc
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value.func) in NEVER:
        return node.value
    return None


NEVER = {"invalid", "unsupported", "unsupported_reference"}


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def ways(error: BaseException) -> set[tuple[str, int]]:
    """``(path, line)`` of every frame of the package that the error, or one behind it, passed."""
    passed: set[tuple[str, int]] = set()
    seen: BaseException | None = error
    while seen is not None:
        trace = seen.__traceback__
        while trace is not None:
            path = Path(trace.tb_frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                passed.add((path.relative_to(PACKAGE).as_posix(), trace.tb_lineno))
            trace = trace.tb_next
        seen = seen.__context__
    return passed


def reached(site: Site, passed: set[tuple[str, int]]) -> bool:
    """Whether an error came through the site."""
    return any((site.path, line) in passed for line in range(site.first, site.last + 1))
