"""The largest allowed logit of each row: the compiled function against the definition."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from vllm_guided.kernels.greedy import allowed_argmax  # noqa: E402

TOKENS = (1, 31, 32, 33, 64, 1000, 1024, 1056, 5000, 20_000)
SHARES = (0.0002, 0.01, 0.3, 0.99, 1.0)


def by_definition(logits: np.ndarray, masks: np.ndarray, row_ids: np.ndarray) -> list[int] | None:
    """The first largest allowed logit of each row, one token after the other."""
    chosen = []
    for row, number in enumerate(row_ids):
        best, place = -np.inf, -1
        for token, logit in enumerate(logits[row]):
            bit = (
                token < 32 * masks.shape[1] and masks.view(np.uint32)[number, token >> 5] >> (token & 31) & 1
            )
            if number >= 0 and not bit:
                continue
            if np.isnan(logit):
                return None
            if logit > best:
                best, place = logit, token
        if place < 0:
            return None
        chosen.append(place)
    return chosen


def random_masks(random: np.random.Generator, rows: int, words: int, share: float) -> np.ndarray:
    bits = random.random((rows, 32 * words)) < share
    bits[np.arange(rows), random.integers(0, 32 * words, rows)] = True
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


def check(logits: np.ndarray, masks: np.ndarray, row_ids: np.ndarray) -> None:
    found = allowed_argmax(torch.from_numpy(logits), torch.from_numpy(masks), row_ids)
    expected = by_definition(logits, masks, row_ids)
    assert (None if found is None else found.tolist()) == expected


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("tokens", TOKENS)
def test_random(tokens: int, share: float) -> None:
    random = np.random.default_rng(tokens)
    words = (tokens + 31) // 32
    # few different values, so that there are equals, of which the first counts
    logits = random.integers(-50, 50, (5, tokens)).astype(np.float32)
    masks = random_masks(random, 4, words, share)
    check(logits, masks, random.integers(-1, 4, 5))


@pytest.mark.parametrize("words", [1, 3, 31, 32, 33, 64])
def test_tokens_beyond_the_mask_are_not_allowed(words: int) -> None:
    logits = np.arange(2500, dtype=np.float32)[None].repeat(2, 0)
    check(logits, np.full((1, words), -1, np.int32), np.array([0, -1]))


@pytest.mark.parametrize("place", [0, 40, 1023, 1024, 3999])
def test_nan_counts_where_it_is_allowed(place: int) -> None:
    logits = np.zeros((1, 4000), np.float32)
    logits[0, place] = np.nan
    masks = np.full((2, 125), -1, np.int32)
    masks[1, place >> 5] = 0
    check(logits, masks, np.array([0]))
    check(logits, masks, np.array([1]))
    assert allowed_argmax(torch.from_numpy(logits), torch.from_numpy(masks), np.array([0])) is None


def test_nothing_to_choose_by() -> None:
    logits = torch.full((1, 64), -torch.inf)
    masks = torch.full((2, 2), -1, dtype=torch.int32)
    masks[1] = 0
    assert allowed_argmax(logits, masks, np.array([0])) is None
    assert allowed_argmax(torch.zeros(1, 64), masks, np.array([1])) is None
    assert allowed_argmax(torch.zeros(1, 64), masks, np.array([2])) is None
    chosen = allowed_argmax(torch.zeros(0, 64), masks, np.zeros(0, np.int64))
    assert chosen is not None and chosen.tolist() == []


def test_strided_rows() -> None:
    whole = torch.randn(6, 4096)
    masks = torch.full((8, 256), -1, dtype=torch.int32)[::2, :100]
    found = allowed_argmax(whole[::2, 96:3296], masks, np.array([1, -1, 3]))
    assert found is not None and found.tolist() == whole[::2, 96:3296].argmax(1).tolist()


@pytest.mark.parametrize(
    ("logits", "masks", "row_ids", "error"),
    [
        (torch.zeros(1, 64, dtype=torch.float16), torch.zeros(1, 2, dtype=torch.int32), [0], TypeError),
        (torch.zeros(1, 64), torch.zeros(1, 2, dtype=torch.int64), [0], TypeError),
        (torch.zeros(64), torch.zeros(1, 2, dtype=torch.int32), [0], ValueError),
        (torch.zeros(1, 64), torch.zeros(1, 2, dtype=torch.int32), [0, 0], ValueError),
        (torch.zeros(64, 2).T, torch.zeros(1, 2, dtype=torch.int32), [0, 0], ValueError),
    ],
)
def test_wrong_arguments(logits: object, masks: object, row_ids: list[int], error: type[Exception]) -> None:
    with pytest.raises(error):
        allowed_argmax(logits, masks, np.array(row_ids))
