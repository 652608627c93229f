"""The compiler: what it remembers, and that its memory is bounded in bytes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref

import vocabularies

import vllm_guided as vg
from vllm_guided.runtime.binding import Runtime


def drawn(grammar: vg.CompiledGrammar, text: bytes) -> vg.GrammarMatcher:
    """A matcher that has followed ``text``, with a mask at each step."""
    vocabulary = grammar.vocabulary
    bitmask = vg.allocate_token_bitmask(1, vocabulary.size)
    matcher = grammar.matcher()
    for token in vocabulary.encode_greedy(text):
        matcher.fill_bitmask(bitmask, 0)
        assert matcher.accept_tokens([token])
    return matcher


def test_equal_constraints_share_a_grammar() -> None:
    _, vocabulary = vocabularies.tiny()
    compiler = vg.GrammarCompiler(vocabulary)
    assert compiler.compile_regex("a+b") is compiler.compile_regex("a+b")
    assert compiler.compile_json_schema('{"type": "null"}') is compiler.compile_json_schema({"type": "null"})


def test_replaced_tables_go_with_their_last_matcher() -> None:
    _, vocabulary = vocabularies.tiny()
    compiler = vg.GrammarCompiler(vocabulary, max_bytes=1)
    seen: list[weakref.ref[Runtime]] = []
    kept = drawn(compiler.compile_regex("x{3}y"), b"xx")
    grammars = []
    for count in range(1, 30):
        grammar = compiler.compile_regex(f"a{{{count}}}(b|c)+")
        grammars.append(grammar)
        drawn(grammar, b"a" * count + b"bc")
        seen.append(weakref.ref(compiler.runtime()))
    gc.collect()
    assert sum(runtime() is not None for runtime in seen) <= 2
    # A matcher goes on in the tables it began with, and a remembered grammar begins in new ones.
    assert kept.accept_tokens(vocabulary.encode_greedy(b"x"))
    assert all(drawn(grammar, b"a") for grammar in grammars)


def test_tables_larger_than_memory_keep_no_process_from_forking() -> None:
    _, vocabulary = vocabularies.tiny()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    compiler = vg.GrammarCompiler(vocabulary, max_bytes=memory)
    drawn(compiler.compile_regex("a+b"), b"aab")
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_limited_address_space_is_left_for_others() -> None:
    """Compilers beyond the limit get smaller tables; what they do not use can still be allocated."""
    program = """
import resource, numpy, vllm_guided as vg
words = vg.Vocabulary([*(bytes([byte]) for byte in range(256)), None], stop_token_ids=[256])
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
kept = [vg.GrammarCompiler(words) for _ in range(12)]
assert all(compiler.compile_regex("a+").matcher().accept_bytes(b"aa") for compiler in kept)
assert numpy.empty(64 << 20, numpy.uint8).size
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
