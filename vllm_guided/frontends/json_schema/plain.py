"""Plain schemas straight to rules.

In: a place of a schema. Out: the name of a rule for its values, if it is one of the kinds that most schemas
are made of: ``type`` alone; objects of ``properties``, ``required`` and ``additionalProperties``; arrays of
``items``; lists of strings; ``anyOf``; ``oneOf`` of different types; references to such places. They need no
algebra, and their rules no construction (:mod:`vllm_guided.grammar.json_rules`). What stands inside of them
may be anything: the emitter writes what is not plain.

What is wrong, or empty, is not plain either: the general way says what is wrong with it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vllm_guided.bounded import size_made
from vllm_guided.errors import GrammarError, InvalidConstraint
from vllm_guided.frontends.json_schema import spelling
from vllm_guided.frontends.json_schema.documents import Document, Place
from vllm_guided.frontends.json_schema.keywords import KEYWORDS, TYPES, scalar_norm, types_norm
from vllm_guided.frontends.json_schema.leaves import (
    LEAF_KEYWORDS,
    LEAVES,
    STRING_KEYWORDS,
    LeafKey,
    leaf_key,
)
from vllm_guided.frontends.json_schema.names import RULES
from vllm_guided.frontends.json_schema.plain_types import local_path, types_of
from vllm_guided.frontends.json_schema.resources import Path, value_at
from vllm_guided.frontends.json_schema.shapes import Arrays, Objects
from vllm_guided.frontends.json_schema.strings import ANY as ANY_NAME
from vllm_guided.grammar import ir
from vllm_guided.grammar.json_rules import SEPARATOR, JsonArray, JsonObject, JsonRule, JsonValue

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.emitter import Emitter

MAX_DEPTH = 64
"""Places nested deeper are left to the general way, which keeps a queue."""
NAMES_KEPT = 16_384
USUAL_LENGTH = 100

_TYPE, _OBJECT, _ARRAY, _ENUM, _REF, _LEAF, _ANY_OF, _ONE_OF, _MORE = (1 << bit for bit in range(9))
_KINDS: dict[str, int] = {
    **dict.fromkeys(KEYWORDS, _MORE),
    "type": _TYPE,
    "properties": _OBJECT,
    "required": _OBJECT,
    "minProperties": _OBJECT,
    "additionalProperties": _OBJECT,
    "items": _ARRAY,
    "minItems": _ARRAY,
    "enum": _ENUM,
    "$ref": _REF,
    "anyOf": _ANY_OF,
    "oneOf": _ONE_OF,
    **dict.fromkeys(LEAF_KEYWORDS, _LEAF),
}
_LEAF_KINDS = ("string", "number", "integer")
_GENERIC = frozenset(("string", "number", "array", "object"))
"""Rules of all values of a type, by the name of that."""
_WORDS = {
    "boolean": ir.Rule(JsonValue((b"false", b"true"))),
    "null": ir.Rule(JsonValue((b"null",))),
}
_UNKNOWN, _UNDER_WAY = "?", "..."


class NotPlain(Exception):
    """The whole schema is to be read in the general way.

    Something that was taken for plain is empty or endless, or the order of all objects matters.
    """


class Plain:
    """The plain places of one document, written into the rules of one emitter.

    Attributes:
        used: a rule was written.
    """

    def __init__(self, emitter: Emitter, document: Document) -> None:
        self.emitter = emitter
        self.document = document
        self.resource = document.main.whole
        self.closed = emitter.algebra.closed_objects
        self.compact = emitter.layout.compact
        self.ordered = not emitter.any_order
        # Whatever identifiers mean, the general way knows; what it finds may still be plain.
        self.reads = document.main.plain
        self.used = False
        self._depth = 0
        self._containers = 0  # arrays and objects that are being written
        # By the identity of schemas: their rules, None where they are not plain; containers around those
        # under way; rules that were asked for meanwhile. By that of nodes: the rules made of them.
        self._known: dict[int, str | None] = {}
        self._entered: dict[int, int] = {}
        self._promised: dict[int, str] = {}
        self._wrapped: dict[int, str] = {}
        self._by_rule: dict[JsonRule, str] = {}
        self._made: list[dict[str, Any]] = []
        self._targets: dict[str, tuple[Any, Path]] = {}  # what references lead to
        self._leaves: dict[LeafKey, str] = {}  # rules of strings and numbers, by what schemas say

    def close(self) -> None:
        """Let go of what refers back to the emitter."""
        del self.emitter, self.document

    def node(self, place: Place) -> ir.Node | None:
        """The values of a place; ``None`` if it is not plain."""
        if not self.reads or place.resource is not self.resource or place.scope:
            return None
        name = self._value(place.schema, place.path)
        return None if name is None else ir.Ref(name)

    def _name(self, schema: Any, path: Path) -> str | None:
        """The rule of the values of a place below a plain one, plain or not; ``None`` if there are none."""
        name = self._value(schema, path)
        return self._general(schema, path) if name is None else name

    def _general(self, schema: Any, path: Path) -> str | None:
        emitter = self.emitter
        place = Place(schema, self.resource, path, self.document)
        if type(schema) is not dict and type(schema) is not bool:
            raise InvalidConstraint("a schema must be an object, true or false", where=place.pointer)
        return self._named(emitter.value(emitter.algebra.terms.place(place)))

    def _named(self, node: ir.Node) -> str | None:
        """The rule of a node; ``None`` if that is nothing."""
        if type(node) is ir.Ref:
            return node.name
        if ir.is_nothing(node):
            return None
        name = self._wrapped.get(id(node))
        if name is None:
            choice = self.choice(node)
            if choice is not None:
                return self._rule("value", choice)
            rule = self.emitter.rule("value", node, shared=False)  # which keeps the node
            assert isinstance(rule, ir.Ref)
            name = self._wrapped[id(node)] = rule.name
        return name

    def choice(self, node: ir.Node) -> JsonValue | None:
        """A node as a choice of texts and rules; ``None`` if it is anything else."""
        texts: set[bytes] = set()
        names: dict[str, None] = {}
        for option in node.options if type(node) is ir.Choice else (node,):
            if type(option) is ir.Literal:
                texts.add(option.data)
            elif type(option) is ir.Ref:
                names[option.name] = None
            else:
                return None
        if not texts and not names:
            return None
        self.used = True
        return JsonValue(tuple(sorted(texts)), tuple(names))

    def shape(self, shape: Arrays | Objects) -> JsonRule | None:
        """The rule of what the algebra says of arrays or objects; ``None`` where it is not plain."""
        value = self.emitter.value
        if isinstance(shape, Arrays):
            if shape.prefix or shape.contains or shape.unique or shape.repeated:
                return None
            item = self._named(value(shape.rest)) if shape.minimum <= 1 and shape.maximum is None else None
            self.used = True
            return None if item is None else JsonArray(item, shape.minimum, self.compact)
        if shape.some or shape.maximum is not None or len(shape.others) > 1:
            return None
        if self.ordered and (shape.unordered or len(shape.runs) > 1):
            return None
        least = shape.minimum if shape.minimum > len(shape.required) else 0
        other: str | None = None
        if shape.others:
            names, term = shape.others[0]
            if names != ANY_NAME:
                return None
            other = self._named(value(term))
        members: dict[str, str] = {}
        for name, term in shape.properties:
            rule = self._named(value(term))
            if rule is not None:
                members[name] = rule
            elif other is not None or name in shape.required:
                return None  # a name that may not stand is none of the others
        return self._whole_object(members, shape.required, other, least)

    def _value(self, schema: Any, path: Path) -> str | None:
        if type(schema) is not dict:
            return self._typed("value") if schema is True else None
        key = id(schema)
        known = self._known.get(key, _UNKNOWN)
        if known is not _UNKNOWN:
            if known is not _UNDER_WAY:
                return known
            if self._entered[key] == self._containers:  # without going into an array or object
                raise NotPlain
            if key not in self._promised:
                self._promised[key] = self.emitter.fresh("value")
            return self._promised[key]
        if self._depth == MAX_DEPTH:
            return None
        self._depth += 1
        self._known[key] = _UNDER_WAY
        self._entered[key] = self._containers
        name = self._known[key] = self._read(schema, path)
        self._depth -= 1
        promised = self._promised.pop(key, None)
        if promised is not None:
            made = name or self._general(schema, path)
            if made is None or made == promised:  # nothing, or nothing but a circle of references
                raise NotPlain
            self.emitter.rules[promised] = ir.Rule(JsonValue((), (made,)))
        return name

    def _read(self, schema: dict[str, Any], path: Path) -> str | None:
        kinds = 0
        for keyword in schema:
            kinds |= _KINDS.get(keyword, 0)
        if kinds & _REF and (kinds == _REF or self.resource.draft <= 7):
            return self._target(schema["$ref"])
        named = schema.get("type")
        if kinds == _TYPE and type(named) is str:
            return self._typed(named)
        if kinds == 0:
            return self._typed("value")
        if kinds & (_MORE | _REF):
            return None
        if kinds & _LEAF:
            return self._leaf(named, schema, path) if kinds & ~_TYPE == _LEAF else None
        if kinds == _ANY_OF:
            return self._any_of(schema["anyOf"], (*path, "anyOf"))
        if kinds == _ONE_OF:
            return self._one_of(schema["oneOf"], (*path, "oneOf"))
        if kinds & ~_TYPE == _OBJECT:
            return self._of_types(named, "object", lambda: self._container(self._object, schema, path))
        if kinds & ~_TYPE == _ARRAY:
            return self._of_types(named, "array", lambda: self._container(self._array, schema, path))
        if kinds & ~_TYPE == _ENUM:
            return self._enumeration(named, schema["enum"])
        return self._of_types(named, "", lambda: None) if kinds == _TYPE else None

    def _target(self, reference: Any) -> str | None:
        found = self._targets.get(reference) if type(reference) is str else None
        if found is None:
            path = local_path(self.resource, reference)
            if path is None:
                return None
            found = self._targets[reference] = value_at(self.resource.schema, path), path
        return self._value(*found)

    def _typed(self, kind: str) -> str | None:
        """Every value of a type, or any value."""
        emitter = self.emitter
        if kind in ("string", "value", "number", "array", "object"):
            emitter.generic(kind)
            return kind
        if kind == "integer":
            node = emitter.norm_node(types_norm((kind,), self.resource.draft == 4))
            return node.name if isinstance(node, ir.Ref) else None
        rule = _WORDS.get(kind)
        if rule is None:
            return None
        emitter.rules[kind] = rule
        self.used = True
        return kind

    def _of_types(self, named: Any, kind: str, own: Callable[[], str | None]) -> str | None:
        """Values of the types that ``type`` names (all without it), those of ``kind`` as ``own`` says."""
        if named == kind:
            return own()
        kinds = list(TYPES) if named is None else named
        if type(kinds) is not list or not all(type(each) is str for each in kinds):
            return None
        names: dict[str, None] = {}
        texts: list[bytes] = []
        for each in kinds:
            if each == "null":
                texts.append(b"null")
            elif each == "boolean":
                texts += (b"false", b"true")
            elif each != "integer" or "number" not in kinds:
                name = own() if each == kind else self._typed(each)
                if name is None:
                    return None
                names[name] = None
        if not texts and not names:
            return None
        return self._rule("value", JsonValue(tuple(sorted(set(texts))), tuple(names)))

    def _enumeration(self, named: Any, values: Any) -> str | None:
        if named not in (None, "string") or type(values) is not list or not values:
            return None
        texts: set[bytes] = set()
        for value in values:
            if type(value) is str:
                texts.add(_literal(value)[0])
            elif named is None and (value is None or type(value) is bool):
                texts.add(b"null" if value is None else b"true" if value else b"false")
            else:
                return None
        return self._rule("value", JsonValue(tuple(sorted(texts))))

    def _container(
        self, write: Callable[[dict[str, Any], Path], str | None], schema: dict[str, Any], path: Path
    ) -> str | None:
        self._containers += 1
        name = write(schema, path)
        self._containers -= 1
        return name

    def _array(self, schema: dict[str, Any], path: Path) -> str | None:
        least = schema.get("minItems", 0)
        if type(least) is not int or not 0 <= least <= 1:
            return None
        item: str | None = "value"
        if "items" in schema:
            item = (
                self._name(schema["items"], (*path, "items")) if type(schema["items"]) is not list else None
            )
        else:
            self._typed("value")
        return None if item is None else self._rule("array", JsonArray(item, least, self.compact))

    def _object(self, schema: dict[str, Any], path: Path) -> str | None:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        least = schema.get("minProperties", 0)
        if type(properties) is not dict or type(required) is not list or type(least) is not int or least < 0:
            return None
        members: dict[str, str] = {}
        for name, inner in properties.items():
            value = self._name(inner, (*path, "properties", name))
            if value is None:
                return None
            members[name] = value
        other: str | None = None
        additional = schema.get("additionalProperties", not (self.closed and "properties" in schema))
        if additional is True:
            other = self._typed("value")
        elif additional is not False:
            other = self._name(additional, (*path, "additionalProperties"))
            if other is None:
                return None
        for name in required:
            if type(name) is not str:
                return None
            if name not in members:
                if other is None or self.ordered:
                    return None
                members[name] = other
        needed = frozenset(required)
        rule = self._whole_object(members, needed, other, least if least > len(needed) else 0)
        return None if rule is None else self._rule("object", rule)

    def _whole_object(
        self, members: dict[str, str], required: frozenset[str], other: str | None, least: int
    ) -> JsonObject | None:
        """Objects with at least ``least`` members; ``None`` where these are to be counted or spelt."""
        if least > 1 or (least and not members and other is None):
            return None
        names: list[bytes] = []
        needed: list[int] = []
        for name in members:
            literal, is_ascii = _literal(name)
            if other is not None and not is_ascii:
                return None
            if name in required:
                needed.append(len(names))
            names.append(literal)
        rules = self.emitter.rules
        if names:
            rules[SEPARATOR] = self.emitter.layout.separator
            if other is not None:
                rules.update(RULES[False])
        elif other is not None:
            self._typed("string")
        self.used = True
        return JsonObject(
            tuple(names), tuple(members.values()), frozenset(needed), other, self.compact, least, self.ordered
        )

    def _leaf(self, named: Any, schema: dict[str, Any], path: Path) -> str | None:
        """Strings and numbers with conditions, which other schemas of the process may have had."""
        if type(named) is list or named is None:
            return self._leaf_among(TYPES if named is None else named, named, schema, path)
        if named not in _LEAF_KINDS:
            return None
        emitter = self.emitter
        key = (*self._dialect(named, schema), *leaf_key(schema))
        name = self._leaves.get(key)
        if name is not None:
            return name
        known = LEAVES.find(key)
        if known is not None:
            name = self._leaves[key] = emitter.fresh(named)
            emitter.rules[name], emitter.places[name] = known, None
            return name
        self._known[id(schema)] = None  # it is not plain
        before = gc.get_count()[0]
        found = self._new_leaf(schema, path)
        rule = emitter.rules.get(found or "")
        if rule is not None and rule.shared and found not in _GENERIC:
            LEAVES.keep(key, rule, size_made(before, key, rule))
        if found is not None:
            self._leaves[key] = found
        return found

    def _dialect(self, kind: str, schema: dict[str, Any]) -> LeafKey:
        """What else than its keywords decides what a leaf is."""
        if kind != "string":
            return kind, self.emitter.whole_as_digits, self.resource.draft == 4
        if "contentEncoding" in schema:
            return kind, self.resource.draft == 7 or not self.resource.declared
        return (kind,)

    def _new_leaf(self, schema: dict[str, Any], path: Path) -> str | None:
        """The rule of a leaf by its own keywords, which are all there is to it."""
        emitter = self.emitter
        place = Place(schema, self.resource, path, self.document)
        try:
            found = self._named(emitter.norm_node(scalar_norm(emitter.algebra, place)))
        except GrammarError as error:
            raise emitter.algebra.located(error, place.pointer) from None
        # Where there is nothing, the general way says so.
        return self._general(schema, path) if found is None else found

    def _leaf_among(self, kinds: Sequence[Any], named: Any, schema: dict[str, Any], path: Path) -> str | None:
        """Values of several types, with conditions on those of one."""
        keywords = schema.keys() & LEAF_KEYWORDS
        if keywords <= STRING_KEYWORDS:
            kind = "string"
        elif keywords.isdisjoint(STRING_KEYWORDS):
            kind = "number" if "number" in kinds else "integer"
        else:
            return None
        if kind not in kinds:
            return None
        leaf = {**schema, "type": kind}
        self._made.append(leaf)  # as long as schemas are told apart by their identity
        return self._of_types(named, kind, lambda: self._leaf(kind, leaf, path))

    def _any_of(self, options: Any, path: Path) -> str | None:
        if type(options) is not list or not options:
            return None
        names: dict[str, Any] = {}
        for place, option in enumerate(options):
            name = self._name(option, (*path, place))
            if name is not None:
                names[name] = option
        if not names or "value" in names:
            return "value" if names else None
        texts: set[bytes] = set()
        kept: dict[str, None] = {}
        for name, option in names.items():
            rule = self.emitter.rules.get(name)
            if rule is not None and type(rule.body) is JsonValue:
                texts.update(rule.body.texts)
                kept.update(dict.fromkeys(rule.body.rules))
            else:
                kinds = types_of(self.resource, option)
                # All values of the type are there already.
                if kinds is None or len(kinds) > 1 or name in kinds or not (kinds & _GENERIC & names.keys()):
                    kept[name] = None
        return self._rule("value", JsonValue(tuple(sorted(texts)), tuple(kept)))

    def _one_of(self, options: Any, path: Path) -> str | None:
        """Where no two options have a type in common, it makes no difference whether several fit."""
        if type(options) is not list:
            return None
        seen: set[str] = set()
        for option in options:
            kinds = types_of(self.resource, option)
            if kinds is None or seen & kinds:
                return None
            seen |= kinds
        return self._any_of(options, path)

    def _rule(self, kind: str, rule: JsonRule) -> str:
        """The name of a rule, which is written once."""
        name = self._by_rule.get(rule)
        if name is None:
            name = self._by_rule[rule] = self.emitter.fresh(kind)
            self.emitter.rules[name] = ir.Rule(rule)
            self.used = True
        return name


def _literal(name: str) -> tuple[bytes, bool]:
    """A string as JSON text, and whether it stands there as itself and in ASCII."""
    return _usual_literal(name) if len(name) <= USUAL_LENGTH else _usual_literal.__wrapped__(name)


@lru_cache(maxsize=NAMES_KEPT)
def _usual_literal(name: str) -> tuple[bytes, bool]:
    text = spelling.literal(name)
    return text, name.isascii() and len(text) == len(name) + 2
