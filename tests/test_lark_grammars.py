"""Ten languages as Lark grammars, walked with masks (:mod:`grammar_walks`); stock Lark judges in both modes.

Every finished walk must parse in the mode asked for; texts that differ from one in a place or two must get
the same verdict from the engine and from Lark. For many walks there is ``tests/tools/grammar_walks.py``.
"""

from __future__ import annotations

import random
from functools import lru_cache

import pytest
import vocabularies
from grammar_walks import GRAMMARS, MODES, PLAIN, grammar_of, judge, vocabulary, walk

import vllm_guided as vg

WALKS = 6
FREE_STEPS = 22
REAL_WALKS = 3
REAL_FREE_STEPS = 12
LONGEST = 70


@lru_cache(maxsize=2)
def compiled(name: str, mode: str) -> vg.CompiledGrammar:
    return vg.GrammarCompiler(vocabulary(name)).compile_lark(grammar_of(name), parser=mode)


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
        text = walk(grammar, name, choices, FREE_STEPS)
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", GRAMMARS)
def test_walks_with_a_real_vocabulary(name: str, mode: str) -> None:
    _, real = vocabularies.llama3()
    grammar = vg.GrammarCompiler(real).compile_lark(grammar_of(name), parser=mode)
    parses, finished = judge(name, mode), 0
    for seed in range(REAL_WALKS):
        text = walk(
            grammar, name, random.Random(f"{name} {seed}"), REAL_FREE_STEPS, lambda token: len(token) < 4, 0.8
        )
        if text is not None and len(text) <= 2 * LONGEST:
            assert parses(text), text
            finished += 1
    assert finished, "no walk finished"
