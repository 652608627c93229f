"""The compiler: constraints to grammars bound to one vocabulary."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_guided.automaton.automaton import Automaton
from vllm_guided.automaton.build import build_automaton
from vllm_guided.collector import paused
from vllm_guided.constraints import check_constraint, compile_constraint
from vllm_guided.grammar import ir
from vllm_guided.runtime.binding import Runtime
from vllm_guided.runtime.matcher import GrammarMatcher
from vllm_guided.vocab.vocabulary import Vocabulary

__all__ = ["CompiledGrammar", "GrammarCompiler", "check_constraint"]

#: Bytes that the masks and tables of one compiler may take before it starts afresh.
RUNTIME_BYTES = 1 << 30
#: Compiled grammars that a compiler remembers by constraint, and the bytes of their automata.
GRAMMARS_KEPT = 4096
GRAMMAR_BYTES = 128 << 20


class CompiledGrammar:
    """A constraint, ready for requests. Made by a :class:`GrammarCompiler`; safe to share."""

    __slots__ = ("_binding", "_compiler", "automaton")

    def __init__(self, compiler: GrammarCompiler, automaton: Automaton) -> None:
        self.automaton = automaton
        self._compiler = compiler
        # Weak: a grammar that nobody uses must not keep tables alive that were replaced since.
        self._binding: tuple[weakref.ref[Runtime], int] | None = None
        self._bind()

    def _bind(self) -> tuple[Runtime, int]:
        runtime = self._compiler.runtime()
        binding = self._binding
        if binding is None or binding[0]() is not runtime:
            binding = self._binding = (weakref.ref(runtime), runtime.bind(self.automaton))
        return runtime, binding[1]

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary it was compiled for."""
        return self._compiler.vocabulary

    @property
    def nbytes(self) -> int:
        """Bytes of the automaton (masks are shared and counted by the compiler)."""
        return self.automaton.nbytes

    def matcher(self) -> GrammarMatcher:
        """A matcher for one request, at the beginning of the grammar."""
        runtime, start = self._bind()
        return GrammarMatcher(runtime, start)

    def __repr__(self) -> str:
        return f"CompiledGrammar({self.automaton.rule_count} rules, {self.automaton.state_count} states)"


class GrammarCompiler:
    """Compiles constraints for one vocabulary and owns what they share at run time. Thread-safe.

    Args:
        vocabulary: the model's tokens.
        max_bytes: what the runtime's tables may take. When they come near it, new matchers get new
            tables, and the old ones go when their last matcher does. Address space for two to three times
            as much is reserved at once; memory is taken, and promised by the system, as it is used.

    Raises (all ``compile_*``):
        InvalidConstraint, UnsupportedConstraint, ConstraintTooComplex: see ``vllm_guided.errors``.

    Example:
        >>> compiler = GrammarCompiler(vocabulary)
        >>> matcher = compiler.compile_regex("[0-9]+").matcher()
    """

    def __init__(self, vocabulary: Vocabulary, *, max_bytes: int = RUNTIME_BYTES) -> None:
        self.vocabulary = vocabulary
        self.max_bytes = max_bytes
        self._runtime = Runtime(vocabulary, max_bytes)
        self._lock = threading.Lock()
        self._grammars: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
        self._grammar_bytes = 0

    def runtime(self) -> Runtime:
        """The tables that new matchers use."""
        # Looked at when a request begins: what requests that run add until then must fit, too.
        limit = self.max_bytes - self.max_bytes // 8
        if self._runtime.nbytes > limit:
            with self._lock:
                if self._runtime.nbytes > limit:
                    self._runtime = Runtime(self.vocabulary, self.max_bytes)
        return self._runtime

    def compile_json_schema(
        self,
        schema: dict[str, Any] | bool | str,
        *,
        any_whitespace: bool = True,
        additional_properties: bool | None = None,
        whitespace_pattern: str | None = None,
        property_order: str | None = None,
        documents: dict[str, Any] | None = None,
    ) -> CompiledGrammar:
        """JSON text that is valid under ``schema`` (an object, a bool, or their JSON text).

        Args:
            any_whitespace: False: compact JSON. True: a bounded run of white space between JSON tokens.
            additional_properties: False closes objects that do not say whether they are open.
            whitespace_pattern: a regex that takes the place of the white space.
            property_order: "any" or "schema": members of objects in any order, or as ``properties`` has them.
            documents: schemas that ``$ref`` may mean, by their absolute URIs; nothing is ever fetched.
        """
        return self._compile(
            "json_schema",
            schema,
            any_whitespace=any_whitespace,
            additional_properties=additional_properties,
            whitespace_pattern=whitespace_pattern,
            property_order=property_order,
            documents=documents or None,
        )

    def compile_json_object(self, *, any_whitespace: bool = True) -> CompiledGrammar:
        """Any JSON object."""
        return self._compile("json_object", None, any_whitespace=any_whitespace)

    def compile_regex(self, pattern: str, *, dialect: str | None = None) -> CompiledGrammar:
        """Text that ``pattern`` matches in full; ``dialect`` is "python" (default) or "ecma"."""
        return self._compile("regex", pattern, dialect=dialect)

    def compile_choice(self, choices: Sequence[str]) -> CompiledGrammar:
        """One of ``choices``."""
        return self._compile("choice", list(choices) if isinstance(choices, tuple) else choices)

    def compile_grammar(self, text: str) -> CompiledGrammar:
        """A Lark or EBNF grammar, told apart by what it is."""
        return self._compile("grammar", text)

    def compile_lark(
        self,
        text: str,
        start: str = "start",
        *,
        parser: str | None = None,
        imports: Mapping[str, str] | None = None,
    ) -> CompiledGrammar:
        """A Lark grammar.

        Args:
            text: the grammar.
            start: the rule to start from.
            parser: "earley" (default): what Lark's Earley parser with ``lexer="dynamic_complete"`` accepts.
                "lalr": what its LALR parser with the contextual lexer accepts.
            imports: the grammars that ``%import .name.RULE`` may name, by name. Files are never read.
        """
        return self._compile("lark", text, start=start, parser=parser, imports=imports)

    def compile_ebnf(self, text: str, root: str = "root") -> CompiledGrammar:
        """An EBNF grammar as xgrammar and llama.cpp write them."""
        return self._compile("ebnf", text, root=root)

    def compile_structural_tag(
        self,
        tag: dict[str, Any] | str,
        *,
        any_whitespace: bool = True,
        additional_properties: bool | None = None,
        property_order: str | None = None,
    ) -> CompiledGrammar:
        """A structural tag, as an object or its JSON text; the options hold for the JSON in it."""
        return self._compile(
            "structural_tag",
            tag,
            any_whitespace=any_whitespace,
            additional_properties=additional_properties,
            property_order=property_order,
        )

    def compile_grammar_ir(self, grammar: ir.Grammar) -> CompiledGrammar:
        """A grammar in the intermediate representation (``vllm_guided.grammar.ir``)."""
        return self.bind(build_automaton(grammar))

    def bind(self, automaton: Automaton) -> CompiledGrammar:
        """A grammar of an automaton that was compiled elsewhere; equal automata share one grammar."""
        key = automaton.content_key
        with self._lock:
            grammar = self._grammars.get(key)
            if grammar is not None:
                self._grammars.move_to_end(key)
                return grammar
        grammar = CompiledGrammar(self, automaton)
        with self._lock:
            kept = self._grammars.setdefault(key, grammar)
            if kept is not grammar:  # another thread was quicker
                return kept
            self._grammar_bytes += grammar.nbytes
            while len(self._grammars) > GRAMMARS_KEPT or self._grammar_bytes > GRAMMAR_BYTES:
                self._grammar_bytes -= self._grammars.popitem(last=False)[1].nbytes
        return grammar

    def _compile(self, kind: str, spec: Any, **options: Any) -> CompiledGrammar:
        with paused():
            return self.bind(compile_constraint(kind, spec, **options))

    def statistics(self) -> dict[str, int]:
        """What the tables hold: bytes, states, stacks, configurations, masks, rows."""
        return self._runtime.statistics()
