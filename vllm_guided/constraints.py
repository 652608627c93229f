"""Constraints by kind: one table from what users pass to the frontend that reads it.

A constraint is a kind, its specification and options. ``compile_constraint`` turns it into an
Automaton, which knows no vocabulary, and keeps the results of this process in a cache bounded in
bytes, keyed by the constraint's content. What took long to compile is kept on disk, too
(:mod:`vllm_guided.store`).
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import xxhash

from vllm_guided import store
from vllm_guided.automaton.automaton import Automaton
from vllm_guided.automaton.build import build_automaton
from vllm_guided.collector import paused
from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint
from vllm_guided.frontends.json_text import ExactFloat, members, number
from vllm_guided.grammar import ir

#: Bytes of compiled automata that a process keeps.
CACHE_BYTES = 256 << 20
#: JSON texts whose key is remembered, so that the same text is not parsed again to find it.
TEXTS_KEPT = 16_384


def _json_schema(spec: Any, **options: Any) -> ir.Grammar:
    from vllm_guided.frontends.json_schema import json_schema_grammar

    return json_schema_grammar(spec, **options)


def _json_object(spec: Any, **options: Any) -> ir.Grammar:
    from vllm_guided.frontends.json_schema import json_object_grammar

    return json_object_grammar(**options)


def _regex(spec: Any, **options: Any) -> ir.Grammar:
    from vllm_guided.frontends.regex import regex_grammar

    return regex_grammar(spec, **options)


def _choice(spec: Any, **options: Any) -> ir.Grammar:
    from vllm_guided.frontends.choice import choice_grammar

    return choice_grammar(spec, **options)


def _grammar(spec: Any, **options: Any) -> ir.Grammar:
    from vllm_guided.frontends.detect import grammar_from_text

    return grammar_from_text(spec, **options)


def _lark(spec: Any, **options: Any) -> ir.Grammar:
    from vllm_guided.frontends.lark import lark_grammar

    return lark_grammar(spec, **options)


def _ebnf(spec: Any, **options: Any) -> ir.Grammar:
    from vllm_guided.frontends.ebnf import ebnf_grammar

    return ebnf_grammar(spec, **options)


def _structural_tag(spec: Any, **options: Any) -> ir.Grammar:
    from vllm_guided.frontends.structural_tag import structural_tag_grammar

    return structural_tag_grammar(spec, **options)


FRONTENDS: dict[str, Callable[..., ir.Grammar]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "lark": _lark,
    "ebnf": _ebnf,
    "structural_tag": _structural_tag,
}

#: Kinds whose specification is a text and nothing else.
TEXTS = frozenset({"regex", "grammar", "lark", "ebnf"})


def constraint_key(kind: str, spec: Any, options: dict[str, Any]) -> bytes:
    """A hash of the constraint. White space in JSON text does not count; the order of members does."""
    if kind in ("json_schema", "structural_tag") and isinstance(spec, str):
        try:
            spec = json.loads(spec, object_pairs_hook=members, parse_float=_as_written)
        except (ValueError, RecursionError):
            # The frontend will say what is wrong with the text, or numbers have more digits than a key keeps.
            return xxhash.xxh3_128(f"text {kind} {spec}".encode("utf-8", "surrogatepass")).digest()
    text = _json_text(kind, [kind, spec, sorted(options.items())])
    return xxhash.xxh3_128(text.encode()).digest()


def _key_of(kind: str, spec: Any, options: dict[str, Any]) -> bytes:
    """``constraint_key``, remembered by the text where the specification is one."""
    if not isinstance(spec, str):
        return constraint_key(kind, spec, options)
    head = f"{kind} {sorted(options.items())} ".encode("utf-8", "surrogatepass")
    text = xxhash.xxh3_128(head + spec.encode("utf-8", "surrogatepass")).digest()
    key = _keys.get(text)
    if key is None:
        key = constraint_key(kind, spec, options)
        if len(_keys) >= TEXTS_KEPT:
            _keys.clear()
        _keys[text] = key
    return key


_keys: dict[bytes, bytes] = {}


def _as_written(text: str) -> float:
    """A number that a key keeps whole; ValueError for others."""
    value = number(text)
    if isinstance(value, ExactFloat):
        raise ValueError(text)
    return value


def _json_text(kind: str, value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidConstraint(f"the {kind} constraint is not JSON: {error}") from error
    except RecursionError:
        raise ConstraintTooComplex(f"the {kind} constraint is nested too deeply") from None


def _plain(kind: str, spec: Any) -> Any:
    """``spec`` as its JSON text says it: lists for tuples, names for numbers as keys.

    So that a frontend sees nothing that the key does not say: what it makes of one constraint then holds for
    every other with that key.
    """
    return spec if isinstance(spec, str) else json.loads(_json_text(kind, spec), object_pairs_hook=members)


class _AutomatonCache:
    """Least recently used automata and refusals, bounded in bytes; one compile at a time for each key."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.entries: OrderedDict[bytes, Automaton | GrammarError] = OrderedDict()
        self.lock = threading.Lock()
        self.under_way: dict[bytes, threading.Lock] = {}

    def get(self, key: bytes, make: Callable[[], Automaton]) -> Automaton:
        entry = self._look_up(key)
        if entry is None:
            with self.lock:
                gate = self.under_way.setdefault(key, threading.Lock())
            with gate:
                entry = self._look_up(key)
                if entry is None:
                    try:
                        entry = make()
                    except GrammarError as error:
                        entry = error.with_traceback(None)
                    self._keep(key, entry)
        if isinstance(entry, GrammarError):
            raise type(entry)(entry.message, where=entry.where)
        return entry

    def clear(self) -> None:
        with self.lock:
            self.entries.clear()
            self.held = 0

    def _look_up(self, key: bytes) -> Automaton | GrammarError | None:
        with self.lock:
            entry = self.entries.get(key)
            if entry is not None:
                self.entries.move_to_end(key)
            return entry

    def _keep(self, key: bytes, entry: Automaton | GrammarError) -> None:
        with self.lock:
            self.under_way.pop(key, None)
            self.entries[key] = entry
            self.held += _size(entry)
            while self.held > self.limit and len(self.entries) > 1:
                _, dropped = self.entries.popitem(last=False)
                self.held -= _size(dropped)


def _size(entry: Automaton | GrammarError) -> int:
    return entry.nbytes + 2048 if isinstance(entry, Automaton) else 512


_cache = _AutomatonCache(CACHE_BYTES)


def compile_constraint(kind: str, spec: Any, **options: Any) -> Automaton:
    """The automaton of a constraint, from the cache or compiled now.

    Args:
        kind: a key of ``FRONTENDS``.
        spec: what that frontend takes.
        options: its keyword options; None values count as not given.

    Raises:
        GrammarError: the constraint is refused; the message says what, where and what to do.
    """
    if kind not in FRONTENDS:
        raise InvalidConstraint(f"unknown kind of constraint {kind!r}; known: {', '.join(FRONTENDS)}")
    if kind in TEXTS and not isinstance(spec, str):
        raise InvalidConstraint(f"a constraint of kind {kind} is a string, not {type(spec).__name__}")
    given = {name: value for name, value in options.items() if value is not None}
    key = _key_of(kind, spec, given)

    def make() -> Automaton:
        stored = store.load(key)
        if stored is not None:
            return stored
        begin = time.perf_counter()
        with paused():
            automaton = build()
        if time.perf_counter() - begin > store.WORTH_SECONDS:
            store.save(key, automaton)
        return automaton

    def build() -> Automaton:
        try:
            plain = {name: _plain(kind, value) for name, value in given.items()}
            return build_automaton(FRONTENDS[kind](_plain(kind, spec), **plain))
        except RecursionError:
            raise ConstraintTooComplex(
                f"the {kind} constraint is nested too deeply; use references or repetition instead"
            ) from None
        except MemoryError:
            raise ConstraintTooComplex(f"the {kind} constraint needs too much memory") from None

    return _cache.get(key, make)


def check_constraint(kind: str, spec: Any, **options: Any) -> None:
    """Raise what ``compile_constraint`` would raise; what was compiled stays in the cache."""
    compile_constraint(kind, spec, **options)


def cached_bytes() -> int:
    """Bytes that this process holds of compiled constraints."""
    return _cache.held


def clear_cache() -> None:
    """Forget what this process compiled; what lies on disk stays."""
    _cache.clear()
    _keys.clear()
