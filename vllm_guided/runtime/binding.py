"""A runtime: the arena of one vocabulary, its lock, and the rules that are bound in it already.

Binding an automaton copies the rules that are new, by content key, and finds the others: a JSON
string's body is there once, with its masks, whatever schemas use it. All calls into an arena that may
extend it hold the runtime's lock; they release the GIL, so other threads go on.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.automaton import Automaton, writable
from vllm_guided.automaton.bags import BAG_ARRAYS, MEMBER_ARRAYS
from vllm_guided.automaton.prune import without_symbols
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.grammar import ir
from vllm_guided.runtime import arena as tables
from vllm_guided.runtime import entry
from vllm_guided.runtime.address_space import pages
from vllm_guided.runtime.appending import append_bags, append_rules
from vllm_guided.runtime.slices import levels_of, slices_of
from vllm_guided.vocab.vocabulary import Vocabulary

#: Virtual states (counters' counts) that fit behind ``VIRTUAL`` in an int32.
VIRTUAL_ROOM = tables.BAG - tables.VIRTUAL - 1

_APPENDED = (
    "rule_offsets", "edge_offsets", "edge_low", "edge_high", "edge_target", "call_offsets", "call_rule",
    "call_return", "token_offsets", "token_symbol", "token_target", "accepting",
)  # fmt: skip


class Runtime:
    """All that is known at run time for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, reserve: int = 0) -> None:
        """``reserve``: bytes that the tables are expected to grow to."""
        self.vocabulary = vocabulary
        self.words = (vocabulary.size + 31) // 32
        self.lock = threading.Lock()
        #: The array that a mask was written to last, if it still exists.
        self.last_bitmask: Callable[[], Any] = object
        # What is taken before an allocation fails inside of compiled code is lost: ask for more than it all.
        while reserve and pages(4 * reserve).size == 0:
            reserve >>= 3
        try:
            self.arena = self._new_arena(reserve)
        except MemoryError:
            # Address space may be limited; then the arrays grow as they are filled.
            try:
                self.arena = self._new_arena(reserve >> 3)
            except MemoryError:
                self.arena = self._new_arena(0)
        #: For the functions of ``entry.py``.
        self.address = int(tables.address(self.arena))
        self._rule_start: dict[bytes, int] = {}
        self._set_number: dict[ir.SpecialToken, int] = {}
        self._empty_sets: set[int] = set()
        self._overflowed = 0
        self._virtual = 0
        self._twin_room = 4 * (vocabulary.max_token_length + 1)
        #: Where the twins of the counters over a body begin, by the body's first state.
        self._twins: dict[int, int] = {}

    def _new_arena(self, reserve: int) -> tables.Arena:
        vocabulary = self.vocabulary
        trie = vocabulary.trie
        made: tables.Arena = tables.new_arena(
            trie.node_byte, trie.node_depth, trie.node_next, trie.node_token_start, trie.node_tokens,
            *_slices(vocabulary, self.words), vocabulary.token_offsets, vocabulary.token_data,
            np.array(vocabulary.stop_token_ids, np.int32), self.words, vocabulary.max_token_length,
            reserve,
        )  # fmt: skip
        return made

    @property
    def nbytes(self) -> int:
        """Bytes held by the arena's tables."""
        return int(entry.sizes(self.address)[0])

    def statistics(self) -> dict[str, int]:
        """What the arena holds, for metrics and tests."""
        names = ("bytes", "states", "stacks", "configurations", "tier1", "masks", "rows", "overflowed")
        with self.lock:
            return dict(zip(names, entry.sizes(self.address).tolist(), strict=True))

    def has_overflowed(self) -> bool:
        """Whether a configuration was cut off at the item limit since the last call (holds the lock)."""
        before, self._overflowed = self._overflowed, int(entry.sizes(self.address)[7])
        return self._overflowed > before

    def bind(self, automaton: Automaton) -> int:
        """Add ``automaton``; the number of the configuration that it starts in.

        Raises:
            InvalidConstraint: it names a special token that the vocabulary does not have.
            ConstraintTooComplex: the counters' ranges do not fit any more.
        """
        with self.lock:
            symbols = [self._set(symbol) for symbol in automaton.symbols]
            absent = {i for i, symbol in enumerate(automaton.symbols) if self._is_empty(symbol)}
            if absent:
                automaton = without_symbols(automaton, absent)
            if automaton.start < 0:
                return int(entry.start_configuration(self.address, -1, automaton.nullable))
            starts = self._add_rules(automaton, np.array(symbols, np.int32))
            return int(
                entry.start_configuration(self.address, int(starts[automaton.start]), automaton.nullable)
            )

    def _add_rules(self, automaton: Automaton, symbols: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        known = self._rule_start
        keys = automaton.rule_keys
        found = [known.get(key, -1) for key in keys]
        starts = np.array(found, np.int32)
        # By key: the first of the rules that are the same.
        added: dict[bytes, int] = {}
        unknown = [rule for rule, start in enumerate(found) if start < 0]
        own = [rule for rule in unknown if added.setdefault(keys[rule], rule) == rule]
        if not own:
            return starts
        offsets, bodies = automaton.rule_offsets.tolist(), automaton.counter_body.tolist()
        counters: list[tuple[int, int, int, int]] = []
        virtual = self._virtual
        bag_of = {rule: number for number, rule in enumerate(automaton.bag_rule.tolist())}
        bags: list[int] = []
        next_situation = int(entry.next_situation(self.address)) if bag_of else 0
        new: list[int] = []
        for rule in own:
            if rule in bag_of:
                starts[rule] = next_situation + len(bags)
                bags.append(bag_of[rule])
            elif bodies[rule] >= 0:
                minimum, maximum = int(automaton.counter_minimum[rule]), int(automaton.counter_maximum[rule])
                base = starts[rule] = tables.VIRTUAL + virtual
                counters.append((int(base), minimum, maximum, bodies[rule]))
                # Room for the counts, and for the twins should the body have none yet.
                virtual += max(minimum, maximum) + 1 + self._twin_room
                if virtual > VIRTUAL_ROOM:
                    raise ConstraintTooComplex("the repetition counts of the constraints are too large")
            elif offsets[rule] < offsets[rule + 1]:
                new.append(rule)
        twins_of = [(rule, added[keys[rule]]) for rule in unknown] if len(own) < len(unknown) else []
        for rule, first in twins_of:
            starts[rule] = starts[first]
        if new:
            first_of = np.arange(len(keys), dtype=np.int32)
            for rule, first in twins_of:
                first_of[rule] = first
            append_rules(
                self.address, np.array(new, np.int32), first_of, starts, symbols,
                *(writable(getattr(automaton, name)) for name in _APPENDED),
            )  # fmt: skip
            for rule, first in twins_of:
                starts[rule] = starts[first]
        for base, minimum, maximum, body in counters:
            twins = self._twins.setdefault(int(starts[body]), base + max(minimum, maximum) + 1)
            entry.append_counter(self.address, base, minimum, maximum, int(starts[body]), twins)
        if bags:
            append_bags(
                self.address, np.array(bags, np.int32), starts,
                *[writable(getattr(automaton, name)) for name in (*BAG_ARRAYS[1:], *MEMBER_ARRAYS)],
            )  # fmt: skip
        now = starts.tolist()
        known.update((key, now[rule]) for key, rule in added.items() if now[rule] >= 0)
        self._virtual = virtual
        return starts

    def _set(self, symbol: ir.SpecialToken) -> int:
        number = self._set_number.get(symbol)
        if number is None:
            ids = token_ids(symbol, self.vocabulary)
            number = int(entry.append_set(self.address, ids))
            self._set_number[symbol] = number
            if not len(ids):
                self._empty_sets.add(number)
        return number

    def _is_empty(self, symbol: ir.SpecialToken) -> bool:
        """Whether the vocabulary has no token for ``symbol``."""
        return self._set_number[symbol] in self._empty_sets


@functools.lru_cache(maxsize=4)
def _slices(vocabulary: Vocabulary, words: int) -> tuple[npt.NDArray[Any], ...]:
    """What ``slices.py`` knows of a vocabulary; every runtime of it shares that."""
    trie = vocabulary.trie
    slices = slices_of(
        trie.node_byte, trie.node_depth, trie.node_next, trie.node_token_start, trie.node_tokens,
        vocabulary.token_offsets, vocabulary.token_data, words,
    )  # fmt: skip
    levels = levels_of(trie.node_byte, trie.node_next, trie.node_token_start, trie.node_tokens)
    # Heights by levels, too: walks look at them child by child.
    return *slices, *levels, slices[1][levels[4]]


def token_ids(symbol: ir.SpecialToken, vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    """The ids a special-token symbol stands for in ``vocabulary``, ascending (int32).

    A negated symbol is any token but those and the stop tokens.

    Raises:
        InvalidConstraint: a name or an id that the vocabulary does not have.
    """
    ids: set[int] = set()
    for name in symbol.names:
        found = vocabulary.named_tokens.get(name)
        if found is None:
            if symbol.optional:
                continue
            raise InvalidConstraint(
                f"the vocabulary has no special token {name!r}; it has "
                + ", ".join(repr(known) for known in sorted(vocabulary.named_tokens)[:8])
            )
        ids.add(found)
    for low, high in symbol.ids:
        if not 0 <= low <= high < vocabulary.size:
            raise InvalidConstraint(f"token ids {low} to {high} are not all below {vocabulary.size}")
        ids.update(range(low, high + 1))
    if symbol.negated:
        named = set(vocabulary.named_tokens.values())
        allowed = {
            token for token in range(vocabulary.token_count) if vocabulary.is_text[token] or token in named
        }
        ids = allowed - ids - set(vocabulary.stop_token_ids)
    return np.array(sorted(ids), np.int32)
