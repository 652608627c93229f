"""llguidance's additions to Lark's syntax, written as plain Lark for Lark's own loader.

In: grammar text in Lark's syntax or in llguidance's dialect of it. Out: text that Lark's loader reads, in
which every addition is a string literal that no grammar can contain (a private-use character and a number),
and the list of what these literals stand for. Lines stay lines, and every offset can be mapped back.

=========================================== =======================================
``X{2,5}`` ``X{2,}`` ``X{,5}`` ``X{3}``      ``X~2..5`` and so on
``""``                                      ``()``
``foo-bar``                                 one name without dashes
``name[lazy, stop="x"]:``                   ``name:`` and an entry in ``attributes``
``name::_:`` ``name::incr(_)`` ``%if ...``  parametric rules: entries in ``extensions``
``<|name|>`` ``<[1-9,^5]>`` ``%json {}``    entries in ``extensions``
``%lark {}`` ``%regex {}`` ``A & B`` ``~A`` entries in ``extensions``
``%llguidance {}`` ``%grammar_options {}``  entries in ``options``
=========================================== =======================================
"""

from __future__ import annotations

import json
import re
from typing import Any

from vllm_guided.errors import InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.json_text import members
from vllm_guided.frontends.lark_grammar import parametric
from vllm_guided.frontends.lark_grammar.plain_text import Attribute, Extension, PlainText

UNBOUNDED = 2_000_000_011  # how "no limit" is written where Lark wants a number
MAX_COUNT = 1_000_000

_TOKEN = re.compile(
    r"""
      (?P<newline>\r?\n)
    | (?P<blank>[ \t\f\v]+|\\[ ]*\n)
    | (?P<comment>//[^\n]*|\#[^\n]*)
    | (?P<string>"(?:\\"|\\\\|[^"\n])*?"i?)
    | (?P<regexp>/(?!/)(?:\\/|\\\\|[^/])*?/[a-z]*)
    | (?P<directive>%[a-z_]+)
    | (?P<special><[^>\n]*>)
    | (?P<count>\{\s*(?:[+-]?\d+\s*(?:,\s*(?:[+-]?\d+\s*)?)?|,\s*[+-]?\d+\s*)\})
    | (?P<name>[?!]{0,2}_*[A-Za-z][A-Za-z_0-9]*(?:-[A-Za-z0-9_]+)*)
    | (?P<tilde>~\s*[+-]?\d+(?:\s*\.\.\s*[+-]?\d+)?)
    | (?P<operator>->|::|\.\.|[&~@|:])
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SPECIAL_NAME = re.compile(r"<\|[^|>\s]*\|>|<[^\s\[\]<>|][^\s<>]*>")
_OPTIONS = frozenset({"%llguidance", "%grammar_options"})
_KNOWN_OPTIONS = frozenset({"allow_initial_skip", "no_forcing", "allow_invalid_utf8"})


def plain(source: str) -> PlainText:
    """Rewrite llguidance's additions; plain Lark comes back as it is.

    Raises:
        InvalidConstraint: an addition is malformed.
        UnsupportedConstraint: an addition this package does not have.
    """
    result = PlainText(source)
    while result.sentinel in source:
        result.sentinel = chr(ord(result.sentinel) + 1)
    _Rewriter(source, result).run()
    return result


class _Rewriter:
    def __init__(self, source: str, result: PlainText) -> None:
        self.source = source
        self.result = result
        self.parts: list[str] = []
        self.length = 0
        self.line_start = True

    def fail(self, message: str, offset: int) -> InvalidConstraint:
        return InvalidConstraint(message, where=self.result.where(offset))

    def emit(self, text: str) -> None:
        self.parts.append(text)
        self.length += len(text)

    def replace(self, start: int, end: int, text: str) -> None:
        """Write ``text`` for ``source[start:end]``, keeping the number of lines."""
        self.result._moves.append((self.length, start))
        self.emit(text + "\\\n" * self.source.count("\n", start, end))
        self.result._moves.append((self.length, end))

    def extend(self, kind: str, value: Any, start: int, end: int) -> None:
        self.result.extensions.append(Extension(kind, value, start))
        self.replace(start, end, f' "{self.result.sentinel}{len(self.result.extensions) - 1}" ')

    def run(self) -> None:
        position = 0
        while position < len(self.source):
            match = _TOKEN.match(self.source, position)
            assert match is not None
            kind = match.lastgroup
            position = getattr(self, f"on_{kind}", self.on_text)(match)
            if kind == "newline":
                self.line_start = True
            elif kind not in ("blank", "comment"):
                self.line_start = False
        self.result.text = "".join(self.parts)

    def on_text(self, match: re.Match[str]) -> int:
        self.emit(match.group())
        return match.end()

    def on_string(self, match: re.Match[str]) -> int:
        if match.group().startswith('""'):
            self.replace(match.start(), match.end(), " () ")
            return match.end()
        return self.on_text(match)

    def on_count(self, match: re.Match[str]) -> int:
        low, comma, high = match.group()[1:-1].partition(",")
        minimum = int(low) if low.strip() else 0
        maximum = (int(high) if high.strip() else UNBOUNDED) if comma else minimum
        check_counts(minimum, maximum, self.result.where(match.start()))
        self.replace(match.start(), match.end(), f"~{minimum}..{maximum}")
        return match.end()

    def on_operator(self, match: re.Match[str]) -> int:
        operator, start, end = match.group(), match.start(), match.end()
        if operator == "&":
            self.extend("and", None, start, end)
        elif operator == "~":
            self.extend("not", None, start, end)
        elif operator == "@":
            raise UnsupportedConstraint(
                "references to other grammars (@name) are not supported; write the grammar in place"
                " with %lark { ... }",
                where=self.result.where(start),
            )
        else:
            self.emit(operator)
        return end

    def on_special(self, match: re.Match[str]) -> int:
        self.extend("special", self.special(match.group(), match.start()), match.start(), match.end())
        return match.end()

    def special(self, text: str, offset: int) -> tuple[str, Any]:
        if not text.startswith("<["):
            if not _SPECIAL_NAME.fullmatch(text):
                raise self.fail(
                    f"{text} is not the name of a special token, which is written  <|name|>", offset
                )
            return "name", text
        inner = text[2:-2] if text.endswith("]>") else ""
        negated = inner.startswith("^")
        inner = inner.removeprefix("^")
        if inner == "*":
            if negated:
                raise self.fail("<[^*]> is no token at all; write <[*]> for any token", offset)
            return "ids", ((), True)
        ranges = []
        for part in inner.split(","):
            bounds = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
            if not bounds:
                raise self.fail(f"{text} is not a list of token ids such as <[1-9,20]>", offset)
            low, high = int(bounds[1]), int(bounds[2] or bounds[1])
            if low > high:
                raise self.fail(f"the token range {part} is the wrong way round; write {high}-{low}", offset)
            ranges.append((low, high))
        return "ids", (tuple(ranges), negated)

    def on_directive(self, match: re.Match[str]) -> int:
        word, start = match.group(), match.start()
        if word in ("%json", "%regex") or word in _OPTIONS:
            value, end = self.json_value(word, match.end())
            if word in _OPTIONS:
                self.options(value, start)
                self.replace(start, end, "")
            else:
                self.extend(word[1:], value, start, end)
            return end
        if word == "%lark":
            end = self.closing_brace(match.end(), start)
            inner = self.source[self.source.index("{", match.end()) + 1 : end - 1]
            self.extend("lark", inner, start, end)
            return end
        if word == "%if":
            condition, end = parametric.parse(self.source, match.end(), condition=True)
            self.extend("condition", condition, start, end)
            return end
        if word not in ("%ignore", "%import", "%declare", "%override", "%extend"):
            raise UnsupportedConstraint(
                f"the directive {word} is not known; there are %import, %ignore, %declare, %extend,"
                " %override, %json, %lark, %regex and %llguidance",
                where=self.result.where(start),
            )
        self.emit(word)
        if word in ("%override", "%extend"):
            blank = re.compile(r"[ \t]*").match(self.source, match.end())
            assert blank is not None
            self.emit(blank.group())
            following = _TOKEN.match(self.source, blank.end())
            if following and following.lastgroup == "name":
                self.line_start = True
                return self.on_name(following)
            return blank.end()
        return match.end()

    def json_value(self, word: str, offset: int) -> tuple[Any, int]:
        while self.source[offset : offset + 1].isspace():
            offset += 1
        try:
            value, end = json.JSONDecoder(object_pairs_hook=members).raw_decode(self.source, offset)
        except (ValueError, RecursionError) as error:
            raise self.fail(f"{word} must be followed by a JSON object ({error})", offset) from None
        if not isinstance(value, dict) and not (word == "%json" and isinstance(value, bool)):
            raise self.fail(f"{word} must be followed by a JSON object", offset)
        return value, end

    def options(self, value: dict[str, Any], offset: int) -> None:
        for key, setting in value.items():
            if key not in _KNOWN_OPTIONS:
                raise UnsupportedConstraint(
                    f"the grammar option {key!r} is not known; leave it out", where=self.result.where(offset)
                )
            if not isinstance(setting, bool):
                raise self.fail(f"the grammar option {key!r} must be true or false", offset)
            if key != "allow_initial_skip" and setting:
                raise UnsupportedConstraint(
                    f"the grammar option {key!r} is not supported; leave it out",
                    where=self.result.where(offset),
                )
        self.result.options.update(value)

    def closing_brace(self, position: int, start: int) -> int:
        depth = 0
        while match := _TOKEN.match(self.source, position):
            position = match.end()
            if match.group() in "{}":
                depth += 1 if match.group() == "{" else -1
                if depth <= 0:
                    break
            elif depth == 0 and match.lastgroup not in ("blank", "newline"):
                depth = -1
                break
        if depth == 0 and self.source[position - 1 : position] == "}":
            return position
        raise self.fail("%lark must be followed by a grammar in braces { ... }", start)

    def on_name(self, match: re.Match[str]) -> int:
        written, start, end = match.group(), match.start(), match.end()
        name = written.lstrip("?!")
        modifiers = written[: len(written) - len(name)]
        if modifiers and not self.line_start:
            # `a?b` is an operator and a name to Lark only where no letter follows: give it back.
            self.emit(modifiers)
            inner = _TOKEN.match(self.source, start + len(modifiers))
            assert inner is not None
            return self.on_name(inner)
        plain_name = name
        if "-" in name:
            plain_name = name.replace("-", "_x2d_" if name.islower() else "_X2D_")
        start += len(modifiers)
        self.result.names.setdefault(plain_name, []).append(start)
        header, self.line_start = self.line_start, False
        parametric_name = self.source.startswith("::", end)
        if parametric_name and not header:
            return self.on_call(plain_name, start, end)
        self.emit(modifiers)
        if plain_name == name:
            self.emit(name)
        else:
            self.replace(start, end, plain_name)
        if parametric_name:
            return self.on_parametric_header(plain_name, end)
        if header and self.source.startswith("[", end):
            attributes, end_of_list = self.attribute_list(end)
            if plain_name.isupper():
                raise self.fail("attributes are for rules, not for terminals; name it in small letters", end)
            self.result.attributes[plain_name] = attributes
            self.replace(end, end_of_list, "")
            return end_of_list
        return end

    def on_parametric_header(self, name: str, end: int) -> int:
        if not self.source.startswith("_", end + 2):
            raise self.fail(f"a parametric rule begins with {name}::_, and is used as {name}::0", end)
        if self.source.startswith("[", end + 3):
            raise UnsupportedConstraint(
                "attributes are not supported on parametric rules; put them on a rule that this one uses",
                where=self.result.where(end + 3),
            )
        self.result.parametric.add(name)
        self.replace(end, end + 3, "")
        return end + 3

    def on_call(self, name: str, start: int, end: int) -> int:
        if name.isupper():
            raise self.fail("only rules have parameters, terminals do not; name it in small letters", start)
        argument, stop = parametric.parse(self.source, end + 2, condition=False)
        self.extend("call", (name, argument), start, stop)
        return stop

    def attribute_list(self, offset: int) -> tuple[dict[str, Attribute], int]:
        attributes: dict[str, Attribute] = {}
        tokens: list[re.Match[str]] = []
        position = offset + 1
        while True:
            match = _TOKEN.match(self.source, position)
            if not match or match.lastgroup == "newline":
                raise self.fail("the list of attributes has no closing ]; add it on the same line", offset)
            position = match.end()
            if match.group() in (",", "]"):
                if tokens:
                    key, attribute = self.attribute(tokens)
                    if key in attributes:
                        raise self.fail(f"the attribute {key} is given twice; keep one", attribute.offset)
                    attributes[key] = attribute
                tokens = []
                if match.group() == "]":
                    return attributes, position
            elif match.lastgroup != "blank":
                tokens.append(match)

    def attribute(self, tokens: list[re.Match[str]]) -> tuple[str, Attribute]:
        key, start = tokens[0].group(), tokens[0].start()
        if tokens[0].lastgroup != "name":
            raise self.fail("an attribute begins with its name, as in [lazy]", start)
        if len(tokens) == 1:
            return key, Attribute("flag", "", start)
        if tokens[1].group() != "=":
            raise self.fail(f"the attribute {key} is followed by = and one value", start)
        value = "".join(token.group() for token in tokens[2:])
        if re.fullmatch(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", value):
            return key, Attribute("number", value, start)
        if len(tokens) != 3 or tokens[2].lastgroup not in ("string", "regexp", "name"):
            raise self.fail(f"the attribute {key} is followed by = and one value", start)
        return key, Attribute(str(tokens[2].lastgroup), value, start)


def check_counts(minimum: int, maximum: int, where: str) -> None:
    """Raise InvalidConstraint unless ``0 <= minimum <= maximum`` and both are sane."""
    if minimum < 0 or maximum < minimum:
        raise InvalidConstraint(
            f"the repetition {minimum} to {maximum} is not possible: the counts are at least 0 and in order",
            where=where,
        )
    if max(minimum, 0 if maximum == UNBOUNDED else maximum) > MAX_COUNT:
        raise InvalidConstraint(f"a repetition count is at most {MAX_COUNT:,}", where=where)
