"""Ten languages as Lark grammars (``grammars/*.lark``), walked with masks; stock Lark judges in both modes.

Every finished walk must parse in the mode asked for; texts that differ from one in a place or two must get
the same verdict from the engine and from Lark.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from lark import Lark
from lark.exceptions import LarkError

import vllm_guided as vg

GRAMMARS = {
    path.stem: path.read_text() for path in sorted((Path(__file__).parent / "grammars").glob("*.lark"))
}
MODES = {
    "earley": {"parser": "earley", "lexer": "dynamic_complete", "ambiguity": "forest"},
    "lalr": {"parser": "lalr"},
}
WALKS = 6
FREE_STEPS = 22
LONGEST = 70
SEARCHED = 500
CLOSERS = ")]}>\"'/;:=1 xT.-*,"
PLAIN = [*map(chr, range(32, 127)), "\n", "é"]


@lru_cache(maxsize=len(GRAMMARS))
def vocabulary(name: str) -> vg.Vocabulary:
    """Printable characters, and the words that the grammar's literals name."""
    words = set(re.findall(r'"([A-Za-z]{2,}|[^\w\s"\\]{2,3})"', GRAMMARS[name]))
    tokens: list[bytes | None] = [text.encode() for text in (*PLAIN, *sorted(words))]
    return vg.Vocabulary([*tokens, None], stop_token_ids=[len(tokens)])


@lru_cache(maxsize=2)
def judge(name: str, mode: str) -> Callable[[str], bool]:
    """Whether stock Lark parses a text."""
    parser = Lark(GRAMMARS[name], **MODES[mode])

    def parses(text: str) -> bool:
        try:
            parser.parse(text)
        except LarkError:
            return False
        return True

    return parses


@lru_cache(maxsize=2)
def compiled(name: str, mode: str) -> vg.CompiledGrammar:
    return vg.GrammarCompiler(vocabulary(name)).compile_lark(GRAMMARS[name], parser=mode)


def way_out(matcher: vg.GrammarMatcher, alphabet: list[int]) -> list[int] | None:
    """A shortest way to where the output may end."""
    seen = {matcher.state}
    todo: list[tuple[vg.GrammarMatcher, list[int]]] = [(matcher, [])]
    for here, path in todo:
        if here.is_accepting():
            return path
        for token in alphabet:
            state = here.peek_states([token])
            if state and state[0] not in seen and len(seen) < SEARCHED:
                seen.add(state[0])
                after = here.copy()
                assert after.accept_tokens([token])
                todo.append((after, [*path, token]))
    return None


def walk(grammar: vg.CompiledGrammar, choices: random.Random) -> str | None:
    """A random output of the masks; None where no short way to an end was found."""
    known = grammar.vocabulary
    matcher = grammar.matcher()
    bitmask = vg.allocate_token_bitmask(1, known.size)
    (stop,) = known.stop_token_ids
    taken: list[int] = []
    for _ in range(choices.randint(2, FREE_STEPS)):
        matcher.fill_bitmask(bitmask, 0)
        allowed = np.flatnonzero(np.unpackbits(bitmask[0].view(np.uint8), bitorder="little"))
        assert allowed.size, "no token is allowed"
        tokens = [int(token) for token in allowed if token != stop]
        if not tokens:
            break
        longer = [token for token in tokens if len(known.token_bytes(token) or b"") > 1]
        taken.append(choices.choice(longer if longer and choices.random() < 0.4 else tokens))
        assert matcher.accept_tokens([taken[-1]])
    words = range(len(PLAIN), known.size - 1)
    path = way_out(matcher, [*(PLAIN.index(letter) for letter in CLOSERS), *words])
    path = path or way_out(matcher, list(range(known.size - 1)))
    if path is None:
        return None
    assert matcher.accept_tokens([*path, stop])
    return b"".join(known.token_bytes(token) or b"" for token in [*taken, *path]).decode()


def near(text: str, choices: random.Random) -> str:
    """``text`` with one or two characters more, less or other."""
    letters = list(text)
    for _ in range(choices.randint(1, 2)):
        place = choices.randrange(len(letters) + 1)
        new = choices.choice([*text, *' ab"(\n1.'])
        letters[place : place + choices.randint(0, 1)] = choices.choice([[new], []])
    return "".join(letters)


def accepts(grammar: vg.CompiledGrammar, text: str) -> bool:
    """The engine's verdict."""
    matcher = grammar.matcher()
    ids = [PLAIN.index(letter) for letter in text]
    return matcher.accept_tokens(ids) and matcher.is_accepting()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", GRAMMARS)
def test_walks(name: str, mode: str) -> None:
    grammar, parses = compiled(name, mode), judge(name, mode)
    verdicts = {True: 0, False: 0}
    finished = 0
    for seed in range(WALKS):
        choices = random.Random(f"{name} {seed}")
        text = walk(grammar, choices)
        if text is None or len(text) > LONGEST:
            continue
        finished += 1
        assert parses(text), text
        for _ in range(4):
            other = near(text, choices)
            assert accepts(grammar, other) == parses(other), other
            verdicts[parses(other)] += 1
    assert finished >= WALKS / 2, finished
    assert verdicts[False], verdicts
