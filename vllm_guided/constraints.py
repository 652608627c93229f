"""Constraints by kind: one table from what users pass to the frontend that reads it.

A constraint is a kind, its specification and options. ``compile_constraint`` turns it into an
Automaton, which knows no vocabulary, and keeps the results of this process in a cache bounded in
bytes, keyed by the constraint's content. What took long to compile is kept on disk, too
(:mod:`vllm_guided.store`).
"""

from __future__ import annotations

import json
import marshal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import xxhash

from vllm_guided import store
from vllm_guided.automaton.automaton import Automaton
from vllm_guided.automaton.build import build_automaton
from vllm_guided.automaton.fragments import FRAGMENTS
from vllm_guided.automaton_cache import CACHE_BYTES, AutomatonCache
from vllm_guided.collector import paused
from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint
from vllm_guided.frontends.json_text import DECODER, JsonText, members
from vllm_guided.grammar import ir

#: JSON texts whose key is remembered, so that the same text is not parsed again to find it.
TEXTS_KEPT = 16_384


def _json_schema(spec: Any, **options: Any) -> ir.Grammar:
    from vllm_guided.frontends.json_schema import json_schema_grammar

    return json_schema_grammar(spec, json_rules=True, **options)


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

    tag = spec.text if isinstance(spec, JsonText) else spec
    return structural_tag_grammar(tag, json_rules=True, **options)


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
#: Kinds whose specification is JSON, of which the text does as well.
JSON_TEXTS = frozenset({"json_schema", "structural_tag"})


def constraint_key(kind: str, spec: Any, options: dict[str, Any]) -> bytes:
    """A hash of the constraint. White space in JSON text does not count; the order of members does."""
    return _key_of(kind, _read(kind, spec), _plain_options(kind, options))


def _read(kind: str, spec: Any) -> Any:
    """``spec`` as its frontend takes it: a text with its JSON value, any other text, or plain JSON.

    A JSON text that is refused stays a text: the frontend says what is wrong with it.
    """
    if isinstance(spec, str) and kind in JSON_TEXTS:
        with suppress(ValueError, RecursionError):
            return JsonText(spec, DECODER.decode(spec))
    return _plain(kind, spec)


def _key_of(kind: str, read: Any, options: dict[str, Any]) -> bytes:
    """The key of what ``_read`` and ``_plain_options`` return.

    The key is part of what other processes of this version look up, so it hashes a form that has no
    references: version 2 of ``marshal``, which depends on nothing but the values.
    """
    given = sorted(options.items())
    text, value = (read.text, read.value) if isinstance(read, JsonText) else (read, read)
    with suppress(ValueError):  # numbers of more digits than a float has; too deep
        return xxhash.xxh3_128(marshal.dumps((kind, isinstance(read, str), value, given), 2)).digest()
    whole = f"text {kind} {text if isinstance(text, str) else json.dumps(text)} {given}"
    return xxhash.xxh3_128(whole.encode("utf-8", "surrogatepass")).digest()


def _identified(kind: str, spec: Any, options: dict[str, Any]) -> tuple[bytes, Any]:
    """The key, and what was read for it; None for a text that was met before, whose key is remembered."""
    if not isinstance(spec, str):
        read = _read(kind, spec)
        return _key_of(kind, read, options), read
    head = f"{kind} {sorted(options.items())} ".encode("utf-8", "surrogatepass")
    text = xxhash.xxh3_128(head + spec.encode("utf-8", "surrogatepass")).digest()
    key = _keys.get(text)
    if key is not None:
        return key, None
    read = _read(kind, spec)
    key = _key_of(kind, read, options)
    if len(_keys) >= TEXTS_KEPT:
        _keys.clear()
    _keys[text] = key
    return key, read


_keys: dict[bytes, bytes] = {}


def _plain(kind: str, value: Any) -> Any:
    """``value`` as its JSON text says it: lists for tuples, names for numbers as keys.

    So that a frontend sees nothing that the key does not say: what it makes of one constraint then holds for
    every other with that key.
    """
    if value is None or isinstance(value, str | bool):
        return value
    try:
        return json.loads(json.dumps(value, separators=(",", ":")), object_pairs_hook=members)
    except GrammarError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidConstraint(f"the {kind} constraint is not JSON: {error}") from error
    except RecursionError:
        raise ConstraintTooComplex(f"the {kind} constraint is nested too deeply") from None


def _plain_options(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(kind, value) for name, value in options.items()}


_cache = AutomatonCache(CACHE_BYTES)


def compile_constraint(kind: str, spec: Any, **options: Any) -> Automaton:
    """The automaton of a constraint, from the cache or compiled now.

    Args:
        kind: a key of ``FRONTENDS``.
        spec: what that frontend takes.
        options: its keyword options; None values count as not given.

    Raises:
        GrammarError: the constraint is refused; the message says what, where and what to do.
    """
    key, read, given = identify(kind, spec, options)

    def make() -> Automaton:
        stored = store.load(key)
        if stored is not None:
            return stored
        begin = time.perf_counter()
        automaton = build(kind, spec, given, read)
        if time.perf_counter() - begin > store.WORTH_SECONDS:
            store.save(key, automaton)
        return automaton

    return _cache.get(key, make)


def identify(kind: str, spec: Any, options: dict[str, Any]) -> tuple[bytes, Any, dict[str, Any]]:
    """A constraint's key in the caches, what was read for it (None for a text that was met before), options.

    Raises:
        GrammarError: it is of no kind that is known, or no JSON.
    """
    if kind not in FRONTENDS:
        raise InvalidConstraint(f"unknown kind of constraint {kind!r}; known: {', '.join(FRONTENDS)}")
    if kind in TEXTS and not isinstance(spec, str):
        raise InvalidConstraint(f"a constraint of kind {kind} is a string, not {type(spec).__name__}")
    given = _plain_options(kind, {name: value for name, value in options.items() if value is not None})
    return *_identified(kind, spec, given), given


def build(kind: str, spec: Any, options: dict[str, Any], read: Any = None) -> Automaton:
    """Compile a constraint, whatever the caches hold.

    Args:
        kind, spec: as for :func:`compile_constraint`.
        options, read: what :func:`identify` returned of it.

    Raises:
        GrammarError: the constraint is refused.
    """
    try:
        with paused():
            return build_automaton(FRONTENDS[kind](_read(kind, spec) if read is None else read, **options))
    except RecursionError:
        raise ConstraintTooComplex(
            f"the {kind} constraint is nested too deeply; use references or repetition instead"
        ) from None
    except MemoryError:
        raise too_large(kind) from None


def too_large(kind: str) -> ConstraintTooComplex:
    """The refusal of a constraint that there is no memory for."""
    return ConstraintTooComplex(
        f"the {kind} constraint needs more memory than there is to compile it; simplify it", passing=True
    )


def check_constraint(kind: str, spec: Any, **options: Any) -> None:
    """Raise what ``compile_constraint`` would raise; what was compiled stays in the cache."""
    compile_constraint(kind, spec, **options)


def cached_bytes() -> int:
    """Bytes that this process holds of compiled constraints, and of the parts they have in common."""
    return _cache.held + FRAGMENTS.held


def limit_cached_bytes(max_bytes: int) -> None:
    """Let this process hold at most about ``max_bytes`` of compiled constraints; 320 MiB by default.

    A fifth is for the parts that constraints have in common. Masks are not among it: their tables belong to
    a ``GrammarCompiler`` and have its ``max_bytes``.
    """
    _cache.limit_to(max_bytes - max_bytes // 5)
    FRAGMENTS.limit_to(max_bytes // 5)


def clear_cache() -> None:
    """Forget what this process compiled; what lies on disk stays."""
    _cache.clear()
    _keys.clear()
