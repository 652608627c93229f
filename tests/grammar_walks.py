"""Languages written as Lark grammars, walked with masks; stock Lark judges in both of its modes.

The grammars are those of ten languages (``grammars/*.lark``), and two that lie in the lark package. A walk
draws tokens from the mask alone; then a shortest way to an end is searched, first over what closes quotes and
brackets and over the grammar's own words, then over every character.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from lark import Lark
from lark.exceptions import LarkError

import vllm_guided as vg

GRAMMARS = {
    path.stem: path.read_text() for path in sorted((Path(__file__).parent / "grammars").glob("*.lark"))
}
PACKAGED = {
    "lark.lark": (files("lark") / "grammars" / "lark.lark").read_text(),
    "python.lark": "%import python.test\nstart: test\n%ignore /[ \\t]+/",
}
MODES = {
    "earley": {"parser": "earley", "lexer": "dynamic_complete", "ambiguity": "forest"},
    "lalr": {"parser": "lalr"},
}
CLOSERS = ")]}>\"'/;:=1 xT.-*,"
PLAIN = [*map(chr, range(32, 127)), "\n", "é"]
SEARCHED = 500


def grammar_of(name: str) -> str:
    """The text of a grammar."""
    return GRAMMARS.get(name) or PACKAGED[name]


def words_of(name: str) -> list[str]:
    """The words and signs that the grammar's literals name."""
    return sorted(set(re.findall(r'"([A-Za-z]{2,}|[^\w\s"\\]{2,3})"', grammar_of(name))))


@lru_cache(maxsize=len(GRAMMARS))
def vocabulary(name: str) -> vg.Vocabulary:
    """Printable characters, and the grammar's own words."""
    tokens: list[bytes | None] = [text.encode() for text in (*PLAIN, *words_of(name))]
    return vg.Vocabulary([*tokens, None], stop_token_ids=[len(tokens)])


@lru_cache(maxsize=2)
def judge(name: str, mode: str) -> Callable[[str], bool]:
    """Whether stock Lark parses a text."""
    parser = Lark(grammar_of(name), **MODES[mode])

    def parses(text: str) -> bool:
        try:
            parser.parse(text)
        except LarkError:
            return False
        return True

    return parses


def way_out(matcher: vg.GrammarMatcher, steps: list[list[int]]) -> list[int] | None:
    """A shortest way to where the output may end; None if none was found."""
    seen = {matcher.state}
    todo: list[tuple[vg.GrammarMatcher, list[int]]] = [(matcher, [])]
    for here, path in todo:
        if here.is_accepting():
            return path
        for tokens in steps:
            states = here.peek_states(tokens)
            if len(states) == len(tokens) and states[-1] not in seen and len(seen) < SEARCHED:
                seen.add(states[-1])
                after = here.copy()
                assert after.accept_tokens(tokens)
                todo.append((after, [*path, *tokens]))
    return None


def walk(
    grammar: vg.CompiledGrammar,
    name: str,
    choices: random.Random,
    free_steps: int,
    short: Callable[[bytes], bool] = lambda token: len(token) > 1,
    share: float = 0.4,
) -> str | None:
    """A random output of the masks; None where no short way to an end was found.

    Args:
        grammar: the compiled grammar, with its vocabulary.
        name: the language.
        choices: the source of chance.
        free_steps: most tokens that are drawn before the way to an end is looked for.
        short: tokens that are drawn first, in a ``share`` of the steps.
    """
    known = grammar.vocabulary
    matcher = grammar.matcher()
    bitmask = vg.allocate_token_bitmask(1, known.size)
    stops = known.stop_token_ids
    taken: list[int] = []
    for _ in range(choices.randint(2, free_steps)):
        matcher.fill_bitmask(bitmask, 0)
        allowed = np.flatnonzero(np.unpackbits(bitmask[0].view(np.uint8), bitorder="little"))
        assert allowed.size, "no token is allowed"
        tokens = [int(token) for token in allowed if token not in stops]
        if not tokens:
            break
        liked = [token for token in tokens if short(known.token_bytes(token) or b"")]
        taken.append(choices.choice(liked if liked and choices.random() < share else tokens))
        assert matcher.accept_tokens([taken[-1]])
    words = [known.encode_greedy(word.encode()) for word in words_of(name)]
    letters = {letter: known.encode_greedy(letter.encode()) for letter in PLAIN}
    path = way_out(matcher, [*(letters[letter] for letter in CLOSERS), *words])
    path = path or way_out(matcher, [*letters.values(), *words])
    if path is None:
        return None
    assert matcher.accept_tokens([*path, stops[0]])
    return b"".join(known.token_bytes(token) or b"" for token in [*taken, *path]).decode()
