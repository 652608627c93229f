"""A runtime: the arena of one vocabulary, its lock, and the rules that are bound in it already.

Binding an automaton copies the rules that are new, by content key, and finds the others: a JSON
string's body is there once, with its masks, whatever schemas use it. All calls into an arena that may
extend it hold the runtime's lock; they release the GIL, so other threads go on.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.automaton import TAIL, Automaton
from vllm_guided.automaton.bags import MEMBER_ARRAYS
from vllm_guided.automaton.prune import without_symbols
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.grammar import ir
from vllm_guided.runtime import arena as tables
from vllm_guided.runtime import entry
from vllm_guided.vocab.vocabulary import Vocabulary

#: Virtual states (counters' counts) that fit behind ``VIRTUAL`` in an int32.
VIRTUAL_ROOM = tables.BAG - tables.VIRTUAL - 1


class Runtime:
    """All that is known at run time for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.words = (vocabulary.size + 31) // 32
        self.lock = threading.Lock()
        trie = vocabulary.trie
        self.arena = tables.new_arena(
            trie.node_byte, trie.node_depth, trie.node_next, trie.node_token_start, trie.node_tokens,
            vocabulary.token_offsets, vocabulary.token_data,
            np.array(vocabulary.stop_token_ids, np.int32), self.words, vocabulary.max_token_length,
        )  # fmt: skip
        self._rule_start: dict[bytes, int] = {}
        self._set_number: dict[ir.SpecialToken, int] = {}
        self._empty_sets: set[int] = set()
        self._states = 0
        self._overflowed = 0
        self._virtual = 0

    @property
    def nbytes(self) -> int:
        """Bytes held by the arena's tables."""
        return int(tables.sizes(self.arena)[0])

    def statistics(self) -> dict[str, int]:
        """What the arena holds, for metrics and tests."""
        names = ("bytes", "states", "stacks", "configurations", "tier1", "masks", "rows", "overflowed")
        with self.lock:
            return dict(zip(names, tables.sizes(self.arena).tolist(), strict=True))

    def has_overflowed(self) -> bool:
        """Whether a configuration was cut off at the item limit since the last call (holds the lock)."""
        before, self._overflowed = self._overflowed, int(tables.sizes(self.arena)[7])
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
                return int(entry.start_configuration(self.arena, -1, automaton.nullable))
            starts = self._add_rules(automaton, np.array(symbols, np.int32))
            return int(
                entry.start_configuration(self.arena, int(starts[automaton.start]), automaton.nullable)
            )

    def _add_rules(self, automaton: Automaton, symbols: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        known = self._rule_start
        offsets = automaton.rule_offsets.tolist()
        bodies = automaton.counter_body.tolist()
        minima, maxima = automaton.counter_minimum.tolist(), automaton.counter_maximum.tolist()
        state_map = np.full(automaton.state_count, -1, np.int32)
        chosen = np.zeros(automaton.state_count, bool)
        starts = np.full(automaton.rule_count, -1, np.int32)
        added: dict[bytes, int] = {}
        counters: list[tuple[int, int, int, int]] = []
        states, virtual = self._states, self._virtual
        bag_of = {rule: number for number, rule in enumerate(automaton.bag_rule.tolist())}
        bags: list[int] = []
        next_situation = int(entry.next_situation(self.arena)) if bag_of else 0
        for rule, key in enumerate(automaton.rule_keys):
            start = known.get(key)
            if start is None:
                start = added.get(key)
            if start is None:
                if rule in bag_of:
                    start = next_situation + len(bags)
                    bags.append(bag_of[rule])
                elif bodies[rule] >= 0:
                    start = tables.VIRTUAL + virtual
                    counters.append((start, minima[rule], maxima[rule], bodies[rule]))
                    virtual += max(minima[rule], maxima[rule]) + 1
                    if virtual > VIRTUAL_ROOM:
                        raise ConstraintTooComplex("the repetition counts of the constraints are too large")
                else:
                    first, past = offsets[rule], offsets[rule + 1]
                    if first == past:
                        continue
                    start = states
                    state_map[first:past] = np.arange(states, states + past - first)
                    chosen[first:past] = True
                    states += past - first
                added[key] = start
            starts[rule] = start
        self._append(automaton, starts, state_map, chosen, symbols)
        for base, minimum, maximum, body in counters:
            entry.append_counter(self.arena, base, minimum, maximum, int(starts[body]))
        for bag in bags:
            self._append_bag(automaton, bag, starts)
        known.update(added)
        self._states, self._virtual = states, virtual
        return starts

    def _append_bag(self, automaton: Automaton, bag: int, starts: npt.NDArray[np.int32]) -> None:
        low, high = automaton.bag_offsets[bag], automaton.bag_offsets[bag + 1]
        first, past = automaton.bag_word_offsets[bag], automaton.bag_word_offsets[bag + 1]
        rests = automaton.member_rest[low:high]
        entry.append_bag(
            self.arena,
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
        state_map: npt.NDArray[np.int32],
        chosen: npt.NDArray[np.bool_],
        symbols: npt.NDArray[np.int32],
    ) -> None:
        if not chosen.any():
            return
        edge_sizes, edges = _owned(automaton.edge_offsets, chosen)
        call_sizes, calls = _owned(automaton.call_offsets, chosen)
        tok_sizes, toks = _owned(automaton.token_offsets, chosen)
        returns = automaton.call_return[calls]
        entry.append_states(
            self.arena,
            edge_sizes, automaton.edge_low[edges], automaton.edge_high[edges],
            state_map[automaton.edge_target[edges]],
            call_sizes, starts[automaton.call_rule[calls]],
            np.where(returns == TAIL, np.int32(TAIL), state_map[returns]),
            tok_sizes, symbols[automaton.token_symbol[toks]] if len(symbols) else np.zeros(0, np.int32),
            state_map[automaton.token_target[toks]],
            automaton.accepting[chosen],
        )  # fmt: skip

    def _set(self, symbol: ir.SpecialToken) -> int:
        number = self._set_number.get(symbol)
        if number is None:
            ids = token_ids(symbol, self.vocabulary)
            number = int(entry.append_set(self.arena, ids))
            self._set_number[symbol] = number
            if not len(ids):
                self._empty_sets.add(number)
        return number

    def _is_empty(self, symbol: ir.SpecialToken) -> bool:
        """Whether the vocabulary has no token for ``symbol``."""
        return self._set_number[symbol] in self._empty_sets


def _owned(
    offsets: npt.NDArray[np.int32], chosen: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """How many moves each chosen state has, and which moves are theirs."""
    sizes = np.diff(offsets)
    return sizes[chosen], np.repeat(chosen, sizes)


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
