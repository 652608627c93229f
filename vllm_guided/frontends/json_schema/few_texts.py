"""All texts of a node, where they are few: how many different items an array can have at most.

In: a node, and the rules it refers to. Out: its texts without white space between JSON tokens, or ``None``
where they are more than a limit, or endless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vllm_guided.frontends.json_schema.layout import BLANKS
from vllm_guided.frontends.json_schema.many_texts import AtLeast, topological
from vllm_guided.grammar import ir

Texts = frozenset[bytes]
_NONE: Texts = frozenset()
_EMPTY: Texts = frozenset((b"",))


class FewTexts:
    """Texts of nodes over one set of rules.

    Args:
        body: the body of a rule.
        limit: more texts than this are not listed.
    """

    def __init__(self, body: Callable[[str], ir.Node], limit: int) -> None:
        self._body = body
        self._limit = limit
        self._known: dict[str, Texts | None] = {}
        self._active: set[str] = set()
        self.endless: set[str] = set()
        """Rules that are being made, which count as endless."""
        self._met_again: set[str] = set()
        self._at_least = AtLeast(body, self.endless, limit + 1)

    def of(self, node: ir.Node) -> Texts | None:
        """The texts of ``node``; ``None`` if they are too many."""
        return None if self._at_least.of(node) > self._limit else self._listed(node)

    def _listed(self, node: ir.Node) -> Texts | None:
        match node:
            case ir.Literal(data):
                return frozenset((data,))
            case ir.ByteSet(mask):
                return frozenset(bytes([byte]) for byte in range(256) if mask >> byte & 1)
            case ir.CharSet(ranges):
                if sum(high - low + 1 for low, high in ranges) > self._limit:
                    return None
                points = (point for low, high in ranges for point in range(low, high + 1))
                return frozenset(chr(point).encode() for point in points if not 0xD800 <= point <= 0xDFFF)
            case ir.Ref(name):
                return self._rule(name)
            case ir.Sequence(items):
                return self._product(self.of(item) for item in items)
            case ir.Choice(options):
                return self._union(self.of(option) for option in options)
            case ir.Repeat(item, minimum, maximum):
                return self._repeat(self.of(item), minimum, maximum)
            case ir.Graph():
                return self._graph(node)
            case ir.Bag():
                return self._bag(node)
            case _:
                return None

    def _bounded(self, texts: Iterable[bytes]) -> Texts | None:
        found: set[bytes] = set()
        for text in texts:
            found.add(text)
            if len(found) > self._limit:
                return None
        return frozenset(found)

    def _rule(self, name: str) -> Texts | None:
        if name == BLANKS:
            return _EMPTY
        if name in self.endless:
            return None
        if name in self._active:  # endless, unless nothing comes of it
            self._met_again.add(name)
            return _NONE
        if name not in self._known:
            self._active.add(name)
            found = self.of(self._body(name))
            self._active.discard(name)
            if name in self._met_again and found != _NONE:
                found = None
            if self._met_again & self._active:  # what was taken for nothing is not known yet
                return found
            self._known[name] = found
        return self._known[name]

    def _product(self, parts: Iterable[Texts | None]) -> Texts | None:
        texts: Texts | None = _EMPTY
        for part in parts:
            if part == _NONE:
                return _NONE
            if part is None or texts is None or len(texts) * len(part) > 4 * self._limit:
                texts = None
            else:
                texts = self._bounded(left + right for left in texts for right in part)
        return texts

    def _union(self, parts: Iterable[Texts | None]) -> Texts | None:
        found: set[bytes] = set()
        for part in parts:
            if part is None:
                return None
            found |= part
            if len(found) > self._limit:
                return None
        return frozenset(found)

    def _repeat(self, item: Texts | None, minimum: int, maximum: int | None) -> Texts | None:
        if item in (_NONE, _EMPTY) or maximum == 0:
            return _EMPTY if minimum == 0 or item == _EMPTY else _NONE
        if item is None or maximum is None:
            return None
        here: Texts | None = _EMPTY
        found: Texts | None = _EMPTY if minimum == 0 else _NONE
        for count in range(1, maximum + 1):
            here = self._product((here, item))
            if count >= minimum:
                found = self._union((found, here))
            if here is None or found is None:
                return None
        return found

    def _graph(self, graph: ir.Graph) -> Texts | None:
        outgoing: dict[int, list[tuple[ir.Node, int]]] = {}
        for source, label, target in graph.edges:
            outgoing.setdefault(source, []).append((label, target))
        order = topological(graph.start, outgoing)
        if order is None:
            return None
        known: dict[int, Texts | None] = {}
        for state in reversed(order):
            parts: list[Texts | None] = [_EMPTY if state in graph.accepting else _NONE]
            for label, target in outgoing.get(state, ()):
                rest = known[target]
                parts.append(_NONE if rest == _NONE else self._product((self.of(label), rest)))
            known[state] = self._union(parts)
        return known[graph.start]

    def _bag(self, bag: ir.Bag) -> Texts | None:
        """The sequences of few members; ``None`` where a member has many texts, or comes again and again."""
        members = [
            (entry, self.of(entry.item), self._product((self.of(entry.item), self.of(entry.rest))))
            for entry in bag.entries
        ]
        endless = bag.maximum is None and any(not (e.distinct or e.own is not None) for e in bag.entries)
        if endless or any(text is None for _, _, text in members):
            return None
        separators = self.of(bag.separator)
        if separators is None or len(separators) != 1:
            return None
        found = self._bounded(self._sequences(bag, next(iter(separators))))
        return found

    def _sequences(self, bag: ir.Bag, separator: bytes) -> Iterator[bytes]:
        stack: list[tuple[bytes, int, frozenset[int], Texts]] = [(b"", 0, frozenset(), _NONE)]
        steps = 0
        while stack:
            text, count, flags, used = stack.pop()
            steps += 1
            if steps > 4 * self._limit:  # enough to say that they are many
                yield from (b"%d" % number for number in range(self._limit + 1))
                return
            if count >= bag.minimum and bag.required <= flags:
                yield text
            if count == bag.maximum:
                continue
            for entry in bag.entries:
                if (entry.own is not None and entry.own in flags) or not (
                    entry.first <= count and (entry.last is None or count <= entry.last)
                ):
                    continue
                after = flags | entry.flags | (frozenset() if entry.own is None else {entry.own})
                for item in self.of(entry.item) or ():
                    if entry.distinct and item in used:
                        continue
                    taken = used | {item} if entry.distinct else used
                    for rest in self.of(entry.rest) or ():
                        joined = text + (separator if count else b"") + item + rest
                        stack.append((joined, count + 1, after, taken))
