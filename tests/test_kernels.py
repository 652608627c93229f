"""The bitmask kernels on the CPU: against their definition, on awkward shapes, and their refusals."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from vllm_guided.kernels import cpu, openmp, reference  # noqa: E402

from vllm_guided import kernels  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def random_masks(rows: int, words: int, seed: int) -> torch.Tensor:
    """Masks of several densities; row 0 allows all, row 1 nothing; whole words of both kinds elsewhere."""
    random = np.random.default_rng(seed)
    bits = random.random((rows, words * 32)) < random.choice([0.001, 0.5, 0.94, 0.999], (rows, 1))
    masks = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    masks[random.random((rows, words)) < 0.2] = 0
    masks[random.random((rows, words)) < 0.2] = -1
    masks[:1] = -1
    masks[1:2] = 0
    return torch.from_numpy(masks)


def random_logits(rows: int, tokens: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Logits as any bit pattern: NaN of every payload, infinities, zeros of both signs, subnormal numbers."""
    size = torch.empty(0, dtype=dtype).element_size()
    random = np.random.default_rng(seed)
    patterns = torch.from_numpy(np.frombuffer(random.bytes(rows * tokens * size), dtype=f"i{size}").copy())
    logits = patterns.view(dtype).reshape(rows, tokens)
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0], dtype=dtype)
    logits[:, : 4 * (tokens // 8)] = special.repeat(tokens // 8)
    return logits


def bit_patterns(logits: torch.Tensor) -> torch.Tensor:
    return logits.contiguous().view(INTEGERS[logits.element_size()])


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(bit_patterns(got), bit_patterns(expected))


@pytest.fixture(params=["one thread", "team"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the test with the calling thread alone, and with torch's threads, however small the job is."""
    if request.param == "team" and openmp.team_size() == 1:
        pytest.skip("torch has one thread, or no OpenMP runtime")
    monkeypatch.setattr(cpu, "ALONE_LINES", 3 if request.param == "team" else 1 << 62)
    monkeypatch.setattr(cpu, "TILE", 2048)
    monkeypatch.setattr(cpu, "ROWS_PER_THREAD", 5)
    monkeypatch.setattr(openmp.Worth, "try_team", lambda self: True)
    yield request.param


SHAPES = [  # rows, tokens, words
    (1, 1, 1),
    (2, 31, 1),
    (3, 32, 1),
    (3, 33, 2),
    (3, 33, 1),  # the mask is too narrow: the last token is masked
    (4, 311, 10),
    (4, 311, 25),  # too wide: the rest is ignored
    (4, 2048, 64),
    (5, 2049, 65),
    (3, 4500, 100),
    (4, 8320, 260),  # two blocks that are tried as a whole, and more
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "tokens", "words"), SHAPES)
def test_as_defined(rows: int, tokens: int, words: int, dtype: torch.dtype, threads: str) -> None:
    for seed in range(3):
        masks = random_masks(rows, words, seed)
        logits = random_logits(rows, tokens, dtype, seed)
        expected = logits.clone()
        reference.apply_token_bitmask_reference(expected, masks)
        for bitmask in (masks, masks.numpy()):
            got = logits.clone()
            assert kernels.apply_token_bitmask_inplace(got, bitmask) is None
            assert_same_bits(got, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("padding", [0, 256])
def test_real_vocabulary(dtype: torch.dtype, padding: int, threads: str) -> None:
    """128,256 tokens, and 128,000 with a mask of that width under padded logits: the padding is masked."""
    tokens = 128_256
    masks = random_masks(6, (tokens - padding) // 32, 1)
    logits = random_logits(6, tokens, dtype, 1)
    expected = logits.clone()
    reference.apply_token_bitmask_vectors(expected, masks)
    kernels.apply_token_bitmask_inplace(logits, masks)
    assert_same_bits(logits, expected)
    if padding:
        assert bool((logits[:, -padding:] == float("-inf")).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bit", [0, 31, 4095, 4096, 8191, 8192, 8223])
def test_a_single_masked_token(dtype: torch.dtype, bit: int, threads: str) -> None:
    """A block of the mask that is all ones but for a bit is not taken for one that is all ones."""
    masks = torch.full((40, 257), -1, dtype=torch.int32)
    masks.view(torch.uint8)[::3, bit // 8] = ~(1 << bit % 8) & 255
    logits = torch.zeros(40, 8224, dtype=dtype)
    kernels.apply_token_bitmask_inplace(logits, masks)
    assert (logits == float("-inf")).nonzero().tolist() == [[row, bit] for row in range(0, 40, 3)]


def test_the_two_references_agree() -> None:
    for rows, tokens, words in SHAPES:
        masks = random_masks(rows, words, 0)
        indices = torch.randperm(rows)
        logits = random_logits(rows, tokens, torch.float32, 0)
        for chosen in (None, indices):
            slow, fast = logits.clone(), logits.clone()
            reference.apply_token_bitmask_reference(slow, masks, chosen)
            reference.apply_token_bitmask_vectors(fast, masks, chosen)
            assert_same_bits(slow, fast)


def test_meaning_of_bits() -> None:
    logits = torch.arange(40.0)
    kernels.apply_token_bitmask_inplace(logits, np.array([0b1010, 0b1], dtype=np.int32))
    assert [token for token in range(40) if logits[token] != float("-inf")] == [1, 3, 32]
    assert logits[1] == 1.0 and logits[3] == 3.0 and logits[32] == 32.0


def test_allowed_logits_keep_their_bits_and_masked_ones_lose_them() -> None:
    values = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0] * 8)
    logits = values.repeat(2).reshape(2, 32).clone()
    kernels.apply_token_bitmask_inplace(logits, torch.tensor([[-1], [0]], dtype=torch.int32))
    assert_same_bits(logits[0], values)
    assert bool((logits[1] == float("-inf")).all())


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("tokens", [0, 70])
def test_empty(rows: int, tokens: int) -> None:
    logits = torch.zeros(rows, tokens)
    masks = torch.zeros((rows, (tokens + 31) // 32), dtype=torch.int32)
    kernels.apply_token_bitmask_inplace(logits, masks)
    assert bool((logits == float("-inf")).all())
    kernels.apply_token_bitmask_inplace(logits, masks[:0], indices=[])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "layout", ["padded rows", "every other row", "transposed", "every third token", "odd start"]
)
def test_strided_logits(dtype: torch.dtype, layout: str, threads: str) -> None:
    """Only the view is written: what lies between its rows and tokens keeps its bits."""
    rows, tokens = 5, 3000
    whole = random_logits(2 * rows, 3 * tokens + 7, dtype, 0)
    views = {
        "padded rows": lambda whole: whole[:rows, :tokens],
        "every other row": lambda whole: whole[::2, 5 : 5 + tokens],
        "transposed": lambda whole: whole.reshape(-1)[: rows * tokens].reshape(tokens, rows).t(),
        "every third token": lambda whole: whole[:rows, 1 : 1 + 3 * tokens : 3],
        "odd start": lambda whole: whole.reshape(-1)[1 : 1 + rows * tokens].reshape(rows, tokens),
    }
    masks = random_masks(rows, (tokens + 31) // 32, 0)
    expected = whole.clone()
    reference.apply_token_bitmask_vectors(views[layout](expected), masks)
    got = whole.clone()
    kernels.apply_token_bitmask_inplace(views[layout](got), masks)
    assert_same_bits(got, expected)
    assert not torch.equal(bit_patterns(got), bit_patterns(whole))


def test_strided_masks() -> None:
    tokens = 500
    wide = random_masks(8, 40, 0)
    for masks in (wide[::2, 3:19], wide[:4, ::2], wide.t()[:4, :]):
        for bitmask in (masks, masks.numpy(), masks.numpy()[::-1]):
            logits = torch.zeros(len(masks), tokens)
            expected = logits.clone()
            reference.apply_token_bitmask_reference(expected, torch.tensor(np.array(bitmask)))
            kernels.apply_token_bitmask_inplace(logits, bitmask)
            assert_same_bits(logits, expected)


def test_a_read_only_mask() -> None:
    bitmask = np.zeros((1, 2), dtype=np.int32)
    bitmask.flags.writeable = False
    logits = torch.zeros(1, 64)
    kernels.apply_token_bitmask_inplace(logits, bitmask)
    assert bool((logits == float("-inf")).all())


INDICES = [
    [0, 1, 2, 3, 4, 5],
    [5, 0, 3],
    [2],
    [],
]


@pytest.mark.parametrize("indices", INDICES)
def test_indices(indices: list[int], threads: str) -> None:
    tokens = 2500
    masks = random_masks(len(indices), 79, 3)
    logits = random_logits(6, tokens, torch.bfloat16, 3)
    expected = logits.clone()
    for i, row in enumerate(indices):
        reference.apply_token_bitmask_vectors(expected[row : row + 1], masks[i : i + 1])
    forms = [
        indices,
        np.array(indices, dtype=np.int32),
        torch.tensor(indices, dtype=torch.int32),
        torch.tensor(indices, dtype=torch.int64),
        torch.tensor([row for row in indices for _ in (0, 1)], dtype=torch.int64)[::2],
    ]
    for form in forms:
        got = logits.clone()
        kernels.apply_token_bitmask_inplace(got, masks, form)
        assert_same_bits(got, expected)


@pytest.mark.parametrize("indices", [None, [4, 0, 2, 5], [0, 1, 2, 3]])
def test_table(indices: list[int] | None, threads: str) -> None:
    tokens = 2500
    rows = 4 if indices is None else 6
    table = random_masks(9, 79, 4)
    row_ids = [7, -1, 0, 7]
    logits = random_logits(rows, tokens, torch.float16, 4)
    expected = logits.clone()
    chosen = None if indices is None else torch.tensor(indices)
    reference.apply_token_bitmask_table_reference(expected, table, torch.tensor(row_ids), chosen)
    for ids in (row_ids, np.array(row_ids), torch.tensor(row_ids, dtype=torch.int32)):
        got = logits.clone()
        kernels.apply_token_bitmask_table_inplace(got, table, ids, indices)
        assert_same_bits(got, expected)


STARTS = [  # row_starts, positions, indices
    ([0, 1, 2, 3], 1, [2, 0]),
    ([0, 1, 5, 6], 4, [4, 5, 6, 7, 8]),
    ([0, 1, 3, 4], 4, [4, 5, 6, 7, 8, 0]),  # two of the drafts were trimmed: two places are gone
    ([0, 3, 3, 6], 3, [8, 7, 6, 3, 4, 5, 0]),  # a request without rows
    ([0, 0, 0], 2, [0, 1, 2, 3]),
    ([0], 2, []),
]


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize(("starts", "positions", "indices"), STARTS)
def test_rows_of_requests(
    starts: list[int], positions: int, indices: list[int], table: bool, threads: str
) -> None:
    """Where a request's rows begin decides which row a mask is for, and whether there is one."""
    masks = random_masks(len(indices) or 1, 79, 5)
    row_ids = torch.tensor(
        [(3 * i) % len(masks) if i % 4 else -1 for i in range(len(indices))], dtype=torch.int64
    )
    logits = random_logits(6, 2500, torch.bfloat16, 5)
    for dtype in (torch.int32, torch.int64):
        row_starts = torch.tensor(starts, dtype=dtype)
        places = torch.tensor(indices, dtype=dtype)
        expected, got = logits.clone(), logits.clone()
        rows = reference.find_rows_reference(places, row_starts, positions)
        if table:
            reference.apply_token_bitmask_table_reference(expected, masks, row_ids, rows)
            kernels.apply_token_bitmask_table_inplace(
                got, masks, row_ids, places, row_starts=row_starts, positions=positions
            )
        else:
            reference.apply_token_bitmask_reference(expected, masks[: len(rows)], rows)
            kernels.apply_token_bitmask_inplace(
                got, masks[: len(rows)], places, row_starts=row_starts, positions=positions
            )
        assert_same_bits(got, expected)


def test_row_id_of_minus_one_leaves_tokens_beyond_the_mask_too() -> None:
    logits = torch.zeros(2, 40)
    table = torch.tensor([[-1]], dtype=torch.int32)
    kernels.apply_token_bitmask_table_inplace(logits, table, [-1, 0])
    assert logits[0].tolist() == [0.0] * 40
    assert logits[1].tolist() == [0.0] * 32 + [float("-inf")] * 8


LOGITS = torch.zeros(3, 64)
MASKS = torch.zeros((3, 2), dtype=torch.int32)
REFUSED = [
    (np.zeros((3, 64)), MASKS, None, TypeError, "logits must be a torch.Tensor, not ndarray"),
    (LOGITS.to(torch.int32), MASKS, None, TypeError, "logits must be float16"),
    (LOGITS.reshape(3, 8, 8), MASKS, None, ValueError, "not 3-dimensional"),
    (torch.zeros(1, 64).expand(3, 64), MASKS, None, ValueError, "expanded"),
    (LOGITS, [[0, 0]] * 3, None, TypeError, "bitmask must be a torch.Tensor or a numpy array, not list"),
    (LOGITS, MASKS.to(torch.int64), None, TypeError, "bitmask must be int32, not torch.int64"),
    (LOGITS, MASKS.numpy().astype(np.uint32), None, TypeError, "bitmask must be int32, not uint32"),
    (LOGITS, MASKS.reshape(3, 1, 2), None, ValueError, "not 3-dimensional"),
    (LOGITS, MASKS[:, :0], None, ValueError, "bitmask has no words; 64 tokens need 2"),
    (LOGITS, MASKS[:2], None, ValueError, "2 masks for 3 rows of logits"),
    (LOGITS[0], MASKS, None, ValueError, "3 masks for 1 rows of logits"),
    (LOGITS, MASKS[:2], [0], ValueError, "2 masks for 1 indices"),
    (LOGITS, MASKS[:2], [0.0, 1.0], TypeError, "indices must be integers, not float64"),
    (LOGITS, MASKS[:2], [True, False], TypeError, "indices must be integers, not bool"),
    (LOGITS, MASKS[:2], torch.tensor([0.0, 1.0]), TypeError, "indices must be int32 or int64"),
    (LOGITS, MASKS[:2], torch.zeros(2, dtype=torch.bool), TypeError, "indices must be int32 or int64"),
    (LOGITS, MASKS[:2], [[0, 1]], ValueError, "indices must be one-dimensional"),
    (LOGITS, MASKS[:2], [0, 3], ValueError, "indices has row 3, but logits have the rows 0 to 2"),
    (LOGITS, MASKS[:2], [-1, 0], ValueError, "indices has row -1"),
    (LOGITS, MASKS[:2], [1, 1], ValueError, "indices has row 1 more than once"),
    (LOGITS.to("meta"), MASKS, None, ValueError, "no kernel for logits on meta"),
    (LOGITS, MASKS.to("meta"), None, ValueError, "bitmask on meta"),
]


@pytest.mark.parametrize(
    ("logits", "bitmask", "indices", "error", "message"), REFUSED, ids=lambda x: str(x)[:30]
)
def test_refused(
    logits: object, bitmask: object, indices: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kernels.apply_token_bitmask_inplace(logits, bitmask, indices)
    assert bool((LOGITS == 0).all()), "a refused call must change nothing"


@pytest.mark.parametrize(
    ("row_ids", "error", "message"),
    [
        ([0, 1], ValueError, "2 masks for 3 rows"),
        ([0, 1, 3], ValueError, "row_ids has row 3, but the table has the rows 0 to 2"),
        ([0, -2, 1], ValueError, "row_ids has row -2"),
        ([0.5, 1.0, 2.0], TypeError, "row_ids must be integers"),
    ],
)
def test_refused_row_ids(row_ids: list[float], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        kernels.apply_token_bitmask_table_inplace(LOGITS, MASKS, row_ids)
    assert bool((LOGITS == 0).all())


@pytest.mark.parametrize(
    ("starts", "indices", "positions", "error", "message"),
    [
        (torch.tensor([0, 1, 3]), None, 2, ValueError, "row_starts need indices"),
        ([0, 1, 3], [0, 1, 2], 2, TypeError, "row_starts must be a torch.Tensor, not list"),
        (torch.tensor([0.0, 3.0]), [0, 1, 2], 2, TypeError, "row_starts must be int32 or int64"),
        (torch.tensor([[0, 3]]), [0, 1, 2], 2, ValueError, "row_starts must be one-dimensional"),
        (torch.tensor([], dtype=torch.int32), [0, 1, 2], 2, ValueError, "one number more than"),
        (torch.tensor([0, 1, 3]), [0, 1, 2], 0, ValueError, "positions must be an integer of at least 1"),
        (torch.tensor([0, 1, 3]), [0, 1, 4], 2, ValueError, "place 4, but there are 2 requests of 2"),
        (torch.tensor([0, 1, 3]), [0, -1, 2], 2, ValueError, "place -1"),
        (torch.tensor([0, 2, 4]), [0, 2, 3], 2, ValueError, "indices has row 3, but logits have"),
    ],
)
def test_refused_row_starts(
    starts: object, indices: list[int] | None, positions: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kernels.apply_token_bitmask_inplace(
            LOGITS,
            MASKS,
            indices,
            row_starts=starts,  # type: ignore[arg-type]
            positions=positions,
        )
    assert bool((LOGITS == 0).all())


def test_several_threads_at_once(threads: str) -> None:
    tokens = 20_000
    masks = random_masks(8, 625, 5)
    expected = torch.zeros(8, tokens)
    reference.apply_token_bitmask_vectors(expected, masks)
    results = [torch.zeros(8, tokens) for _ in range(6)]

    def work(logits: torch.Tensor) -> None:
        for _ in range(20):
            logits.zero_()
            kernels.apply_token_bitmask_inplace(logits, masks)

    workers = [threading.Thread(target=work, args=(logits,)) for logits in results]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for logits in results:
        assert_same_bits(logits, expected)


def test_a_team_that_was_slower_is_not_asked_for_a_while() -> None:
    worth = openmp.Worth()
    asked = []
    for job in range(1200):
        if worth.try_team():
            asked.append(job)
            worth.learn(alone=1.0, team=5.0)
    assert asked == [0, 3, 8, 17, 34, 67, 132, 261, 518, 775, 1032]  # 2, 4, 8 to 256 between them
    worth.alone = 0
    assert worth.try_team()
    worth.learn(alone=5.0, team=3.0)
    assert worth.try_team() and worth.failures == 0


def test_jobs_are_done_whether_a_team_helps_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a team is slow, the calling thread does the rest of the next jobs itself."""
    asked: list[int] = []

    def slow(function: int, data: int) -> None:
        asked.append(1)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(data)
        time.sleep(0.05)

    monkeypatch.setattr(openmp, "run", slow)
    monkeypatch.setattr(openmp, "team_size", lambda: 2)
    monkeypatch.setattr(cpu, "ALONE_LINES", 3)
    monkeypatch.setattr(cpu, "_worth", openmp.Worth())
    masks = random_masks(8, 625, 6)
    expected = torch.zeros(8, 20_000)
    reference.apply_token_bitmask_vectors(expected, masks)
    for _ in range(5):
        logits = torch.zeros(8, 20_000)
        kernels.apply_token_bitmask_inplace(logits, masks)
        assert_same_bits(logits, expected)
    assert len(asked) == 2  # the first and the fourth


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_in_a_forked_child() -> None:
    """The team's threads do not exist in a child: it must work alone, not wait for them."""
    script = """
import os, signal, torch
from vllm_guided import kernels
logits, masks = torch.zeros(2, 64, 32000), torch.zeros((64, 1000), dtype=torch.int32)
kernels.apply_token_bitmask_inplace(logits[0], masks)
child = os.fork()
if child == 0:
    signal.alarm(100)  # a child that waits for ever ends by it
    kernels.apply_token_bitmask_inplace(logits[1], masks)
    os._exit(0 if logits[1, -1, -1].item() == float("-inf") else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_importing_the_kernels_imports_nothing_heavy() -> None:
    """A vLLM worker that imports numba before its own classes does not start."""
    script = "import sys, vllm_guided.kernels; print({'numba', 'torch', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
