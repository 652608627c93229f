"""The intermediate representation every frontend writes and the automaton is built from.

A :class:`Grammar` is a set of named :class:`Rule` s over bytes. A rule's body is a :data:`Node`: a
regular expression over byte sets, code points, special tokens and references to other rules. It only
recognises (no parse trees), so a frontend may rewrite freely as long as the language stays the same.

The language of a node, over byte strings and special tokens:

============== =====================================================================================
Literal        that one byte string
ByteSet        one byte of the set
CharSet        the UTF-8 encoding of one code point of the set (surrogates are left out)
SpecialToken   one token of the vocabulary, taken whole, never spelt by text
Ref            what the named rule derives
Sequence       one of each item in turn; the empty sequence is the empty string
Choice         any one of the options; no options is the empty language
Repeat         between ``minimum`` and ``maximum`` of the item (``None``: any number)
Graph          the labels met on a path from ``start`` to an accepting node of a small labelled graph
ByteGraph      the same where labels are sets of bytes, in one array
Bag            entries in any order, as far as flags, positions and distinctness allow it
============== =====================================================================================

Large ``Repeat`` counts cost nothing: ``Repeat(item, 0, 100_000)`` is a counter, not 100,000 copies.
Left recursion, nullable rules, ambiguity, unproductive and unreachable rules are all allowed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar, dataclass_transform

from vllm_guided.grammar.json_rules import JsonRule

MAX_CODE_POINT = 0x10FFFF
_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True)
def _node(cls: type[_Class]) -> type[_Class]:
    """A dataclass whose instances never change. Type checkers hold everyone to that.

    To have it checked when the program runs, too, would make an instance two to five times as slow to build.
    """
    return dataclass(unsafe_hash="__hash__" not in cls.__dict__, slots=True)(cls)


@_node
class Literal:
    """Exactly these bytes."""

    data: bytes


@_node
class ByteSet:
    """One byte; bit ``b`` of ``mask`` (a 256-bit integer) says whether byte ``b`` is in the set."""

    mask: int


@_node
class CharSet:
    """One code point, UTF-8 encoded; ``ranges`` are inclusive, sorted, and do not touch."""

    ranges: tuple[tuple[int, int], ...]


@_node
class SpecialToken:
    """One whole token, by name or by id, or (``negated``) any token but those.

    Names are looked up in ``Vocabulary.special_tokens`` when the grammar meets a vocabulary; a name
    that is not there is an InvalidConstraint. ``ids`` are inclusive ranges of token ids. Where text and
    token are two spellings of one thing (the tags of tool calls), the token is ``optional``: a name that a
    vocabulary does not have then stands for no token at all.
    """

    names: frozenset[str] = frozenset()
    ids: tuple[tuple[int, int], ...] = ()
    negated: bool = False
    optional: bool = False


@_node
class Ref:
    """Whatever the rule of this name derives."""

    name: str


@_node
class Sequence:
    items: tuple[Node, ...] = ()


@_node
class Choice:
    options: tuple[Node, ...] = ()


@_node
class Repeat:
    """``item`` at least ``minimum`` and at most ``maximum`` times (``None``: without a limit)."""

    item: Node
    minimum: int = 0
    maximum: int | None = None


@_node
class Graph:
    """A small automaton whose edges carry nodes: ``(source, label, target)``.

    Graph nodes are small integers. Use it for what a DFA of characters, or the order of an object's
    members, says better than an expression.
    """

    edges: tuple[tuple[int, Node, int], ...]
    accepting: frozenset[int]
    start: int = 0

    def __hash__(self) -> int:
        """As of any node, but a label that stands on many edges is looked through once."""
        sources, labels, targets = zip(*self.edges, strict=True) if self.edges else ((), (), ())
        numbers = list(map(id, labels))
        hashes = {number: hash(label) for number, label in dict(zip(numbers, labels, strict=True)).items()}
        inside = tuple([hashes[number] for number in numbers])
        return hash((sources, inside, targets, self.accepting, self.start))


class ByteGraph(Graph):
    """A graph over bytes whose edges lie in one array, where there would be too many nodes to make quickly.

    To whoever looks at its edges it is a graph. Vertices are numbered from 0; it starts in 0, where no edge
    leads, and accepts in 1, where none begins. Put it in a rule of its own: to those that weigh nodes it is
    a small one.

    Attributes:
        vertices: how many there are.
        moves: int32 ``source, label, target``, flattened; a label is ``low | high << 8`` for the bytes from
            ``low`` to ``high``, or -1 for the empty string.
    """

    __slots__ = ("_edges", "moves", "vertices")
    accepting = frozenset((1,))
    start = 0

    def __init__(self, vertices: int, moves: bytes) -> None:
        self.vertices = vertices
        self.moves = moves
        self._edges: tuple[tuple[int, Node, int], ...] | None = None

    @property
    def edges(self) -> tuple[tuple[int, Node, int], ...]:  # type: ignore[override]
        """The edges with their nodes, which are made when somebody asks for them."""
        if self._edges is None:
            numbers = iter(array("i", self.moves))
            self._edges = tuple(
                [
                    (source, EMPTY if label < 0 else byte_range(label & 255, label >> 8), target)
                    for source, label, target in zip(numbers, numbers, numbers, strict=True)
                ]
            )
        return self._edges

    def __eq__(self, other: object) -> bool:
        return type(other) is ByteGraph and (self.vertices, self.moves) == (other.vertices, other.moves)

    def __hash__(self) -> int:
        return hash((self.vertices, self.moves))


@_node
class Entry:
    """One kind of member of a :class:`Bag`: ``item``, then ``rest``.

    Attributes:
        item: never the empty string.
        rest: what follows ``item`` in the same member.
        own: a flag that must not be set yet and is set by this entry, so that of all entries with this
            flag one is taken, once. ``None``: any number of times.
        flags: further flags that it sets.
        distinct: the text of ``item`` must differ from the ``item`` text of every distinct entry taken
            before in the same bag. White space outside of double quotes does not count, and must not change
            what may follow. The double quotes of ``item`` are in pairs, and it begins with a letter, digit,
            quote, minus or opening bracket: it is a JSON value or name.
        first, last: the positions at which it may stand (0 is the first member; ``None``: no limit).
    """

    item: Node
    rest: Node = Sequence(())
    own: int | None = None
    flags: frozenset[int] = frozenset()
    distinct: bool = False
    first: int = 0
    last: int | None = None


@_node
class Bag:
    """Members in any order with ``separator`` between them: an object's members, an array's distinct items.

    A sequence of members is in the language if each entry may stand where it stands, there are between
    ``minimum`` and ``maximum`` of them (``None``: any number), and together they set every flag in
    ``required``. It costs one state per situation met at run time, not one per subset.

    Whoever builds one sees to it that it has no dead end by its counts: entries without ``own`` and
    entries of different ``own`` together are at least ``minimum``; at each position below ``minimum``
    some entry may stand; entries with positions (``first``, ``last``) neither have ``own`` nor ``flags``;
    where entries are distinct, ``maximum`` is not above the number of different items there are. At
    most ``MAX_WANTED`` flags in ``required`` are not some entry's ``own``.
    """

    entries: tuple[Entry, ...]
    separator: Node
    required: frozenset[int] = frozenset()
    minimum: int = 0
    maximum: int | None = None


MAX_WANTED = 8

#: A ``JsonRule`` is the whole body of a rule, or nothing.
Node = (
    Literal | ByteSet | CharSet | SpecialToken | Ref | Sequence | Choice | Repeat | Graph | ByteGraph | Bag
    | JsonRule
)  # fmt: skip


@_node
class Rule:
    """A named node.

    ``shared`` keeps the rule as a frame of its own on the stack (it is never inlined), so that the
    masks inside it are computed once per process for every grammar that has an equal rule: a JSON
    string's body, a number, a date. Leave it False for rules that exist only to give structure.
    """

    body: Node
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Grammar:
    """Rules by name, and the rule to start from. Every ``Ref`` names a rule in ``rules``."""

    rules: Mapping[str, Rule] = field(default_factory=dict)
    start: str = "start"


EMPTY = Sequence(())
NOTHING = Choice(())
ANY_CHAR = CharSet(((0, 0xD7FF), (0xE000, MAX_CODE_POINT)))
ANY_BYTE = ByteSet((1 << 256) - 1)


def is_nothing(node: Node) -> bool:
    """Whether ``node`` is ``NOTHING``, which compares quicker than with ``==``."""
    return type(node) is Choice and not node.options


def text(value: str | bytes) -> Node:
    """The literal ``value``, UTF-8 encoded if it is a ``str``."""
    data = value.encode("utf-8") if isinstance(value, str) else value
    return Literal(data) if data else EMPTY


def byte_set(members: Iterable[int]) -> ByteSet:
    """One byte among ``members``."""
    mask = 0
    for byte in members:
        mask |= 1 << byte
    return ByteSet(mask)


def byte_range(first: int, last: int) -> ByteSet:
    """One byte between ``first`` and ``last``, both included."""
    return ByteSet((1 << (last + 1)) - (1 << first))


def char_set(ranges: Iterable[tuple[int, int]]) -> Node:
    """One code point in any of the inclusive ``ranges``, which may overlap and need no order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return CharSet(tuple(merged)) if merged else NOTHING


def sequence(*items: Node) -> Node:
    """The items in turn, nested sequences flattened."""
    flat: list[Node] = []
    for item in items:
        if isinstance(item, Sequence):
            flat.extend(item.items)
        elif is_nothing(item):
            return NOTHING
        else:
            flat.append(item)
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def choice(*options: Node) -> Node:
    """Any one of the options, nested choices flattened."""
    flat: list[Node] = []
    for option in options:
        if isinstance(option, Choice):
            flat.extend(option.options)
        else:
            flat.append(option)
    return flat[0] if len(flat) == 1 else Choice(tuple(flat))


def optional(item: Node) -> Node:
    """``item`` or nothing."""
    return Repeat(item, 0, 1)


def star(item: Node) -> Node:
    """Any number of ``item``."""
    return Repeat(item, 0, None)


def plus(item: Node) -> Node:
    """One ``item`` or more."""
    return Repeat(item, 1, None)


def parts(node: Node) -> tuple[Node, ...]:
    """The nodes directly inside ``node``, in the order in which :func:`mapped` meets them."""
    match node:
        case Sequence(items) | Choice(items):
            return items
        case Repeat(item):
            return (item,)
        case ByteGraph():
            return ()
        case Graph(edges):
            return tuple(label for _, label, _ in edges)
        case Bag(entries, separator):
            return (*(part for entry in entries for part in (entry.item, entry.rest)), separator)
        case Literal() | ByteSet() | CharSet() | SpecialToken() | Ref():
            return ()
        case _:
            raise TypeError(f"not a node: {node!r}")


def mapped(node: Node, change: Callable[[Node], Node]) -> Node:
    """``node`` with ``change`` applied to each of its :func:`parts`; itself if they stay the same objects.

    Its structure stays, but what derives nothing by then is left out of choices and empties sequences.
    """
    before = parts(node)
    after = [change(part) for part in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return node
    match node:
        case Sequence():
            return NOTHING if NOTHING in after else Sequence(tuple(after))
        case Choice():
            return Choice(tuple(part for part in after if part != NOTHING))
        case Repeat(_, minimum, maximum):
            return Repeat(after[0], minimum, maximum)
        case Graph(edges, accepting, start):
            labelled = zip(edges, after, strict=True)
            return Graph(tuple((edge[0], label, edge[2]) for edge, label in labelled), accepting, start)
        case Bag(entries):
            changed = tuple(
                replace(entry, item=after[2 * place], rest=after[2 * place + 1])
                for place, entry in enumerate(entries)
            )
            return replace(node, entries=changed, separator=after[-1])
        case _:
            return node
