"""The slow, obvious reference: recognition of a grammar by definition, and the mask by trying every token.

Comes in: a :class:`vllm_guided.grammar.ir.Grammar` and data, which is ``bytes``, or a list of bytes
(``int`` or ``bytes``) and special tokens (``("token", id)``, or ``("token", name)``). Goes out: whether the
data is in the language (:func:`accepts`), can be continued to a string of it (:func:`is_prefix`), and which
tokens may come next (:func:`mask`). Nothing here knows of the engine.

The recogniser is Earley's (1970) with the nullable rule of Aycock and Horspool (2002). Every node of the IR
is a nonterminal of its own; an item is (node, how far it got, where it began). How far: a sequence's dot,
a repetition's count, a graph's node, the bytes of a character, the members of a bag so far. What can never be
finished (unproductive) is taken out first, so a set with an item in it means that the data can be finished:
but for bags with distinct items, where the data must be tried on until it is clear that an item under way can
become one that is not taken (:meth:`Recogniser.alive`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from bags import Ends, Taken, Text, may_end, text_of

from vllm_guided.grammar import ir

Token = tuple[str, int | str]
Symbol = int | Token
Data = bytes | Sequence[int | bytes | Token]
Item = tuple[int, Any, int]

# How many texts an item of a bag may have to be listed, and how many beginnings are tried to list them.
FEW_TEXTS = 12
TRIED_BEGINNINGS = 400
# Blanks in a row, outside quotes, that are tried where they change nothing.
MOST_BLANKS = 2


class VocabularyLike(Protocol):
    """What :func:`mask` reads of a vocabulary."""

    token_bytes: Sequence[bytes | None]
    stop_token_ids: Sequence[int]
    special_tokens: dict[str, int]


def symbols_of(data: Data) -> list[Symbol]:
    """The data as a flat list of bytes and special tokens."""
    if isinstance(data, str):
        raise TypeError("the language is over bytes: encode the text")
    flat: list[Symbol] = []
    for part in data:
        if isinstance(part, bytes):
            flat.extend(part)
        else:
            flat.append(part)
    return flat


def code_points_behind(prefix: bytes) -> Iterator[tuple[int, int]]:
    """The ranges of code points whose UTF-8 encoding begins with ``prefix`` (one byte at least)."""
    first, rest = prefix[0], prefix[1:]
    if any(byte & 0xC0 != 0x80 for byte in rest):
        return
    for lead, lead_mask, length, lowest in (
        (0x00, 0x80, 1, 0),
        (0xC0, 0xE0, 2, 0x80),
        (0xE0, 0xF0, 3, 0x800),
        (0xF0, 0xF8, 4, 0x10000),
    ):
        if first & lead_mask == lead and len(prefix) <= length:
            value = first & ~lead_mask & 0xFF
            for byte in rest:
                value = value << 6 | byte & 0x3F
            open_bits = 6 * (length - len(prefix))
            low = max(value << open_bits, lowest)
            high = min((value << open_bits) + (1 << open_bits) - 1, ir.MAX_CODE_POINT)
            for start, end in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)):
                if start <= end:
                    yield start, end


def fits_char_set(prefix: bytes, ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether ``prefix`` is the beginning (or all) of a code point of the set in UTF-8."""
    behind = list(code_points_behind(prefix))
    return any(low <= last and first <= high for low, high in ranges for first, last in behind)


def is_whole_char(prefix: bytes) -> bool:
    """Whether these bytes are one code point in UTF-8."""
    try:
        return len(prefix.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


class Recogniser:
    """Reads symbols one by one, and can take the last ones back.

    >>> recogniser = Recogniser(ir.Grammar({"start": ir.Rule(ir.star(ir.Literal(b"ab")))}))
    >>> recogniser.push(ord("a")), recogniser.accepting(), recogniser.push(ord("a"))
    (True, False, False)
    """

    def __init__(self, grammar: ir.Grammar, vocabulary: VocabularyLike | None = None) -> None:
        self.vocabulary = vocabulary
        self.nodes: list[ir.Node] = []
        self.children: list[tuple[int, ...]] = []
        self.allowed_tokens: dict[int, frozenset[int]] = {}
        self._number_nodes(grammar)
        self.nullable = self._fixpoint(self._is_nullable)
        self.few_texts: dict[int, frozenset[Text]] = {}
        self._find_productive()
        self.distinct = any(entry.distinct for ends in self.bags.values() for entry in ends.bag.entries)
        if self.distinct:
            # The inner ones first, which the outer ones are listed with.
            for n in reversed(self.bags):
                self._list_few(n)
            self._find_productive()
        self._start(0)

    def _find_productive(self) -> None:
        self.productive = self._fixpoint(self._is_productive)
        self.graphs = {
            n: self._useful_edges(n) for n, node in enumerate(self.nodes) if isinstance(node, ir.Graph)
        }
        self.bags = {n: self._ends(n) for n, node in enumerate(self.nodes) if isinstance(node, ir.Bag)}

    def _start(self, root: int) -> None:
        """Begin to read a text of the node ``root``."""
        self.root = root
        self.symbols: list[Symbol] = []
        self.sets: list[list[Item]] = []
        self.waiting: list[dict[int, list[Item]]] = []
        self._append([(root, self._begin(root), 0)] if self.productive[root] else [])

    # -- the grammar ---------------------------------------------------------------------------------------

    def _number_nodes(self, grammar: ir.Grammar) -> None:
        """Number every node, the start's Ref as 0; a Ref's only child is the rule's body."""
        numbers: dict[int, int] = {}

        def number(node: ir.Node) -> int:
            if id(node) not in numbers:
                numbers[id(node)] = len(self.nodes)
                self.nodes.append(node)
            return numbers[id(node)]

        number(ir.Ref(grammar.start))
        while len(self.children) < len(self.nodes):
            here = len(self.children)
            match self.nodes[here]:
                case ir.Ref(name):
                    inside: tuple[ir.Node, ...] = (grammar.rules[name].body,)
                case ir.Sequence(items):
                    inside = items
                case ir.Choice(options):
                    inside = options
                case ir.Repeat(item):
                    inside = (item,)
                case ir.Graph(edges):
                    inside = tuple(label for _, label, _ in edges)
                case ir.Bag(entries, separator):
                    inside = (*(part for entry in entries for part in (entry.item, entry.rest)), separator)
                case ir.SpecialToken() as token:
                    inside = ()
                    if self.vocabulary is not None:
                        self.allowed_tokens[here] = self._resolve(token, self.vocabulary)
                case _:
                    inside = ()
            self.children.append(tuple(number(node) for node in inside))

    @staticmethod
    def _resolve(node: ir.SpecialToken, vocabulary: VocabularyLike) -> frozenset[int]:
        """The ids a SpecialToken stands for; negated: any other token, stop tokens and padding apart."""
        named = {vocabulary.special_tokens[name] for name in node.names}
        size = len(vocabulary.token_bytes)
        listed = named | {i for low, high in node.ids for i in range(low, min(high, size - 1) + 1)}
        if not node.negated:
            return frozenset(listed)
        tokens = {i for i, data in enumerate(vocabulary.token_bytes) if data}
        tokens |= set(vocabulary.special_tokens.values())
        return frozenset(tokens - listed - set(vocabulary.stop_token_ids))

    def _fixpoint(self, rule: Any) -> list[bool]:
        """The least truth values that agree with ``rule(number, values)``."""
        values = [False] * len(self.nodes)
        changed = True
        while changed:
            changed = False
            for n in reversed(range(len(self.nodes))):
                if not values[n] and rule(n, values):
                    values[n] = changed = True
        return values

    def _graph_accepts(self, n: int, usable: list[bool]) -> bool:
        """Whether an accepting node is reached over edges whose label is usable."""
        graph = self.nodes[n]
        assert isinstance(graph, ir.Graph)
        reached, todo = {graph.start}, [graph.start]
        while todo:
            here = todo.pop()
            for (source, _, target), label in zip(graph.edges, self.children[n], strict=True):
                if source == here and usable[label] and target not in reached:
                    reached.add(target)
                    todo.append(target)
        return not reached.isdisjoint(graph.accepting)

    def _is_nullable(self, n: int, nullable: list[bool]) -> bool:
        children = self.children[n]
        match self.nodes[n]:
            case ir.Literal(data):
                return not data
            case ir.Ref() | ir.Sequence():
                return all(nullable[child] for child in children)
            case ir.Choice():
                return any(nullable[child] for child in children)
            case ir.Repeat(_, minimum, maximum):
                return (maximum is None or maximum >= minimum) and (minimum == 0 or nullable[children[0]])
            case ir.Graph():
                return self._graph_accepts(n, nullable)
            case ir.Bag() as bag:
                return may_end(bag, Taken())
            case _:
                return False

    def _is_productive(self, n: int, productive: list[bool]) -> bool:
        children = self.children[n]
        match self.nodes[n]:
            case ir.Literal():
                return True
            case ir.ByteSet(mask):
                return mask != 0
            case ir.CharSet(ranges):
                return any(
                    low <= high and not (low >= 0xD800 and high <= 0xDFFF) and low <= ir.MAX_CODE_POINT
                    for low, high in ranges
                )
            case ir.SpecialToken(names, ids, negated):
                if n in self.allowed_tokens:
                    return bool(self.allowed_tokens[n])
                return bool(names or ids or negated)
            case ir.Ref() | ir.Sequence():
                return all(productive[child] for child in children)
            case ir.Choice():
                return any(productive[child] for child in children)
            case ir.Repeat(_, minimum, maximum):
                return (maximum is None or maximum >= minimum) and (minimum == 0 or productive[children[0]])
            case ir.Graph():
                return self._graph_accepts(n, productive)
            case ir.Bag() as bag:
                return self._bag_ends(n, bag, productive).can_end(Taken())
        raise TypeError(f"not a node: {self.nodes[n]!r}")

    def _useful_edges(self, n: int) -> dict[int, list[tuple[int, int]]]:
        """A graph's edges ``source: [(label, target)]`` from which an accepting node can still be reached."""
        graph = self.nodes[n]
        assert isinstance(graph, ir.Graph)
        edges = [
            (source, label, target)
            for (source, _, target), label in zip(graph.edges, self.children[n], strict=True)
            if self.productive[label]
        ]
        live = set(graph.accepting)
        while more := {source for source, _, target in edges if target in live} - live:
            live |= more
        useful: dict[int, list[tuple[int, int]]] = {}
        for source, label, target in edges:
            if target in live:
                useful.setdefault(source, []).append((label, target))
        return useful

    def _bag_ends(self, n: int, bag: ir.Bag, productive: list[bool]) -> Ends:
        children = self.children[n]
        pairs = zip(children[:-1:2], children[1:-1:2], strict=True)
        usable = [index for index, pair in enumerate(pairs) if all(productive[part] for part in pair)]
        few = {
            index: self.few_texts[children[2 * index]]
            for index in usable
            if bag.entries[index].distinct and children[2 * index] in self.few_texts
        }
        return Ends(bag, usable, productive[children[-1]], few)

    def _ends(self, n: int) -> Ends:
        bag = self.nodes[n]
        assert isinstance(bag, ir.Bag)
        if any(self.nullable[item] for item in self.children[n][:-1:2]):
            raise ValueError(f"an item of a bag that may be empty: {bag}")
        return self._bag_ends(n, bag, self.productive)

    def _list_few(self, n: int) -> None:
        """Find the texts of a bag's distinct items where there are few."""
        for index in self.bags[n].usable:
            item = self.children[n][2 * index]
            if self.bags[n].bag.entries[index].distinct:
                texts = self._few_texts(item)
                if texts is not None:
                    self.few_texts[item] = texts
        self.bags[n] = self._ends(n)

    def _few_texts(self, item: int) -> frozenset[Text] | None:
        """All texts of the node ``item``, as distinct items are compared; None where there are many."""
        some = self._texts(item, 3)
        return self._texts(item, 256) if some is not None else None

    def _texts(self, item: int, width: int) -> frozenset[Text] | None:
        """The texts found with at most ``width`` of the symbols that the same terminals read."""
        other = copy.copy(self)
        other._start(item)
        found: set[Text] = set()
        todo: list[list[Symbol]] = [[]]
        for tried, beginning in enumerate(todo):
            if len(found) > FEW_TEXTS or tried > TRIED_BEGINNINGS:
                return None
            other.push_all(beginning)
            if other.accepting():
                found.add(text_of(beginning))
            for symbol in other.readable(width):
                longer = [*beginning, symbol]
                if text_of(longer) == text_of(longer[: -MOST_BLANKS - 1]):
                    continue
                if other.push(symbol):
                    other.pop()
                    todo.append(longer)
            other.pop(len(beginning))
        return frozenset(found)

    # -- how far an item got -------------------------------------------------------------------------------

    def _begin(self, n: int) -> Any:
        match self.nodes[n]:
            case ir.CharSet():
                return b""
            case ir.Graph(_, _, start):
                return start
            case ir.Bag():
                return "member", Taken()
            case _:
                return 0

    def _is_finished(self, n: int, state: Any) -> bool:
        match self.nodes[n]:
            case ir.Literal(data):
                return bool(state == len(data))
            case ir.Sequence(items):
                return bool(state == len(items))
            case ir.CharSet():
                return is_whole_char(state)
            case ir.Repeat(_, minimum, _):
                return bool(state >= minimum) or self.nullable[self.children[n][0]]
            case ir.Graph(_, accepting):
                return state in accepting
            case ir.Bag() as bag:
                phase, taken, *_ = state
                return (phase == "separator" or taken.count == 0) and may_end(bag, taken)
            case _:
                return bool(state == 1)

    def _calls(self, n: int, state: Any) -> Iterable[tuple[int, Any]]:
        """The nodes that may come next inside ``n``, each with how far ``n`` got after it."""
        children = self.children[n]
        match self.nodes[n]:
            case ir.Sequence():
                return [(children[state], state + 1)] if state < len(children) else []
            case ir.Ref():
                return [(children[0], 1)] if state == 0 else []
            case ir.Choice():
                return [(child, 1) for child in children if self.productive[child]] if state == 0 else []
            case ir.Repeat(_, minimum, maximum):
                if not self.productive[children[0]] or state == maximum:
                    return []
                # Past the minimum an unlimited repetition counts no further.
                return [(children[0], min(state + 1, minimum) if maximum is None else state + 1)]
            case ir.Graph():
                return self.graphs[n].get(state, [])
            case ir.Bag():
                return self._bag_calls(n, *state)
            case _:
                return []

    def _bag_calls(self, n: int, phase: str, taken: Taken, index: int = 0) -> list[tuple[int, Any]]:
        """A bag goes from "member" over "item" and "rest" to "separator", and from there to "member".

        "item" is a state on paper only: see :meth:`_completed`.
        """
        children, ends = self.children[n], self.bags[n]
        if phase == "member":
            return [(children[2 * index], ("item", taken, index)) for index in ends.nexts(taken)]
        if phase == "rest":
            return [(children[2 * index + 1], ("separator", taken))]
        return [(children[-1], ("member", taken))] if ends.nexts(taken) else []

    def _completed(self, parent: Item, origin: int) -> Item | None:
        """The item once the node it waited for was read from ``origin`` up to here; None if it may not be."""
        n, state, begun = parent
        if not isinstance(self.nodes[n], ir.Bag) or state[0] != "item":
            return parent
        _, taken, index = state
        entry, ends = self.bags[n].bag.entries[index], self.bags[n]
        text = text_of(self.symbols[origin:]) if entry.distinct else None
        if text is not None and text in taken.texts:
            return None
        after = taken.plus(entry, text)
        return (n, ("rest", after, index), begun) if ends.can_end(after) else None

    def _read(self, n: int, state: Any, symbol: Symbol) -> Any | None:
        """How far a terminal got after ``symbol``; None if the symbol does not fit."""
        node = self.nodes[n]
        if isinstance(node, ir.SpecialToken):
            return 1 if state == 0 and self._fits_token(n, node, symbol) else None
        if not isinstance(symbol, int):
            return None
        match node:
            case ir.Literal(data):
                return state + 1 if state < len(data) and data[state] == symbol else None
            case ir.ByteSet(mask):
                return 1 if state == 0 and mask >> symbol & 1 else None
            case ir.CharSet(ranges):
                return state + bytes([symbol]) if fits_char_set(state + bytes([symbol]), ranges) else None
        return None

    def _fits_token(self, n: int, node: ir.SpecialToken, symbol: Symbol) -> bool:
        if isinstance(symbol, int):
            return False
        token = symbol[1]
        if self.vocabulary is not None:
            return (self.vocabulary.special_tokens[token] if isinstance(token, str) else token) in (
                self.allowed_tokens[n]
            )
        if isinstance(token, str):
            listed = token in node.names
        else:
            listed = any(low <= token <= high for low, high in node.ids)
        return listed != node.negated

    # -- reading -------------------------------------------------------------------------------------------

    def _append(self, seed: Iterable[Item]) -> None:
        """Close a set of items under prediction and completion, and put it at the end of the chart."""
        here = len(self.sets)
        items: list[Item] = []
        seen: set[Item] = set()
        waiting: dict[int, list[Item]] = {}
        self.waiting.append(waiting)

        def add(item: Item) -> None:
            if item not in seen:
                seen.add(item)
                items.append(item)

        for item in seed:
            add(item)
        for n, state, origin in items:
            # An item that ends where it began was seen by the nullable rule when it was predicted.
            if origin != here and self._is_finished(n, state):
                for parent in self.waiting[origin].get(n, ()):
                    after_it = self._completed(parent, origin)
                    if after_it is not None:
                        add(after_it)
            counted = isinstance(self.nodes[n], ir.Repeat)
            for child, after in self._calls(n, state):
                waiting.setdefault(child, []).append((n, after, origin))
                add((child, self._begin(child), here))
                # A repetition of what may be empty is finished at any count: no need to step over it.
                if self.nullable[child] and not counted:
                    add((n, after, origin))
        self.sets.append(items)

    def push(self, symbol: Symbol) -> bool:
        """Read one symbol; False, and nothing changes, if the language has no string that goes on so."""
        if not self._push(symbol):
            return False
        if not self.alive():
            self.pop()
            return False
        return True

    def _push(self, symbol: Symbol) -> bool:
        """Read one symbol, if there is an item that fits; whether it can be finished is not asked."""
        seed = []
        for n, state, origin in self.sets[-1]:
            after = self._read(n, state, symbol)
            if after is not None:
                seed.append((n, after, origin))
        if seed:
            self.symbols.append(symbol)
            self._append(seed)
        return bool(seed)

    def push_all(self, data: Data) -> bool:
        """Read all of the data; False, and nothing changes, if that is not possible."""
        length = len(self)
        if all(map(self._push, symbols_of(data))) and (len(self) == length or self.alive()):
            return True
        self.pop(len(self) - length)
        return False

    def pop(self, count: int = 1) -> None:
        """Take the last symbols back."""
        if count:
            del self.sets[-count:]
            del self.waiting[-count:]
            del self.symbols[-count:]

    def __len__(self) -> int:
        """How many symbols were read."""
        return len(self.sets) - 1

    def accepting(self) -> bool:
        """Whether what was read is in the language."""
        return any(
            n == self.root and origin == 0 and self._is_finished(n, state)
            for n, state, origin in self.sets[-1]
        )

    def readable(self, width: int = 256) -> list[Symbol]:
        """The symbols that some item of the last set can read; of those read by the same, some."""
        terminals = [(n, state) for n, state, _ in self.sets[-1] if not self.children[n]]
        symbols: list[Symbol] = list(range(256))
        for n, _ in terminals:
            node = self.nodes[n]
            if isinstance(node, ir.SpecialToken):
                ids = self.allowed_tokens.get(n, {low for low, _ in node.ids} | set(node.names))
                symbols += [("token", id) for id in ids]
        readers: dict[tuple[int, ...], list[Symbol]] = {}
        for symbol in symbols:
            fits = tuple(n for n, state in terminals if self._read(n, state, symbol) is not None)
            readers.setdefault(fits, []).append(symbol)
        return [symbol for fits, read in readers.items() if fits for symbol in read[:width]]

    def alive(self) -> bool:
        """Whether what was read can be continued to a string of the language, or is one."""
        if not self.distinct:
            return bool(self.sets[-1])
        return self._lives(None, 0)

    # -- distinct items ------------------------------------------------------------------------------------

    def _lives(self, before: frozenset[tuple[int, Text]] | None, blanks: int) -> bool:
        """Whether some continuation ends: each is tried as long as all that is under way may come to nothing.

        What may: an item of a bag of which so much was read as a text that it must not have begins with.
        Where such a text ends the item does not. Everything else can be finished whatever comes.
        ``before``: such beginnings before the last symbol; ``blanks``: how many symbols changed none.
        """
        held = self._held()
        if held is None:
            return True
        blanks = blanks + 1 if held == before else 0
        if not held or blanks > MOST_BLANKS:
            return False
        for symbol in self.readable():
            if self._push(symbol):
                found = self._lives(held, blanks)
                self.pop()
                if found:
                    return True
        return False

    def _held(self) -> frozenset[tuple[int, Text]] | None:
        """The beginnings of barred texts on the ways from the last set up to the root.

        None if a way has none; the empty set if there is no way.
        """
        held: set[tuple[int, Text]] = set()
        seen = {(n, origin) for n, _, origin in self.sets[-1]}
        todo = list(seen)
        for n, origin in todo:
            if n == self.root and origin == 0:
                return None
            for above, state, begun in self.waiting[origin].get(n, ()):
                if isinstance(self.nodes[above], ir.Bag) and state[0] == "item":
                    _, taken, index = state
                    ends, text = self.bags[above], text_of(self.symbols[origin:])
                    if ends.bag.entries[index].distinct and any(
                        barred[: len(text)] == text for barred in ends.barred(taken, index)
                    ):
                        held.add((origin, text))
                        continue
                if (above, begun) not in seen:
                    seen.add((above, begun))
                    todo.append((above, begun))
        return frozenset(held)


def accepts(grammar: ir.Grammar, data: Data, vocabulary: VocabularyLike | None = None) -> bool:
    """Whether the data is in the language."""
    recogniser = Recogniser(grammar, vocabulary)
    return recogniser.push_all(data) and recogniser.accepting()


def is_prefix(grammar: ir.Grammar, data: Data, vocabulary: VocabularyLike | None = None) -> bool:
    """Whether the data is the beginning of a string of the language (or is one)."""
    recogniser = Recogniser(grammar, vocabulary)
    return recogniser.alive() and recogniser.push_all(data)


def readings(vocabulary: VocabularyLike, token: int) -> list[list[Symbol]]:
    """A token read as its text (special and stop tokens have none), and as one special token."""
    data = vocabulary.token_bytes[token]
    whole: list[list[Symbol]] = [[("token", token)]]
    if not data or token in vocabulary.stop_token_ids or token in vocabulary.special_tokens.values():
        return whole
    return [list(data), *whole]


class Walk:
    """Token by token: all the ways to read the tokens so far (as text or as special tokens) at once.

    A stop token ends the output where it may end, even if the grammar names that token too; after it nothing
    is allowed.
    """

    def __init__(self, grammar: ir.Grammar, vocabulary: VocabularyLike) -> None:
        self.vocabulary = vocabulary
        self.tokens: list[int] = []
        self.start = Recogniser(grammar, vocabulary)
        self.ways: list[list[list[Symbol]]] = [[[]] if self.start.alive() else []]

    def _reading(self, way: list[Symbol]) -> Recogniser:
        """The recogniser, after it read ``way``."""
        self.start.pop(len(self.start))
        if not self.start.push_all(way):
            raise AssertionError("a way that was possible")
        return self.start

    def terminated(self) -> bool:
        """Whether a stop token ended the output."""
        return bool(self.tokens) and self.tokens[-1] in self.vocabulary.stop_token_ids and not self.ways[-1]

    def accepting(self) -> bool:
        """Whether the output may end here."""
        return any(self._reading(way).accepting() for way in self.ways[-1])

    def mask(self) -> set[int]:
        """The ids that may follow: each token is tried."""
        allowed: set[int] = set()
        for way in self.ways[-1]:
            recogniser = self._reading(way)
            if recogniser.accepting():
                allowed.update(self.vocabulary.stop_token_ids)
            for token in range(len(self.vocabulary.token_bytes)):
                for reading in readings(self.vocabulary, token):
                    if recogniser.push_all(reading):
                        allowed.add(token)
                        recogniser.pop(len(reading))
        return allowed

    def accept(self, token: int) -> bool:
        """Go on by one token; False, and nothing changes, if it is not allowed."""
        ends = token in self.vocabulary.stop_token_ids and self.accepting()
        longer = []
        for way in self.ways[-1]:
            recogniser = self._reading(way)
            for reading in [] if ends else readings(self.vocabulary, token):
                if recogniser.push_all(reading):
                    longer.append(way + reading)
                    recogniser.pop(len(reading))
        if ends or longer:
            self.tokens.append(token)
            self.ways.append(longer)
        return bool(ends or longer)

    def rollback(self, count: int) -> None:
        """Take the last tokens back."""
        if count:
            del self.tokens[-count:], self.ways[-count:]


def mask(grammar: ir.Grammar, vocabulary: VocabularyLike, prefix: Sequence[int]) -> set[int]:
    """The ids that may follow the token ids ``prefix``; empty if the prefix itself is not possible."""
    walk = Walk(grammar, vocabulary)
    return walk.mask() if all(walk.accept(token) for token in prefix) else set()
