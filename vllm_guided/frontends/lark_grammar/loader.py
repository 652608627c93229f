"""Lark's own grammar loader, kept from files, with its trees handed on before it expands them.

In: plain Lark text. Out: its definitions (rules and terminals as Lark's trees, imports mangled, ``%extend``
and ``%override`` done) and the names that are ignored. Everything Lark checks is checked by Lark; repetition
counts, which its next step would write out, are still counts.

Imports come from the grammars that lie in the lark package (common, python, unicode, lark), read once per
process, and from texts that the caller passes in by name. Nothing else is read: a request must not choose a
file.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lark import Token
from lark import load_grammar as stock
from lark.exceptions import GrammarError as LarkGrammarError
from lark.exceptions import LarkError, UnexpectedCharacters, UnexpectedToken

from vllm_guided.errors import GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.lark_grammar import dialect
from vllm_guided.frontends.lark_grammar.advice import advised
from vllm_guided.frontends.lark_grammar.checks import check_terminals, refuse_aliases, symbols
from vllm_guided.frontends.lark_grammar.plain_text import PlainText
from vllm_guided.frontends.positions import offset_of

#: A tree of Lark's: its children are trees, tokens and symbols, so no type says more.
LarkTree = Any

MAX_TEXT = 250_000
BUNDLED = ("common", "python", "unicode", "lark")

_LOCK = threading.Lock()  # lark's table of the grammar language is built on first use
_AT = re.compile(r"at line (\d+),? column (\d+)")


@dataclass(frozen=True, slots=True)
class Definitions:
    """Rules and terminals by name, as ``lark.load_grammar.Definition`` (is_term, tree, params, options)."""

    by_name: dict[str, Any]
    ignored: tuple[str, ...]


class _Builder(stock.GrammarBuilder):  # type: ignore[misc]
    """Lark's builder, importing only what lies in the lark package.

    Lark puts terminals into one another and walks every path of the result, which is exponential in a
    request's terminals. So they are kept apart here (``terminals`` holds their trees while Lark looks), and
    refer to one another by name; only the library's own grammars are loaded as Lark does it.
    """

    def __init__(
        self,
        *,
        library: bool = False,
        fresh_imports: bool = False,
        imports: Imports | None = None,
        folder: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.library = library
        self.fresh_imports = fresh_imports
        self.imports = imports or Imports(None, {})
        self.folder = folder
        self.foreign: set[str] = set()  # what comes from a text that is not this one
        self.terminals: dict[str, LarkTree] = {}

    def _keep_apart(self) -> None:
        if self.library:
            return
        for name, definition in self._definitions.items():
            if definition.is_term and definition.tree is not None:
                self.terminals[name] = definition.tree
                definition.tree = None

    def put_back(self) -> None:
        """Give the terminals their trees again."""
        for name, tree in self.terminals.items():
            self._definitions[name].tree = tree

    def _define(self, name: str, is_term: bool, *args: Any, **options: Any) -> None:
        self.terminals.pop(name, None)
        super()._define(name, is_term, *args, **options)  # type: ignore[no-untyped-call]
        self._keep_apart()

    def _extend(self, name: str, is_term: bool, *args: Any, **options: Any) -> None:
        if name in self.terminals and name in self._definitions:
            self._definitions[name].tree = self.terminals[name]
        super()._extend(name, is_term, *args, **options)  # type: ignore[no-untyped-call]
        self._keep_apart()

    def _ignore(self, exp_or_name: Any) -> None:
        super()._ignore(exp_or_name)  # type: ignore[no-untyped-call]
        self._keep_apart()

    def do_import(
        self,
        dotted_path: tuple[str, ...],
        base_path: str | None,
        aliases: dict[str, str],
        base_mangle: Callable[[str], str] | None = None,
    ) -> None:
        name = ".".join(dotted_path)
        passed = ".".join((*self.folder, *dotted_path)) if base_path is not None else name
        if passed in self.imports.texts and not self.library:
            definitions = self.imports.definitions(passed, tuple(dotted_path), aliases, base_mangle)
            self._take(name, definitions)
            self.foreign |= definitions.keys()
            return
        if base_path is not None:
            raise UnsupportedConstraint(
                f"%import .{name}: grammars are not read from files; pass the text in by its name"
                f" (imports={{{passed!r}: ...}}), or write the definitions into the grammar (importable as"
                f" they are: {', '.join(BUNDLED)})"
            )
        if name not in BUNDLED:
            raise InvalidConstraint(
                f"%import {name}: there is no such library grammar; there are {', '.join(BUNDLED)}"
            )
        key = tuple(sorted((str(a), str(b)) for a, b in aliases.items()))
        if base_mangle is not None or self.fresh_imports:
            definitions, exported = _import(name, key, base_mangle)
        else:
            definitions, exported = _cached_import(name, key)
        for wanted, called in key:
            if wanted not in exported:
                raise InvalidConstraint(
                    f"%import {name}.{wanted}: {name} does not define {wanted}; take a name that it has"
                )
            if called in self._definitions:
                raise InvalidConstraint(
                    f"%import {name}.{wanted}: {called} is already defined; give it another name with ->"
                )
        self._take(name, {called: copy(d) for called, d in definitions.items()})
        self.foreign |= definitions.keys()

    def _take(self, name: str, definitions: dict[str, Any]) -> None:
        for called in definitions:
            if called in self._definitions:
                raise InvalidConstraint(
                    f"%import {name}: {called} is already defined; give it another name with ->"
                )
        self._definitions.update(definitions)
        self._keep_apart()


class Imports:
    """The grammars that a request brings along, by dotted name (``a/b.lark`` is ``a.b``)."""

    def __init__(self, plain: PlainText | None, texts: Mapping[str, str]) -> None:
        self.plain = plain
        self.texts = {name.removesuffix(".lark").replace("/", "."): text for name, text in texts.items()}
        self.under_way: list[str] = []

    def definitions(
        self,
        name: str,
        dotted_path: tuple[str, ...],
        aliases: dict[str, str],
        base_mangle: Callable[[str], str] | None,
    ) -> dict[str, Any]:
        """What ``aliases`` and all they use are in the grammar of that name, under mangled names."""
        if name in self.under_way:
            raise InvalidConstraint(f"the imported grammar {name!r} imports itself; leave that import out")
        self.under_way.append(name)
        try:
            return self._definitions(name, dotted_path, aliases, base_mangle)
        except GrammarError as error:
            where = (
                error.where if " of " in error.where else f"{error.where or 'line 1, column 1'} of {name!r}"
            )
            raise type(error)(error.message, where=where) from None
        finally:
            self.under_way.pop()

    def _definitions(
        self,
        name: str,
        dotted_path: tuple[str, ...],
        aliases: dict[str, str],
        base_mangle: Callable[[str], str] | None,
    ) -> dict[str, Any]:
        assert self.plain is not None
        plain = dialect.plain(self.texts[name])
        if plain.extensions or plain.attributes or plain.parametric or plain.options:
            raise UnsupportedConstraint(
                "llguidance's additions have no place in an imported grammar; use plain Lark there",
                where=plain.where(plain.additions[0]),
            )
        mangle = stock._get_mangle("__".join(dotted_path), aliases, base_mangle)  # type: ignore[no-untyped-call]
        builder = _Builder(fresh_imports=True, imports=self, folder=tuple(name.split(".")[:-1]))
        with _explaining(plain):
            builder.load_grammar(plain.text, f"<{name}>", mangle)
        builder.put_back()
        base = self.plain.attach(name, plain)
        wanted = [mangle(alias) for alias in aliases]
        for alias, called in zip(aliases, wanted, strict=True):
            if called not in builder._definitions:
                raise InvalidConstraint(f"{name} does not define {alias}; import a name that it has")
        needed = dict.fromkeys(wanted)
        for called in list(needed):
            self._need(called, builder._definitions, needed)
        for called in needed:
            definition = builder._definitions[called]
            if definition.tree is not None and called not in builder.foreign:
                _move(definition.tree, base)
            self.plain.names.setdefault(called, self.plain.names.get(dotted_path[0], [0]))
        return {called: builder._definitions[called] for called in needed}

    def _need(self, name: str, definitions: dict[str, Any], needed: dict[str, None]) -> None:
        todo = [name]
        while todo:
            definition = definitions[todo.pop()]
            if definition.tree is None:
                continue
            for symbol in symbols(definition.tree):
                if symbol.name in definitions and symbol.name not in needed:
                    needed[symbol.name] = None
                    todo.append(symbol.name)


def _move(tree: LarkTree, base: int) -> None:
    """Move the places of a tree's tokens to where its text is attached."""
    for token in tree.scan_values(lambda value: isinstance(value, Token)):
        if token.start_pos is not None:
            token.start_pos += base


def _import(
    name: str, aliases: tuple[tuple[str, str], ...], base_mangle: Callable[[str], str] | None
) -> tuple[dict[str, Any], frozenset[str]]:
    _, text = stock.stdlib_loader(None, f"{name}.lark")
    builder = _Builder(library=True)
    names = dict(aliases)
    mangle = stock._get_mangle(name, names, base_mangle)  # type: ignore[no-untyped-call]
    builder.load_grammar(text, f"<{name}.lark>", mangle)
    exported = frozenset(wanted for wanted in names if mangle(wanted) in builder._definitions)
    builder._remove_unused([mangle(wanted) for wanted in names])  # type: ignore[no-untyped-call]
    for definition in builder._definitions.values():
        for token in definition.tree.scan_values(lambda value: isinstance(value, Token)):
            token.start_pos = None  # no place in the text of the request
    return builder._definitions, exported


@lru_cache(maxsize=256)
def _cached_import(name: str, aliases: tuple[tuple[str, str], ...]) -> tuple[dict[str, Any], frozenset[str]]:
    return _import(name, aliases, None)


_WORDS = frozenset({
    "a", "as", "but", "by", "can", "cannot", "defined", "expected", "for", "got", "grammar", "in", "is",
    "it", "more", "names", "not", "of", "once", "or", "rule", "rules", "Rule", "Rules", "t", "template",
    "Template", "Terminal", "Terminals", "terminal", "than", "the", "to", "used", "were", "with", "Wrong",
})  # fmt: skip


def load(plain: PlainText, imports: Mapping[str, str] | None = None) -> Definitions:
    """Parse and check ``plain.text`` with Lark; ``imports`` are texts that it may import by name.

    Raises:
        InvalidConstraint: what Lark refuses, with line and column.
        UnsupportedConstraint: an import from a file.
    """
    builder = _Builder(
        fresh_imports="%extend" in plain.text or "%override" in plain.text,
        imports=Imports(plain, imports or {}),
    )
    with _explaining(plain):
        with _LOCK:
            builder.load_grammar(plain.text, "<string>")
        builder.put_back()
        refuse_aliases(builder._definitions, plain)
        builder.validate()
        check_terminals(builder._definitions, plain)
    return Definitions(builder._definitions, tuple(builder._ignore_names))


@contextmanager
def _explaining(plain: PlainText) -> Iterator[None]:
    """Lark's exceptions as ours, with the place in ``plain``."""
    try:
        yield
    except GrammarError as error:
        where = error.where or plain.where(max(plain.source.find("%import"), 0))
        raise type(error)(error.message, where=where) from None
    except UnexpectedCharacters as error:
        raise _refused("this character is not expected here", plain, error.line, error.column) from None
    except UnexpectedToken as error:
        message = f"{_shown(error.token)} is not expected here"
        raise _refused(message, plain, error.line, error.column) from None
    except TypeError as error:  # lark's own explanation of a syntax error can fail; the error is below it
        cause = error.__context__
        if not isinstance(cause, UnexpectedToken):
            raise
        message = f"{_shown(cause.token)} is not expected here"
        raise _refused(message, plain, cause.line, cause.column) from None
    except (LarkGrammarError, LarkError, AssertionError, SyntaxError, ValueError) as error:
        raise explained(error, plain) from None


def _shown(token: Any) -> str:
    if token.type == "$END":
        return "the end of the grammar"
    if token.type.endswith("NL"):
        return "the end of the line"
    return repr(str(token))


def _refused(message: str, plain: PlainText, line: int, column: int) -> InvalidConstraint:
    offset = offset_of(plain.text, max(line, 1), max(column, 1))
    place = plain.source_offset(offset)
    explained = advised(message, plain.source[place : place + 1])
    return InvalidConstraint(f"Lark cannot read the grammar: {explained}", where=plain.where(place))


def as_written(message: str) -> str:
    """A message about names as the author wrote them: those with dashes were written without."""
    return re.sub(r"_x2d_", "-", message, flags=re.IGNORECASE)


def _place(plain: PlainText, offset: int) -> str:
    return plain.where(plain.source_offset(offset))


def explained(error: Exception, plain: PlainText) -> InvalidConstraint:
    """Lark's own complaint with a place: the one it names, or that of the first known name in it."""
    message = str(error).split("\n\n")[0].strip() or type(error).__name__
    at = _AT.search(message)
    if at:
        text = re.sub(r"\s*(in <\S*>)?:?$", "", _AT.sub("", message)).strip(" ,:") or "unexpected input"
        line, column = int(at[1]), int(at[2])
        return _refused(text.replace("in <string>", "").strip(), plain, line, column)
    quoted = re.findall(r"'([A-Za-z_][A-Za-z_0-9]*)'", message)
    plain_words = [word for word in re.findall(r"[A-Za-z_][A-Za-z_0-9]*", message) if word not in _WORDS]
    for name in quoted + plain_words:
        if name in plain.names:
            return InvalidConstraint(advised(as_written(message)), where=plain.where(plain.names[name][0]))
    return InvalidConstraint(advised(as_written(message)), where=plain.where(0))
