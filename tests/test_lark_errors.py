"""What Lark itself complains of comes with advice; ``error_cases/lark.jsonl`` has every error."""

from __future__ import annotations

import contextlib

import error_cases
import pytest

from vllm_guided.errors import GrammarError
from vllm_guided.frontends.lark import lark_grammar
from vllm_guided.frontends.lark_grammar.advice import ADVICE

FOLDED = [" ".join(row["message"].split()) for row in error_cases.rows("lark")]


@pytest.mark.parametrize(("part", "what"), ADVICE)
def test_advice_is_met(part: str, what: str) -> None:
    """Each complaint of Lark's that there is advice for is in the catalogue, with the advice."""
    assert any(part in message and message.endswith(" ".join(what.split())) for message in FOLDED)


def test_no_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    lark_grammar("%import common.INT\nstart: INT")  # the library grammar is read once

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"opened {args}")

    monkeypatch.setattr("builtins.open", refuse)
    for text in ("%import common.INT\nstart: INT", "%import .x.Y\nstart: Y", "%import x.Y\nstart: Y"):
        with contextlib.suppress(GrammarError):
            lark_grammar(text)
