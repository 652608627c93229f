"""vLLM's structured-output manager, one step: accept, fill and ship, with each backend in turn.

    python benchmarks/manager.py [--quick] [--sizes 64 256 1024] [--backends ...] [--data FILE]

Real parts of the installed vLLM, in a process for each backend: its ``StructuredOutputManager`` and
``Request``, and the shared-memory queue that carries a step's masks to a worker. 64 schemas, requests at
different places of valid instances, everything walked once before (warm). A step is

- accept: the sampled tokens of all requests, by the calls that vLLM's scheduler makes,
- fill: ``grammar_bitmask``,
- ship: the ``GrammarOutput`` into the queue and out of it, and into the worker's table, if there is one.

With ``--drafts 3`` every request has draft tokens, all right ones. Bytes are those of the pickled masks, of
which the request's name is no part. The backends take turns.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import random
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import _report
from _data import samples
from _model import write_model
from _vocabularies import llama3

BACKENDS = ("vllm_guided", "xgrammar", "guidance")
SCHEMAS = 64
#: Tokens of an instance that are used, and how many it must have.
LONGEST, SHORTEST = 400, 24
#: Characters of a schema: larger ones take some backends too long.
LARGEST = 2000
#: Seconds that a backend may take for one schema.
PATIENCE = 20.0
PHASES = ("accept", "fill", "ship")


class Manager:
    """One backend's manager with its requests, in a process of its own."""

    def __init__(self, backend: str, model: str, most: int, drafts: int) -> None:
        for name, value in (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1")):
            os.environ[name] = value
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.structured_output import StructuredOutputManager

        speculation = {"method": "ngram", "num_speculative_tokens": drafts} if drafts else None
        config = EngineArgs(
            model=model, load_format="dummy", max_num_seqs=most, max_num_batched_tokens=max(2048, 8 * most),
            structured_outputs_config={"backend": backend}, speculative_config=speculation,
        ).create_engine_config()  # fmt: skip
        self.backend = backend
        self.manager = StructuredOutputManager(config)
        self.kept: dict[str, Any] = {}
        self.made = 0
        self._open_queue()
        if backend == "vllm_guided":
            self._open_table(config)

    def _open_queue(self) -> None:
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        self.writer = MessageQueue(1, 1)
        self.reader = MessageQueue.create_from_handle(self.writer.export_handle(), 0)

    def _open_table(self, config: Any) -> None:
        import torch

        from vllm_guided.runtime.row_table import RowTable
        from vllm_guided.vllm import shipping, table

        words = (config.model_config.get_vocab_size() + 31) // 32
        rows = shipping.table_rows(words)
        self.held = table.HeldTable(rows, words, torch.device("cpu"))
        table._tables[1] = self.held
        self.manager.row_table = shipping.ShippedTable(1, RowTable(rows, words))

    def request(self, schema: str) -> Any:
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams
        from vllm.v1.request import Request

        params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema), max_tokens=500)
        params.structured_outputs._backend = self.backend
        self.made += 1
        request = Request(
            request_id=f"chatcmpl-{self.made:032x}", prompt_token_ids=[1, 2, 3], sampling_params=params,
            pooling_params=None,
        )  # fmt: skip
        self.manager.grammar_init(request)
        output = request.structured_output_request
        if isinstance(output._grammar, Future):
            output._grammar.result(timeout=PATIENCE)
        if not hasattr(output.grammar, "accept_tokens"):
            raise RuntimeError(f"no grammar: {output.grammar}")
        return request

    def follow(self, schema: str, tokens: list[int]) -> bool:
        """Whether the backend compiles the schema and allows the instance."""
        try:
            request = self.request(schema)
        except Exception:
            return False
        for token in tokens:
            self.manager.grammar_bitmask({request.request_id: request}, [request.request_id], {})
            if not self.manager.accept_tokens(request, [token]):
                return False
        return True

    def steps(self, plans: list[tuple[str, list[int]]], count: int, drafts: int) -> dict[str, list[float]]:
        """Milliseconds of each phase of ``count`` steps, and the bytes that were shipped."""
        from vllm.v1.core.sched.output import GrammarOutput

        from vllm_guided.vllm.table import receive

        requests = {}
        places = []
        for number, (schema, tokens) in enumerate(plans):
            request = self.request(schema)
            place = (7 * number) % max(1, len(tokens) - (1 + drafts) * (count + 2))
            for token in tokens[:place]:
                self.manager.accept_tokens(request, [token])
            requests[request.request_id] = request
            places.append(place)
        names = list(requests)
        order = {name: number for number, name in enumerate(names)}
        times: dict[str, list[float]] = {phase: [] for phase in (*PHASES, "bytes")}
        is_ours = self.backend == "vllm_guided"
        advance = self.manager.vllm_guided_advance if is_ours else None
        clock = time.perf_counter_ns
        step = 1 + drafts
        for turn in range(count):
            proposed = {}
            if drafts:
                for number, name in enumerate(names):
                    start = places[number] + turn * step
                    proposed[name] = plans[number][1][start : start + drafts]
            begin = clock()
            bitmask = self.manager.grammar_bitmask(requests, names, proposed)
            filled = clock()
            output = GrammarOutput(names, bitmask, [drafts] * len(names))
            self.writer.enqueue(output)
            received = self.reader.dequeue()
            if advance is not None:
                receive(received)
                self.manager.row_table.is_sent = True
            shipped = clock()
            sampled = []
            for number in range(len(names)):
                start = places[number] + turn * step
                sampled.append(plans[number][1][start : start + step])
            model_output = _Output(sampled, order)
            accepting = clock()
            if advance is not None:
                advance(requests, names, model_output)
            accepted = [
                self.manager.accept_tokens(request, tokens)
                for request, tokens in zip(requests.values(), sampled, strict=True)
            ]
            accepted_at = clock()
            if not all(accepted):
                raise RuntimeError("a token of a valid instance was not accepted")
            for phase, value in (
                ("fill", filled - begin),
                ("ship", shipped - filled),
                ("accept", accepted_at - accepting),
            ):
                times[phase].append(value / 1e6)
            rows = sum(1 + len(some) for some in proposed.values()) if drafts else len(names)
            times["bytes"].append(len(pickle.dumps(bitmask, protocol=5)) / rows)
        return times


@dataclasses.dataclass
class _Output:
    """What the manager reads of vLLM's ``ModelRunnerOutput``."""

    sampled_token_ids: list[list[int]]
    req_id_to_index: dict[str, int]


def _serve(pipe: Any, *arguments: Any) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    manager = Manager(*arguments)
    pipe.send("ready")
    while True:
        try:
            name, given = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(getattr(manager, name)(*given))
        except Exception as error:
            pipe.send(error)


class Process:
    """A process with one backend's manager."""

    def __init__(self, backend: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.backend = backend
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, backend, *arguments), daemon=True)
        self.process.start()
        other.close()
        self.pipe.recv()

    def call(self, name: str, *given: Any) -> Any:
        self.pipe.send((name, given))
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def choose(made: list[Process], wanted: int, data: Path | None) -> tuple[str, list[tuple[str, list[int]]]]:
    """Schemas with an instance that all backends compile and follow."""
    tokens = llama3()
    found: list[tuple[str, list[int]]] = []
    name, candidates = samples(None, data)
    random.Random(2).shuffle(candidates)
    for sample in candidates:
        cut = [tokens.encode(text)[:LONGEST] for text in sample.valid]
        if sample.size > LARGEST or not cut or len(longest := max(cut, key=len)) < SHORTEST:
            continue
        if all(one.call("follow", sample.schema, longest) for one in made):
            found.append((sample.schema, longest))
        if len(found) == wanted:
            break
    return f"{len(found)} schemas of {name.partition(' schemas of ')[2]}", found


def main() -> None:
    parser = _report.options(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024], help="requests of a step")
    parser.add_argument("--drafts", type=int, default=0, help="draft tokens of every request")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), help="vLLM's names of them")
    parser.add_argument("--data", type=Path, help="JSON Lines of schemas with tests")
    given = _report.parse(parser)
    count, rounds = (5, 2) if given.quick else (5, 6)
    times: dict[str, dict[int, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        made = [Process(name, folder, max(given.sizes), given.drafts) for name in given.backends]
        name, found = choose(made, 16 if given.quick else SCHEMAS, given.data)
        for size in given.sizes:
            plans = [found[number % len(found)] for number in range(size)]
            for turn in range(rounds + 1):
                for one in random.Random(turn).sample(made, len(made)):
                    answer = one.call("steps", plans, count, given.drafts)
                    if turn:  # the first round makes everything warm
                        own = times.setdefault(one.backend, {}).setdefault(size, {})
                        for phase, values in answer.items():
                            own.setdefault(phase, []).extend(values)
    report(name, given, times)


def report(name: str, given: Any, times: dict[str, dict[int, dict[str, list[float]]]]) -> None:
    """Tables, chart and raw numbers."""
    figures: dict[str, dict[int, dict[str, float]]] = {}
    for size in given.sizes:
        rows = []
        for backend, own in times.items():
            middle = {phase: _report.summary(values)["p50"] for phase, values in own[size].items()}
            middle["step"] = _report.summary(
                [sum(one) for one in zip(*(own[size][p] for p in PHASES), strict=True)]
            )["p50"]
            figures.setdefault(backend, {})[size] = middle
            rows.append([backend, *(_report.number(middle[p]) for p in (*PHASES, "step", "bytes"))])
        title = f"{size} requests, {given.drafts} drafts each, milliseconds a step (medians): {name}"
        _report.table(title, ["backend", *PHASES, "step", "bytes a row"], rows)

    def draw(figure: Any, axes: Any) -> None:
        curves = {
            backend: (given.sizes, [own[size]["step"] for size in given.sizes])
            for backend, own in figures.items()
        }
        _report.lines(axes[0], curves, x="requests", y="milliseconds a step, median")

    part = f"manager-{given.drafts}-drafts" if given.drafts else "manager"
    _report.keep(given.out, part, {"data": name, "figures": figures, "raw": times}, draw, 1)


if __name__ == "__main__":
    sys.exit(main())
