"""Random small schemas and values that meet often: few names, few strings, small numbers.

Comes in: a ``random.Random`` and a draft. Goes out: a schema (its ``$defs`` included), or a JSON value
whose members stand in the order of the names, so that the order of properties is rarely what decides.
"""

from __future__ import annotations

from random import Random
from typing import Any

NAMES = ("a", "b", "c")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
DIALECTS = {
    4: "http://json-schema.org/draft-04/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_FLAT = (
    "enum",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "multipleOf",
    "pattern",
    "required",
    "$ref",
    "count",
)
_NESTED = (
    "items", "tuple", "contains", "properties", "additionalProperties", "patternProperties", "propertyNames",
    "allOf", "anyOf", "oneOf", "not", "if", "dependencies", "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip


def value(random: Random, depth: int = 3) -> Any:
    """A JSON value."""
    kind = random.randrange(9 if depth else 6)
    if kind == 0:
        return None
    if kind == 1:
        return random.choice([True, False])
    if kind == 2:
        return random.choice([0, 1, 2, 3, 4, 6, -1, -3, 10, 12])
    if kind == 3:
        return random.choice([0.5, 1.0, 2.5, -0.5, 3.0, 1.5])
    if kind in (4, 5):
        return random.choice(["", "a", "b", "ab", "abc", "x1", "é", "12"])
    if kind == 6:
        return [value(random, depth - 1) for _ in range(random.randrange(4))]
    return {name: value(random, depth - 1) for name in (*NAMES, "xx", "y") if random.random() < 0.4}


def schema(random: Random, draft: int, depth: int = 3) -> Any:
    """A schema that may refer to ``#/$defs/x`` and ``#/$defs/y``."""
    if random.random() < 0.06:
        return random.choice([True, False]) if draft != 4 else {}
    made: dict[str, Any] = {}
    if random.random() < 0.5:
        made["type"] = (
            random.choice(TYPES) if random.random() < 0.8 else random.sample(TYPES, random.randrange(1, 4))
        )
    for _ in range(random.randrange(4)):
        keyword = random.choice(_FLAT + (_NESTED if depth > 0 else ()))
        _add(made, keyword, random, draft, depth - 1)
    return made


def _add(made: dict[str, Any], keyword: str, random: Random, draft: int, depth: int) -> None:
    def inner() -> Any:
        return schema(random, draft, depth)

    if keyword == "enum":
        made["enum"] = [value(random, 1) for _ in range(random.randrange(1, 4))]
    elif keyword == "const":
        made["const"] = value(random, 1)
    elif keyword in ("minimum", "maximum"):
        made[keyword] = random.choice([0, 1, 2.5, -1, 3])
    elif keyword == "exclusiveMinimum":
        if draft != 4:
            made[keyword] = random.choice([0, 1, 2.5, -1, 3])
    elif keyword == "multipleOf":
        made[keyword] = random.choice([1, 2, 3, 0.5])
    elif keyword == "pattern":
        made[keyword] = random.choice(["^a", "b$", "^[a-z]*$", r"\d", "^(ab|x1)$"])
    elif keyword == "count":
        counts = (*_COUNTS, "minContains", "maxContains") if draft == 2020 else _COUNTS
        made[random.choice(counts)] = random.randrange(3)
    elif keyword == "required":
        made["required"] = random.sample(NAMES, random.randrange(1, 3))
    elif keyword == "$ref":
        made["$ref"] = random.choice(["#/$defs/x", "#/$defs/y"])
    elif keyword == "tuple":
        items = [inner() for _ in range(random.randrange(1, 3))]
        if draft == 2020:
            made["prefixItems"] = items
        else:
            made.update(items=items, additionalItems=inner())
    elif keyword == "properties":
        made["properties"] = {name: inner() for name in NAMES if random.random() < 0.6}
    elif keyword == "patternProperties":
        patterns = random.sample(["^a", "^[ab]$", "x", "^y"], random.randrange(1, 3))
        made["patternProperties"] = {pattern: inner() for pattern in patterns}
    elif keyword == "propertyNames":
        made["propertyNames"] = {"pattern": random.choice(["^[ab]", "x"])}
    elif keyword in ("allOf", "anyOf", "oneOf"):
        made[keyword] = [inner() for _ in range(random.randrange(1, 4))]
    elif keyword == "if":
        made.update({key: inner() for key in ("if", "then", "else") if key == "if" or random.random() < 0.8})
    elif keyword == "dependencies":
        if draft == 2020:
            made["dependentRequired"] = {random.choice(NAMES): random.sample(NAMES, 1)}
            made["dependentSchemas"] = {random.choice(NAMES): inner()}
        else:
            made["dependencies"] = {random.choice(NAMES): random.choice([inner(), ["a"]])}
    elif not keyword.startswith("unevaluated") or draft == 2020:
        made[keyword] = inner()


def document(random: Random, draft: int) -> dict[str, Any]:
    """A whole schema of the draft."""
    root = schema(random, draft)
    while not isinstance(root, dict):
        root = schema(random, draft)
    definitions = {"x": schema(random, draft, 2), "y": schema(random, draft, 1)}
    return {"$schema": DIALECTS[draft], **root, "$defs": definitions}
