"""The compiled form of a grammar: a pushdown automaton whose frames are finite automata.

It knows no vocabulary, holds only numpy arrays and plain values, and can be pickled, hashed and sent
to another process. States are numbered over all rules. A state's moves are byte ranges, special
tokens, and calls: a call enters another rule's start and comes back to its return state, or, as a
tail call, to wherever the calling frame would have returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.bags import BAG_ARRAYS, MEMBER_ARRAYS
from vllm_guided.automaton.labels import TAIL
from vllm_guided.grammar import ir

__all__ = ["ARRAYS", "TAIL", "Automaton", "writable"]


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """Arrays of a compiled grammar; ``S`` states, ``R`` rules.

    Attributes:
        rule_offsets: int32 [R + 1]. Rule ``r`` owns states ``rule_offsets[r]:rule_offsets[r + 1]`` and
            starts in the first. A counter owns none.
        rule_keys: 16 bytes each, the hash of all that the rule can do; equal keys, equal languages.
        counter_body: int32 [R], the counted rule of a counter, else -1.
        counter_minimum, counter_maximum: int32 [R]; maximum -1 means any number.
        edge_offsets: int32 [S + 1]; edge_low, edge_high: uint8; edge_target: int32.
        call_offsets: int32 [S + 1]; call_rule: int32; call_return: int32 (state, or TAIL).
        token_offsets: int32 [S + 1]; token_symbol: int32 (index into ``symbols``); token_target: int32.
        accepting: uint8 [S].
        bag_rule: int32 [B], the rules that are bags (``bags.py``); a bag owns no states. Of each: the
            separator's rule, whether that may be empty, least and most members (-1: any number), number of
            own flags, the wanted flags, ``bag_required`` (int64 words from ``bag_word_offsets``: flags that
            must be set, wanted first), and its members ``bag_offsets[b]:bag_offsets[b + 1]``.
        member_rule, member_rest (rule or -1), member_skips (the rest may be empty), member_own (own flag or
            -1), member_wanted (bits), member_distinct, member_first, member_last (-1: no limit): int32.
        symbols: the special tokens the grammar names.
        start: the rule to start from, or -1 where only the empty string is in the language.
        nullable: whether the empty string is in the language.
        names: rule names, for messages.
    """

    rule_offsets: npt.NDArray[np.int32]
    rule_keys: tuple[bytes, ...]
    counter_body: npt.NDArray[np.int32]
    counter_minimum: npt.NDArray[np.int32]
    counter_maximum: npt.NDArray[np.int32]
    edge_offsets: npt.NDArray[np.int32]
    edge_low: npt.NDArray[np.uint8]
    edge_high: npt.NDArray[np.uint8]
    edge_target: npt.NDArray[np.int32]
    call_offsets: npt.NDArray[np.int32]
    call_rule: npt.NDArray[np.int32]
    call_return: npt.NDArray[np.int32]
    token_offsets: npt.NDArray[np.int32]
    token_symbol: npt.NDArray[np.int32]
    token_target: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.uint8]
    bag_rule: npt.NDArray[np.int32]
    bag_separator: npt.NDArray[np.int32]
    bag_skips: npt.NDArray[np.int32]
    bag_minimum: npt.NDArray[np.int32]
    bag_maximum: npt.NDArray[np.int32]
    bag_groups: npt.NDArray[np.int32]
    bag_wanted: npt.NDArray[np.int32]
    bag_word_offsets: npt.NDArray[np.int32]
    bag_required: npt.NDArray[np.int64]
    bag_offsets: npt.NDArray[np.int32]
    member_rule: npt.NDArray[np.int32]
    member_rest: npt.NDArray[np.int32]
    member_skips: npt.NDArray[np.int32]
    member_own: npt.NDArray[np.int32]
    member_wanted: npt.NDArray[np.int32]
    member_distinct: npt.NDArray[np.int32]
    member_first: npt.NDArray[np.int32]
    member_last: npt.NDArray[np.int32]
    symbols: tuple[ir.SpecialToken, ...]
    start: int
    nullable: bool
    names: tuple[str, ...]

    @property
    def state_count(self) -> int:
        return len(self.accepting)

    @property
    def rule_count(self) -> int:
        return len(self.rule_keys)

    @property
    def content_key(self) -> bytes:
        """What tells two automata apart: equal keys, equal languages."""
        own = self.rule_keys[self.start] if self.start >= 0 else b""
        return own + bytes([self.nullable])

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(getattr(self, name).nbytes for name in ARRAYS)


def writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``array`` as compiled functions take it: one that was unpickled may be read-only."""
    return array if array.flags.writeable else array.copy()


ARRAYS = (
    "rule_offsets", "counter_body", "counter_minimum", "counter_maximum", "edge_offsets", "edge_low",
    "edge_high", "edge_target", "call_offsets", "call_rule", "call_return", "token_offsets",
    "token_symbol", "token_target", "accepting", *BAG_ARRAYS, *MEMBER_ARRAYS,
)  # fmt: skip
