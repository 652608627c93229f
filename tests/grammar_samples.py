"""Random texts of a grammar, straight from its IR: every choice at random, shorter where it is deep."""

from __future__ import annotations

import random

from bags import Ends, Taken, may_end, text_of

from vllm_guided.grammar import ir

FAR = 1_000_000


class Sampler:
    """Samples texts; special tokens count as no text."""

    def __init__(self, grammar: ir.Grammar, random_: random.Random) -> None:
        self.grammar = grammar
        self.random = random_
        self.heights: dict[str, int] = {}
        changed = True
        while changed:
            changed = False
            for name, rule in grammar.rules.items():
                height = self.height(rule.body) + 1
                if height < self.heights.get(name, FAR):
                    self.heights[name] = height
                    changed = True

    def height(self, node: ir.Node) -> int:
        """The least depth of rules that finishes the node."""
        match node:
            case ir.Ref(name):
                return self.heights.get(name, FAR)
            case ir.SpecialToken():
                return FAR
            case ir.Sequence(items):
                return max(map(self.height, items), default=0)
            case ir.Choice(options):
                return min(map(self.height, options), default=FAR)
            case ir.Repeat(item, minimum, _):
                return self.height(item) if minimum else 0
            case ir.Bag() as bag:
                return self.bag_height(bag)
            case _:
                return 0

    def bag_height(self, bag: ir.Bag) -> int:
        """The least height of entries with which the bag can end."""
        least = sorted({self.member_height(entry) for entry in bag.entries} | {0})
        return next((height for height in least if self.ends(bag, height).can_end(Taken())), FAR)

    def member_height(self, entry: ir.Entry) -> int:
        return max(self.height(entry.item), self.height(entry.rest))

    def ends(self, bag: ir.Bag, height: int) -> Ends:
        """The ways to end ``bag`` with entries of at most this height."""
        usable = [i for i, entry in enumerate(bag.entries) if self.member_height(entry) <= height < FAR]
        return Ends(bag, usable, self.height(bag.separator) < FAR)

    def text(self) -> str | None:
        """One text, or None where the bytes drawn are no UTF-8."""
        depth = self.random.choice([3, 6, 9])
        try:
            return self.sample(self.grammar.rules[self.grammar.start].body, depth).decode()
        except UnicodeDecodeError:
            return None

    def sample(self, node: ir.Node, depth: int) -> bytes:
        match node:
            case ir.Literal(data):
                return data
            case ir.ByteSet(mask):
                return bytes([self.random.choice([byte for byte in range(256) if mask >> byte & 1])])
            case ir.CharSet(ranges):
                plain = [(max(low, 9), min(high, 126)) for low, high in ranges if low < 127 and high > 8]
                low, high = self.random.choice(plain or list(ranges))
                return chr(self.random.randint(low, high)).encode()
            case ir.Sequence(items):
                return b"".join(self.sample(item, depth) for item in items)
            case ir.Choice(options):
                least = min(map(self.height, options))
                open_ = [option for option in options if depth > 0 or self.height(option) == least]
                return self.sample(self.random.choice([o for o in open_ if self.height(o) < FAR]), depth)
            case ir.Repeat(item, minimum, maximum):
                count = minimum + (self.random.choice([0, 0, 1, 1, 2, 3]) if depth > 0 else 0)
                if maximum is not None:
                    count = min(count, maximum)
                return b"".join(self.sample(item, depth - 1) for _ in range(count))
            case ir.Ref(name):
                return self.sample(self.grammar.rules[name].body, depth - 1)
            case ir.Graph(edges, accepting, start):
                return self.walk(edges, accepting, start, depth)
            case ir.Bag() as bag:
                return self.members(bag, depth)
        raise AssertionError(node)

    def walk(
        self, edges: tuple[tuple[int, ir.Node, int], ...], accepting: frozenset[int], state: int, depth: int
    ) -> bytes:
        distance = dict.fromkeys(accepting, 0)
        queue = list(accepting)
        for place in queue:
            for source, _, target in edges:
                if target == place and source not in distance:
                    distance[source] = distance[place] + 1
                    queue.append(source)
        out = b""
        steps = self.random.choice([0, 1, 2, 4, 8])
        while state not in accepting or steps > 0:
            moves = [
                (label, target) for source, label, target in edges if source == state and target in distance
            ]
            moves = [move for move in moves if self.height(move[0]) < FAR]
            if not moves:
                break
            if steps <= 0:
                least = min(distance[target] for _, target in moves)
                moves = [move for move in moves if distance[move[1]] == least]
            label, state = self.random.choice(moves)
            out += self.sample(label, depth - 1)
            steps -= 1
        return out

    def members(self, bag: ir.Bag, depth: int) -> bytes:
        """Members at random, few and low ones where it is deep; a text that was used is drawn again."""
        ends = self.ends(bag, FAR - 1 if depth > 0 else self.bag_height(bag))
        out, taken, extra = b"", Taken(), self.random.choice([0, 0, 1, 2, 4]) if depth > 0 else 0
        while extra > 0 or not may_end(bag, taken):
            if may_end(bag, taken):
                extra -= 1
            drawn = self.member(bag, ends, taken, depth)
            if drawn is None and not may_end(bag, taken):
                # The low entries may have too few texts.
                drawn = self.member(bag, self.ends(bag, FAR - 1), taken, depth)
            if drawn is None:
                if may_end(bag, taken):
                    break
                raise AssertionError(f"no other text was drawn for a member of {bag}")
            entry, item = drawn
            out += (self.sample(bag.separator, depth - 1) if taken.count else b"") + item
            out += self.sample(entry.rest, depth - 1)
            taken = taken.plus(entry, text_of(item))
        return out

    def member(self, bag: ir.Bag, ends: Ends, taken: Taken, depth: int) -> tuple[ir.Entry, bytes] | None:
        """An entry that may come next, and a text of its item that was not used; None if none was drawn."""
        nexts = ends.nexts(taken)
        self.random.shuffle(nexts)
        for index in nexts:
            entry = bag.entries[index]
            for tries in range(60):
                # Where it is deep all texts are short: deeper ones differ.
                item = self.sample(entry.item, max(depth - 1, tries // 10))
                if not entry.distinct or text_of(item) not in taken.texts:
                    return entry, item
        return None
