"""Random walks to the end with a real vocabulary: every finished output is valid, no step is without a bit.

Tokens are drawn from the mask alone. After a while the walk prefers what ends it: a stop token, or a token
that closes quotes and brackets; if that does not help, a shortest way to an end is searched breadth first.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import corpora
import judges
import numpy as np
import pytest
import vocabularies

import vllm_guided as vg

FREE_STEPS = 40
PATIENT_STEPS = 50
MOST_STEPS = 220
SEARCHED = 1000
CLOSERS = [b'"', b"}", b"]", b")", b"}]", b'"}', b'"]', b"1", b"e"]

SCHEMAS: dict[str, Any] = {
    "anything": True,
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 2, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"enum": ["a", "b", 'q"uote', None, 3.5]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "open object": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "z"]},
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "number"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
    },
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3,5}(é|😀)?$"},
    "pattern inside": {"type": "string", "pattern": "a\\\\b", "maxLength": 9},
    "number": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 12.25},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"const": {"k": [1, "x"]}}],
        "items": {"type": "null"},
        "minItems": 3,
        "maxItems": 5,
    },
    "any of": {
        "anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 1000}, {"type": "array"}]
    },
    "twelve or more": {"type": "array", "items": {"type": "integer"}, "minItems": 12, "maxItems": 14},
}

REGEXES = [
    r"\d{3}-\d{4}",
    r"(foo|bar)+ [^\n]{0,20}",
    r"[^a-z]*é?(😀|\u00e8){2}",
    r"(?i:yes|no)(, (?:certainly|never))?\.",
    r"[\w.]+@[a-z]+\.(com|org)",
    r"(a|ab)(c|bcd)(d*)",
]

CHOICES = [["yes", "no", "perhaps"], ['"', "\\", "\n", "😀"], ["a", "ab", "abc", ""]]

LARKS = [
    'start: expr\nexpr: expr "+" term | term\nterm: NUMBER | "(" expr ")"\nNUMBER: /[0-9]{1,4}/',
    'start: item ("," item)*\nitem: /[a-z]{1,5}/ | "[" [item] "]"\n%ignore " "',
    'start: "if " NAME " then " start [" else " start] | "skip"\nNAME: "x" | "yy"',
]

EBNFS = [
    'root ::= "{" pair ("," pair){0,3} "}"\npair ::= [a-z]{1,3} ":" ([0-9]+ | root)',
    'root ::= (expr "=" term)+\nexpr ::= term ([-+*/] term)*\nterm ::= num | "(" expr ")"\nnum ::= [0-9]+',
]


@pytest.fixture(scope="module")
def vocabulary() -> vg.Vocabulary:
    _, made = vocabularies.llama3()
    return made


@pytest.fixture(scope="module")
def compiler(vocabulary: vg.Vocabulary) -> vg.GrammarCompiler:
    return vg.GrammarCompiler(vocabulary)


def way_out(matcher: vg.GrammarMatcher, alphabet: list[int]) -> list[int]:
    """A shortest way over single-byte tokens to where the output may end; empty if none was found."""
    seen = {matcher.state}
    todo: list[tuple[vg.GrammarMatcher, list[int]]] = [(matcher, [])]
    for here, path in todo:
        for token in alphabet:
            states = here.peek_states([token])
            if states and states[0] not in seen and len(seen) < SEARCHED:
                seen.add(states[0])
                after = here.copy()
                after.accept_tokens([token])
                if after.is_accepting():
                    return [*path, token]
                todo.append((after, [*path, token]))
    return []


def walk(
    grammar: vg.CompiledGrammar, vocabulary: vg.Vocabulary, choices: random.Random, names: Sequence[str] = ()
) -> bytes | None:
    """One random output; None if it was not finished in MOST_STEPS.

    Where the walk is to end, members under ``names`` are tried first: drawn by chance, a name that is asked
    for among all names there are would never come.
    """
    hints = [vocabulary.encode_greedy(json.dumps(name).encode()) for name in names]
    matcher = grammar.matcher()
    bitmask = vg.allocate_token_bitmask(1, vocabulary.size)
    stops = set(vocabulary.stop_token_ids)
    closers = [vocabulary.encode_greedy(text)[0] for text in CLOSERS]
    # Without blanks: JSON may have them nearly everywhere, and they lead nowhere.
    alphabet = [vocabulary.encode_greedy(bytes([byte]))[0] for byte in (*range(33, 127), *"é😀".encode())]
    free = choices.randrange(FREE_STEPS)
    output = b""
    planned: list[int] = []
    for step in range(MOST_STEPS):
        matcher.fill_bitmask(bitmask, 0)
        bits = np.unpackbits(bitmask[0].view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        assert allowed.size, f"no token is allowed after {output!r}"
        ending = [stop for stop in stops if bits[stop]]
        assert not ending or matcher.is_accepting()
        closing = [token for token in closers if bits[token]]
        if ending and (step >= free or allowed.size == len(ending) or choices.random() < 0.02):
            token = choices.choice(ending)
        elif planned or (step % 100 == PATIENT_STEPS and (planned := way_out(matcher, alphabet))):
            token = planned.pop(0)
            assert bits[token], f"token {token} is accepted but not in the mask after {output!r}"
        elif (
            step >= free
            and choices.random() < 0.7
            and (fitting := [hint for hint in hints if matcher.validate_tokens(hint) == hint])
        ):
            planned = list(choices.choice(fitting))
            token = planned.pop(0)
        elif closing and step >= free and choices.random() < 0.8:
            token = choices.choice(closing)
        else:
            token = int(choices.choice(allowed))
        assert matcher.accept_tokens([token]), f"token {token} is in the mask but refused after {output!r}"
        if token in stops:
            assert matcher.is_terminated()
            return output
        output += vocabulary.token_bytes(token) or b""
    return None


def judge_walks(
    grammar: vg.CompiledGrammar, vocabulary: vg.Vocabulary, judge: judges.Judge, count: int, seed: int = 0,
    names: Sequence[str] = (),
) -> int:  # fmt: skip
    """How many of ``count`` walks finished; fails on the first invalid output."""
    finished = 0
    for number in range(count):
        output = walk(grammar, vocabulary, random.Random(seed * 1000 + number), names)
        if output is not None:
            finished += 1
            text = output.decode("utf-8")
            complaint = judge(text)
            assert complaint is None, f"{text!r}: {complaint}"
    return finished


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_schema(name: str, compiler: vg.GrammarCompiler, vocabulary: vg.Vocabulary) -> None:
    schema = SCHEMAS[name]
    names = sorted(judges.declared_names(schema))
    grammar = compiler.compile_json_schema(schema)
    judge = judges.json_schema(schema, repeats=True)
    assert judge_walks(grammar, vocabulary, judge, 12, names=names) >= 10


def test_json_object(compiler: vg.GrammarCompiler, vocabulary: vg.Vocabulary) -> None:
    assert judge_walks(compiler.compile_json_object(), vocabulary, judges.json_object, 12) >= 10


@pytest.mark.parametrize("pattern", REGEXES)
def test_regex(pattern: str, compiler: vg.GrammarCompiler, vocabulary: vg.Vocabulary) -> None:
    assert judge_walks(compiler.compile_regex(pattern), vocabulary, judges.regex(pattern), 12) >= 10


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_choice(options: list[str], compiler: vg.GrammarCompiler, vocabulary: vg.Vocabulary) -> None:
    assert judge_walks(compiler.compile_choice(options), vocabulary, judges.choice(options), 12) == 12


@pytest.mark.parametrize("text", LARKS)
def test_lark(text: str, compiler: vg.GrammarCompiler, vocabulary: vg.Vocabulary) -> None:
    assert judge_walks(compiler.compile_lark(text), vocabulary, judges.lark(text), 8) >= 7


@pytest.mark.parametrize("text", EBNFS)
def test_ebnf(text: str, compiler: vg.GrammarCompiler, vocabulary: vg.Vocabulary) -> None:
    judge = judges.naive(corpora.grammar_of("ebnf", text))
    assert judge_walks(compiler.compile_ebnf(text), vocabulary, judge, 8) >= 7


def maskbench_walks(count: int, seed: int, compiler: vg.GrammarCompiler, vocabulary: vg.Vocabulary) -> None:
    """Two walks in each of ``count`` schemas from the wild; what is refused is left out."""
    walks = finished = 0
    for case in corpora.sample(corpora.maskbench(), count, seed):
        try:
            grammar = compiler.compile_json_schema(case.constraint)
        except vg.GrammarError:
            continue
        walks += 2
        try:
            judge = judges.json_schema(case.constraint, formats=False, repeats=True)
            names = sorted(judges.declared_names(case.constraint))
            finished += judge_walks(grammar, vocabulary, judge, 2, names=names)
        except AssertionError as error:
            raise AssertionError(f"{case.id}: {error}") from None
    assert finished >= walks * 0.7


@pytest.mark.skipif(not corpora.DATA.exists(), reason=f"no outside cases: {corpora.DATA} is missing")
def test_maskbench_sample(compiler: vg.GrammarCompiler, vocabulary: vg.Vocabulary) -> None:
    maskbench_walks(30, 1, compiler, vocabulary)


@pytest.mark.slow
@pytest.mark.skipif(not corpora.DATA.exists(), reason=f"no outside cases: {corpora.DATA} is missing")
def test_maskbench_many(compiler: vg.GrammarCompiler, vocabulary: vg.Vocabulary) -> None:
    maskbench_walks(1000, 2, compiler, vocabulary)
