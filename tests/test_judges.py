"""The judges themselves: each takes what is right and refuses what is wrong."""

from __future__ import annotations

import judges
import pytest

TABLE = [
    (judges.json_object, ['{"a": [1]}', " {} "], ["[]", "{", '{"a":1,"a":2}', '{"a": NaN}', "{} x"]),
    (judges.json_schema({"type": "string", "pattern": "^\\p{L}\\d$"}), ['"é1"'], ['"1"', '"é١"', "1"]),
    (judges.json_schema({"type": "string", "format": "ipv4"}), ['"1.2.3.4"'], ['"1.2.3"']),
    (judges.json_schema({"type": "string", "format": "ipv4"}, formats=False), ['"1.2.3"'], ["1"]),
    (
        judges.json_schema(
            {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}
        ),
        ["4"],
        ["3"],
    ),
    (
        judges.json_schema({"patternProperties": {"^\\d": {"type": "null"}}}),
        ['{"1":null}', '{"a":1}'],
        ['{"1":1}'],
    ),
    (judges.regex("a+"), ["a"], ["", "ab", "a\n"]),
    (judges.choice(["a", "b"]), ["a"], ["ab", ""]),
    (judges.lark('start: "a" start "b" | "c"'), ["c", "aacbb"], ["acbb", ""]),
]


@pytest.mark.parametrize("judge,right,wrong", TABLE)
def test_judge(judge: judges.Judge, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if judge(text) is not None] == []
    assert [text for text in wrong if judge(text) is None] == []
