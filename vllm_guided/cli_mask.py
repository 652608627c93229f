"""What a mask allows, for a person to read: tokens, stop tokens, and what is forced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vllm_guided.cli_explain import shown

if TYPE_CHECKING:
    import vllm_guided as vg


@dataclass(frozen=True)
class MaskView:
    """The mask after some output.

    Attributes:
        allowed: ids of the allowed tokens, stop tokens left out, shortest text first.
        stop: the allowed stop tokens.
        size: the vocabulary's size.
        forced: the text of the only continuation, as far as there is only one.
        refused_at: the byte at which the output leaves the language; None where it does not.
    """

    allowed: list[int]
    stop: list[int]
    size: int
    forced: str = ""
    refused_at: int | None = None
    _vocabulary: vg.Vocabulary | None = field(default=None, repr=False)

    @classmethod
    def after(cls, grammar: vg.CompiledGrammar, output: bytes) -> MaskView:
        """The mask after ``output``, which is cut into the longest tokens of the vocabulary."""
        import vllm_guided as vg

        vocabulary = grammar.vocabulary
        matcher = grammar.matcher()
        position = 0
        for token_id in vocabulary.encode_greedy(output):
            if not matcher.accept_tokens([token_id]):
                return cls([], [], vocabulary.size, refused_at=position)
            position += len(vocabulary.token_bytes(token_id) or b"")
        bitmask = vg.allocate_token_bitmask(1, vocabulary.size)
        matcher.fill_bitmask(bitmask, 0)
        bits = np.unpackbits(bitmask[0].view(np.uint8), bitorder="little")
        ids = [int(token_id) for token_id in np.flatnonzero(bits[: vocabulary.size])]
        stop = set(vocabulary.stop_token_ids)
        forced = b"".join(vocabulary.token_bytes(token_id) or b"" for token_id in matcher.forced_tokens())
        return cls(
            allowed=sorted(
                (token_id for token_id in ids if token_id not in stop),
                key=lambda token_id: (len(vocabulary.token_bytes(token_id) or b""), token_id),
            ),
            stop=[token_id for token_id in ids if token_id in stop],
            size=vocabulary.size,
            forced=shown(forced),
            _vocabulary=vocabulary,
        )

    def rows(self, limit: int) -> Iterator[tuple[int, str]]:
        """``(id, text)`` of the first allowed tokens; special tokens by their names."""
        if self._vocabulary is None:
            return
        names = {token_id: name for name, token_id in self._vocabulary.special_tokens.items()}
        for token_id in self.allowed[:limit]:
            data = self._vocabulary.token_bytes(token_id)
            yield token_id, names.get(token_id, "") if data is None else repr(shown(data))[1:-1].join("''")
