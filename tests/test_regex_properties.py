r"""Scripts and binary properties, ``\p{...}``: against ``regress`` where the characters are old enough."""

from __future__ import annotations

import unicodedata

import pytest

from vllm_guided.automaton.characters import CharDfa
from vllm_guided.frontends.regex import regex_grammar
from vllm_guided.frontends.regex.unicode_sets import property_set
from vllm_guided.frontends.regex.unicode_tables import _lines

regress = pytest.importorskip("regress")

KINDS = {"sc": "Script=", "scx": "Script_Extensions=", "bin": ""}
# Their properties were changed after the characters came, or follow others that were.
UNSTABLE = 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_those_of_ecma(kind: str) -> None:
    """At the ends of every range, where Python's own (older) Unicode has the character too."""
    names = {numbers: name for (of, name), numbers in reversed(_lines().items()) if of == kind}
    spelled = {line.split(":")[0].split()[1] for line in _text().splitlines() if line.startswith(f"{kind} ")}
    assert len(names) == len(spelled) > 40
    wrong, looked = [], 0
    for name in sorted(spelled):
        try:
            judge = regress.Regex(rf"\p{{{KINDS[kind]}{name}}}", "u")
        except regress.RegressError:
            continue  # newer than the judge
        ranges = property_set(KINDS[kind] + name)
        assert ranges
        for low, high in ranges:
            for point in (low - 1, low, high, high + 1):
                if point < 0 or 0xD800 <= point <= 0xDFFF or point > 0x10FFFF:
                    continue
                if unicodedata.category(chr(point)) in ("Cn", "Co"):
                    continue
                looked += 1
                inside = low <= point <= high
                if inside != bool(judge.find(chr(point))):
                    wrong.append((name, hex(point)))
    assert looked > 500
    assert len(wrong) < UNSTABLE * looked, wrong[:20]


def _text() -> str:
    from importlib.resources import files

    return files("vllm_guided.frontends.regex").joinpath("unicode_properties.txt").read_text("ascii")


# pattern, texts it takes, texts it does not
TABLE = [
    (r"\p{Script=Greek}+", ["αΩ"], ["a", "я"]),
    (r"\p{sc=Grek}\P{sc=Greek}", ["αa"], ["αα", "aα"]),
    (r"\p{Script_Extensions=Latin}+", ["aé"], ["α"]),
    (r"\p{scx=Deva}", ["क", "।"], ["a"]),
    (r"\p{sc=Deva}", ["क"], ["।"]),
    (r"\p{Greek}\p{IsCyrillic}\p{IsAlphabetic}", ["αяx"], ["яαx"]),
    (r"[\p{sc=Han}\p{Emoji_Presentation}a]+", ["漢😀a"], ["b", "1"]),
    (r"[^\p{Alphabetic}]", ["1", "-"], ["a", "é"]),
    (r"\p{ID_Start}\p{ID_Continue}*", ["x1", "é_"], ["1x", "-"]),
    (r"\p{script=old_italic}", ["𐌀"], ["a"]),
    (r"\p{sc=Qaai}", ["\u0301"], ["a"]),
    (r"(?i:\p{Lu}\p{sc=Latn})", ["aB", "Ab"], ["aα"]),
    (r"\p{sc=Thai}{0,10000}", ["", "กข"], ["a"]),
]


@pytest.mark.parametrize("dialect", ["python", "ecma"])
@pytest.mark.parametrize(("pattern", "accepted", "refused"), TABLE)
def test_language(pattern: str, accepted: list[str], refused: list[str], dialect: str) -> None:
    regex_grammar(pattern, dialect=dialect)
    automaton = CharDfa.from_pattern(pattern.replace("10000", "9"), dialect=dialect)
    assert all(automaton.accepts(text) for text in accepted)
    assert not any(automaton.accepts(text) for text in refused)
