"""Fragments put together once, for all grammars that call the same ones.

In: the fragments that a grammar calls, in the order of their keys. Out: these and all that they call, with
their arrays end to end, as :mod:`.splice` puts them behind a grammar's own rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.fragments import Fragment
from vllm_guided.bounded import bounded_cache

Ints = npt.NDArray[np.int32]
BUNDLES_KEPT = 256
FRAGMENT_BYTES = 200
"""About what a fragment's key, name and number take."""
_NO_INTS = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class Bundle:
    """Fragments, numbered from 0: first those that the grammar calls, then what they call.

    Attributes:
        number_of: by a fragment's key.
        names: of those that only other fragments call, which come last.
        table: int32 [5, fragments]: states, callees, counted fragment (-1: none), least and most of each.
        degrees, accepting: by state; labels, targets: by move; callees: numbers.
    """

    keys: tuple[bytes, ...]
    number_of: dict[bytes, int]
    names: tuple[str, ...]
    table: npt.NDArray[np.int32]
    degrees: Ints
    labels: Ints
    targets: Ints
    accepting: npt.NDArray[np.uint8]
    callees: Ints

    @property
    def nbytes(self) -> int:
        """About the bytes of the arrays and keys."""
        arrays = (self.table, self.degrees, self.labels, self.targets, self.accepting, self.callees)
        return sum([array.nbytes for array in arrays]) + FRAGMENT_BYTES * len(self.keys)


@bounded_cache(BUNDLES_KEPT, 16 << 20, size=lambda bundle: int(bundle.nbytes))
def bundle_of(called: tuple[Fragment, ...]) -> Bundle:
    """The bundle of the fragments that a grammar calls, no two with the same key."""
    order = {fragment.key: fragment for fragment in called}
    waiting = list(called)
    for fragment in waiting:  # grows while it is read
        for callee in fragment.callees:
            if callee.key not in order:
                order[callee.key] = callee
                waiting.append(callee)
    number_of = {key: number for number, key in enumerate(order)}
    rows = [
        (
            len(each.degrees), len(each.callees), number_of[each.callees[0].key] if each.counter else -1,
            each.minimum, each.maximum,
        )
        for each in waiting
    ]  # fmt: skip
    return Bundle(
        keys=tuple(order),
        number_of=number_of,
        names=tuple(each.name for each in waiting[len(called) :]),
        table=np.array(rows, np.int32).reshape(-1, 5).T.copy(),
        degrees=np.concatenate([_NO_INTS, *(each.degrees for each in waiting)]),
        labels=np.concatenate([_NO_INTS, *(each.labels for each in waiting)]),
        targets=np.concatenate([_NO_INTS, *(each.targets for each in waiting)]),
        accepting=np.concatenate([np.empty(0, np.uint8), *(each.accepting for each in waiting)]),
        callees=np.array([number_of[callee.key] for each in waiting for callee in each.callees], np.int32),
    )
