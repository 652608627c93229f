"""The formats that are asserted, as ECMA-262 patterns.

In: the name of a ``format``. Out: its pattern or automaton; names that are not in the table are
annotations, as the standard says. Every pattern is inside its RFC's language; where that language is not
regular, or only at a great price, a smaller one is taken and the entry says so.
"""

from __future__ import annotations

from functools import lru_cache

from vllm_guided.frontends.json_schema import patterns
from vllm_guided.frontends.regex import CharDfa

# RFC 3339: dates with the right number of days, leap years included.
_YEAR = r"\d{4}"
_LEAP = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = (
    rf"({_YEAR}-(0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|{_YEAR}-(0[469]|11)-(0[1-9]|[12]\d|30)"
    rf"|{_YEAR}-02-(0[1-9]|1\d|2[0-8])|{_LEAP}-02-29)"
)
# Leap seconds only as UTC writes them; fractions of at most 30 digits.
_OFFSET = r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_TIME = (
    rf"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{{1,30}})?{_OFFSET}"
    r"|23:59:60(\.\d{1,30})?([Zz]|[+-]00:00))"
)

# RFC 3339, appendix A.
_SECONDS = r"\d+S"
_MINUTES = rf"\d+M({_SECONDS})?"
_HOURS = rf"\d+H({_MINUTES})?"
_DURATION_TIME = rf"T({_HOURS}|{_MINUTES}|{_SECONDS})"
_DAYS = r"\d+D"
_MONTHS = rf"\d+M({_DAYS})?"
_YEARS = rf"\d+Y({_MONTHS})?"
_DURATION = rf"P(({_YEARS}|{_MONTHS}|{_DAYS})({_DURATION_TIME})?|{_DURATION_TIME}|\d+W)"

# RFC 1123, without A-labels ("xn--...": they would have to be decoded), and at most 253 characters by few
# long labels or more short ones.
_ALNUM = "[A-Za-z0-9]"
_ANY = "[A-Za-z0-9-]"


def _label(longest: int | None) -> str:
    """Labels up to ``longest`` characters that do not begin with "xn--"."""

    def tail(used: int) -> str:
        count = "*" if longest is None else f"{{0,{longest - used - 1}}}"
        return f"{_ANY}{count}{_ALNUM}"

    other = f"[A-WYZa-wyz0-9]({tail(1)})?"
    after_n = f"({_ALNUM}({tail(3)})?|-{_ALNUM}({tail(4)})?)"
    return f"({other}|[Xx]([A-MO-Za-mo-z0-9]({tail(2)})?|-{tail(2)}|[Nn]{after_n}?)?)"


_HOST = rf"({_label(63)}(\.{_label(63)}){{0,2}}|{_label(23)}(\.{_label(23)}){{3,9}})"

_OCTET = r"(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
_IPV4 = rf"({_OCTET}\.){{3}}{_OCTET}"


def _ipv6() -> str:
    """RFC 3986's IPv6address."""
    group = "[0-9A-Fa-f]{1,4}"
    tail = rf"({group}:{group}|{_IPV4})"
    options = [rf"({group}:){{6}}{tail}", rf"::({group}:){{5}}{tail}"]
    for before, after in ((0, 4), (1, 3), (2, 2)):
        options.append(rf"(({group}:){{0,{before}}}{group})?::({group}:){{{after}}}{tail}")
    options.append(rf"(({group}:){{0,3}}{group})?::{group}:{tail}")
    options.append(rf"(({group}:){{0,4}}{group})?::{tail}")
    options.append(rf"(({group}:){{0,5}}{group})?::{group}")
    options.append(rf"(({group}:){{0,6}}{group})?::")
    return "(" + "|".join(options) + ")"


_IPV6 = _ipv6()

# RFC 5321: a dot-atom or a quoted string before the @; a host or an address in brackets after it.
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = rf'({_ATOM}+(\.{_ATOM}+)*|"([ !#-\[\]-~]|\\[ -~])*")'
_MAIL_HOST = rf"({_HOST}|\[({_IPV4}|IPv6:{_IPV6})\])"
_EMAIL = rf"{_LOCAL}@{_MAIL_HOST}"
_WIDE = r"[\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}]"

# RFC 5890: U-labels of lower-case letters that are valid alone and beside each other, left to right, composed
# (Latin, Greek, Cyrillic, kana, Hangul, Chinese); so short that no A-label is longer than 63 characters.
_LETTER = (
    r"[a-z0-9\u00df-\u00f6\u00f8-\u00ff\u03b1-\u03c9\u0430-\u045f\u3041-\u3096\u30a1-\u30fa"
    r"\u4e00-\u9fa5\uac00-\ud7a3]"
)
_IDN_HOST = rf"({_HOST}|{_LETTER}{{1,10}}([.\u3002\uff0e\uff61]{_LETTER}{{1,10}}){{0,3}})"
_IDN_EMAIL = rf"({_EMAIL}|({_ATOM}|{_WIDE})+(\.({_ATOM}|{_WIDE})+)*@{_IDN_HOST})"


def _reference(wide: str, literals: bool = True) -> tuple[str, str]:
    """RFC 3986 (RFC 3987 with ``wide`` characters): the patterns of URI and of relative reference.

    Without ``literals``, no address in brackets.
    """
    plain = rf"[A-Za-z0-9._~!$&'()*+,;=-]{wide}"
    escape = "%[0-9A-Fa-f]{2}"
    user = rf"({plain}|{escape}|:)*"
    name = rf"({plain}|{escape})*"
    future = r"[Vv][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+"
    host = rf"(\[({_IPV6}|{future})\]|{name})" if literals else name
    authority = rf"({user}@)?{host}(:\d*)?"
    character = rf"({plain}|{escape}|[:@])"
    private = r"|[\ue000-\uf8ff\u{f0000}-\u{ffffd}]" if wide else ""
    no_colon = rf"({plain}|{escape}|@)"
    path = rf"(/{character}*)*"
    absolute = rf"/({character}+{path})?"
    rootless = rf"{character}+{path}"
    no_scheme = rf"{no_colon}+{path}"
    ending = rf"(\?({character}|[/?]{private})*)?(#({character}|[/?])*)?"
    full = rf"[A-Za-z][A-Za-z0-9+.-]*:(//{authority}{path}|{absolute}|{rootless})?{ending}"
    relative = rf"(//{authority}{path}|{absolute}|{no_scheme})?{ending}"
    return full, relative


_URI, _RELATIVE = _reference("")
_IRI, _IRI_RELATIVE = _reference(rf"|{_WIDE}")

_POINTER = r"(/([^~/]|~[01])*)*"

# RFC 6570.
_VARIABLE = r"([A-Za-z0-9_]|%[0-9A-Fa-f]{2})(\.?([A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(:[1-9]\d{0,3}|\*)?"
_TEMPLATE = (
    rf"([!#$&-;=?-\[\]_a-z~]|{_WIDE}|%[0-9A-Fa-f]{{2}}"
    rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(,{_VARIABLE})*\}})*"
)


def _regex() -> str:
    """Patterns without look-around and back-references, few ranges, and groups at most two deep."""
    literal = r"[^\\^$.*+?()\[\]{}|]"
    members = r"([^\\\[\]^-]|a-z|A-Z|0-9|\\[dDwWsSnrt^$.*+?()\[\]{}|/\\-])+"
    # {n,m} by pairs of which m is the larger plainly: by more digits, or by its first digit.
    pairs = [r"\d,[1-9]\d{1,2}", r"[1-9]\d,[1-9]\d\d"]
    pairs += [rf"{digit},[{digit}-9]" for digit in range(10)]
    pairs += [rf"{digit}\d,[{digit + 1}-9]\d" for digit in range(1, 9)]
    quantifier = rf"([*+?]|\{{(\d{{1,3}},?|{'|'.join(pairs)})\}})\??"
    atom = rf"({literal}|\.|\\[dDwWsSnrtfv^$.*+?()\[\]{{}}|/\\]|\[\^?-?{members}-?\])"
    flat = rf"({atom}({quantifier})?|[\^$]|\\[bB])*"
    for _ in range(2):
        flat = rf"({atom}({quantifier})?|[\^$]|\\[bB]|\((\?:)?{flat}(\|{flat})*\)({quantifier})?)*"
    return rf"{flat}(\|{flat})*"


_PATTERNS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _IDN_EMAIL,
    "hostname": _HOST,
    "idn-hostname": _IDN_HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": rf"({_URI}|{_RELATIVE})",
    "iri": _IRI,
    "iri-reference": rf"({_IRI}|{_IRI_RELATIVE})",
    "uri-template": _TEMPLATE,
    "uuid": r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
    "regex": _regex(),
    "base64": r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?",
}


def names() -> tuple[str, ...]:
    """All formats that are asserted."""
    return tuple(_PATTERNS)


def known(name: str) -> bool:
    """Whether the format is asserted."""
    return name in _PATTERNS


def pattern(name: str) -> str:
    """The whole format as an anchored pattern."""
    return f"^({_PATTERNS[name]})$"


def is_one_pattern(name: str) -> bool:
    """Whether the pattern alone says it."""
    return name in _PATTERNS


# Smaller automata, for formats that have to be counted through (a length, or another condition with one).
SHORT = 63
"""Up to so many characters no label of a host can be too long, and a small automaton says all."""
_SHORT_LABEL = _label(None)
_SHORT_HOST = rf"{_SHORT_LABEL}(\.{_SHORT_LABEL})*"
_SMALL: dict[str, tuple[str, int | None]] = {
    "hostname": (_SHORT_HOST, SHORT),
    "idn-hostname": (_SHORT_HOST, SHORT),
    "email": (rf"{_LOCAL}@{_SHORT_HOST}", SHORT),
    "idn-email": (rf"({_ATOM}|{_WIDE})+(\.({_ATOM}|{_WIDE})+)*@{_SHORT_HOST}", SHORT),
    "uri": (_reference("", False)[0], None),
    "uri-reference": ("({}|{})".format(*_reference("", False)), None),
    "iri": (_reference(rf"|{_WIDE}", False)[0], None),
    "iri-reference": ("({}|{})".format(*_reference(rf"|{_WIDE}", False)), None),
}
"""Patterns with small automata, and up to which length all they match is of the format (``None``: any)."""


def small_limit(name: str) -> int | None:
    """The longest string of :func:`small_automaton` to go by; -1 where there is none."""
    return _SMALL[name][1] if name in _SMALL else -1


@lru_cache(maxsize=16)
def small_automaton(name: str) -> CharDfa:
    """Strings of the format up to :func:`small_limit`, and longer ones that do not matter."""
    return patterns.automaton(f"^({_SMALL[name][0]})$")


_WIDER = {
    "time": r"\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)",
    "date-time": r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)",
    "email": "[^]*@[^]*",
    "idn-email": "[^]*@[^]*",
    "hostname": r"[A-Za-z0-9.-]*",
    "idn-hostname": "[^]*",
    "regex": "[^]*",
}
"""Patterns around the formats whose own pattern is smaller than the format, for what is not of a format."""


@lru_cache(maxsize=64)
def wider_automaton(name: str) -> CharDfa:
    """Strings among which are all of the format."""
    if name not in _WIDER:
        return automaton(name)
    return patterns.automaton(f"^({_WIDER[name]})$")


@lru_cache(maxsize=64)
def automaton(name: str) -> CharDfa:
    """The format's strings."""
    return patterns.automaton(pattern(name))
