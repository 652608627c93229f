"""Rules that are compiled once per process: fragments, and the cache that finds them by content.

A string's body, a number, a date, white space, any JSON value: the same rules are in one grammar after
another. A *fragment* is such a rule as :mod:`.determinise` leaves it, with the fragments that it calls in
place of rule numbers, ready to be put into any automaton (:mod:`.splice`). What a rule becomes depends on
itself and on the rules that it refers to, so those are part of what a fragment is found by; only rules that
are marked as shared, and refer to shared ones only, have fragments (others may be written in place of a
call, and what becomes of them depends on who else calls them).

Nodes are immutable, so a node that was met before is found by its identity, and an equal one by its hash.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vllm_guided.grammar import ir

#: Bytes of fragments that a process keeps.
CACHE_BYTES = 64 << 20
#: Bodies whose hashes are remembered until they are kept.
HASHES_KEPT = 64
#: About what an array, and a number of a program with the node it came from, take beside their content.
ARRAY_BYTES = 112
PROGRAM_BYTES = 48

Ints = npt.NDArray[np.int32]
Environment = dict[str, ir.Node]


@dataclass(slots=True, eq=False)
class Fragment:
    """One compiled rule; immutable once its callees are set.

    Attributes:
        name: for messages.
        key: what ``Automaton.rule_keys`` says of it.
        nullable: whether it derives the empty string. (It derives something.)
        counter: whether it counts its only callee; minimum, maximum: as in ``Automaton``.
        degrees: moves by state; labels, targets, accepting: as ``determinise`` returns them, of this rule.
        callees: what the labels of its calls count.
    """

    name: str
    key: bytes
    nullable: bool
    counter: bool
    minimum: int
    maximum: int
    degrees: Ints
    labels: Ints
    targets: Ints
    accepting: npt.NDArray[np.uint8]
    callees: tuple[Fragment, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes held, callees aside."""
        arrays = (self.degrees, self.labels, self.targets, self.accepting)
        return sum(array.nbytes + ARRAY_BYTES for array in arrays) + 8 * len(self.callees)


@dataclass(slots=True)
class _Entry:
    """The fragments of one body: one for each content of the rules that it refers to, newest last."""

    body: ir.Node
    content: int
    found: list[tuple[Environment, Fragment]] = field(default_factory=list)
    nbytes: int = 0


class FragmentCache:
    """Least recently used fragments, bounded in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._by_content: dict[int, list[_Entry]] = {}
        # Hashes of bodies that were asked for last, by their identity: of large ones they take long.
        self._hashes: dict[int, tuple[ir.Node, int]] = {}
        self._lock = threading.Lock()

    def find(self, rules: Mapping[str, ir.Rule], name: str) -> tuple[Environment, Fragment] | None:
        """The fragment of ``rules[name]``, and the rules beside it that it was compiled from."""
        body = rules[name].body
        with self._lock:
            entry = self._entry(body)
            if entry is None:
                return None
            for environment, fragment in entry.found:
                for other, wanted in environment.items():
                    rule = rules.get(other)
                    if rule is None or not rule.shared or (rule.body is not wanted and rule.body != wanted):
                        break
                else:
                    self._entries.move_to_end(id(entry.body))
                    return environment, fragment
        return None

    def keep(self, body: ir.Node, environment: Environment, fragment: Fragment, nbytes: int) -> None:
        """Keep the fragment of a rule with this body.

        Args:
            environment: the other rules that it needs, by name.
            nbytes: what is kept for it: nodes, and fragments.
        """
        with self._lock:
            entry = self._entry(body)
            if entry is None:
                content = self._hash(body)
                entry = self._entries[id(body)] = _Entry(body, content)
                self._by_content.setdefault(content, []).append(entry)
            entry.found.append((environment, fragment))
            entry.nbytes += nbytes
            self.held += nbytes
            self._drop()

    def limit_to(self, limit: int) -> None:
        """Hold at most ``limit`` bytes from now on."""
        with self._lock:
            self.limit = limit
            self._drop()

    def _drop(self) -> None:
        while self.held > self.limit and self._entries:
            _, dropped = self._entries.popitem(last=False)
            self.held -= dropped.nbytes
            equal = self._by_content[dropped.content]
            equal.remove(dropped)
            if not equal:
                del self._by_content[dropped.content]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._by_content.clear()
            self._hashes.clear()
            self.held = 0

    def _entry(self, body: ir.Node) -> _Entry | None:
        entry = self._entries.get(id(body))
        if entry is not None:
            return entry  # it holds its body, so no other node has this identity
        if not self._by_content:
            return None
        for entry in self._by_content.get(self._hash(body), ()):
            if entry.body == body:
                return entry
        return None

    def _hash(self, body: ir.Node) -> int:
        known = self._hashes.get(id(body))
        if known is None:
            if len(self._hashes) >= HASHES_KEPT:
                self._hashes.clear()
            known = self._hashes[id(body)] = body, hash(body)
        return known[1]


FRAGMENTS = FragmentCache(CACHE_BYTES)
