"""The engines under comparison, behind one small interface.

In: the tokens of a vocabulary (a ``tiktoken.Encoding``) and JSON schemas as text. Out: requests that fill
a mask and accept tokens by each engine's own cheapest public call, so that no wrapper is timed with it.
Every engine gets one thread. What an engine needs for a vocabulary is loaded once, before anything is timed.

A schema that an engine refuses raises; what it costs is counted by the caller.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Tokens:
    """A vocabulary as every engine can take it."""

    name: str
    encoding: Any
    stop_token_ids: list[int]

    @property
    def size(self) -> int:
        """Number of ids."""
        return int(self.encoding.n_vocab)

    def encode(self, text: str) -> list[int]:
        """The tokenizer's own tokens of a text; special tokens are text here."""
        return list(self.encoding.encode_ordinary(text))

    def pieces(self) -> list[bytes | None]:
        """The bytes of each token by id; None for special and unused ids."""
        pieces: list[bytes | None] = [None] * self.size
        for piece, rank in self.encoding._mergeable_ranks.items():
            pieces[rank] = piece
        return pieces


@dataclass
class Request:
    """One request of one engine: ``fill`` writes ``mask`` (int32 words), ``accept`` advances by a token."""

    mask: np.ndarray
    fill: Callable[[], Any]
    accept: Callable[[int], bool]

    def allows(self, token: int) -> bool:
        """Whether the mask that was filled last has this token."""
        return bool(int(self.mask[token >> 5]) >> (token & 31) & 1)


@dataclass
class Batch:
    """Many requests of one engine, advanced and filled by its own batch calls."""

    masks: np.ndarray
    accept: Callable[[list[int]], Sequence[bool]]
    fill: Callable[[], Any]
    #: One request by itself, to bring it to a place of its output.
    accept_one: Callable[[int, int], bool]


class Engine(ABC):
    """One engine over one vocabulary. ``start`` is called in the process that works, after ``load``."""

    name: str
    has_batch = True

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.words = (tokens.size + 31) // 32
        self.load()

    @abstractmethod
    def load(self) -> None:
        """Prepare the vocabulary."""

    def start(self) -> None:
        """Make what must not be shared between processes; called again, it forgets what was compiled."""
        return

    @abstractmethod
    def compile(self, schema: str) -> Any:
        """A schema's compiled form; raises where the engine refuses it."""

    @abstractmethod
    def request(self, compiled: Any) -> Request:
        """A new request at the beginning of the output."""

    def batch(self, compiled: Sequence[Any]) -> Batch:
        """Requests at the beginning of their outputs."""
        raise NotImplementedError(f"{self.name} has no batch call")

    def tag(self, tools: list[tuple[str, dict[str, Any]]]) -> Any:
        """The compiled form of tool calls, any number in free text: ``<tool=NAME>JSON</tool>``."""
        raise NotImplementedError(f"{self.name} has no structural tags")

    def held_bytes(self) -> int | None:
        """What the engine itself counts as held for compiled schemas and masks; None if it does not say."""
        return None

    def _masks(self, rows: int = 1) -> np.ndarray:
        return np.full((rows, self.words), -1, np.int32)


class VllmGuided(Engine):
    """This project."""

    name = "vllm_guided"
    #: What the compiler's tables (half) and the process's compiled constraints (a quarter) may take; the
    #: rest is left for what front ends remember. None: the defaults.
    budget: int | None = None

    def load(self) -> None:
        import vllm_guided as vg
        from vllm_guided.frontends.json_schema.common import common_schema

        self.vg = vg
        self.vocabulary = vg.Vocabulary.from_tokenizer(
            self.tokens.encoding, stop_token_ids=self.tokens.stop_token_ids
        )
        # Loads the compiled functions and the modules, as the server's start does.
        vg.GrammarCompiler(self.vocabulary).compile_json_schema(common_schema()).matcher()

    def start(self) -> None:
        from vllm_guided import constraints

        constraints.clear_cache()
        limits = {}
        if self.budget is not None:
            limits["max_bytes"] = self.budget // 2
            constraints.limit_cached_bytes(self.budget // 4)
        self.compiler = self.vg.GrammarCompiler(self.vocabulary, **limits)

    def compile(self, schema: str) -> Any:
        return self.compiler.compile_json_schema(schema)

    def request(self, compiled: Any) -> Request:
        matcher = compiled.matcher()
        masks = self._masks()
        return Request(
            masks[0], lambda: matcher.fill_bitmask(masks, 0), lambda token: matcher.accept_tokens((token,))
        )

    def batch(self, compiled: Sequence[Any]) -> Batch:
        matchers = [grammar.matcher() for grammar in compiled]
        masks = self._masks(len(matchers))
        accept, fill = self.vg.accept_tokens_batch, self.vg.fill_bitmask_batch
        return Batch(
            masks,
            lambda tokens: accept(matchers, tokens),
            lambda: fill(matchers, masks),
            lambda row, token: matchers[row].accept_tokens((token,)),
        )

    def tag(self, tools: list[tuple[str, dict[str, Any]]]) -> Any:
        return self.compiler.compile_structural_tag(_structural_tag(tools))

    def held_bytes(self) -> int:
        from vllm_guided import constraints

        return self.compiler.statistics()["bytes"] + constraints.cached_bytes()


class LLGuidance(Engine):
    """llguidance's matcher; it compiles per request and keeps nothing between them."""

    name = "llguidance"

    def load(self) -> None:
        import llguidance
        from llguidance import tiktoken as adapter

        self.llguidance = llguidance
        self.tokenizer = adapter.lltokenizer_from_encoding(
            self.tokens.encoding, n_vocab=self.tokens.size, eos_token=self.tokens.stop_token_ids
        )

    def _matcher(self, grammar: str) -> Any:
        matcher = self.llguidance.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def compile(self, schema: str) -> Any:
        return self._matcher(self.llguidance.LLMatcher.grammar_from_json_schema(schema))

    def request(self, compiled: Any) -> Request:
        matcher = compiled.deep_copy()
        masks = self._masks()
        pointer, size, compute = masks.ctypes.data, 4 * self.words, matcher.unsafe_compute_mask_ptr
        return Request(masks[0], lambda: compute(pointer, size), matcher.consume_token)

    def batch(self, compiled: Sequence[Any]) -> Batch:
        executor = self.llguidance.LLExecutor(num_threads=1)
        matchers = [matcher.deep_copy() for matcher in compiled]
        masks = self._masks(len(matchers))
        pointer, size = masks.ctypes.data, 4 * self.words
        return Batch(
            masks,
            lambda tokens: executor.consume_token_par(list(zip(matchers, tokens, strict=True))),
            lambda: executor.unsafe_compute_mask_ptr(
                [(matcher, row) for row, matcher in enumerate(matchers)], pointer, size, len(matchers)
            ),
            lambda row, token: matchers[row].consume_token(token),
        )

    def tag(self, tools: list[tuple[str, dict[str, Any]]]) -> Any:
        # Its own helper, as vLLM calls it for structural tags.
        tags = [
            self.llguidance.StructTag(
                trigger="<tool=", begin=f"<tool={name}>", grammar=json.dumps(schema), end="</tool>"
            )
            for name, schema in tools
        ]
        return self._matcher(self.llguidance.StructTag.to_grammar(tags))


class XGrammar(Engine):
    """xgrammar with standard JSON Schema semantics."""

    name = "xgrammar"
    strict = False
    budget: int | None = None

    def load(self) -> None:
        import xgrammar

        self.xgrammar = xgrammar
        pieces = [piece or b"" for piece in self.tokens.pieces()]
        self.information = xgrammar.TokenizerInfo(
            pieces, vocab_size=self.tokens.size, stop_token_ids=self.tokens.stop_token_ids
        )

    def start(self) -> None:
        self.compiler = self.xgrammar.GrammarCompiler(
            self.information, max_threads=1, cache_enabled=True, cache_limit_bytes=self.budget or 512 << 20
        )

    def compile(self, schema: str) -> Any:
        return self.compiler.compile_json_schema(schema, strict_mode=self.strict)

    def request(self, compiled: Any) -> Request:
        matcher = self.xgrammar.GrammarMatcher(compiled)
        masks = self.xgrammar.allocate_token_bitmask(1, self.tokens.size)
        fill = matcher.fill_next_token_bitmask
        return Request(masks.numpy()[0], lambda: fill(masks, 0), matcher.accept_token)

    def batch(self, compiled: Sequence[Any]) -> Batch:
        matchers = [self.xgrammar.GrammarMatcher(grammar) for grammar in compiled]
        masks = self.xgrammar.allocate_token_bitmask(len(matchers), self.tokens.size)
        filler = self.xgrammar.BatchGrammarMatcher(max_threads=1)
        return Batch(
            masks.numpy(),
            lambda tokens: filler.batch_accept_token(matchers, tokens),
            lambda: filler.batch_fill_next_token_bitmask(matchers, masks),
            lambda row, token: matchers[row].accept_token(token),
        )

    def tag(self, tools: list[tuple[str, dict[str, Any]]]) -> Any:
        return self.compiler.compile_structural_tag(_structural_tag(tools))

    def held_bytes(self) -> int:
        return int(self.compiler.get_cache_size_bytes())


class XGrammarStrict(XGrammar):
    """xgrammar as vLLM calls it: objects and arrays closed unless they say otherwise, another language."""

    name = "xgrammar, closed"
    strict = True


class OutlinesCore(Engine):
    """outlines-core: a schema as one regular expression, an index of it over the vocabulary."""

    name = "outlines-core"
    has_batch = False

    def load(self) -> None:
        import outlines_core
        from outlines_core.json_schema import build_regex_from_schema

        self.outlines, self.regex = outlines_core, build_regex_from_schema
        ids: dict[bytes | str, list[int]] = {}
        for token, piece in enumerate(self.tokens.pieces()):
            if piece:
                ids.setdefault(piece, []).append(token)
        self.vocabulary = outlines_core.Vocabulary(self.tokens.stop_token_ids[0], ids)

    def compile(self, schema: str) -> Any:
        return self.outlines.Index(self.regex(schema), self.vocabulary)

    def request(self, compiled: Any) -> Request:
        guide = self.outlines.Guide(compiled)
        masks = self._masks()
        pointer, words = masks.ctypes.data, self.words
        stop = self.tokens.stop_token_ids[0]

        def accept(token: int) -> bool:
            if token == stop:
                return bool(guide.is_finished())
            if not guide.accepts_tokens([token]):
                return False
            guide.advance(token, False)
            return True

        return Request(masks[0], lambda: guide.write_mask_into(pointer, words, 4), accept)


class LMFormatEnforcer(Engine):
    """lm-format-enforcer: a character-level parser in Python, walked along the vocabulary's prefix tree."""

    name = "lm-format-enforcer"
    has_batch = False

    def load(self) -> None:
        import lmformatenforcer
        from lmformatenforcer.tokenenforcer import TokenEnforcerTokenizerData

        self.module = lmformatenforcer
        encoding = self.tokens.encoding
        regular = [
            (token, piece.decode("utf-8", "replace"), piece[:1] == b" ")
            for token, piece in enumerate(self.tokens.pieces())
            if piece
        ]
        self.data = TokenEnforcerTokenizerData(
            regular, encoding.decode, self.tokens.stop_token_ids, True, self.tokens.size
        )

    def compile(self, schema: str) -> Any:
        return json.loads(schema)

    def request(self, compiled: Any) -> Request:
        enforcer = self.module.TokenEnforcer(self.data, self.module.JsonSchemaParser(compiled))
        masks = self._masks()
        prefix: list[int] = []

        def fill() -> None:
            masks[0] = enforcer.get_allowed_tokens(prefix).allowed_tokens.numpy()

        def accept(token: int) -> bool:
            if not enforcer.get_allowed_tokens(prefix).is_token_allowed(token):
                return False
            prefix.append(token)
            return True

        return Request(masks[0], fill, accept)


ENGINES: dict[str, type[Engine]] = {
    kind.name: kind
    for kind in (VllmGuided, LLGuidance, XGrammar, XGrammarStrict, OutlinesCore, LMFormatEnforcer)
}
#: The optional one is so slow that it would take most of a run's time.
DEFAULT_ENGINES = [name for name in ENGINES if name != LMFormatEnforcer.name]
BATCH_ENGINES = [name for name, kind in ENGINES.items() if kind.has_batch]


def _structural_tag(tools: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    tags = [
        {
            "type": "tag",
            "begin": f"<tool={name}>",
            "content": {"type": "json_schema", "json_schema": schema},
            "end": "</tool>",
        }
        for name, schema in tools
    ]
    return {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": ["<tool="], "tags": tags},
    }
