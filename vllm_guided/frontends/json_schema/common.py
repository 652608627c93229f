"""What many schemas have in common, as one schema.

A process that has compiled it once, at its start, finds the parts of it again in the schemas that it is
given: generic values, names, formats, usual bounds.
"""

from __future__ import annotations

from typing import Any

from vllm_guided.frontends.json_schema import formats

TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")


def common_schema() -> dict[str, Any]:
    """An object schema without references, of any draft from 6 on."""
    values: list[dict[str, Any]] = [{}]
    values += [{"type": kind} for kind in TYPES]
    values += [{"type": "string", "format": name} for name in formats.names()]
    values += [{"type": "string", "minLength": least} for least in (1, 2, 3)]
    values += [
        {"type": "string", "maxLength": most} for most in (10, 20, 32, 50, 64, 100, 128, 200, 255, 256, 1000)
    ]
    values += [{"type": kind, "minimum": least} for kind in ("integer", "number") for least in (0, 1)]
    values += [{"type": kind, "minimum": 0, "maximum": 1} for kind in ("integer", "number")]
    values += [
        {"type": "integer", "minimum": 0, "maximum": most}
        for most in (10, 59, 100, 255, 1000, 32767, 65535, 2**31 - 1)
    ]
    values += [{"type": "integer", "minimum": 1, "maximum": most} for most in (5, 10, 12, 31, 100, 65535)]
    values += [{"type": "number", "minimum": 0, "maximum": most} for most in (100, 1000)]
    values += [{"type": "number", "minimum": -most, "maximum": most} for most in (90, 180)]
    values += [{"type": "string", "minLength": 1, "maxLength": most} for most in (50, 64, 100, 128, 255, 256)]
    values += [
        {"type": "string", "format": name, "minLength": 1}
        for name in ("date", "date-time", "hostname", "uri", "uuid")
    ]
    values += [{"type": "string", "format": name, "maxLength": 255} for name in ("email", "hostname", "uri")]
    # What formats are by their characters, which further conditions ask for; some take a tenth of a second.
    values += [
        {"anyOf": [{"type": "null"}, {"type": "string", _keyword(name): name, "pattern": "^$"}]}
        for name in formats.names()
    ]
    values += [{"type": "array", "items": {"type": kind}} for kind in TYPES]
    return {
        "type": "object",
        "properties": {f"property {number}": value for number, value in enumerate(values)},
        "required": ["property 0"],
    }


def _keyword(name: str) -> str:
    return "contentEncoding" if name == "base64" else "format"
