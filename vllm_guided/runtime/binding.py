"""A runtime: the arena of one vocabulary, its lock, and the rules that are bound in it already.

Binding an automaton copies the rules that are new, by content key, and finds the others: a JSON
string's body is there once, with its masks, whatever schemas use it. All calls into an arena that may
extend it hold the runtime's lock; they release the GIL, so other threads go on.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.automaton import TAIL, Automaton
from vllm_guided.automaton.bags import MEMBER_ARRAYS
from vllm_guided.automaton.prune import without_symbols
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.grammar import ir
from vllm_guided.runtime import arena as tables
from vllm_guided.runtime import entry
from vllm_guided.runtime.slices import slices_of
from vllm_guided.vocab.vocabulary import Vocabulary

#: Virtual states (counters' counts) that fit behind ``VIRTUAL`` in an int32.
VIRTUAL_ROOM = tables.BAG - tables.VIRTUAL - 1


class Runtime:
    """All that is known at run time for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, reserve: int = 0) -> None:
        """``reserve``: bytes that the tables are expected to grow to."""
        self.vocabulary = vocabulary
        self.words = (vocabulary.size + 31) // 32
        self.lock = threading.Lock()
        trie = vocabulary.trie
        self.arena = tables.new_arena(
            trie.node_byte, trie.node_depth, trie.node_next, trie.node_token_start, trie.node_tokens,
            *_slices(vocabulary, self.words), vocabulary.token_offsets, vocabulary.token_data,
            np.array(vocabulary.stop_token_ids, np.int32), self.words, vocabulary.max_token_length,
            reserve,
        )  # fmt: skip
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
        offsets = automaton.rule_offsets.tolist()
        bodies = automaton.counter_body.tolist()
        minima, maxima = automaton.counter_minimum.tolist(), automaton.counter_maximum.tolist()
        chosen = np.zeros(automaton.state_count, bool)
        first_states = np.full(automaton.rule_count, -1, np.int64)
        starts = np.full(automaton.rule_count, -1, np.int32)
        added: dict[bytes, int] = {}
        counters: list[tuple[int, int, int, int]] = []
        virtual = self._virtual
        bag_of = {rule: number for number, rule in enumerate(automaton.bag_rule.tolist())}
        bags: list[int] = []
        next_situation = int(entry.next_situation(self.address)) if bag_of else 0
        for rule, key in enumerate(automaton.rule_keys):
            start = known.get(key)
            if start is not None:
                starts[rule] = start
                continue
            twin = added.setdefault(key, rule)
            if twin != rule:
                starts[rule] = starts[twin]
                continue
            if rule in bag_of:
                starts[rule] = next_situation + len(bags)
                bags.append(bag_of[rule])
            elif bodies[rule] >= 0:
                base = starts[rule] = tables.VIRTUAL + virtual
                counters.append((int(base), minima[rule], maxima[rule], bodies[rule]))
                # Room for the counts, and for the twins should the body have none yet.
                virtual += max(minima[rule], maxima[rule]) + 1 + self._twin_room
                if virtual > VIRTUAL_ROOM:
                    raise ConstraintTooComplex("the repetition counts of the constraints are too large")
            elif offsets[rule] < offsets[rule + 1]:
                chosen[offsets[rule] : offsets[rule + 1]] = True
                first_states[rule] = offsets[rule]
        self._append(automaton, starts, first_states, chosen, symbols)
        for rule, key in enumerate(automaton.rule_keys):
            if starts[rule] < 0 and key in added:
                starts[rule] = starts[added[key]]
        for base, minimum, maximum, body in counters:
            twins = self._twins.setdefault(int(starts[body]), base + max(minimum, maximum) + 1)
            entry.append_counter(self.address, base, minimum, maximum, int(starts[body]), twins)
        for bag in bags:
            self._append_bag(automaton, bag, starts)
        known.update((key, int(starts[rule])) for key, rule in added.items() if starts[rule] >= 0)
        self._virtual = virtual
        return starts

    def _append_bag(self, automaton: Automaton, bag: int, starts: npt.NDArray[np.int32]) -> None:
        low, high = automaton.bag_offsets[bag], automaton.bag_offsets[bag + 1]
        first, past = automaton.bag_word_offsets[bag], automaton.bag_word_offsets[bag + 1]
        rests = automaton.member_rest[low:high]
        entry.append_bag(
            self.address,
            int(starts[automaton.bag_separator[bag]]), bool(automaton.bag_skips[bag]),
            int(automaton.bag_minimum[bag]), int(automaton.bag_maximum[bag]),
            int(automaton.bag_groups[bag]), int(automaton.bag_wanted[bag]),
            automaton.bag_required[first:past].copy(), starts[automaton.member_rule[low:high]],
            np.where(rests < 0, np.int32(-1), starts[rests]),
            *(getattr(automaton, name)[low:high].copy() for name in MEMBER_ARRAYS[2:]),
        )  # fmt: skip

    def _append(
        self,
        automaton: Automaton,
        starts: npt.NDArray[np.int32],
        first_states: npt.NDArray[np.int64],
        chosen: npt.NDArray[np.bool_],
        symbols: npt.NDArray[np.int32],
    ) -> None:
        """Append the ``chosen`` states, and set ``starts`` of the rules that begin in ``first_states``."""
        if not chosen.any():
            return
        # By new number: states that are chosen, in order. A rule without a start of its own yet is either new
        # here or the twin of one that is.
        number = np.cumsum(chosen, dtype=np.int32) - 1
        new = np.flatnonzero(first_states >= 0)
        first = dict(zip(new.tolist(), number[first_states[new]].tolist(), strict=True))
        by_key = {automaton.rule_keys[rule]: place for rule, place in first.items()}
        targets = np.array(
            [
                start if start >= 0 else -2 - by_key.get(key, -1)
                for start, key in zip(starts.tolist(), automaton.rule_keys, strict=True)
            ],
            np.int32,
        )
        edge_offsets, edges = _owned(automaton.edge_offsets, chosen)
        call_offsets, calls = _owned(automaton.call_offsets, chosen)
        tok_offsets, toks = _owned(automaton.token_offsets, chosen)
        returns = automaton.call_return[calls]
        numbers = entry.append_states(
            self.address,
            edge_offsets, automaton.edge_low[edges], automaton.edge_high[edges],
            number[automaton.edge_target[edges]],
            call_offsets, targets[automaton.call_rule[calls]],
            np.where(returns == TAIL, np.int32(TAIL), number[returns]),
            tok_offsets, symbols[automaton.token_symbol[toks]] if len(symbols) else np.zeros(0, np.int32),
            number[automaton.token_target[toks]],
            automaton.accepting[chosen],
        )  # fmt: skip
        for rule, place in first.items():
            starts[rule] = numbers[place]

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
    return tuple(
        slices_of(
            trie.node_byte, trie.node_depth, trie.node_next, trie.node_token_start, trie.node_tokens,
            vocabulary.token_offsets, vocabulary.token_data, words,
        )
    )  # fmt: skip


def _owned(
    offsets: npt.NDArray[np.int32], chosen: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Where each chosen state's moves begin among those of all chosen states, and which moves these are."""
    sizes = np.diff(offsets)
    own = np.zeros(int(chosen.sum()) + 1, np.int32)
    np.cumsum(sizes[chosen], out=own[1:])
    return own, np.repeat(chosen, sizes)


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
