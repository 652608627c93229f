"""JSON inside structural tags follows the server's white-space setting, unless a format has its own."""

from __future__ import annotations

import pytest
import vocabularies

import vllm_guided as vg

SCHEMA = {"type": "array", "items": {"enum": [1, 2]}}


@pytest.mark.parametrize(
    ("any_whitespace", "limit", "text", "taken"),
    [
        (True, None, "[1, 2]", True),
        (True, 0, "[1, 2]", False),
        (False, None, "[1, 2]", False),
        (False, None, "[1,2]", True),
        (False, 1, "[1, 2]", True),
    ],
)
def test_blanks(any_whitespace: bool, limit: int | None, text: str, taken: bool) -> None:
    _, vocabulary = vocabularies.tiny()
    content = {"type": "json_schema", "json_schema": SCHEMA}
    if limit is not None:
        content["max_whitespace_cnt"] = limit
    tag = {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"},
    }
    matcher = (
        vg.GrammarCompiler(vocabulary).compile_structural_tag(tag, any_whitespace=any_whitespace).matcher()
    )
    assert (matcher.accept_bytes(f"<a>{text}</a>".encode()) and matcher.is_accepting()) is taken
