"""Ways that find a record's tokens without a plain walk of the trie, each against that plain walk.

Records and runs are those that masks of outputs needed (``arena.config_tier1``, ``arena.stack_run``).
"""

# numba has no all() over a generator.
# ruff: noqa: SIM110

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numba
import numpy as np
import pytest
import vocabularies
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import Words
from strategies import grammars as some_grammars
from strategies import vocabularies as some_vocabularies
from test_engine_properties import mask_of, next_token

import vllm_guided as vg
from vllm_guided.grammar import ir
from vllm_guided.runtime import entry, loops, runs, slices, spreading, walks
from vllm_guided.runtime.arena import arena_at
from vllm_guided.runtime.memory import clear

_NONE = np.uint64(0)


@numba.njit  # type: ignore[untyped-decorator]
def _plain(arena: Any, config: Any) -> Any:
    """The row and the escapes of the plain walk."""
    nothing = np.zeros(256, np.uint8)
    _, escapes, count = walks.walk(arena, config, nothing, np.int64(0), _NONE, _NONE, np.int64(0))
    row = arena.scratch_row.copy()
    clear(arena.scratch_row, 0, arena.words)
    return row, escapes[:count].copy()


@numba.njit  # type: ignore[untyped-decorator]
def _same(left: Any, right: Any) -> Any:
    if left.size != right.size:
        return False
    for k in range(left.size):
        if left[k] != right[k]:
            return False
    return True


@numba.njit  # type: ignore[untyped-decorator]
def _enough(arena: Any, found: Any, escapes: Any, row: Any) -> Any:
    """Whether ``found`` are ``escapes``, but for some behind which ``row`` has all tokens."""
    j = 0
    for node in escapes:
        if j < found.size and found[j] == node:
            j += 1
            continue
        for k in range(arena.trie_token_start[node + 1], arena.trie_token_start[arena.trie_next[node]]):
            token = arena.trie_tokens[k]
            if (row[token >> 5] >> np.int32(token & 31)) & 1 == 0:
                return False
    return j == found.size


@numba.njit  # type: ignore[untyped-decorator]
def compare_records(address: Any) -> Any:
    """How many configurations were compared by ``walk_loop`` and by ``spread``; the first that differed."""
    arena = arena_at(address)
    counts = np.zeros(3, np.int64)
    counts[2] = -1
    for config in range(2, arena.config_count):
        if arena.config_tier1[config] < 0:
            continue
        row, escapes = _plain(arena, np.int64(config))
        for endless in (False, True):
            allowed, found, count = loops.walk_loop(arena, np.int64(config), endless)
            if allowed >= 0:
                counts[0] += 1
                same = _same(arena.scratch_row[: arena.words], row)
                if not same or not _enough(arena, found[:count], escapes, row):
                    counts[2] = config
                clear(arena.scratch_row, 0, arena.words)
        first = np.int64(arena.id_count)
        arena.closings = np.int64(0)
        spreading.enter(arena, np.int64(0), np.int64(config))
        arena.escape_count = np.int64(0)
        spreading.spread(arena, False)
        counts[1] += 1
        other = np.zeros(row.size, np.int32)
        for k in range(first, arena.id_count):
            other[arena.ids[k] >> 5] |= np.int32(1) << np.int32(arena.ids[k] & 31)
        left = arena.escapes[: arena.escape_count].copy()
        for k in range(left.size):
            left[k] = arena.level_node[left[k]]
        left.sort()
        if not _same(other, row) or not _same(left, escapes):
            counts[2] = config
        arena.id_count = first
        if counts[2] >= 0:
            break
    return counts


@numba.njit  # type: ignore[untyped-decorator]
def _compare_run(arena: Any, rests: Any, stack: Any, begin: Any, count: Any, counts: Any) -> None:
    row = np.zeros(arena.words, np.int32)
    for k in range(begin, begin + count):
        row[arena.ids[k] >> 5] |= np.int32(1) << np.int32(arena.ids[k] & 31)
    first = np.int64(arena.id_count)
    config = spreading.after_return(arena, stack)
    if config > 0:
        runs.follow(arena, rests, config)
    other = np.zeros(arena.words, np.int32)
    for k in range(first, arena.id_count):
        other[arena.ids[k] >> 5] |= np.int32(1) << np.int32(arena.ids[k] & 31)
    arena.id_count = first
    counts[0] += 1
    if not _same(row, other):
        counts[2] = rests << 32 | stack


@numba.njit  # type: ignore[untyped-decorator]
def compare_runs(address: Any) -> Any:
    """How many runs of rests were compared with following them whole, how many in parts; which differed."""
    arena = arena_at(address)
    counts = np.zeros(3, np.int64)
    counts[1] = arena.part_count
    counts[2] = -1
    for stack in range(2, arena.stack_count):
        entry = np.int64(arena.stack_run[stack])
        while entry >= 0:
            rests = arena.run_entry[2 * entry] >> 32
            begin, count = runs.run_rests(arena, rests, np.int64(stack))
            if arena.run_entry[2 * entry + 1] != begin << 32 | count:
                counts[2] = rests << 32 | stack
            _compare_run(arena, rests, np.int64(stack), begin, count, counts)
            entry = np.int64(np.int32(arena.run_entry[2 * entry] & 0xFFFFFFFF))
    for slot in range(runs.RUN * arena.run_slots, 2 * runs.RUN * arena.run_slots, runs.RUN):
        key = arena.run_table[slot]
        if key >= 0:
            ids = arena.run_table[slot + 1]
            _compare_run(arena, key >> 32, key & 0xFFFFFFFF, ids >> 32, ids & 0xFFFFFFFF, counts)
    return counts


def address_of(grammar: vg.CompiledGrammar) -> Any:
    return grammar.matcher()._runtime.address


def item(**more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"id": {"type": "integer"}, "é b": {"type": "string"}, **more}}


LONG = 'words and "quotes", é 日本 \\ and \n more; ' * 3
CASES: dict[str, tuple[Any, Any]] = {
    "a word inside": ({"type": "string", "pattern": "rocket_font"}, "a rocket_rocket_font, é and so on"),
    "many digits inside": ({"type": "string", "pattern": "[A-Fa-f0-9]{64}"}, "xyz" + "0aF" * 25 + "é-"),
    "a word that may end": ({"type": "string", "pattern": "^ab|c"}, "xxabcé"),
    "at most": ({"type": "string", "pattern": "a", "maxLength": 12}, "xyza" * 3),
    "of two lengths": ({"type": "string", "pattern": "^([^a]{20}|[^b]{9})$"}, "é" * 20),
    "not a letter": ({"type": "string", "pattern": "^[^z]+$"}, LONG),
    "an address": ({"type": "string", "format": "email"}, "john.doe@example.com"),
    "records": (
        {"type": "array", "items": item(more={"type": "array", "items": item()})},
        [{"id": 1, "é b": LONG, "more": [{"id": 22, "é b": "x"}, {"é b": "y", "id": 333}], "x": [1, {}]}] * 3,
    ),
    "closed records": (
        {"type": "array", "items": item() | {"additionalProperties": False}},
        [{"é b": LONG, "id": 1}, {"id": 2}, {}, {"id": 3, "é b": ""}],
    ),
    "the dot": ({"type": "string", "pattern": "^[^/](.+)[^/]$"}, "an anchor/é日, with\u2028"),
    "names of a class": (
        {"type": "object", "patternProperties": {"^[a-z0-9._-]+$": {"type": "integer"}}},
        {"default": 1, "é": 2, "a.b": 3},
    ),
    "numbers": ({"additionalProperties": {"type": "number"}, "type": "object"}, {"a": 1.5, "b": -2e7}),
}


@pytest.fixture(scope="module")
def real() -> Any:
    return vocabularies.llama3()


@pytest.mark.parametrize("name", CASES)
def test_a_real_vocabulary(name: str, real: Any) -> None:
    schema, value = CASES[name]
    encoding, vocabulary = real
    compiler = vg.GrammarCompiler(vocabulary)
    grammar = compiler.compile_json_schema(schema)
    bitmask = vg.allocate_token_bitmask(1, vocabulary.size)
    for separators in ((", ", ": "), (",", ":")):
        matcher = grammar.matcher()
        text = json.dumps(value, ensure_ascii=False, separators=separators)
        for token in encoding.encode_ordinary(text):
            matcher.fill_bitmask(bitmask, 0)
            assert matcher.accept_tokens([token])
    counts = compare_records(address_of(grammar))
    assert counts[1] > 0 and counts[2] < 0, counts
    if "pattern" in schema:
        assert counts[0] > 0, counts
    counts = compare_runs(address_of(grammar))
    assert counts[2] < 0, counts
    if isinstance(value, list):
        assert counts[0] > 0 and counts[1] > 0, counts


def test_what_is_found_often_is_kept_once() -> None:
    """In how many ways a token is read must not show in what is kept: that grew to gigabytes."""
    body = ir.Sequence(
        (ir.Literal(b"a"), ir.Repeat(ir.Ref("start"), 0, 3), ir.CharSet(((0, 0xD7FF), (0xE000, 0x10FFFF))))
    )
    grammar = ir.Grammar({"start": ir.Rule(body)}, "start")
    tokens = [b"a" * 7, b"b" * 7, b"a" * 23, b"b" * 23]
    compiler = vg.GrammarCompiler(vg.Vocabulary([*tokens, None], stop_token_ids=[len(tokens)]))
    matcher = compiler.compile_grammar_ir(grammar).matcher()
    bitmask = vg.allocate_token_bitmask(1, len(tokens) + 1)
    for token in (2, 2, 2, 3):
        matcher.fill_bitmask(bitmask, 0)
        for other in range(len(tokens) + 1):
            assert bool(bitmask[0, 0] >> other & 1) == bool(matcher.validate_tokens([other]))
        assert matcher.accept_tokens([token])
    assert compiler.statistics()["bytes"] < 1 << 28


@given(st.data())
def test_small_vocabularies(data: st.DataObject) -> None:
    choices: random.Random = data.draw(st.randoms(use_true_random=False))
    grammar = data.draw(some_grammars())
    words: Words = data.draw(some_vocabularies(grammar))
    try:
        bound = vg.GrammarCompiler(words.build()).compile_grammar_ir(grammar)
    except vg.InvalidConstraint:
        assume(False)
    for _ in range(3):
        matcher = bound.matcher()
        for _ in range(6):
            mask = mask_of(matcher, words)
            if not mask or not matcher.accept_tokens([next_token(mask, words, choices)]):
                break
    assert compare_records(address_of(bound))[2] < 0
    assert compare_runs(address_of(bound))[2] < 0


@given(st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=30))
def test_levels(tokens: list[bytes]) -> None:
    trie = vg.Vocabulary([*tokens, None], stop_token_ids=[len(tokens)]).trie
    kids, kid_byte, starts, ids, node_of, place_of = slices.levels_of(
        trie.node_byte, trie.node_next, trie.node_token_start, trie.node_tokens
    )
    names: dict[int, bytes] = {0: b""}
    for place in range(len(node_of)):
        own: list[bytes] = []
        assert place_of[node_of[place]] == place
        for kid in range(kids[place], kids[place + 1]):
            names[kid] = names[place] + bytes([kid_byte[kid]])
            own.append(names[kid])
        longer = {data[: len(names[place]) + 1] for data in tokens if data.startswith(names[place])}
        assert own == sorted(longer - {names[place]})
        here: NDArray[np.int32] = ids[starts[place] : starts[place + 1]]
        assert sorted(here.tolist()) == [i for i, data in enumerate(tokens) if data == names[place]]
    assert set(names.values()) == {data[:n] for data in tokens for n in range(len(data) + 1)}


@pytest.mark.parametrize(
    "pattern",
    [r"1.{2,26}[^0-9]+\d{3}", r"-.{0,26}[^0-9]+\d{3}", r"1.{2,40}[^a-z]+\w{3}", r"([1a].{3,30}-\w)+"],
)
def test_rules_that_are_not_deterministic(pattern: str) -> None:
    """A byte leads a state of such rules to several others, which are all followed."""
    choices = random.Random(pattern)
    longer = {"".join(choices.choices("1a.-é ", k=choices.randint(2, 8))).encode() for _ in range(500)}
    # Few tokens begin as the text does: they are looked for by their states.
    tokens = [*(bytes([byte]) for byte in range(256)), *sorted(longer), *(b"z%d" % k for k in range(3000))]
    vocabulary = vg.Vocabulary([*tokens, None], stop_token_ids=[len(tokens)])
    grammar = vg.GrammarCompiler(vocabulary).compile_regex(pattern)
    automaton = grammar.automaton
    assert any(
        automaton.edge_low[k] <= automaton.edge_high[k - 1]
        for first, past in itertools.pairwise(automaton.edge_offsets)
        for k in range(first + 1, past)
    ), "a deterministic rule"
    ids = np.arange(len(tokens) + 1, dtype=np.int32)
    row = vg.allocate_token_bitmask(1, len(ids))
    for _ in range(8):
        matcher = grammar.matcher()
        for _ in range(8):
            matcher.fill_bitmask(row, 0)
            tried = np.zeros(len(ids), np.int32)
            states = np.full_like(tried, matcher.state)
            entry.advance_batch(matcher._runtime.address, states, ids, tried)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: len(ids)]
            assert np.flatnonzero(bits).tolist() == np.flatnonzero(tried).tolist()
            going_on = [id for id in np.flatnonzero(tried).tolist() if id < len(tokens)]
            if not going_on:
                break
            assert matcher.accept_tokens([choices.choice(going_on)])
