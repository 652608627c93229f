"""``%import .name.RULE`` of texts passed in by name: as Lark reads files, and no file is read."""

from __future__ import annotations

import itertools
from pathlib import Path

import naive
import pytest
from lark import Lark
from lark.exceptions import LarkError

import vllm_guided as vg
from vllm_guided.errors import GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.lark import lark_grammar

LIBRARY = {
    "lib": 'item: "x" _sep W\n_sep: ","\nW: V+\nV: "v" | NUM\nNUM: /[0-9]/\nsep{x, s}: x (s x)*\nu: W "q"',
    "folder.one": "%import .two.W\n%import common.INT\nnumbered: W INT",
    "folder.two": "W: /v+/",
}

# grammar, letters of the texts
TABLE = [
    ("%import .lib.item\n%import .lib.NUM\nstart: item NUM", "xv,1"),
    ("%import .lib (item, NUM)\nstart: item NUM?", "xv,1"),
    ("%import .lib.item -> thing\nstart: thing+", "xv,1"),
    ('%import .lib.item\n%extend item: "y"\nstart: item', "xyv,"),
    ('%import .lib.item\n%override item: "y"\nstart: item', "xyv,"),
    ('%import .lib.W\n%extend W: "q"\nstart: W "x"', "vqx1"),
    ('%import .lib.sep\nstart: sep{"x", ","}', "x,v"),
    ("%import .folder.one.numbered\nstart: numbered", "v1x"),
    ("%import .lib.NUM\nW: /x/\nstart: W NUM\n%ignore NUM", "x1v"),
]


@pytest.mark.parametrize("mode", ["earley", "lalr"])
@pytest.mark.parametrize(("text", "letters"), TABLE)
def test_as_lark_does(text: str, letters: str, mode: str, tmp_path: Path) -> None:
    for name, library in LIBRARY.items():
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".lark")
        path.parent.mkdir(exist_ok=True)
        path.write_text(library)
    lexer = {"lexer": "dynamic_complete"} if mode == "earley" else {}
    parser = Lark(
        text, parser=mode, source_path=str(tmp_path / "main.lark"), import_paths=[str(tmp_path)], **lexer
    )
    grammar = lark_grammar(text, parser=mode, imports=LIBRARY)
    seen = set()
    for word in ("".join(word) for n in range(6) for word in itertools.product(letters, repeat=n)):
        try:
            parser.parse(word)
            right = True
        except LarkError:
            right = False
        assert naive.accepts(grammar, word.encode()) == right, (word, right)
        seen.add(right)
    assert seen == {True, False} or (mode == "lalr" and seen == {False})  # the lexer may take too much


def test_names_may_be_paths() -> None:
    imports = {"folder/one.lark": LIBRARY["folder.one"], "folder/two.lark": LIBRARY["folder.two"]}
    grammar = lark_grammar("%import .folder.one.numbered\nstart: numbered", imports=imports)
    assert naive.accepts(grammar, b"vv12")


def test_imports_reach_nested_grammars() -> None:
    grammar = lark_grammar("start: %lark { %import .two.W\n start: W }", imports={"two": "W: /v+/"})
    assert naive.accepts(grammar, b"vv") and not naive.accepts(grammar, b"")


def test_in_the_compiler() -> None:
    compiler = vg.GrammarCompiler(vg.Vocabulary([b"v", b"x", None], stop_token_ids=[2]))
    text = "%import .two.W\nstart: W"
    one = compiler.compile_lark(text, imports={"two": "W: /v/"}).matcher()
    other = compiler.compile_lark(text, imports={"two": "W: /x/"}).matcher()
    assert one.validate_tokens([0, 2]) == [0, 2] and other.validate_tokens([0]) == []


# grammar, the imported text, error, place, part of the message
REFUSED = [
    ("%import .a.x\nstart: x", "%import .a.x\ny: x", InvalidConstraint, "line 1, column 1 of 'a'", "itself"),
    ("%import .a.x\nstart: x", "\nx: (", InvalidConstraint, "line 2, column 5 of 'a'", "Lark cannot read"),
    ("%import .a.x\nstart: x", "\nx: /(a/", InvalidConstraint, "line 2, column 4 of 'a'", "unclosed group"),
    ("%import .a.x\nstart: x", 'y: "a"', InvalidConstraint, "line 1, column 1 of 'a'", "does not define x"),
    ("%import .a.x\nstart: x", "x: <|y|>", UnsupportedConstraint, "line 1, column 4 of 'a'", "additions"),
    ("%import .b.x\nstart: x", 'x: "a"', UnsupportedConstraint, "line 1, column 1", "pass the text in"),
]


@pytest.mark.parametrize(("text", "library", "kind", "where", "part"), REFUSED)
def test_refused(text: str, library: str, kind: type[GrammarError], where: str, part: str) -> None:
    with pytest.raises(GrammarError) as caught:
        lark_grammar(text, imports={"a": library})
    assert type(caught.value) is kind, caught.value
    assert caught.value.where == where and part in caught.value.message, caught.value


def test_not_texts() -> None:
    with pytest.raises(InvalidConstraint, match="by name"):
        lark_grammar("%import .a.x\nstart: x", imports={"a": 1})  # type: ignore[dict-item]
