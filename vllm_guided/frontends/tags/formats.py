"""Structural tag formats to IR nodes, one method a format.

Free text (``any_text``, and what lies between triggered tags) never holds a string that ends the tag it
stands in: a tag is over where its end is first complete. That is why every method knows ``ends``, the ends
of the tags around it whose content it finishes.
"""

from __future__ import annotations

from typing import Any

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import free_text, regular
from vllm_guided.frontends.ebnf_grammar.macros import token_dispatch, tokens
from vllm_guided.frontends.embedding import embed
from vllm_guided.frontends.spelled import spelled
from vllm_guided.frontends.tags.fields import Fields, pointer
from vllm_guided.grammar import ir

MAX_DEPTH = 64
MAX_COUNT = 1_000_000
MAX_TAGS = 10_000

Ends = tuple[str, ...]
Tag = tuple[Any, ir.Node]  # the begin (a string or a token) and what follows it


class Formats:
    """Converts formats, adding the rules they need to ``rules``.

    Args:
        any_whitespace: False: JSON without blanks, where a format does not say how many.
        additional_properties: False: JSON objects that do not say whether they are open are closed.
        property_order: of the members of JSON objects, where a format does not ask for any order.
        json_rules: whether plain schemas become rules of their own kind (``grammar.json_rules``).
    """

    def __init__(
        self,
        any_whitespace: bool = True,
        additional_properties: bool | None = None,
        property_order: str = "schema",
        json_rules: bool = False,
    ) -> None:
        self.any_whitespace = any_whitespace
        self.additional_properties = additional_properties
        self.property_order = property_order
        self.json_rules = json_rules
        self.rules: dict[str, ir.Rule] = {}
        self.depth = 0
        self.count = 0
        self.embedded: dict[str, ir.Node] = {}
        self.leaves: dict[int, tuple[str, ir.Rule]] = {}

    def convert(self, value: Any, where: str, ends: Ends = ()) -> ir.Node:
        """The node of a format."""
        fields = Fields(value, where, "a format")
        kind = fields.get("type")
        if not isinstance(kind, str):
            raise fields.fail("the type of a format is a string", "type")
        method = getattr(self, f"on_{kind}", None)
        if method is None or kind == "format":
            raise UnsupportedConstraint(
                f"the format {kind!r} is not known; known are {self.known()}", where=pointer(where, "type")
            )
        fields.what = f"the format {kind}"
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ConstraintTooComplex(
                f"formats are nested more than {MAX_DEPTH} deep; flatten them", where=where
            )
        node: ir.Node = method(fields, ends)
        fields.close()
        self.depth -= 1
        return node

    def known(self) -> str:
        """The names of all formats."""
        return ", ".join(sorted(name[3:] for name in dir(self) if name.startswith("on_")))

    def rule(self, node: ir.Node, name: str, *, shared: bool = False) -> ir.Node:
        """``node`` as a rule of its own."""
        reference = self.reserved(name)
        self.rules[reference.name] = ir.Rule(node, shared)
        return reference

    def reserved(self, name: str) -> ir.Ref:
        """A rule to come, for one that refers to itself."""
        self.count += 1
        return ir.Ref(f"{name}{self.count}")

    def embed(self, grammar: ir.Grammar) -> ir.Node:
        """A whole grammar as a node."""
        return embed(self.rules, grammar, self.prefix())

    def prefix(self) -> str:
        """A prefix for the names of one grammar's rules."""
        self.count += 1
        return f"g{self.count}/"

    def add(self, grammar: ir.Grammar) -> ir.Node:
        """A grammar as a node whose own rules have a prefix already."""
        known = self.rules
        if any(known.get(name, rule) is not rule for name, rule in grammar.rules.items()):
            return self.embed(grammar)  # other white space, so that JSON itself has other rules
        known.update(grammar.rules)
        return ir.Ref(grammar.start)

    def placed(self, error: GrammarError, where: str) -> GrammarError:
        """An error of an inner language with this format's place before its own."""
        inner = f"{error.where}: {error.message}" if error.where else error.message
        return type(error)(inner, where=where)

    # -- basic formats ---------------------------------------------------------------------------

    def on_const_string(self, fields: Fields, ends: Ends) -> ir.Node:
        return spelled(fields.string("value"))

    def on_json_schema(self, fields: Fields, ends: Ends) -> ir.Node:
        from vllm_guided.frontends.tags import styles

        style = fields.string("style", "json")
        try:
            return styles.schema_node(self, fields, style)
        except GrammarError as error:
            if error.where.startswith(fields.where):
                raise
            if error.where.startswith("#") and style == "json" and not fields.boolean("any_order", False):
                place = pointer(fields.where, "json_schema") + error.where[1:]
                raise type(error)(error.message, where=place) from None
            raise self.placed(error, pointer(fields.where, "json_schema")) from None

    def on_qwen_xml_parameter(self, fields: Fields, ends: Ends) -> ir.Node:
        """The older name of ``json_schema`` with the style ``qwen_xml``."""
        from vllm_guided.frontends.tags import styles

        try:
            return styles.schema_node(self, fields, "qwen_xml")
        except GrammarError as error:
            if error.where.startswith(fields.where):
                raise
            raise self.placed(error, pointer(fields.where, "json_schema")) from None

    def on_grammar(self, fields: Fields, ends: Ends) -> ir.Node:
        """A grammar in EBNF, or in Lark: told apart as where it stands by itself."""
        from vllm_guided.frontends.detect import grammar_from_text

        try:
            return self.embed(grammar_from_text(fields.string("grammar")))
        except GrammarError as error:
            raise self.placed(error, pointer(fields.where, "grammar")) from None

    def on_regex(self, fields: Fields, ends: Ends) -> ir.Node:
        try:
            return self.rule(regex(fields.string("pattern")), "regex")
        except GrammarError as error:
            raise self.placed(error, pointer(fields.where, "pattern")) from None

    def on_any_text(self, fields: Fields, ends: Ends) -> ir.Node:
        excludes = self.text_limits(fields)
        limit = fields.limit("max_chars")
        node = free_text.text_without([*excludes, *ends])
        if limit is not None:
            return self.at_most(node, limit, fields)
        return self.rule(node, "text", shared=True)

    def text_limits(self, fields: Fields) -> list[str]:
        if fields.limit("max_tokens") is not None:
            raise UnsupportedConstraint(
                "max_tokens counts tokens, which a grammar over text cannot; use max_chars",
                where=pointer(fields.where, "max_tokens"),
            )
        return fields.strings("excludes", [], empty=True)

    def at_most(self, node: ir.Node, limit: int, fields: Fields) -> ir.Node:
        bound = ir.Repeat(ir.ANY_CHAR, 0, min(limit, MAX_COUNT))
        if node == ir.star(ir.ANY_CHAR):
            return bound
        try:
            both = regular.intersection(regular.dfa(node), regular.dfa(bound))
        except ConstraintTooComplex:
            raise ConstraintTooComplex(
                f"max_chars {limit} together with excluded or end strings needs too large an automaton;"
                " lower it",
                where=pointer(fields.where, "max_chars"),
            ) from None
        return regular.node(both)

    # -- combinations ----------------------------------------------------------------------------

    def on_sequence(self, fields: Fields, ends: Ends) -> ir.Node:
        elements = fields.array("elements")
        last = len(elements) - 1
        nodes = [
            self.convert(element, pointer(fields.where, "elements", place), ends if place == last else ())
            for place, element in enumerate(elements)
        ]
        return ir.sequence(*nodes)

    def on_or(self, fields: Fields, ends: Ends) -> ir.Node:
        elements = fields.array("elements")
        return ir.choice(
            *(self.convert(e, pointer(fields.where, "elements", i), ends) for i, e in enumerate(elements))
        )

    def content(self, fields: Fields, ends: Ends) -> ir.Node:
        return self.convert(fields.get("content"), pointer(fields.where, "content"), ends)

    def on_optional(self, fields: Fields, ends: Ends) -> ir.Node:
        return ir.optional(self.content(fields, ends))

    def on_plus(self, fields: Fields, ends: Ends) -> ir.Node:
        return ir.plus(self.content(fields, ends))

    def on_star(self, fields: Fields, ends: Ends) -> ir.Node:
        return ir.star(self.content(fields, ends))

    def on_repeat(self, fields: Fields, ends: Ends) -> ir.Node:
        low, high = fields.integer("min"), fields.integer("max")
        if low < 0 or high < -1 or (high != -1 and high < low):
            raise fields.fail("min is at least 0, max at least min, or -1 for no limit")
        if max(low, high) > MAX_COUNT:
            raise fields.fail(f"a repetition count is at most {MAX_COUNT:,}")
        return ir.Repeat(self.content(fields, ends), low, None if high == -1 else high)

    # -- tags ------------------------------------------------------------------------------------

    def on_tag(self, fields: Fields, ends: Ends) -> ir.Node:
        begin, rest = self.tag_parts(fields)
        return ir.sequence(spelled(begin) if isinstance(begin, str) else begin, rest)

    def tag_parts(self, fields: Fields) -> Tag:
        begin = fields.get("begin")
        if isinstance(begin, dict):
            begin = self.convert(begin, pointer(fields.where, "begin"))
            if not isinstance(begin, ir.SpecialToken):
                raise fields.fail("a begin is a string or a token", "begin")
        else:
            begin = fields.string("begin")
        end = fields.get("end")
        if isinstance(end, dict):
            closing = self.convert(end, pointer(fields.where, "end"))
            if not isinstance(closing, ir.SpecialToken):
                raise fields.fail("an end is a string, an array of strings, or a token", "end")
            return begin, ir.sequence(self.content(fields, ()), closing)
        if isinstance(end, list):
            strings = [value for value in end if isinstance(value, str)]
            if not end or len(strings) != len(end):
                raise fields.fail("an end is a string, an array of strings, or a token", "end")
        else:
            strings = [fields.string("end")]
        return begin, self.closed(fields, tuple(dict.fromkeys(strings)))

    def closed(self, fields: Fields, ends: Ends) -> ir.Node:
        """Content and end: a text ends where an end is first complete."""
        content = fields.get("content")
        if (
            isinstance(content, dict)
            and content.get("type") == "any_text"
            and content.get("max_chars") is None
        ):
            inner = Fields(content, pointer(fields.where, "content"), "the format any_text")
            excludes = self.text_limits(inner)
            inner.get("max_chars", None)
            inner.close()
            return self.rule(free_text.text_until(ends, excludes, tokens=True), "text", shared=True)
        node = self.content(fields, tuple(end for end in ends if end))
        return ir.sequence(node, ir.choice(*(spelled(end) for end in ends)))

    def tags(self, fields: Fields) -> list[tuple[Tag, str]]:
        """The tags of a list with their places."""
        values = fields.array("tags")
        if len(values) > MAX_TAGS:
            raise ConstraintTooComplex(
                f"there are more than {MAX_TAGS:,} tags; offer fewer", where=fields.where
            )
        found = []
        for place, value in enumerate(values):
            where = pointer(fields.where, "tags", place)
            inner = Fields(value, where, "a tag")
            if inner.get("type", "tag") != "tag":
                raise inner.fail("a tag is expected here", "type")
            begin, rest = self.tag_parts(inner)
            inner.close()
            found.append(((begin, self.rule(rest, "tag")), where))
        return found

    def on_triggered_tags(self, fields: Fields, ends: Ends) -> ir.Node:
        triggers = fields.strings("triggers")
        excludes = fields.strings("excludes", [], empty=True)
        at_least_one = fields.boolean("at_least_one", False)
        once = fields.boolean("stop_after_first", False)
        by_trigger: dict[str, list[ir.Node]] = {trigger: [] for trigger in triggers}
        whole: list[ir.Node] = []
        for (begin, rest), where in self.tags(fields):
            if not isinstance(begin, str):
                raise InvalidConstraint(
                    "a tag with a token as its begin belongs into token_triggered_tags", where=where
                )
            fitting = [trigger for trigger in by_trigger if begin.startswith(trigger)]
            if len(fitting) != 1:
                found = " and ".join(map(repr, fitting)) or "none"
                raise InvalidConstraint(
                    f"one trigger must begin the tag's begin {begin!r}; these do: {found}", where=where
                )
            by_trigger[fitting[0]].append(ir.sequence(spelled(begin[len(fitting[0]) :]), rest))
            whole.append(ir.sequence(spelled(begin), rest))
        first = ir.choice(*whole)
        if at_least_one and once:
            return first
        spec = free_text.Dispatch(
            [(trigger, self.rule(ir.choice(*rests), "tags")) for trigger, rests in by_trigger.items()],
            [*excludes, *ends],
            loop=not once,
            tokens=True,
        )
        node = self.rule(free_text.dispatch(spec), "text")
        return ir.sequence(first, node) if at_least_one else node

    def on_tags_with_separator(self, fields: Fields, ends: Ends) -> ir.Node:
        separator = spelled(fields.string("separator"))
        at_least_one = fields.boolean("at_least_one", False)
        once = fields.boolean("stop_after_first", False)
        tag = ir.choice(
            *(
                ir.sequence(spelled(begin) if isinstance(begin, str) else begin, rest)
                for (begin, rest), _ in self.tags(fields)
            )
        )
        if not once:
            tag = self.rule(tag, "tags")
            tag = ir.sequence(tag, ir.star(ir.sequence(separator, tag)))
        return tag if at_least_one else ir.optional(tag)

    def on_dispatch(self, fields: Fields, ends: Ends) -> ir.Node:
        rules = self.dispatch_rules(fields)
        for pattern, _ in rules:
            if not isinstance(pattern, str) or not pattern:
                raise fields.fail("a pattern is a string that is not empty", "rules")
        excludes = fields.strings("excludes", [], empty=True)
        loop = fields.boolean("loop", True)
        return self.rule(
            free_text.dispatch(free_text.Dispatch(rules, [*excludes, *ends], loop, tokens=True)), "text"
        )

    def dispatch_rules(self, fields: Fields) -> list[tuple[Any, ir.Node]]:
        rules = []
        for place, pair in enumerate(fields.array("rules", empty=True)):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise fields.fail("a rule is a pair: what is met, and the format that follows", "rules")
            node = self.convert(pair[1], pointer(fields.where, "rules", place, 1))
            rules.append((pair[0], self.rule(node, "dispatched")))
        return rules

    # -- tokens ----------------------------------------------------------------------------------

    def token_list(self, fields: Fields, values: list[Any], *, negated: bool) -> ir.Node:
        for value in values:
            if not isinstance(value, int | str) or isinstance(value, bool) or value == "":
                raise fields.fail("a token is a number or a name")
        return tokens(values, negated=negated)

    def on_token(self, fields: Fields, ends: Ends) -> ir.Node:
        return self.token_list(fields, [fields.get("token")], negated=False)

    def on_exclude_token(self, fields: Fields, ends: Ends) -> ir.Node:
        return self.token_list(fields, fields.array("exclude_tokens", [], empty=True), negated=True)

    def on_any_tokens(self, fields: Fields, ends: Ends) -> ir.Node:
        limit = fields.limit("max_tokens")
        node = self.token_list(fields, fields.array("exclude_tokens", [], empty=True), negated=True)
        return ir.Repeat(node, 0, None if limit is None else min(limit, MAX_COUNT))

    def on_token_dispatch(self, fields: Fields, ends: Ends) -> ir.Node:
        rules = self.dispatch_rules(fields)
        excludes = fields.array("exclude_tokens", [], empty=True)
        self.token_list(fields, [trigger for trigger, _ in rules] + excludes, negated=True)
        return token_dispatch(rules, excludes, loop=fields.boolean("loop", True))

    def on_token_triggered_tags(self, fields: Fields, ends: Ends) -> ir.Node:
        triggers = fields.array("trigger_tokens")
        excludes = fields.array("exclude_tokens", [], empty=True)
        at_least_one = fields.boolean("at_least_one", False)
        once = fields.boolean("stop_after_first", False)
        self.token_list(fields, triggers + excludes, negated=True)
        rests: dict[ir.Node, list[ir.Node]] = {tokens([trigger], negated=False): [] for trigger in triggers}
        for (begin, rest), where in self.tags(fields):
            if not isinstance(begin, ir.SpecialToken):
                raise InvalidConstraint("the begin of a tag is a token here", where=where)
            if begin not in rests:
                raise InvalidConstraint(
                    "the begin of the tag is not a trigger; add it to trigger_tokens", where=where
                )
            rests[begin].append(rest)
        pairs = [(trigger, ir.choice(*rests[tokens([trigger], negated=False)])) for trigger in triggers]
        first = ir.choice(*(ir.sequence(token, *[ir.choice(*nodes)]) for token, nodes in rests.items()))
        if at_least_one and once:
            return first
        node = token_dispatch(pairs, excludes, loop=not once)
        return ir.sequence(first, node) if at_least_one else node


def regex(pattern: str) -> ir.Node:
    """A pattern in ECMA-262's syntax, as in JSON Schema; in Python's where that is the only one it is in."""
    from vllm_guided.frontends.regex import regex_node

    try:
        return regex_node(pattern, dialect="ecma")
    except InvalidConstraint as error:
        try:
            return regex_node(pattern, dialect="python")
        except GrammarError:
            raise error from None
