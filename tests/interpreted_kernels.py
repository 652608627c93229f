"""The Triton kernel under Triton's interpreter (TRITON_INTERPRET=1), run by ``test_kernels_triton.py``."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from test_kernels import DTYPES, SHAPES, STARTS, assert_same_bits, bit_patterns, random_logits, random_masks
from vllm_guided.kernels import reference, triton_kernel

assert os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "tokens", "words"), [*SHAPES, (2, 9001, 282)])
def test_as_defined(rows: int, tokens: int, words: int, dtype: torch.dtype) -> None:
    masks = random_masks(rows, words, 0)
    logits = random_logits(rows, tokens, dtype, 0)
    expected = logits.clone()
    reference.apply_token_bitmask_reference(expected, masks)
    triton_kernel.apply(logits, masks, None, None)
    assert_same_bits(logits, expected)


def test_real_vocabulary() -> None:
    """128,256 tokens under a mask of 128,000: the padding is masked."""
    masks = random_masks(3, 4000, 1)
    logits = random_logits(3, 128_256, torch.bfloat16, 1)
    expected = logits.clone()
    reference.apply_token_bitmask_vectors(expected, masks)
    triton_kernel.apply(logits, masks, None, None)
    assert_same_bits(logits, expected)
    assert bool((logits[:, -256:] == float("-inf")).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("padding", range(9))
def test_rows_that_begin_anywhere(dtype: torch.dtype, padding: int) -> None:
    """Padded rows put the first whole chunk, and so the bits of each chunk, at every possible place."""
    tokens = 333
    whole = random_logits(9, tokens + padding, dtype, padding)
    masks = random_masks(9, 11, padding)
    expected = whole.clone()
    reference.apply_token_bitmask_reference(expected[:, padding // 2 :][:, :tokens], masks)
    got = whole.clone()
    triton_kernel.apply(got[:, padding // 2 :][:, :tokens], masks, None, None)
    assert_same_bits(got, expected)


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33])
def test_rows_shorter_than_the_way_to_the_first_chunk(tokens: int) -> None:
    whole = random_logits(1, 64, torch.float16, tokens)
    masks = torch.zeros((1, 2), dtype=torch.int32)
    for first in range(9):
        got, expected = whole.clone(), whole.clone()
        reference.apply_token_bitmask_reference(expected[:, first : first + tokens], masks)
        triton_kernel.apply(got[:, first : first + tokens], masks, None, None)
        assert_same_bits(got, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strided_tokens_and_masks(dtype: torch.dtype) -> None:
    rows, tokens = 4, 700
    whole = random_logits(2 * rows, 3 * tokens, dtype, 2)
    masks = random_masks(2 * rows, 30, 2)[::2, 4:26]
    views = [
        lambda whole: whole[::2, ::3],
        lambda whole: whole.reshape(-1)[: rows * tokens].reshape(tokens, rows).t(),
    ]
    for view in views:
        got, expected = whole.clone(), whole.clone()
        reference.apply_token_bitmask_vectors(view(expected), masks)
        triton_kernel.apply(view(got), masks, None, None)
        assert_same_bits(got, expected)
        assert not torch.equal(bit_patterns(got), bit_patterns(whole))


@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize("indices", [[5, 0, 3], [2, -1, 4], [6, 1, 0], [], None])
@pytest.mark.parametrize("table", [False, True])
def test_rows(indices: list[int] | None, table: bool, integer: torch.dtype) -> None:
    """Subsets in any order; rows that do not exist (-1, 6) are left out: nothing is written elsewhere."""
    masks = random_masks(8, 32, 3)
    count = 6 if indices is None else len(indices)
    rows = None if indices is None else torch.tensor(indices, dtype=integer)
    logits = random_logits(6, 1000, torch.float32, 3)
    expected = logits.clone()
    if table:
        row_ids = torch.tensor([7, -1, 2, 2, 0, 5][:count], dtype=integer)
        reference.apply_token_bitmask_table_reference(expected, masks, row_ids, rows)
        triton_kernel.apply(logits, masks, row_ids, rows)
    else:
        reference.apply_token_bitmask_reference(expected, masks[:count], rows)
        triton_kernel.apply(logits, masks[:count], None, rows)
    assert_same_bits(logits, expected)


@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize(
    ("starts", "positions", "indices"),
    [
        *STARTS,
        ([0, 1, 3], 2, [-1, 4, 5, -7, 1 << 30, 3]),  # places of no request: nothing is written
        ([0, 5, 9], 4, [0, 4, 5, 6, 7]),  # rows beyond the logits
    ],
)
def test_rows_of_requests(
    starts: list[int], positions: int, indices: list[int], table: bool, integer: torch.dtype
) -> None:
    masks = random_masks(8, 32, 6)
    row_starts, places = torch.tensor(starts, dtype=integer), torch.tensor(indices, dtype=integer)
    rows = reference.find_rows_reference(places, row_starts, positions)
    logits = random_logits(6, 1000, torch.bfloat16, 6)
    expected = logits.clone()
    if table:
        row_ids = torch.tensor([7, -1, 2, 2, 0, 5, 1][: len(indices)], dtype=integer)
        reference.apply_token_bitmask_table_reference(expected, masks, row_ids, rows)
        triton_kernel.apply(logits, masks, row_ids, places, row_starts, positions)
    else:
        reference.apply_token_bitmask_reference(expected, masks[: len(indices)], rows)
        triton_kernel.apply(logits, masks[: len(indices)], None, places, row_starts, positions)
    assert_same_bits(logits, expected)


def test_random_batches_of_requests() -> None:
    """As a model runner has them: drafts, some trimmed on the device, strided logits, padded vocabularies."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        requests, positions = int(random.integers(1, 7)), int(random.integers(1, 5))
        scheduled = random.integers(1, positions + 1, requests)
        row_starts = torch.from_numpy(np.cumsum([0, *random.integers(1, scheduled + 1)])).to(torch.int32)
        masked = random.permutation(requests)[: int(random.integers(1, requests + 1))]
        places = torch.tensor(
            [r * positions + p for r in masked for p in range(scheduled[r])], dtype=torch.int32
        )
        table = random_masks(9, 20, seed)
        row_ids = torch.from_numpy(random.integers(-1, 9, len(places))).to(torch.int32)
        whole = random_logits(requests * positions, 700, torch.float16, seed)
        expected, got = whole.clone(), whole.clone()
        rows = reference.find_rows_reference(places, row_starts, positions)
        reference.apply_token_bitmask_table_reference(expected[:, 3:680], table, row_ids, rows)
        triton_kernel.apply(got[:, 3:680], table, row_ids, places, row_starts, positions)
        assert_same_bits(got, expected)


def test_row_ids_beyond_the_table_read_nothing() -> None:
    logits = random_logits(2, 100, torch.float32, 4)
    before = logits.clone()
    triton_kernel.apply(logits, random_masks(3, 4, 4), torch.tensor([3, 1 << 30]), None)
    assert_same_bits(logits, before)


def test_row_numbers_that_are_not_side_by_side() -> None:
    logits, expected = (random_logits(4, 64, torch.float32, 5) for _ in range(2))
    masks = random_masks(2, 2, 5)
    rows = torch.tensor([3, 9, 0, 9])[::2]
    reference.apply_token_bitmask_reference(expected, masks, rows)
    triton_kernel.apply(logits, masks, None, rows)
    assert_same_bits(logits, expected)


@pytest.mark.parametrize(("rows", "tokens"), [(0, 64), (2, 0), (0, 0)])
def test_empty(rows: int, tokens: int) -> None:
    triton_kernel.apply(
        torch.zeros(rows, tokens), torch.from_numpy(np.zeros((rows, tokens // 32), np.int32)), None, None
    )
