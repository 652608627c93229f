"""The keywords of numbers and strings.

In: one place of the schema. Out: the conjunction of its ``minimum``, ``pattern``, ... as a set of numbers or
of strings; ``None`` where they contradict each other.
"""

from __future__ import annotations

import math
from typing import Any

from vllm_guided.frontends.json_schema import formats, patterns
from vllm_guided.frontends.json_schema import numbers as number_sets
from vllm_guided.frontends.json_schema.documents import Place
from vllm_guided.frontends.json_schema.numbers import Exact, Numbers
from vllm_guided.frontends.json_schema.strings import Atom, Strings


def count(place: Place, keyword: str, default: int | None = None) -> int | None:
    """A keyword that counts: an integer from 0 on (``2.0`` is one)."""
    value = place.schema.get(keyword)
    if value is None and keyword not in place.schema:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise place.invalid(keyword, f"must be an integer, not {value!r}")
    if number_sets.exact(value) != int(value) or value < 0:
        raise place.invalid(keyword, f"must be an integer from 0 on, not {value!r}")
    return int(value)


def _number(place: Place, keyword: str) -> Exact | None:
    if keyword not in place.schema:
        return None
    value: Any = place.schema[keyword]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise place.invalid(keyword, f"must be a number, not {value!r}")
    return number_sets.exact(value)


def read_numbers(place: Place) -> Numbers | None:
    """``minimum``, ``maximum``, their exclusive forms (booleans too, as in draft 4) and ``multipleOf``."""
    schema = place.schema
    low, high = _number(place, "minimum"), _number(place, "maximum")
    low_open = schema.get("exclusiveMinimum") is True
    high_open = schema.get("exclusiveMaximum") is True
    if not isinstance(schema.get("exclusiveMinimum", True), bool):
        other = _number(place, "exclusiveMinimum")
        if other is not None and (low is None or other >= low):
            low, low_open = other, True
    if not isinstance(schema.get("exclusiveMaximum", True), bool):
        other = _number(place, "exclusiveMaximum")
        if other is not None and (high is None or other <= high):
            high, high_open = other, True
    multiple = _number(place, "multipleOf")
    if multiple is not None:
        if multiple == 0:
            raise place.invalid("multipleOf", "must not be 0")
        multiple = multiple if multiple > 0 else -multiple
    return number_sets.tidy(
        Numbers(low, low_open and low is not None, high, high_open and high is not None, multiple)
    )


def pattern_atom(place: Place, keyword: str, pattern: Any) -> Atom:
    """The condition that an ECMA-262 pattern is found in the string."""
    if not isinstance(pattern, str):
        raise place.invalid(keyword, f"must be a string, not {pattern!r}")
    fault = patterns.fault(pattern)
    if fault is not None:
        where = f" ({fault.where})" if fault.where else ""
        raise type(fault)(
            f"{keyword} {pattern!r}: {fault.message}{where}", where=f"{place.pointer}/{keyword}"
        )
    return ("pattern", pattern)


def read_strings(place: Place) -> Strings | None:
    """``minLength``, ``maxLength``, ``pattern``, known ``format`` s and base64 ``contentEncoding``."""
    schema = place.schema
    minimum, maximum = count(place, "minLength", 0), count(place, "maxLength")
    if maximum is not None and minimum is not None and maximum < minimum:
        return None
    atoms: list[Atom] = []
    if "pattern" in schema:
        atoms.append(pattern_atom(place, "pattern", schema["pattern"]))
    for keyword in ("format", "contentEncoding"):
        name = schema.get(keyword)
        if name is None:
            continue
        if not isinstance(name, str):
            raise place.invalid(keyword, f"must be a string, not {name!r}")
        if keyword == "contentEncoding" and place.annotates_contents:
            continue
        if (keyword == "contentEncoding") == (name == "base64") and formats.known(name):
            atoms.append(("format", name))
    return Strings(minimum or 0, maximum, tuple(atoms))
