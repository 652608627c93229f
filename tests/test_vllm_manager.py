"""The manager: which rows a step gets, for every layout, against the plain loop of each version."""

from __future__ import annotations

import random
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import vllm_shapes

pytest.importorskip("vllm.v1.structured_output.backend_types")
from vllm.sampling_params import StructuredOutputsParams

import vllm_guided as vg
from vllm_guided.errors import InvalidConstraint
from vllm_guided.runtime.row_table import RowTable
from vllm_guided.vllm import advance, engine, selection, shipping
from vllm_guided.vllm import manager as join
from vllm_guided.vllm.engine import Constraint, Engine
from vllm_guided.vllm.grammar import GuidedGrammar
from vllm_guided.vllm.row_numbers import RowNumbers

TOKENS: list[bytes | None] = [b"a", b"b", b"ab", b"ba", b"abab", b"c", None, None, None, None]
END, EOT, THINK_END, CALL = 6, 7, 8, 9
SIZE = 40


class Tokenizer:
    eos_token_id = END
    all_special_ids = (END, EOT, THINK_END, CALL)

    def __len__(self) -> int:
        return len(TOKENS)

    def decode(self, ids: list[int]) -> str:
        return (TOKENS[ids[0]] or b"").decode()


def config(backend: str = "vllm_guided", drafts: int = 0, reasoner: Any = None, **options: Any) -> Any:
    return SimpleNamespace(
        structured_outputs_config=SimpleNamespace(
            backend=backend, disable_any_whitespace=False, disable_additional_properties=False, **options
        ),
        model_config=SimpleNamespace(
            get_vocab_size=lambda: SIZE,
            try_get_generation_config=lambda: {"eos_token_id": [END, EOT]},
            is_diffusion=False,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=64),
        num_speculative_tokens=drafts,
        tokenizer=Tokenizer(),
        reasoner=reasoner,
        reasoning_end=THINK_END,
        implicit_ends=(CALL,),
    )


class Output:
    """What vLLM keeps of a request's constraint."""

    def __init__(self, params: Any, reasoning_ended: bool) -> None:
        self.params = params
        self.reasoning_ended = reasoning_ended
        self._grammar: Any = None

    @property
    def grammar(self) -> Any:
        return self._grammar

    @grammar.setter
    def grammar(self, grammar: Any) -> None:
        self._grammar = grammar


def request(name: str, *texts: str, stop: tuple[int, ...] = (), reasoning: bool = False, **given: Any) -> Any:
    params = StructuredOutputsParams(**(given or {"choice": list(texts)}))
    return SimpleNamespace(
        request_id=name,
        structured_output_request=Output(params, not reasoning),
        sampling_params=SimpleNamespace(structured_outputs=params, all_stop_token_ids={END, EOT, *stop}),
        reasoning_ended=not reasoning,
    )


class RecordingEngine(Engine):
    """The real engine; keeps what it was asked for."""

    def compile(self, constraint: Constraint) -> Any:
        vars(self).setdefault("asked", []).append(constraint)
        return super().compile(constraint)

    def at_hand(self, constraint: Constraint) -> Any:
        found = super().at_hand(constraint)
        if found is not None:
            vars(self).setdefault("asked", []).append(constraint)
        return found


COMPILER = vg.GrammarCompiler(
    vg.Vocabulary([*TOKENS, *[None] * (SIZE - len(TOKENS))], stop_token_ids=[END, EOT])
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    monkeypatch.setattr(engine, "make_engine", lambda *_: RecordingEngine(COMPILER, frozenset({END, EOT})))
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    monkeypatch.setattr(selection, "_active", False)
    monkeypatch.setattr(selection, "_faults", [])
    monkeypatch.setattr(advance, "FEW", 1)


def adapted(shape: type, **methods: Any) -> Any:
    """A copy of a manager class with our adapters on it."""
    manager = type(shape.__name__, (shape,), {name: value for name, value in vars(shape).items()} | methods)
    module = ModuleType("a_vllm")
    module.StructuredOutputManager = manager  # type: ignore[attr-defined]
    join.use_backend(module)
    return manager


def path(made: Any) -> list[int]:
    """The states that a request has gone through."""
    return list(made.structured_output_request.grammar.matcher._history)


SHAPES = [vllm_shapes.Manager030, vllm_shapes.Manager032, vllm_shapes.Manager033]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_backend_is_there_from_the_start(shape: type) -> None:
    manager = adapted(shape)(config())
    assert manager.backend.engine.stop_token_ids == {END, EOT}
    assert manager.backend_name == "vllm_guided" and selection.is_active()
    bitmask = manager.backend.allocate_token_bitmask(3)
    assert bitmask.shape == (3, 2) and bitmask.numpy().dtype == np.int32


@pytest.mark.parametrize("shape", SHAPES)
def test_another_backend_is_left_alone(shape: type) -> None:
    manager = adapted(shape)(config("xgrammar"))
    assert manager.backend is None and not selection.is_active()
    with pytest.raises(AssertionError, match="compiled by key"):
        manager._create_grammar(request("r", "a"))
    assert manager.grammar_bitmask({}, [], {}) is None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("noted", [None, "xgrammar", "vllm_guided"])
def test_a_request_is_compiled_whatever_backend_it_notes(shape: type, noted: str | None) -> None:
    manager = adapted(shape)(config())
    made = request("r", "ab", stop=(5,))
    made.structured_output_request.params._backend = noted
    manager.grammar_init(made)
    grammar = made.structured_output_request.grammar
    assert type(grammar) is GuidedGrammar
    assert (grammar.request_id, grammar.extra_stop_ids) == ("r", {5})
    manager.grammar_init(SimpleNamespace(structured_output_request=None))


def test_what_was_compiled_before_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = adapted(vllm_shapes.Manager032)(config())
    manager.grammar_init(request("before", "ab", "ba"))
    monkeypatch.setattr(manager.executor, "submit", lambda *_: pytest.fail("a thread was asked"))
    made = request("r", "ab", "ba", stop=(5,))
    manager.grammar_init(made)
    grammar = made.structured_output_request.grammar
    assert type(grammar) is GuidedGrammar and grammar.extra_stop_ids == {5} and grammar.request_id == "r"
    assert grammar.accept_tokens("r", [2]) and not grammar.accept_tokens("r", [2])
    with pytest.raises(BaseException, match="a thread was asked"):
        manager.grammar_init(request("new", "a", "aaaab"))


def test_constraints_that_take_long_keep_nobody_waiting() -> None:
    manager = adapted(vllm_shapes.Manager032)(config())
    go, begun = threading.Event(), threading.Semaphore(0)

    def long() -> str:
        begun.release()
        return "made" if go.wait(60) else "waited in vain"

    made = [manager.executor.submit(long) for _ in range(20)]
    for _ in made:
        assert begun.acquire(timeout=60)
    assert manager.executor.submit(lambda: "quick").result(timeout=60) == "quick"
    go.set()
    assert {one.result(timeout=60) for one in made} == {"made"}


def test_a_fault_while_it_is_fetched_is_left_to_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = adapted(vllm_shapes.Manager032)(config())
    manager.grammar_init(request("before", "ab"))
    monkeypatch.setattr(type(manager.backend), "grammar_at_hand", lambda *_: 1 / 0)
    made = request("r", "ab")
    manager.grammar_init(made)
    assert type(made.structured_output_request.grammar) is GuidedGrammar


def test_options_of_the_request_reach_the_engine() -> None:
    manager = adapted(vllm_shapes.Manager032)(config())
    for given in ({"disable_any_whitespace": True}, {"whitespace_pattern": " "}, {"json": "true"}):
        manager.grammar_init(request("r", **{"json": "{}", **given}))
    asked = manager.backend.engine.asked
    assert [entry.text for entry in asked] == ["{}", "{}", "true"]
    assert [entry.any_whitespace for entry in asked] == [False, True, True]
    assert [entry.whitespace_pattern for entry in asked] == [None, " ", None]


def test_a_constraint_that_cannot_be_compiled_is_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    manager = adapted(vllm_shapes.Manager032)(config())
    with pytest.raises(InvalidConstraint):
        manager.grammar_init(request("bad one", regex="(a"))
    assert "refuses the constraint of request bad one" in caplog.text


def random_step(seed: int, drafts: int, reasoner: Any) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Requests in the middle of their outputs, with drafts: right, wrong, padded, beyond the end."""
    chance = random.Random(seed)
    requests: dict[str, Any] = {}
    tokens: dict[str, list[int]] = {}
    for number in range(chance.randint(1, 6)):
        name = f"r{number}"
        texts = chance.sample(["ab", "abab", "a", "ba", "cab", "c"], chance.randint(1, 3))
        stop = (5,) if chance.random() < 0.3 else ()
        reasoning = reasoner is not None and chance.random() < 0.6
        requests[name] = request(name, *texts, stop=stop, reasoning=reasoning)
        if drafts and chance.random() < 0.8:
            pool = [0, 1, 2, 3, 4, 5, END, EOT, THINK_END]
            tokens[name] = [
                -1 if chance.random() < 0.15 else chance.choice(pool)
                for _ in range(chance.randint(1, drafts))
            ]
    return requests, tokens


def start(manager: Any, requests: dict[str, Any], seed: int) -> None:
    chance = random.Random(seed)
    for made in requests.values():
        manager.grammar_init(made)
        grammar = made.structured_output_request.grammar
        if made.reasoning_ended:
            for _ in range(chance.randint(0, 2)):
                grammar.accept_tokens("", [chance.choice([0, 1, 2, 3, 5, END])])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("reasoner", [None, object()], ids=["", "reasoning"])
def test_rows_are_those_of_the_plain_loop(
    shape: type, drafts: int, reasoner: Any, caplog: pytest.LogCaptureFixture
) -> None:
    manager_class = adapted(shape)
    for seed in range(60):
        requests, tokens = random_step(seed, drafts, reasoner)
        manager = manager_class(config(drafts=drafts, reasoner=reasoner))
        start(manager, requests, seed)
        paths = [path(made) for made in requests.values()]
        stride = 1 + drafts
        plain = type(manager).grammar_bitmask.__wrapped__(manager, requests, list(requests), tokens).copy()
        manager._grammar_bitmask.fill_(0x5A5A5A5A)
        ours = manager.grammar_bitmask(requests, list(requests), tokens)
        assert "own loop" not in caplog.text
        assert ours.shape == plain.shape and ours.dtype == np.int32
        for number, name in enumerate(requests):
            used = 1 + len(tokens.get(name, ()))
            first = (
                number * stride
                if shape.strided
                else sum(  # type: ignore[attr-defined]
                    1 + len(tokens.get(other, ())) for other in list(requests)[:number]
                )
            )
            np.testing.assert_array_equal(ours[first : first + used], plain[first : first + used], str(seed))
        assert paths == [path(made) for made in requests.values()]


def test_reasoning_may_be_constrained_too() -> None:
    manager = adapted(vllm_shapes.Manager032)(config(reasoner=object()))
    requests = {"r": request("r", "ab", reasoning=True)}
    start(manager, requests, 0)
    assert manager.grammar_bitmask(requests, ["r"], {})[0, 0] == -1
    manager.enable_in_reasoning = True
    assert manager.grammar_bitmask(requests, ["r"], {})[0, 0] != -1


class Worker:
    """Sees the steps in order, as a worker does, and knows the rows that were sent."""

    def __init__(self, rows: int = 32) -> None:
        self.rows = np.full((rows, 2), 0x5A5A5A5A, np.int32)
        self.table = shipping.ShippedTable(7, RowTable(rows, 2))

    def whole(self, shipped: Any, is_sent: bool = True) -> Any:
        if type(shipped) is not RowNumbers:
            return shipped
        self.table.is_sent = is_sent
        assert shipped.table == 7 and shipped.shape[1] == 1
        if is_sent:
            self.rows[shipped.slots] = shipped.rows
        rows = self.rows[np.maximum(np.asarray(shipped).ravel(), 0)]
        rows[np.asarray(shipped).ravel() < 0] = -1
        return rows


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("reasoner", [None, object()], ids=["", "reasoning"])
@pytest.mark.parametrize("capacity", [2, 4, 32])
def test_numbers_stand_for_the_rows_of_the_plain_loop(
    shape: type, drafts: int, reasoner: Any, capacity: int, caplog: pytest.LogCaptureFixture
) -> None:
    manager_class = adapted(shape)
    manager = manager_class(config(drafts=drafts, reasoner=reasoner))
    worker = Worker(capacity)
    numbered = 0
    for seed in range(60):
        requests, tokens = random_step(seed, drafts, reasoner)
        start(manager, requests, seed)
        manager.row_table = None
        plain = manager.grammar_bitmask(requests, list(requests), tokens).copy()
        manager.row_table = worker.table
        shipped = manager.grammar_bitmask(requests, list(requests), tokens)
        numbered += type(shipped) is RowNumbers
        if seed % 5 == 4:
            worker.whole(shipped, is_sent=False)  # vLLM dropped this step's masks
            continue
        whole = worker.whole(shipped)
        assert whole.shape == plain.shape
        first = 0
        for number, name in enumerate(requests):
            count = 1 + len(tokens.get(name, ()))
            if shape.strided:  # type: ignore[attr-defined]
                first = number * (1 + drafts)
            np.testing.assert_array_equal(whole[first : first + count], plain[first : first + count])
            first += count
    assert "own loop" not in caplog.text
    assert numbered > 10


def test_the_engine_is_asked_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_guided.runtime import entry

    calls: list[str] = []

    def counted(name: str) -> None:
        original = getattr(entry, name)

        def call(*arguments: Any) -> Any:
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(entry, name, call)

    for name in ("walk_drafts", "fill_batch", "fill", "advance", "advance_many"):
        counted(name)
    manager = adapted(vllm_shapes.Manager032)(config(drafts=2))
    requests = {f"r{i}": request(f"r{i}", "abab") for i in range(5)}
    for made in requests.values():
        manager.grammar_init(made)
    manager.grammar_bitmask(requests, list(requests), {})
    assert calls == ["fill_batch"]
    calls.clear()
    manager.grammar_bitmask(requests, list(requests), {"r1": [0, 1], "r3": [2]})
    assert calls == ["walk_drafts", "fill_batch"]
    calls.clear()
    sampled = SimpleNamespace(
        sampled_token_ids=[[2]] * 5, req_id_to_index={name: i for i, name in enumerate(requests)}
    )
    manager.vllm_guided_advance(requests, list(requests), sampled)
    assert all(manager.accept_tokens(made, [2]) for made in requests.values())
    assert calls == ["advance_many"]


@pytest.mark.parametrize("reasoner", [None, object()], ids=["", "reasoning"])
def test_tokens_found_ahead_are_accepted_as_one_by_one(reasoner: Any) -> None:
    """Whatever vLLM then does: take them all, take fewer, take others, or nothing at all."""
    manager = adapted(vllm_shapes.Manager032)(config(drafts=3, reasoner=reasoner))
    chance = random.Random(5)
    found = 0
    for seed in range(200):
        requests, sampled = random_step(seed, 3, reasoner)
        twins, _ = random_step(seed, 3, reasoner)
        start(manager, requests, seed)
        start(manager, twins, seed)
        for _ in range(3):
            rows = {name: i for i, name in enumerate(requests)}
            tokens = [[t for t in sampled.get(name, []) if t >= 0] for name in requests]
            output = SimpleNamespace(sampled_token_ids=tokens, req_id_to_index=rows)
            manager.vllm_guided_advance(requests, [*requests, "gone"], output)
            found += sum(
                made.structured_output_request.grammar._ahead is not None for made in requests.values()
            )
            for name, made in requests.items():
                taken = tokens[rows[name]]
                if chance.random() < 0.2:
                    taken = taken[: chance.randint(0, 2)]
                elif chance.random() < 0.1:
                    taken = [chance.choice([0, 1, 2, END])]
                elif chance.random() < 0.1:
                    continue
                twin = twins[name]
                expected = type(manager).accept_tokens.__wrapped__(manager, twin, taken)
                assert manager.accept_tokens(made, taken) == expected
                assert path(made) == path(twin)
                assert (
                    made.structured_output_request.reasoning_ended
                    == twin.structured_output_request.reasoning_ended
                )
    assert found > 100


@pytest.mark.parametrize("reasoner", [None, object()], ids=["", "reasoning"])
def test_drafts_looked_at_together_are_judged_as_one_by_one(reasoner: Any) -> None:
    manager = adapted(vllm_shapes.Manager032)(config(drafts=3, reasoner=reasoner))
    chance = random.Random(7)
    found = 0
    for seed in range(300):
        requests, tokens = random_step(seed, 3, reasoner)
        start(manager, requests, seed)
        drafts = {name: tokens.get(name, []) for name in requests}
        manager.vllm_guided_look_at_drafts(requests, [*drafts, "gone"], [*drafts.values(), [1]])
        for name, made in requests.items():
            grammar = made.structured_output_request.grammar
            found += grammar._drafts is not None
            asked = [token for token in drafts[name] if token >= 0][: chance.choice([1, 3, 3])]
            if chance.random() < 0.1:
                grammar.accept_tokens("", [0])
            plain = grammar.matcher.copy()
            twin = GuidedGrammar(plain, "", grammar.extra_stop_ids, grammar.stop_ids)
            twin._ended = grammar._ended
            before = path(made)
            assert grammar.validate_tokens(asked) == twin.validate_tokens(asked)
            assert path(made) == before and grammar._drafts is None
    assert found > 200


def test_a_scheduler_that_is_adapted(caplog: pytest.LogCaptureFixture) -> None:
    class Scheduler:
        def __init__(self, manager: Any, requests: dict[str, Any]) -> None:
            self.structured_output_manager, self.requests = manager, requests

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> str:
            return "the original"

        def update_draft_token_ids(self, draft_token_ids: Any) -> str:
            return "drafts"

        def update_draft_token_ids_in_output(self, draft_token_ids: Any, scheduler_output: Any) -> Any:
            return scheduler_output

    module = ModuleType("a_vllm")
    module.Scheduler = Scheduler  # type: ignore[attr-defined]
    advance.advance_whole_batch(module)
    advance.validate_whole_batch(module)
    manager = adapted(vllm_shapes.Manager032)(config())
    requests = {"r": request("r", "ab"), "free": SimpleNamespace(structured_output_request=None)}
    manager.grammar_init(requests["r"])
    made = Scheduler(manager, requests)
    scheduled = SimpleNamespace(has_structured_output_requests=True, num_scheduled_tokens={"r": 1, "free": 1})
    output = SimpleNamespace(sampled_token_ids=[[0], [3]], req_id_to_index={"r": 0, "free": 1})
    assert made.update_from_output(scheduled, output) == "the original"
    assert requests["r"].structured_output_request.grammar._ahead is not None
    drafts = SimpleNamespace(req_ids=["r"], draft_token_ids=[[0, 1, 1]])
    assert made.update_draft_token_ids(drafts) == "drafts"
    assert requests["r"].structured_output_request.grammar._drafts[2] == 2
    assert made.update_draft_token_ids_in_output(drafts, 5) == 5
    drafts.req_ids = []
    assert made.update_draft_token_ids(drafts) == "drafts"
    output.req_id_to_index = {}
    assert made.update_from_output(scheduled, output) == "the original"
    assert "request by request" in caplog.text
    made.structured_output_manager = SimpleNamespace()
    assert made.update_from_output(scheduled, output) == "the original"


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("drafts", [0, 2])
def test_one_broken_request_leaves_the_others_masked(
    drafts: int, numbered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    manager = adapted(vllm_shapes.Manager032)(config(drafts=drafts))
    worker = Worker()
    manager.row_table = worker.table if numbered else None
    requests = {
        "good": request("good", "ab"),
        "bad": request("bad", "z"),  # which no token spells
        "too": request("too", "c"),
    }
    for made in requests.values():
        manager.grammar_init(made)
    tokens = {"bad": [0, 0], "too": [5]} if drafts else {}
    for _ in range(2):
        rows = worker.whole(manager.grammar_bitmask(requests, list(requests), tokens)).tolist()
        assert rows[0] == [0b101, 0]
        assert rows[1] == [-1, -1]
        assert rows[2 + len(tokens.get("bad", ()))] == [1 << 5, 0]
    assert requests["bad"].structured_output_request.grammar.failed
    assert not requests["good"].structured_output_request.grammar.failed
    assert not manager.accept_tokens(requests["bad"], [0])
    assert caplog.text.count("ends with an error") == 1


def test_a_strange_grammar_goes_vllm_s_own_way(caplog: pytest.LogCaptureFixture) -> None:
    manager = adapted(vllm_shapes.Manager032)(config())
    requests = {"r": request("r", "ab")}
    manager.grammar_init(requests["r"])

    class Other(GuidedGrammar):
        pass

    requests["r"].structured_output_request.grammar.__class__ = Other
    assert manager.grammar_bitmask(requests, ["r"], {}).tolist() == [[0b101, 0]]
    assert "vLLM's own loop" in caplog.text


def test_an_unknown_layout_keeps_vllm_s_own_loop(caplog: pytest.LogCaptureFixture) -> None:
    manager_class = adapted(vllm_shapes.ManagerOfTheFuture)
    assert not hasattr(manager_class.grammar_bitmask, "__wrapped__")
    assert "does not know how vLLM" in caplog.text
    manager = manager_class(config())
    requests = {"r": request("r", "ab")}
    manager.grammar_init(requests["r"])
    assert manager.grammar_bitmask(requests, ["r"], {}).tolist() == [[0b101, 0]]


def test_an_unknown_manager_refuses_to_start_with_us() -> None:
    shape = type("Copy", (vllm_shapes.ManagerOfTheFarFuture,), {"_create_grammar": None})
    module = ModuleType("a_vllm")
    module.StructuredOutputManager = shape  # type: ignore[attr-defined]
    with pytest.raises(selection.UnexpectedVllm, match="has no _create_grammar"):
        join.use_backend(module)
    with pytest.raises(selection.UnexpectedVllm, match=r"does not fit vLLM \d"):
        shape(config())
    shape(config("xgrammar"))


@pytest.mark.parametrize("shape", [vllm_shapes.Manager030, vllm_shapes.Manager033])
@pytest.mark.parametrize(
    ("allowed", "told"), [(None, None), ([0, 1, 5], "allowed_token_ids of this request")]
)
def test_why_a_sampled_token_is_refused(shape: type, allowed: list[int] | None, told: str | None) -> None:
    manager = adapted(shape)(config())
    made = request("r", "ab")
    made.stop_reason = None
    made.sampling_params.allowed_token_ids = allowed
    manager.grammar_init(made)
    assert manager.accept_tokens(made, [0]) and made.stop_reason is None
    assert not manager.accept_tokens(made, [0])
    assert made.stop_reason is None if told is None else told in made.stop_reason


def test_the_installed_manager_is_adapted() -> None:
    module = pytest.importorskip("vllm.v1.structured_output")
    manager = module.StructuredOutputManager
    for name in ("__init__", "grammar_init", "_create_grammar", "grammar_bitmask", "accept_tokens"):
        assert hasattr(getattr(manager, name), "__wrapped__"), name
