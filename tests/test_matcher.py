"""The matcher and the compiler by example: what a caller sees, and what a wrong call gets."""

from __future__ import annotations

import threading
from typing import Any

import naive
import numpy as np
import pytest
from test_naive import TABLE

import vllm_guided as vg
from vllm_guided.grammar import ir

# Ids 0 to 255 are the bytes; then some longer tokens, specials, and two stop tokens.
LONGER = [b"ab", b"abc", b"bb", b'"a', "é".encode(), b"aaaa"]
FIRST_LONGER = 256
SPECIAL = {"<x>": 270, "<y>": 271}
STOPS = [280, 281]
SIZE = 300


def vocabulary() -> vg.Vocabulary:
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)] + LONGER
    tokens += [None] * (SIZE - len(tokens))
    return vg.Vocabulary(tokens, stop_token_ids=STOPS, special_tokens=SPECIAL)


@pytest.fixture
def compiler() -> vg.GrammarCompiler:
    return vg.GrammarCompiler(vocabulary())


def grammar(start: ir.Node, **rules: ir.Node) -> ir.Grammar:
    return ir.Grammar({"start": ir.Rule(start), **{name: ir.Rule(body) for name, body in rules.items()}})


def ids(text: bytes) -> list[int]:
    """The text as single bytes, which are their own ids."""
    return list(text)


def allowed(matcher: vg.GrammarMatcher) -> set[int]:
    bitmask = vg.allocate_token_bitmask(1, SIZE)
    matcher.fill_bitmask(bitmask, 0)
    bits = np.unpackbits(bitmask[0].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


# Special tokens by id mean other tokens in this vocabulary: see test_special_tokens.
@pytest.mark.parametrize("name", [name for name in TABLE if "special token" not in name])
def test_truth_table(name: str, compiler: vg.GrammarCompiler) -> None:
    """The reference's own table, by the engine."""
    language, accepted, beginnings, neither = TABLE[name]
    if not accepted:
        with pytest.raises(vg.InvalidConstraint):
            compiler.compile_grammar_ir(language)
        return
    matcher = compiler.compile_grammar_ir(language).matcher()
    for expected, datas in (("accepted", accepted), ("beginning", beginnings), ("neither", neither)):
        for data in datas:
            matcher.reset()
            tokens = [
                SPECIAL[str(symbol[1])] if isinstance(symbol, tuple) else symbol
                for symbol in naive.symbols_of(data)
            ]
            taken = matcher.accept_tokens(tokens)
            assert taken == (expected != "neither"), data
            if taken:
                assert matcher.is_accepting() == (expected == "accepted"), data
                assert matcher.accept_tokens(STOPS[:1]) == (expected == "accepted"), data


def test_mask_and_stop_tokens(compiler: vg.GrammarCompiler) -> None:
    matcher = compiler.compile_regex("a(bc?)?").matcher()
    assert allowed(matcher) == {ord("a"), FIRST_LONGER, FIRST_LONGER + 1}
    assert not matcher.accept_tokens([STOPS[0]])
    assert matcher.accept_tokens([FIRST_LONGER])
    assert allowed(matcher) == {ord("c"), *STOPS}
    for stop in STOPS:
        assert matcher.is_accepting() and not matcher.is_terminated()
        assert matcher.accept_tokens([stop])
        assert matcher.is_terminated() and matcher.is_accepting()
        assert not matcher.accept_tokens([stop]) and not matcher.accept_tokens([ord("c")])
        matcher.rollback(1)
    assert allowed(matcher) == {ord("c"), *STOPS}


def test_only_the_end_is_forced(compiler: vg.GrammarCompiler) -> None:
    """Where nothing else may follow, the stop tokens are all that is allowed."""
    matcher = compiler.compile_choice(["abc"]).matcher()
    assert matcher.accept_tokens([FIRST_LONGER + 1])
    assert allowed(matcher) == set(STOPS)


def test_forced_tokens() -> None:
    words = vg.Vocabulary([b"a", b"b", b"c", None], stop_token_ids=[3])
    table = [
        ("abc", [], [0, 1, 2, 3]),
        ("ab|ac", [], [0]),
        ("a|b", [], []),
        ("a*", [0], []),
        ("ab*c", [0, 2], [3]),
    ]
    compiler = vg.GrammarCompiler(words)
    for pattern, before, forced in table:
        matcher = compiler.compile_regex(pattern).matcher()
        assert matcher.accept_tokens(before)
        assert matcher.forced_tokens() == forced, pattern
        assert matcher.forced_tokens() == forced, pattern


def test_refused_tokens_change_nothing(compiler: vg.GrammarCompiler) -> None:
    matcher = compiler.compile_regex("ab+c").matcher()
    assert not matcher.accept_tokens(ids(b"abx"))
    assert matcher.accept_tokens(ids(b"abb"))
    assert not matcher.accept_tokens(ids(b"bca"))
    assert matcher.validate_tokens(ids(b"bca")) == ids(b"bc")
    assert matcher.validate_tokens([*ids(b"bc"), STOPS[1], STOPS[1]]) == [*ids(b"bc"), STOPS[1]]
    assert matcher.accept_tokens(ids(b"c")) and matcher.is_accepting()


def test_rollback_reset_copy(compiler: vg.GrammarCompiler) -> None:
    matcher = compiler.compile_regex("(ab)*").matcher()
    start = allowed(matcher)
    assert matcher.accept_tokens(ids(b"aba"))
    twin = matcher.copy()
    assert matcher.accept_tokens(ids(b"b")) and matcher.is_accepting() and not twin.is_accepting()
    twin.rollback(1)
    assert twin.is_accepting() and twin.accept_tokens([STOPS[0]]) and not matcher.is_terminated()
    twin.rollback(3)
    assert allowed(twin) == start
    with pytest.raises(ValueError):
        twin.rollback(1)
    with pytest.raises(ValueError):
        twin.rollback(-1)
    matcher.reset()
    assert allowed(matcher) == start and matcher.accept_tokens(ids(b"ab"))


def test_special_tokens(compiler: vg.GrammarCompiler) -> None:
    """Special tokens are taken whole, never spelt, and masked unless the grammar names them."""
    named = ir.SpecialToken(frozenset({"<x>"}))
    matcher = compiler.compile_grammar_ir(grammar(ir.sequence(named, ir.star(ir.ANY_CHAR)))).matcher()
    assert allowed(matcher) == {SPECIAL["<x>"]}
    assert not matcher.accept_tokens(ids(b"<x>"))
    assert matcher.accept_tokens([SPECIAL["<x>"]])
    assert allowed(matcher).isdisjoint(SPECIAL.values())
    assert matcher.accept_tokens(ids(b"<x>"))
    other = ir.SpecialToken(frozenset({"<x>"}), ((0, 254),), negated=True)
    matcher = compiler.compile_grammar_ir(grammar(other)).matcher()
    assert allowed(matcher) == {255, *range(FIRST_LONGER, FIRST_LONGER + len(LONGER)), SPECIAL["<y>"]}
    ranged = ir.SpecialToken(ids=((97, 97), (256, 256)))
    matcher = compiler.compile_grammar_ir(grammar(ir.sequence(ranged, ir.Literal(b"b")))).matcher()
    assert allowed(matcher) == {97, 256}
    assert matcher.accept_tokens([256, ord("b"), STOPS[0]])


def test_special_tokens_the_vocabulary_lacks(compiler: vg.GrammarCompiler) -> None:
    for node in (ir.SpecialToken(frozenset({"<z>"})), ir.SpecialToken(ids=((SIZE, SIZE),))):
        with pytest.raises(vg.InvalidConstraint):
            compiler.compile_grammar_ir(grammar(ir.optional(node)))


@pytest.mark.parametrize(
    "bitmask,row,error",
    [
        (np.zeros((2, 10), np.int64), 0, TypeError),
        (np.zeros((2, 10), np.float32), 0, TypeError),
        ([[0] * 10], 0, TypeError),
        (np.zeros(10, np.int32), 0, ValueError),
        (np.zeros((2, 9), np.int32), 0, ValueError),
        (np.zeros((2, 20), np.int32)[:, ::2], 0, ValueError),
        (np.frombuffer(bytes(80), np.int32).reshape(2, 10), 0, ValueError),
        (np.zeros((2, 10), np.int32), 2, IndexError),
        (np.zeros((2, 10), np.int32), -1, IndexError),
    ],
)
def test_wrong_bitmasks(bitmask: Any, row: int, error: type[Exception], compiler: vg.GrammarCompiler) -> None:
    matcher = compiler.compile_choice(["a"]).matcher()
    with pytest.raises(error):
        matcher.fill_bitmask(bitmask, row)
    with pytest.raises(error):
        vg.fill_bitmask_batch([matcher], bitmask, [row])


def test_a_bitmask_again(compiler: vg.GrammarCompiler) -> None:
    """An array that a mask was written to before is taken as it is, until it is another one."""
    matcher = compiler.compile_choice(["a"]).matcher()
    bitmask = np.zeros((2, 10), np.int32)
    for row in (0, 1, 0):
        bitmask[:] = 0
        matcher.fill_bitmask(bitmask, row)
        assert bitmask.any(axis=1).tolist() == [row == 0, row == 1]
    for row in (2, -1):
        with pytest.raises(IndexError):
            matcher.fill_bitmask(bitmask, row)
    with pytest.raises(TypeError):
        matcher.fill_bitmask(bitmask, None)  # type: ignore[arg-type]
    bitmask.shape = (4, 5)
    with pytest.raises(ValueError, match="wider"):
        matcher.fill_bitmask(bitmask, 0)
    bitmask.resize((2, 2, 5), refcheck=False)
    with pytest.raises((TypeError, ValueError)):
        matcher.fill_bitmask(bitmask, 0)
    del bitmask
    with pytest.raises(TypeError, match="NoneType"):
        matcher.fill_bitmask(None, 0)


@pytest.mark.parametrize("tokens", [["97"], [97.0], [None], [[97]], "a", np.array([97.5]), np.array([[97]])])
@pytest.mark.parametrize("times", [1, 2])
def test_tokens_are_integers(tokens: Any, times: int, compiler: vg.GrammarCompiler) -> None:
    """One token and many go different ways, with the same answers."""
    matcher = compiler.compile_regex("a*").matcher()
    many = np.concatenate([tokens] * times) if isinstance(tokens, np.ndarray) else tokens * times
    for call in (matcher.accept_tokens, matcher.validate_tokens):
        with pytest.raises(TypeError):
            call(many)
    assert matcher.token_count == 0


@pytest.mark.parametrize("token", [10**20, -(10**20), 1 << 32 | 97, SIZE, -1])
@pytest.mark.parametrize("others", [[], [97]])
def test_tokens_of_no_vocabulary(token: int, others: list[int], compiler: vg.GrammarCompiler) -> None:
    matcher = compiler.compile_regex("a*").matcher()
    assert not matcher.accept_tokens([*others, token])
    assert matcher.validate_tokens([*others, token]) == others
    assert vg.accept_tokens_batch([matcher], [token]) == [False]


@pytest.mark.parametrize("kind", [np.int32, np.uint64, np.uint8])
def test_tokens_in_arrays(kind: Any, compiler: vg.GrammarCompiler) -> None:
    matcher = compiler.compile_regex("ab|c").matcher()
    assert matcher.accept_tokens(np.array([97, 98], kind))  # type: ignore[arg-type]
    matcher.reset()
    assert matcher.accept_tokens(np.array([99], kind))  # type: ignore[arg-type]


def test_a_torch_bitmask_is_filled_in_place(compiler: vg.GrammarCompiler) -> None:
    torch = pytest.importorskip("torch")
    bitmask = torch.full((2, 12), -1, dtype=torch.int32)
    matcher = compiler.compile_choice(["a"]).matcher()
    matcher.fill_bitmask(bitmask, 1)
    expected = [0, 0, 0, 1 << 1, *[0] * 8]
    assert bitmask[1].tolist() == expected and bitmask[0].tolist() == [-1] * 12
    vg.fill_bitmask_batch([matcher, None], bitmask)
    assert bitmask[0].tolist() == expected and bitmask[1].tolist() == [-1] * 12


def test_wrong_batches(compiler: vg.GrammarCompiler) -> None:
    matcher = compiler.compile_choice(["ab"]).matcher()
    with pytest.raises(ValueError):
        vg.accept_tokens_batch([matcher, matcher], [97, 98])
    with pytest.raises(ValueError):
        vg.accept_tokens_batch([matcher], [97, 98])
    with pytest.raises(ValueError):
        vg.fill_bitmask_batch([matcher], vg.allocate_token_bitmask(2, SIZE), [0, 1])
    assert vg.accept_tokens_batch([], []) == []
    vg.fill_bitmask_batch([], vg.allocate_token_bitmask(1, SIZE), [])
    assert matcher.accept_tokens(ids(b"ab"))


def test_tables_are_bounded() -> None:
    """Past its bytes a compiler starts afresh; matchers from before go on, side by side with new ones."""
    compiler = vg.GrammarCompiler(vocabulary(), max_bytes=1)
    old = compiler.compile_regex("a+b").matcher()
    assert old.accept_tokens([97])
    new = compiler.compile_regex("a+b").matcher()
    other = compiler.compile_regex("[xy]").matcher()
    bitmask = vg.allocate_token_bitmask(4, SIZE)
    vg.fill_bitmask_batch([new, old, None, other], bitmask, [3, 1, 0, 2])
    for row, matcher in ((3, new), (1, old), (2, other)):
        single = vg.allocate_token_bitmask(1, SIZE)
        matcher.fill_bitmask(single, 0)
        assert (bitmask[row] == single[0]).all()
    assert (bitmask[0] == -1).all()
    assert vg.accept_tokens_batch([old, new, other], [98, 98, 120]) == [True, False, True]
    assert [m.is_accepting() for m in (old, new, other)] == [True, False, True]


def test_equal_grammars_share_their_tables(compiler: vg.GrammarCompiler) -> None:
    first = compiler.compile_regex("(ab|ac)*")
    before = compiler.statistics()["states"]
    second = compiler.compile_regex("(a(b|c))*")
    assert compiler.statistics()["states"] == before
    assert first.matcher().state == second.matcher().state


AMBIGUOUS = {
    "counts inside recursion": grammar(
        ir.choice(ir.sequence(ir.Ref("q"), ir.Ref("q")), ir.Literal(b"a")),
        q=ir.Repeat(ir.Ref("start"), 17, None),
    ),
    "counts of counts": grammar(
        ir.choice(ir.Repeat(ir.Repeat(ir.Ref("start"), 2, 4), 3, None), ir.Literal(b"a"))
    ),
    "pairs": grammar(ir.choice(ir.sequence(ir.Ref("start"), ir.Ref("start")), ir.Literal(b"a"))),
    "a count within a count": grammar(ir.Repeat(ir.Repeat(ir.Literal(b"a"), 1, 30), 1, 30)),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguity_is_exact_or_ends_with_an_error(name: str, compiler: vg.GrammarCompiler) -> None:
    """However often the same text can be read, the answers are right, or the request ends with an error."""
    language = AMBIGUOUS[name]
    matcher = compiler.compile_grammar_ir(language).matcher()
    recogniser = naive.Recogniser(language)
    for length in range(45):
        try:
            mask = allowed(matcher)
        except vg.ConstraintTooComplex:
            assert compiler.statistics()["overflowed"] > 0 and length > 10
            return
        assert matcher.is_accepting() == recogniser.accepting()
        assert recogniser.push(97) and mask >= {97}
        assert matcher.accept_tokens([97])
    assert compiler.statistics()["overflowed"] == 0


def test_a_vocabulary_that_cannot_spell_the_rest() -> None:
    """The row is empty and the request ends with an error; the rest of the batch is not concerned."""
    words = vg.Vocabulary([b"a", b"b", None], stop_token_ids=[2])
    compiler = vg.GrammarCompiler(words)
    stuck, fine = compiler.compile_regex("ac|b").matcher(), compiler.compile_regex("aa").matcher()
    bitmask = vg.allocate_token_bitmask(2, 3)
    assert vg.fill_bitmask_batch([stuck, fine], bitmask) == []
    assert bitmask[:, 0].tolist() == [3, 1]
    assert vg.accept_tokens_batch([stuck, fine], [0, 0]) == [True, True]
    assert vg.fill_bitmask_batch([stuck, fine], bitmask) == [0]
    assert bitmask[:, 0].tolist() == [0, 1]
    with pytest.raises(vg.ConstraintTooComplex, match="cannot spell"):
        stuck.fill_bitmask(bitmask, 1)
    assert bitmask[1, 0] == 0
    stuck.rollback(1)
    assert vg.fill_bitmask_batch([stuck, fine], bitmask) == []


def test_compile_and_match_in_many_threads(compiler: vg.GrammarCompiler) -> None:
    """Threads that compile new grammars while others fill, advance and ask."""
    errors: list[BaseException] = []
    stop = threading.Event()

    def compile_new(number: int) -> None:
        for k in range(60):
            matcher = compiler.compile_regex(f"[a-c]{{{number + 1},{k + 5}}}x{k}").matcher()
            assert allowed(matcher) >= {97, 98, 99}
            assert matcher.accept_tokens(ids(b"a" * (number + 1) + b"x%d" % k)) and matcher.is_accepting()

    def match(_: int) -> None:
        while not stop.is_set():
            matcher = compiler.compile_regex("(ab|b){2,40}").matcher()
            for text in (b"ab", b"b", b"ab" * 20):
                assert matcher.accept_tokens(ids(text)), text
                assert matcher.is_accepting() == (text != b"ab")
                assert STOPS[0] in allowed(matcher) or text == b"ab"
            matcher.rollback(40)
            assert matcher.is_accepting() and allowed(matcher) >= {97, 98, 256, 258, *STOPS}

    def guarded(work: Any, number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)
            stop.set()

    compilers = [threading.Thread(target=guarded, args=(compile_new, number)) for number in range(3)]
    matchers = [threading.Thread(target=guarded, args=(match, number)) for number in range(3)]
    for thread in (*compilers, *matchers):
        thread.start()
    for thread in compilers:
        thread.join(60)
    stop.set()
    for thread in matchers:
        thread.join(60)
    assert not errors
