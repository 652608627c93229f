"""Reading a structural tag's JSON: every field has a type and a default, and no field goes unread.

The field names and defaults are those of the structural tag format that vLLM's tool parsers write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm_guided.errors import InvalidConstraint, UnsupportedConstraint

_MISSING = object()


class Fields:
    """One JSON object with its place (a JSON pointer); ``close`` refuses what was not read."""

    def __init__(self, value: Any, where: str, what: str) -> None:
        self.where = where
        self.what = what
        if not isinstance(value, dict):
            raise InvalidConstraint(f"{what} is a JSON object", where=where)
        self.value: dict[str, Any] = value
        self.read: set[str] = {"type"}

    def fail(self, message: str, field: str = "") -> InvalidConstraint:
        """An error at ``field``."""
        return InvalidConstraint(message, where=f"{self.where}/{field}" if field else self.where)

    def get(self, field: str, default: Any = _MISSING) -> Any:
        self.read.add(field)
        value = self.value.get(field, default)
        if value is _MISSING:
            raise self.fail(f"{self.what} lacks the field {field!r}; add it")
        return value

    def string(self, field: str, default: Any = _MISSING) -> str:
        value = self.get(field, default)
        if not isinstance(value, str):
            raise self.fail("a string is expected here", field)
        return text(value, f"{self.where}/{field}")

    def boolean(self, field: str, default: bool) -> bool:
        value = self.get(field, default)
        if not isinstance(value, bool):
            raise self.fail("true or false is expected here", field)
        return value

    def integer(self, field: str, default: Any = _MISSING) -> int:
        value = self.get(field, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail("a whole number is expected here", field)
        return value

    def limit(self, field: str) -> int | None:
        """A count of at least 0, or None."""
        value = self.get(field, None)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
            raise self.fail("a whole number from 0 to 2147483647 is expected here, or null", field)
        return value

    def array(self, field: str, default: Any = _MISSING, *, empty: bool = False) -> list[Any]:
        value = self.get(field, default)
        if not isinstance(value, list | tuple):
            raise self.fail("an array is expected here", field)
        if not value and not empty:
            raise self.fail("the array is empty; give at least one element", field)
        return list(value)

    def strings(self, field: str, default: Any = _MISSING, *, empty: bool = False) -> list[str]:
        """An array of non-empty strings."""
        values = self.array(field, default, empty=empty)
        for place, value in enumerate(values):
            if not isinstance(value, str) or not value:
                raise self.fail("a string that is not empty is expected here", f"{field}/{place}")
        return [text(value, f"{self.where}/{field}") for value in values]

    def close(self) -> None:
        """Refuse fields nobody read, unless they are null."""
        for field, value in self.value.items():
            if field not in self.read and value is not None:
                raise UnsupportedConstraint(
                    f"{self.what} has no field {field!r}; leave it out", where=self.where
                )


def text(value: str, where: str) -> str:
    """``value`` with surrogate pairs joined."""
    try:
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise InvalidConstraint(
            "the string contains half a surrogate pair; write the whole character", where=where
        ) from None


def pointer(where: str, *steps: Iterable[Any] | int | str) -> str:
    """A JSON pointer further down."""
    return "/".join([where, *map(str, steps)])
