"""The errors of the package.

Every refusal of a constraint is a :class:`GrammarError`, which is a ``ValueError``: a caller that
knows nothing of this package still sees a bad argument. The message says what is wrong, where
(JSON pointer, or line and column) and what to write instead.
"""

from __future__ import annotations


class GrammarError(ValueError):
    """A constraint that cannot be used.

    Args:
        message: what is wrong and what to do about it.
        where: the place, as the input's language names places: a JSON pointer (``#/properties/a``),
            ``line 3, column 7``, or a position in a pattern. Empty where the whole input is meant.
        passing: it is due to this moment's time or memory, and may be another answer the next time.
    """

    def __init__(self, message: str, *, where: str = "", passing: bool = False) -> None:
        self.message = message
        self.where = where
        self.passing = passing
        super().__init__(f"{where}: {message}" if where else message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.where, self.passing))


class InvalidConstraint(GrammarError):
    """The input breaks the rules of its own language, or nothing at all satisfies it."""


class UnsupportedConstraint(GrammarError):
    """The input is right, but asks for something this package does not do (yet)."""


class ConstraintTooComplex(GrammarError):
    """The input is right, but a budget (states, bytes or seconds) ran out while compiling it."""


def _rebuild(kind: type[GrammarError], message: str, where: str, passing: bool) -> GrammarError:
    return kind(message, where=where, passing=passing)
