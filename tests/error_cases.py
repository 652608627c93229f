"""Errors as data: every message a constraint can meet, with an input that raises it.

The catalogue is ``tests/error_cases/KIND.jsonl``, one error a line:

========= ==========================================================================================
message   what the user is told, whole
do        the part of it that says what to write instead, or what is expected
where     the place: line and column, a position in the pattern, a JSON pointer
error     the class
input     the constraint; ``build`` instead: pairs of a text and how often it stands there, in turn
options   the frontend's options, if any
limits    budgets that are lower here than in service, so that a small input runs over them
whole     true where the input as a whole is meant, so that there is no place
========= ==========================================================================================

``python tests/tools/error_cases.py KIND`` fills in what a new line (with its input alone) lacks, and brings
the others up to date. :data:`KINDS` says which function reads a kind, and which modules must have no error
that the catalogue lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import error_sites

from vllm_guided.errors import GrammarError

FOLDER = Path(__file__).resolve().parent / "error_cases"


@dataclass(frozen=True)
class Kind:
    """Where a kind's constraints go, and what is asked of its catalogue.

    Attributes:
        function: reads a constraint.
        modules: globs in the package; no error made in these modules may be missing.
        guards: errors that no input is known to reach, by how their source begins: a last resort, so that
            what nobody thought of is a refusal too and not a crash.
    """

    function: str
    modules: tuple[str, ...]
    guards: tuple[str, ...] = ()

    def load(self) -> Callable[..., Any]:
        module, _, name = self.function.partition(":")
        function: Callable[..., Any] = getattr(import_module(f"vllm_guided.{module}"), name)
        return function


KINDS = {
    "ebnf": Kind(
        "frontends.ebnf:ebnf_grammar",
        (
            "frontends/ebnf.py",
            "frontends/ebnf_grammar/*.py",
            "frontends/free_text.py",
            "frontends/productive.py",
            "frontends/substring.py",
        ),
        ("half_a_pair(", 'InvalidConstraint( f"the {what} {pattern!r} contains a lone surrogate'),
    ),
    "lark": Kind(
        "frontends.lark:lark_grammar",
        (
            "frontends/lark.py",
            "frontends/lark_grammar/*.py",
            "frontends/lark_grammar/lalr/*.py",
            "frontends/productive.py",
        ),
        (
            "half_a_pair(",
            # Lark says these first
            '_refused("this character is not expected here"',
            "_refused(message, plain, cause.line, cause.column)",
            'InvalidConstraint(f"{symbol.name} is used but not defined; define it"',
            'InvalidConstraint( f"{symbol.name} is used but not defined; define it"',
            'InvalidConstraint( "an alias (->) has no place in a terminal"',
            "InvalidConstraint(f\"{', '.join(sorted(undefined))}: used, but not defined",
            # an optional package of Lark's that is installed here
            "InvalidConstraint( f\"with parser='lalr', \\\\p{{...}} has no place in terminals",
        ),
    ),
    "regex": Kind(
        "frontends.regex:regex_grammar",
        ("frontends/regex/*.py",),
        ('ConstraintTooComplex("the pattern is nested too deeply',),
    ),
    "structural_tag": Kind(
        "frontends.structural_tag:structural_tag_grammar",
        ("frontends/structural_tag.py", "frontends/tags/*.py"),
        (
            "half_a_pair(",
            'UnsupportedConstraint("excludes cannot be honoured',
        ),
    ),
    # its limits need large schemas, so nothing is asked of its modules
    "json_schema": Kind("frontends.json_schema:json_schema_grammar", ()),
    "choice": Kind("frontends.choice:choice_grammar", ("frontends/choice.py",)),
    "grammar": Kind("frontends.detect:grammar_from_text", ("frontends/detect.py",)),
}


def missing(kind: str, passed: set[tuple[str, int]]) -> list[str]:
    """The places where errors of the kind are made that no error came through."""
    places = error_sites.sites(list(KINDS[kind].modules))
    return [
        str(place)
        for place in places
        if not error_sites.reached(place, passed) and not place.text.startswith(KINDS[kind].guards)
    ]


def rows(kind: str) -> list[dict[str, Any]]:
    """The catalogue of a kind."""
    return [json.loads(line) for line in (FOLDER / f"{kind}.jsonl").read_text().splitlines() if line]


def constraint(row: dict[str, Any]) -> Any:
    """The input of a row."""
    if "build" in row:
        return "".join(text * count for text, count in row["build"])
    return row["input"]


def raised(kind: str, row: dict[str, Any]) -> GrammarError | None:
    """The error that the input of a row raises."""
    with ExitStack() as stack:
        for place, limit in row.get("limits", {}).items():
            module, _, name = place.partition(":")
            stack.enter_context(patch.object(import_module(f"vllm_guided.{module}"), name, limit))
        try:
            KINDS[kind].load()(constraint(row), **row.get("options", {}))
        except GrammarError as error:
            return error
    return None


def described(error: GrammarError) -> dict[str, str]:
    """What a row says of an error."""
    return {"message": error.message, "where": error.where, "error": type(error).__name__}
