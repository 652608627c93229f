"""Write ``vllm_guided/frontends/regex/unicode_properties.txt`` from the tables of the ``regex`` package.

    python scripts/make_unicode_properties.py

Kept are the properties of ECMA-262 (tables 67 and 68; but Changes_When_NFKC_Casefolded) that Python's
``unicodedata`` cannot tell: scripts, script extensions, and binary properties. One property a line: its
kind, its names, and its characters as numbers, in turn how many are left out and how many are in. Needs
the packages ``regex`` and ``fonttools`` (for the names of the scripts); the product needs neither.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import regex
from fontTools.unicodedata import Scripts

TARGET = Path(__file__).parent.parent / "vllm_guided/frontends/regex/unicode_properties.txt"
BINARY = """
    Alphabetic/Alpha Bidi_Control/Bidi_C Bidi_Mirrored/Bidi_M Case_Ignorable/CI Cased
    Changes_When_Casefolded/CWCF Changes_When_Casemapped/CWCM Changes_When_Lowercased/CWL
    Changes_When_Titlecased/CWT Changes_When_Uppercased/CWU Dash
    Default_Ignorable_Code_Point/DI Deprecated/Dep Diacritic/Dia Emoji Emoji_Component/EComp
    Emoji_Modifier/EMod Emoji_Modifier_Base/EBase Emoji_Presentation/EPres Extended_Pictographic/ExtPict
    Extender/Ext Grapheme_Base/Gr_Base Grapheme_Extend/Gr_Ext Hex_Digit/Hex IDS_Binary_Operator/IDSB
    IDS_Trinary_Operator/IDST ID_Continue/IDC ID_Start/IDS Ideographic/Ideo Join_Control/Join_C
    Logical_Order_Exception/LOE Math Noncharacter_Code_Point/NChar Pattern_Syntax/Pat_Syn
    Pattern_White_Space/Pat_WS Quotation_Mark/QMark Radical Regional_Indicator/RI Sentence_Terminal/STerm
    Soft_Dotted/SD Terminal_Punctuation/Term Unified_Ideograph/UIdeo Variation_Selector/VS XID_Continue/XIDC
    XID_Start/XIDS
"""
CODES = [code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
TEXT = "".join(map(chr, CODES))


def runs(pattern: str) -> list[tuple[int, int]]:
    """The characters a one-character pattern matches, as pairs of first and last."""
    return [
        (CODES[found.start()], CODES[found.end() - 1]) for found in regex.finditer(f"(?:{pattern})+", TEXT)
    ]


def line(kind: str, names: list[str], ranges: list[tuple[int, int]]) -> str:
    """One line of the table."""
    numbers, behind = [], 0
    for low, high in ranges:
        numbers += [low - behind, high + 1 - low]
        behind = high + 1
    return f"{kind} {' '.join(names)}: {' '.join(map(str, numbers))}\n"


def main() -> None:
    """Write the file."""
    lines = [
        f"# Unicode properties, from the tables of regex {version('regex')}"
        " (scripts/make_unicode_properties.py).\n",
        "# Data of the Unicode Character Database, used under the Unicode License v3.\n",
    ]
    for code, name in sorted(Scripts.NAMES.items(), key=lambda item: item[1]):
        names = [name.replace(" ", "_"), code]
        own = runs(rf"\p{{Script={names[0]}}}")
        extended = runs(rf"\p{{Script_Extensions={names[0]}}}")
        lines.append(line("sc", names, own))
        if extended != own:
            lines.append(line("scx", names, extended))
    for names in map(lambda text: text.split("/"), BINARY.split()):
        lines.append(line("bin", names, runs(rf"\p{{{names[0]}}}")))
    TARGET.write_text("".join(lines))


if __name__ == "__main__":
    main()
