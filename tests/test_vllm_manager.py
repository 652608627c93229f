"""The manager: which rows a step gets, for every layout, against the plain loop of each version."""

from __future__ import annotations

import random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stub_engine
import vllm_shapes

pytest.importorskip("vllm.v1.structured_output.backend_types")
from vllm.sampling_params import StructuredOutputsParams

from vllm_guided.errors import InvalidConstraint
from vllm_guided.vllm import manager as join
from vllm_guided.vllm import selection
from vllm_guided.vllm.grammar import GuidedGrammar

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


def request(name: str, *texts: str, stop: tuple[int, ...] = (), reasoning: bool = False, **given: Any) -> Any:
    params = StructuredOutputsParams(**(given or {"choice": list(texts)}))
    return SimpleNamespace(
        request_id=name,
        structured_output_request=SimpleNamespace(params=params, grammar=None, reasoning_ended=not reasoning),
        sampling_params=SimpleNamespace(structured_outputs=params, all_stop_token_ids={END, EOT, *stop}),
        reasoning_ended=not reasoning,
    )


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    stub_engine.install(monkeypatch.setattr)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    monkeypatch.setattr(selection, "_active", False)
    monkeypatch.setattr(selection, "_faults", [])


def adapted(shape: type, **methods: Any) -> Any:
    """A copy of a manager class with our adapters on it."""
    manager = type(shape.__name__, (shape,), {name: value for name, value in vars(shape).items()} | methods)
    module = ModuleType("a_vllm")
    module.StructuredOutputManager = manager  # type: ignore[attr-defined]
    join.use_backend(module)
    return manager


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


def test_options_of_the_request_reach_the_engine() -> None:
    manager = adapted(vllm_shapes.Manager032)(config())
    for given in ({"disable_any_whitespace": True}, {"whitespace_pattern": " "}, {"json": "[]"}):
        manager.grammar_init(request("r", **{"json": "{}", **given}))
    asked = manager.backend.engine.asked
    assert [entry.text for entry in asked] == ["{}", "{}", "[]"]
    assert [entry.any_whitespace for entry in asked] == [False, True, True]
    assert [entry.whitespace_pattern for entry in asked] == [None, " ", None]


def test_a_constraint_that_cannot_be_compiled_is_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    manager = adapted(vllm_shapes.Manager032)(config())
    with pytest.raises(InvalidConstraint):
        manager.grammar_init(request("bad one", regex=stub_engine.BAD))
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
        paths = [r.structured_output_request.grammar.matcher.path[:] for r in requests.values()]
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
        assert paths == [r.structured_output_request.grammar.matcher.path for r in requests.values()]


def test_reasoning_may_be_constrained_too() -> None:
    manager = adapted(vllm_shapes.Manager032)(config(reasoner=object()))
    requests = {"r": request("r", "ab", reasoning=True)}
    start(manager, requests, 0)
    assert manager.grammar_bitmask(requests, ["r"], {})[0, 0] == -1
    manager.enable_in_reasoning = True
    assert manager.grammar_bitmask(requests, ["r"], {})[0, 0] != -1


def test_the_engine_is_asked_once_per_position(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fill_rows(matchers: Any, bitmask: Any, rows: Any) -> list[int]:
        calls.append(len(matchers))
        return stub_engine.fill_rows(matchers, bitmask, rows)

    monkeypatch.setattr("vllm_guided.vllm.engine.fill_rows", fill_rows)
    manager = adapted(vllm_shapes.Manager032)(config(drafts=2))
    requests = {f"r{i}": request(f"r{i}", "abab") for i in range(5)}
    start(manager, requests, 0)
    for made in requests.values():
        made.structured_output_request.grammar.reset()
    manager.grammar_bitmask(requests, list(requests), {})
    assert calls == [5]
    calls.clear()
    manager.grammar_bitmask(requests, list(requests), {"r1": [0, 1], "r3": [2]})
    assert calls == [5, 2, 1]


@pytest.mark.parametrize("text", ["boom-fill_bitmask", "stuck"])
@pytest.mark.parametrize("drafts", [0, 2])
def test_one_broken_request_leaves_the_others_masked(
    drafts: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager = adapted(vllm_shapes.Manager032)(config(drafts=drafts))
    requests = {
        "good": request("good", "ab"),
        "bad": request("bad", text),
        "too": request("too", "c"),
    }
    start(manager, requests, 0)
    for made in requests.values():
        made.structured_output_request.grammar.reset()
    tokens = {"bad": [0, 0], "too": [5]} if drafts else {}
    for _ in range(2):
        rows = manager.grammar_bitmask(requests, list(requests), tokens).tolist()
        assert rows[0] == [0b101, 0]
        assert rows[1] == [-1, -1]
        assert rows[2 + len(tokens.get("bad", ()))] == [1 << 5, 0]
    assert requests["bad"].structured_output_request.grammar.failed
    assert not requests["good"].structured_output_request.grammar.failed
    assert caplog.text.count("ends with an error") == 1


def test_a_strange_grammar_goes_vllm_s_own_way(caplog: pytest.LogCaptureFixture) -> None:
    manager = adapted(vllm_shapes.Manager032)(config())
    requests = {"r": request("r", "ab")}
    start(manager, requests, 0)
    requests["r"].structured_output_request.grammar.reset()

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
    start(manager, requests, 0)
    requests["r"].structured_output_request.grammar.reset()
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


def test_the_installed_manager_is_adapted() -> None:
    module = pytest.importorskip("vllm.v1.structured_output")
    manager = module.StructuredOutputManager
    for name in ("__init__", "grammar_init", "_create_grammar", "grammar_bitmask"):
        assert hasattr(getattr(manager, name), "__wrapped__"), name
