"""Outside cases replayed against the ratchets: worse fails, better must be recorded.

The corpora lie beside the project (``../shared/data``) and are skipped by name where they do not. To record a
better result: ``python tests/tools/replay.py NAME --update`` (for maskbench with ``--processes 2``).
"""

from __future__ import annotations

import corpora
import pytest

SAMPLES = {
    "reported": None,
    "peers": 300,
    "peer_errors": None,
    "maskbench": 250,
    "suite": 250,
    "suite_declared": 100,
}

needs_data = pytest.mark.skipif(
    not corpora.DATA.exists(), reason=f"no outside cases: {corpora.DATA} is missing"
)


@pytest.fixture(scope="module")
def engine() -> corpora.RealEngine:
    return corpora.RealEngine()


def check(name: str, cases: list[corpora.Case], engine: corpora.RealEngine, seconds: float) -> None:
    results = list(corpora.replay(engine, cases, seconds))
    worse, better = corpora.Ratchet.load(name).compare(results)
    assert not worse, "worse than recorded:\n" + "\n".join(worse)
    assert not better, (
        f"better than recorded, run `python tests/tools/replay.py {name} --update`:\n" + "\n".join(better)
    )


@needs_data
@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name: str, engine: corpora.RealEngine) -> None:
    check(name, corpora.sample(corpora.CORPORA[name](), SAMPLES[name]), engine, 10.0)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, count in SAMPLES.items() if count is not None])
def test_whole(name: str, engine: corpora.RealEngine) -> None:
    check(name, corpora.CORPORA[name](), engine, 30.0)


@needs_data
def test_peer_errors_are_quick(engine: corpora.RealEngine) -> None:
    for result in corpora.replay(engine, corpora.peer_errors(), 10.0):
        assert result.compile_seconds < 1.0, f"{result.id} took {result.compile_seconds:.1f} s"


def test_the_ratchet_sees_worse_and_better() -> None:
    before = corpora.Ratchet.of(
        [
            corpora.Result("a", "regex", "pass"),
            corpora.Result("b", "regex", "refused", "UnsupportedConstraint: no"),
            corpora.Result("c", "regex", "false_reject", "refuses x"),
        ]
    )
    now = [
        corpora.Result("a", "regex", "refused", "UnsupportedConstraint: no"),
        corpora.Result("b", "regex", "false_accept", "accepts y"),
        corpora.Result("c", "regex", "pass"),
    ]
    worse, better = before.compare(now)
    assert [line[0] for line in worse] == ["a", "b"]
    assert better == ["c: false_reject -> pass"]


def test_replay_names_each_failure() -> None:
    class Engine(corpora.NaiveEngine):
        """A language of one word, or an error, by the constraint."""

        def compile(self, case: corpora.Case) -> corpora.Accepts:
            if isinstance(case.constraint, Exception):
                raise case.constraint
            while case.constraint is None:
                pass
            return lambda text: text == case.constraint

    unsupported = corpora.GrammarError("no")
    table = [
        (corpora.Case("1", "regex", "a", ("a",), ("b",)), "pass"),
        (corpora.Case("2", "regex", "a", ("b",), ()), "false_reject"),
        (corpora.Case("3", "regex", "a", ("b",), ("a",)), "false_accept"),
        (corpora.Case("4", "regex", unsupported), "refused"),
        (corpora.Case("5", "regex", unsupported, error="may"), "pass"),
        (corpora.Case("6", "regex", "a", error="must"), "wrong_error"),
        (corpora.Case("7", "regex", KeyError("x")), "crash"),
        (corpora.Case("8", "regex", None), "slow"),
    ]
    for case, status in table:
        assert corpora.replay_case(Engine(), case, 0.2).status == status, case
