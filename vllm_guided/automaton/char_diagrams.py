"""Boolean functions of numbered variables in canonical form: reduced ordered binary decision diagrams.

A function is an integer; equal functions are the same integer. ``FALSE`` is 0, ``TRUE`` is 1. Bryant 1986.
Used to keep the states of automata with lookaround finite: a state is a boolean function of "the rest of
the text is in the language of term v", one variable for each term.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm_guided.errors import ConstraintTooComplex

FALSE, TRUE = 0, 1
_LEAF = 1 << 60


class Diagrams:
    """A store of functions.

    Args:
        budget: how many decisions may be made before ConstraintTooComplex is raised.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._spent = 0
        self._variables = [_LEAF, _LEAF]
        self._lows = [FALSE, TRUE]
        self._highs = [FALSE, TRUE]
        self._unique: dict[tuple[int, int, int], int] = {}
        self._choices: dict[tuple[int, int, int], int] = {}
        self._supports: dict[int, frozenset[int]] = {FALSE: frozenset(), TRUE: frozenset()}

    def _make(self, variable: int, low: int, high: int) -> int:
        if low == high:
            return low
        key = (variable, low, high)
        found = self._unique.get(key)
        if found is None:
            found = len(self._variables)
            self._unique[key] = found
            self._variables.append(variable)
            self._lows.append(low)
            self._highs.append(high)
        return found

    def _spend(self) -> None:
        self._spent += 1
        if self._spent > self._budget:
            raise ConstraintTooComplex(
                f"lookaround that needs more than {self._budget} decisions: make its body simpler"
            )

    def variable(self, number: int) -> int:
        """The function that is variable ``number``."""
        return self._make(number, FALSE, TRUE)

    def if_then_else(self, condition: int, then: int, otherwise: int) -> int:
        """``then`` where ``condition`` holds, else ``otherwise``."""
        if condition == TRUE or then == otherwise:
            return then
        if condition == FALSE:
            return otherwise
        if then == TRUE and otherwise == FALSE:
            return condition
        key = (condition, then, otherwise)
        found = self._choices.get(key)
        if found is None:
            variables, lows, highs = self._variables, self._lows, self._highs
            top = min(variables[condition], variables[then], variables[otherwise])
            low = self.if_then_else(
                lows[condition] if variables[condition] == top else condition,
                lows[then] if variables[then] == top else then,
                lows[otherwise] if variables[otherwise] == top else otherwise,
            )
            high = self.if_then_else(
                highs[condition] if variables[condition] == top else condition,
                highs[then] if variables[then] == top else then,
                highs[otherwise] if variables[otherwise] == top else otherwise,
            )
            found = self._choices[key] = self._make(top, low, high)
            self._spend()
        return found

    def both(self, left: int, right: int) -> int:
        """Conjunction."""
        return self.if_then_else(left, right, FALSE)

    def either(self, left: int, right: int) -> int:
        """Disjunction."""
        return self.if_then_else(left, TRUE, right)

    def negated(self, function: int) -> int:
        """Negation."""
        return self.if_then_else(function, FALSE, TRUE)

    def support(self, function: int) -> frozenset[int]:
        """The variables that ``function`` depends on."""
        found = self._supports.get(function)
        if found is None:
            found = self.support(self._lows[function]) | self.support(self._highs[function])
            found |= {self._variables[function]}
            self._supports[function] = found
        return found

    def substituted(self, function: int, value: Callable[[int], int], target: Diagrams) -> int:
        """``function`` with ``value(v)``, a function of ``target``, in place of each variable ``v``."""
        done = {FALSE: FALSE, TRUE: TRUE}
        spend = target._spend

        def visit(node: int) -> int:
            found = done.get(node)
            if found is None:
                low, high = visit(self._lows[node]), visit(self._highs[node])
                found = target.if_then_else(value(self._variables[node]), high, low)
                done[node] = found
                spend()
            return found

        return visit(function)
