"""What the kernels do, by definition: slow, plain torch, any device. The tests compare with it."""

from __future__ import annotations

import torch


def apply_token_bitmask_reference(
    logits: torch.Tensor, bitmask: torch.Tensor, indices: torch.Tensor | None = None
) -> None:
    """Mask i onto row ``indices[i]`` of the logits [rows, tokens]; rows that do not exist are left out."""
    tokens = logits.shape[1]
    for i in range(bitmask.shape[0]):
        row = i if indices is None else int(indices[i])
        if not 0 <= row < logits.shape[0]:
            continue
        for token in range(0, tokens, 32):
            word = int(bitmask[i, token // 32]) if token // 32 < bitmask.shape[1] else 0
            for bit in range(min(32, tokens - token)):
                if not word >> bit & 1:
                    logits[row, token + bit] = float("-inf")


def apply_token_bitmask_vectors(
    logits: torch.Tensor, bitmask: torch.Tensor, indices: torch.Tensor | None = None
) -> None:
    """The same in whole tensors: what one would write without a kernel. For long rows and for benchmarks."""
    rows, tokens = bitmask.shape[0], logits.shape[1]
    shifts = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    bits = ((bitmask.unsqueeze(2) >> shifts) & 1).reshape(rows, -1)[:, :tokens]
    masked = torch.ones((rows, tokens), dtype=torch.bool, device=bitmask.device)
    masked[:, : bits.shape[1]] = bits == 0
    if indices is None:
        logits.masked_fill_(masked, float("-inf"))
    else:
        logits[indices] = logits[indices].masked_fill_(masked, float("-inf"))


def apply_token_bitmask_table_reference(
    logits: torch.Tensor, table: torch.Tensor, row_ids: torch.Tensor, indices: torch.Tensor | None = None
) -> None:
    """Row ``row_ids[i]`` of the table onto row ``indices[i]`` of the logits; -1 leaves the row as it is."""
    for i, row_id in enumerate(row_ids.tolist()):
        if 0 <= row_id < table.shape[0]:
            row = torch.tensor([i]) if indices is None else indices[i : i + 1]
            apply_token_bitmask_reference(logits, table[row_id : row_id + 1], row)


def find_rows_reference(indices: torch.Tensor, row_starts: torch.Tensor, positions: int) -> torch.Tensor:
    """The rows of the logits where the places ``indices`` are; -1 where a request has no such position."""
    rows = []
    for place in indices.tolist():
        request, position = divmod(place, positions)
        row = -1
        if 0 <= request < len(row_starts) - 1:
            start, end = row_starts[request : request + 2].tolist()
            row = start + position if start + position < end else -1
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)
