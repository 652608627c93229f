"""The demo's requests: every kind of constraint by every way a client can send it, and its judge.

A case is data; run.py sends it with the official OpenAI client. ``body`` holds the arguments of the client's
``create`` besides model, prompt and budget.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from vllm_guided.demo import judges

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 20},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "email": {"type": "string", "pattern": r"^[a-z]{2,8}\.[a-z]{2,8}@example\.(com|org)$"},
        "role": {"enum": ["admin", "editor", "reader"]},
    },
    "required": ["name", "age", "email", "role"],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number", "minimum": -1, "maximum": 1},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
SHAPE: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0}},
            "required": ["kind", "radius"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "kind": {"const": "polygon"},
                "corners": {
                    "type": "array",
                    "items": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}],
                              "items": False, "minItems": 2},
                    "minItems": 3,
                    "maxItems": 5,
                },
            },
            "required": ["kind", "corners"],
            "additionalProperties": False,
        },
    ]
}  # fmt: skip
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "maxLength": 24},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string", "minLength": 1, "maxLength": 30}},
    "required": ["query"],
    "additionalProperties": False,
}
# vLLM constrains a tool's arguments by its schema only where the tool is strict
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "search", "parameters": SEARCH, "strict": True}},
]
TIMESTAMP = r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?Z"
ADDRESS = r"(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}"
HANDLE = r"@[a-z][a-z0-9_]{3,14}"
SIZES = ["small", "medium", "large", "extra large"]
MOODS = ["positive", "negative", "neutral 😐"]
SQL_LARK = r"""
start: query ";"
query: "SELECT " columns " FROM " NAME [" WHERE " test (" AND " test)~0..2]
columns: "*" | NAME (", " NAME)~0..3
test: NAME " " OPERATOR " " (NUMBER | "(" inner ")")
inner: "SELECT " NAME " FROM " NAME [" WHERE " NAME " " OPERATOR " " NUMBER]
NAME: /[a-z]{1,10}/
OPERATOR: "=" | "<" | ">" | "<>"
NUMBER: /[1-9]\d{0,3}/
"""
SUM_LARK = """
start: sum
sum: product | sum "+" product | sum "-" product
product: atom | product "*" atom
atom: INT | "(" sum ")"
INT: /[1-9][0-9]?/
"""
SUM_EBNF = """
root ::= sum
sum ::= product (("+" | "-") product)*
product ::= atom ("*" atom)*
atom ::= [1-9] [0-9]? | "(" sum ")"
"""
LISP_EBNF = """
root ::= list
list ::= "(" word (" " item){0,4} ")"
item ::= word | list | [1-9] [0-9]*
word ::= [a-z] [a-z?-]{0,11}
"""
LISP_LARK = """
start: list
list: "(" WORD (" " item)~0..4 ")"
item: WORD | list | /[1-9][0-9]*/
WORD: /[a-z][a-z?-]{0,11}/
"""


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        sent_as: the field of the request that carries the constraint.
        constraint: what it asks for, for the table.
        body: arguments for the client.
        judge: what the output must pass; None where the request must be refused.
        refusal: for a refused request, text that the error's message must contain.
        endpoint: which part of the OpenAI API.
        stream: whether the answer is streamed.
    """

    sent_as: str
    constraint: str
    body: dict[str, Any]
    judge: judges.Judge | None
    refusal: str = ""
    endpoint: Literal["chat", "completions", "responses"] = "chat"
    stream: bool = False


def all_cases() -> list[Case]:
    """Every case of the demo, in the order of its table."""
    return [
        *_response_formats(),
        *_structured_outputs(),
        *_guided(),
        *_tools(),
        *_other_endpoints(),
        *_refused(),
    ]


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}}


def _extra(**fields: Any) -> dict[str, Any]:
    return {"extra_body": fields}


def _so(**fields: Any) -> dict[str, Any]:
    return _extra(structured_outputs=fields)


def _tag(schema: dict[str, Any]) -> dict[str, Any]:
    tag = {"type": "tag", "begin": "<answer>", "content": {"type": "json_schema", "json_schema": schema},
           "end": "</answer>"}  # fmt: skip
    return {"type": "structural_tag", "format": tag}


def _response_formats() -> list[Case]:
    return [
        Case(
            "response_format", "json_schema: a person", _response_format(PERSON), judges.json_schema(PERSON)
        ),
        Case(
            "response_format",
            "json_schema: a recursive tree",
            _response_format(TREE),
            judges.json_schema(TREE),
            stream=True,
        ),
        Case(
            "response_format", "json_object", {"response_format": {"type": "json_object"}}, judges.json_object
        ),
        Case(
            "response_format",
            "structural_tag: JSON in <answer>",
            {"response_format": _tag(WEATHER)},
            judges.between("<answer>", judges.json_schema(WEATHER), "</answer>"),
        ),
    ]


def _structured_outputs() -> list[Case]:
    tagged = judges.between("<answer>", judges.json_schema(SEARCH), "</answer>")
    return [
        Case("structured_outputs", "json: circle or polygon", _so(json=SHAPE), judges.json_schema(SHAPE)),
        Case(
            "structured_outputs",
            "json, disable_any_whitespace",
            _so(json=PERSON, disable_any_whitespace=True),
            judges.json_schema(PERSON, compact=True),
        ),
        Case("structured_outputs", "regex: a time stamp", _so(regex=TIMESTAMP), judges.regex(TIMESTAMP)),
        Case("structured_outputs", "choice of 3, one with an emoji", _so(choice=MOODS), judges.choice(MOODS)),
        Case(
            "structured_outputs",
            "grammar (Lark): SQL",
            _so(grammar=SQL_LARK),
            judges.lark(SQL_LARK),
            stream=True,
        ),
        Case(
            "structured_outputs",
            "grammar (Lark): left recursion",
            _so(grammar=SUM_LARK),
            judges.lark(SUM_LARK),
        ),
        Case("structured_outputs", "grammar (EBNF): Lisp", _so(grammar=LISP_EBNF), judges.lark(LISP_LARK)),
        Case("structured_outputs", "structural_tag", _so(structural_tag=json.dumps(_tag(SEARCH))), tagged),
    ]


def _guided() -> list[Case]:
    return [
        Case("guided_json", "a shape", _extra(guided_json=SHAPE), judges.json_schema(SHAPE), stream=True),
        Case("guided_regex", "an IPv4 address", _extra(guided_regex=ADDRESS), judges.regex(ADDRESS)),
        Case("guided_choice", "choice of 4", _extra(guided_choice=SIZES), judges.choice(SIZES)),
        Case("guided_grammar", "EBNF: sums", _extra(guided_grammar=SUM_EBNF), judges.lark(SUM_LARK)),
    ]


def _tools() -> list[Case]:
    named = {"type": "function", "function": {"name": "get_weather"}}
    one, both = {"get_weather": WEATHER}, {"get_weather": WEATHER, "search": SEARCH}
    return [
        Case(
            "tools",
            "tool_choice: get_weather",
            {"tools": TOOLS, "tool_choice": named},
            judges.tool_calls(one),
        ),
        Case(
            "tools",
            "tool_choice: required",
            {"tools": TOOLS, "tool_choice": "required"},
            judges.tool_calls(both),
        ),
        Case(
            "tools",
            "tool_choice: get_weather",
            {"tools": TOOLS, "tool_choice": named},
            judges.tool_calls(one),
            stream=True,
        ),
    ]


def _other_endpoints() -> list[Case]:
    text_format = {"text": {"format": {"type": "json_schema", "name": "output", "schema": PERSON}}}
    return [
        Case(
            "/v1/completions",
            "guided_regex: a handle",
            _extra(guided_regex=HANDLE),
            judges.regex(HANDLE),
            endpoint="completions",
            stream=True,
        ),
        Case(
            "/v1/responses",
            "text.format: a person",
            text_format,
            judges.json_schema(PERSON),
            endpoint="responses",
        ),
    ]


def _refused() -> list[Case]:
    bad_type = {"type": "object", "properties": {"when": {"type": "datetime"}}}
    return [
        Case("response_format", "a type that is none", _response_format(bad_type), None, refusal="datetime"),
        Case("guided_regex", "a bracket left open", _extra(guided_regex="[a-z"), None),
        Case(
            "guided_grammar",
            "a rule that is not there",
            _extra(guided_grammar="start: missing"),
            None,
            refusal="missing",
        ),
        Case("structured_outputs", "a good one after them", _so(choice=SIZES), judges.choice(SIZES)),
    ]
