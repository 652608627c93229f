"""Free text in which some strings mean something: triggers, ends, excluded strings.

In: strings and, for triggers, the nodes that follow them. Out: one IR graph over code points. The idea is
Aho and Corasick's (1975) automaton, read as a deterministic one: its state is the longest suffix of the
text that begins one of the strings, so "this text contains none of them" and "the first of them ends here"
are properties of the state, and the text never has to be looked at twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.frontends.spelled import Symbol, spelled, variants
from vllm_guided.grammar import ir

MAX_STATES = 50_000


class PatternAutomaton:
    """Aho and Corasick's automaton of ``patterns`` (non-empty), over characters and special tokens.

    ``rows[state]`` maps a symbol to the next state; any character not in it leads to state 0, any token
    not in it is no text. ``matches[state]`` are the indices of the patterns that end where the text has led
    to ``state``; several spellings may have one index.
    """

    def __init__(self, patterns: Sequence[tuple[int, Sequence[Symbol]]]) -> None:
        children: list[dict[Symbol, int]] = [{}]
        self.matches: list[frozenset[int]] = [frozenset()]
        for index, pattern in patterns:
            state = 0
            for symbol in pattern:
                following = children[state].get(symbol)
                if following is None:
                    following = children[state][symbol] = len(children)
                    if following >= MAX_STATES:
                        raise ConstraintTooComplex(
                            f"triggers and excluded strings are together longer than {MAX_STATES} characters;"
                            " shorten them"
                        )
                    children.append({})
                    self.matches.append(frozenset())
                state = following
            self.matches[state] |= {index}
        self.rows: list[dict[Symbol, int]] = [{} for _ in children]
        self.rows[0] = dict(children[0])
        failure = [0] * len(children)
        queue = list(children[0].values())
        for state in queue:
            fall_back = failure[state]
            self.matches[state] |= self.matches[fall_back]
            for symbol, following in children[state].items():
                failure[following] = self.rows[fall_back].get(symbol, 0)
                queue.append(following)
            self.rows[state] = {**self.rows[fall_back], **children[state]}

    def moves(self, state: int) -> list[tuple[ir.Node, int]]:
        """The transitions of ``state``: disjoint labels that together are every character."""
        by_target: dict[int, list[tuple[int, int]]] = {}
        moves: list[tuple[ir.Node, int]] = []
        others: list[tuple[int, int]] = []
        low = 0
        for code in sorted(ord(symbol) for symbol in self.rows[state] if isinstance(symbol, str)):
            by_target.setdefault(self.rows[state][chr(code)], []).append((code, code))
            others.append((low, code - 1))
            low = code + 1
        others.append((low, ir.MAX_CODE_POINT))
        for symbol, target in self.rows[state].items():
            if isinstance(symbol, ir.SpecialToken):
                moves.append((symbol, target))
        moves += [(ir.char_set(ranges), target) for target, ranges in by_target.items()]
        moves.append((_without_surrogates(others), 0))
        return moves


def _without_surrogates(ranges: Sequence[tuple[int, int]]) -> ir.Node:
    return ir.char_set(
        (max(low, first), min(high, last))
        for low, high in ranges
        for first, last in ((0, 0xD7FF), (0xE000, ir.MAX_CODE_POINT))
    )


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What :func:`dispatch` builds: see there."""

    rules: Sequence[tuple[str, ir.Node]]
    excludes: Sequence[str] = ()
    loop: bool = True
    may_end_in_text: bool = True
    tokens: bool = False


def _check(patterns: Sequence[str], what: str) -> None:
    for pattern in patterns:
        if not pattern:
            raise InvalidConstraint(f"an empty string cannot be a {what}; leave it out")
        if any(0xD800 <= ord(char) <= 0xDFFF for char in pattern):
            raise InvalidConstraint(
                f"the {what} {pattern!r} contains a lone surrogate, which no output can;"
                " write the whole character"
            )


def dispatch(spec: Dispatch) -> ir.Node:
    """Free text; where a trigger is complete, its node follows, then (``loop``) free text again.

    The text contains no string of ``excludes`` and no trigger but those that dispatch. It may end anywhere
    in the free text if ``may_end_in_text``, else only behind a dispatched node, without ``loop``.
    Of two triggers of which one begins the other, the shorter is complete first and wins. With ``tokens``
    what a trigger has in brackets may also be the special token of that name.
    """
    triggers = [trigger for trigger, _ in spec.rules]
    _check(triggers, "trigger")
    _check(spec.excludes, "excluded string")
    if not triggers and not spec.excludes:
        return ir.star(ir.ANY_CHAR) if spec.may_end_in_text else ir.NOTHING
    patterns: list[tuple[int, Sequence[Symbol]]] = []
    for index, trigger in enumerate(triggers):
        spellings = variants(trigger) if spec.tokens else [tuple(trigger)]
        patterns += [(index, spelling) for spelling in spellings]
    patterns += [(len(triggers) + place, text) for place, text in enumerate(spec.excludes)]
    automaton = PatternAutomaton(patterns)
    end = len(automaton.rows)
    hubs: dict[frozenset[int], int] = {}
    edges: list[tuple[int, ir.Node, int]] = []
    reached = [0]
    seen = {0}
    for state in reached:
        for label, target in automaton.moves(state):
            found = automaton.matches[target]
            if any(index >= len(triggers) for index in found):
                continue
            if found:
                hub = hubs.setdefault(found, end + 1 + len(hubs))
                edges.append((state, label, hub))
                continue
            edges.append((state, label, target))
            if target not in seen:
                seen.add(target)
                reached.append(target)
    for found, hub in hubs.items():
        for index in sorted(found):
            edges.append((hub, spec.rules[index][1], 0 if spec.loop else end))
    accepting = frozenset(seen if spec.may_end_in_text else ()) | ({end} if not spec.loop else frozenset())
    return ir.Graph(tuple(edges), frozenset(accepting))


def text_without(excludes: Sequence[str]) -> ir.Node:
    """Any text that contains none of ``excludes``."""
    return dispatch(Dispatch((), excludes))


def text_until(ends: Sequence[str], excludes: Sequence[str] = (), *, tokens: bool = False) -> ir.Node:
    """Any text up to and with the first of ``ends``; no string of ``excludes`` before it is complete.

    An end that is also excluded counts as an end. An empty end means the text may end anywhere. An end may
    contain an excluded string (``<|close|>`` and ``<|close|>think``): what is excluded is so before the end.
    With ``tokens`` what an end has in brackets may also be the special token of that name.
    """
    others = [text for text in excludes if text not in ends]
    full = [end for end in ends if end]
    if any(word in end for word in others for end in full):
        closing = ir.choice(*(spelled(end) if tokens else ir.text(end) for end in ends))
        return ir.sequence(text_without([*others, *full]), closing)
    anywhere = len(full) < len(ends)
    rules = [(end, ir.EMPTY) for end in full]
    return dispatch(Dispatch(rules, others, loop=False, may_end_in_text=anywhere, tokens=tokens))
