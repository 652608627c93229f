"""What a step sends to the workers where they hold a table of rows: numbers, and the rows that are new.

It takes the place of the mask rows in vLLM's ``GrammarOutput``: an int32 array [rows, 1], so that code which
counts or slices rows keeps working. -1 stands for "everything is allowed". The new rows travel with it, once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int32]


class RowNumbers(np.ndarray[Any, np.dtype[np.int32]]):
    """int32 [rows, 1]: numbers of rows in the table ``table``.

    Attributes:
        table: which table; a process may hold those of several engines.
        slots: int32 [new], where the new rows go.
        rows: int32 [new, words], the new rows.
    """

    table: int
    slots: Rows
    rows: Rows

    @classmethod
    def of(cls, numbers: Rows, table: int, slots: Rows, rows: Rows) -> RowNumbers:
        """Make one from int32 [rows]."""
        made = numbers.reshape(-1, 1).view(cls)
        made.table, made.slots, made.rows = table, slots, rows
        return made

    def __array_finalize__(self, source: Any) -> None:
        # A part of the numbers means the same table; the new rows belong to the whole.
        self.table = getattr(source, "table", -1)
        self.slots = self.rows = _NONE

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Bytes: pickling an array takes microseconds, and this is done in each step.
        news = (self.slots, self.rows) if len(self.slots) else ()
        return _restored, (self.tobytes(), self.table, *news)


_NONE: Rows = np.empty((0,), np.int32)


def _restored(numbers: bytes, table: int, slots: Rows = _NONE, rows: Rows = _NONE) -> RowNumbers:
    return RowNumbers.of(np.frombuffer(numbers, np.int32), table, slots, rows)
