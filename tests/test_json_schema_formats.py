# ruff: noqa: E501 - the rows of the tables are read best whole
"""The asserted formats: a format, strings of it, strings that are not."""

from __future__ import annotations

import json

import prefixes
import pytest

from vllm_guided.frontends.json_schema import formats, json_schema_grammar
from vllm_guided.frontends.json_schema.common import common_schema

TABLE = [
    ("date", ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "2024-04-31", "2024-1-1", ""]),
    ("time", ["20:20:39Z", "08:30:06.283185z", "23:59:60Z", "12:00:00-08:30"], ["25:30:00Z", "15:30", "12:00:00", "22:59:60Z"]),
    ("date-time", ["2024-05-06T07:08:09Z", "1963-06-19t08:30:06.5z", "2024-05-06T07:08:09+02:00"], ["2024-05-06", "2024-05-06T07:08:09"]),
    ("duration", ["P1Y", "PT1H", "P4DT12H30M5S", "P1W"], ["P", "PT", "P1Y456D", "P1Y2W", "1D"]),
    ("email", ["a@b", "joe.bloggs@[127.0.0.1]", '"a b"@x.org', "te~st@e.com"], ["a", "a..b@c", ".a@b", "a@", "a@[1.2.3.300]"]),
    ("hostname", ["a", "0", "a-b.c", "www.example.com", "a" * 63, "ab--c", "xn", "x-n--a", "xn-a", "xna--b"], ["a.", "-a", "a-", ".", "a" * 64, "xn--a", "b.XN--a", "_", "xn-"]),
    ("ipv4", ["127.0.0.1", "255.255.255.255"], ["256.1.1.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"]),
    ("ipv6", ["::", "::1", "1:2:3:4:5:6:7:8", "1::8", "::1.2.3.4", "1:2:3:4:5:6:1.2.3.4"], [":", ":::", "1:2", "1::2::3", "::12345"]),
    ("uri", ["http://a.b/c?d#e", "urn:oasis:x", "http://[::1]:80/", "abc:"], ["//a", "abc", "http://a b", "http://[/"]),
    ("uri-reference", ["/a", "", "a#b", "?q", "http://a"], ["\\a", "//@@", ":"]),
    ("iri", ["http://é.org/ü?q=ö#ä"], ["/é"]),
    ("uuid", ["2eb8aa08-AA98-11ea-b4aa-73b441d16380"], ["2eb8aa08-aa98-11ea-b4aa-73b441d1638", "----"]),
    ("json-pointer", ["", "/a/~0~1", "/"], ["a", "/~", "/~2"]),
    ("relative-json-pointer", ["0", "1#", "0/a"], ["01", "-1", "#", "/a"]),
    ("idn-hostname", ["실례.테스트", "a。b", "münchen.de", "www.example.com", "例え.jp"], ["-a", "〮실례", "a..b", "Ünchen", "א.a", "실" * 64, "xn--X"]),
    ("idn-email", ["실례@실례.테스트", "a@b.org", "jörg@münchen.de"], ["a", "@실례", "a@-b"]),
    ("iri-reference", ["/é", "http://é.org/ü", "", "#ä"], ["\\", "é b"]),
    ("regex", ["^a+$", "(a|b)*", "[a-z]{2,}\\d", ""], ["(a", "[a", "*a", "a**"]),
    ("uri-template", ["http://e.c/{a}/{b:3}{?c,d*}"], ["{a", "}"]),
    ("base64", ["", "YWI=", "YWJj"], ["YWI", "Y=I=", "é", "YWJ=", "YX=="]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "members", "others"), TABLE)
def test_members(name, members, others):
    automaton = formats.automaton(name)
    keyword = "contentEncoding" if name == "base64" else "format"
    grammar = json_schema_grammar({"type": "string", keyword: name})
    for value in members:
        assert automaton.accepts(value), value
        assert prefixes.accepts(grammar, json.dumps(value, ensure_ascii=False).encode()), value
    for value in others:
        assert not automaton.accepts(value), value
        assert not prefixes.accepts(grammar, json.dumps(value, ensure_ascii=False).encode()), value


def test_every_format_is_in_the_table():
    assert {name for name in formats._PATTERNS} == {row[0] for row in TABLE}


@pytest.mark.parametrize("name", formats._WIDER)
def test_wider_automata_hold_the_format(name):
    assert formats.wider_automaton(name).includes(formats.automaton(name))


@pytest.mark.parametrize("name", formats._SMALL)
def test_small_automata_stay_inside_the_format(name):
    small, limit = formats.small_automaton(name), formats.small_limit(name)
    if limit is None:
        assert formats.automaton(name).includes(small)
    else:
        assert formats.automaton(name).includes(small.with_length(0, 9))
    assert len(small.rows) < 40


def test_formats_with_a_length():
    for name, value in (("uri", "http://example.com/" + "a" * 100), ("email", "someone@example.org")):
        grammar = json_schema_grammar({"type": "string", "format": name, "maxLength": 255})
        assert prefixes.accepts(grammar, json.dumps(value).encode())
        assert not prefixes.accepts(grammar, b'"some one"')
        assert not prefixes.accepts(grammar, json.dumps(value + "a" * 255).encode())


def test_formats_bind_only_strings_and_unknown_ones_are_annotations():
    assert prefixes.accepts(json_schema_grammar({"format": "date"}), b"5")
    assert not prefixes.accepts(json_schema_grammar({"format": "date"}), b'"x"')
    assert prefixes.accepts(json_schema_grammar({"format": "colour"}), b'"x"')


def test_the_common_schema_makes_every_format() -> None:
    """What formats are by their characters is known from the start: some take a tenth of a second."""
    json_schema_grammar(common_schema(), json_rules=True)
    before = formats.automaton.cache_info().misses
    for name in formats.names():
        formats.automaton(name)
    assert formats.automaton.cache_info().misses == before
