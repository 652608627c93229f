"""Random requests at a real CPU server, a third of them bad: ``python tests/tools/soak.py --minutes 10``.

With ``--requests N`` it ends after N good ones. The server may speculate (``--drafts 3``), reason
(``--reasoning``: constraints begin behind ``</think>``, which the model likes), and be shared out over two
workers (``--tensor-parallel 2``, ``--pipeline-parallel 2``) or two engines (``--data-parallel 2``). It may
have so little memory that requests are preempted (``--blocks 18``), and schedule a step ahead (``--async``).

Every finished output is judged from outside; one that was cut off must be a beginning by the engine itself,
over single bytes and without vLLM, so that nobody was given somebody else's masks. Every bad request must be
a 400 with a message, some clients go away in the middle of their stream. At the end the server must be alive
and answer once more. Prints the counts and each fault; exits 1 if there was one. Constraints come from the
data beside the repository where it is there, and from a few lines here where not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import corpora
import httpx
import judges
import openai

import vllm_guided as vg
from vllm_guided.constraints import check_constraint
from vllm_guided.demo import async_on_cpu
from vllm_guided.demo.model import write_tiny_model
from vllm_guided.demo.run import SERVER_OPTIONS
from vllm_guided.demo.server import VllmServer
from vllm_guided.errors import GrammarError
from vllm_guided.vllm.compiled import automaton_in_process
from vllm_guided.vllm.engine import Constraint

Judge = Callable[[str], str | None]

REQUEST_SECONDS = 120.0
THOUGHT = "</think>"
KINDS = {"json_schema": "json", "regex": "regex", "choice": "choice", "lark": "grammar", "ebnf": "grammar"}
MALFORMED: tuple[dict[str, Any], ...] = (
    {"guided_json": "{not json"},
    {"guided_json": {"type": "strang"}},
    {"guided_json": {"type": "object", "properties": []}},
    {"guided_json": {"$ref": "https://example.org/schema"}},
    {"guided_json": {"type": "integer", "minimum": 3, "maximum": 2}},
    {"guided_regex": "(unclosed"},
    {"guided_regex": "[z-a]"},
    {"guided_regex": "a{5,2}"},
    {"guided_choice": []},
    {"guided_grammar": "start: missing_rule"},
    {"guided_grammar": "root ::= undefined"},
    {"guided_grammar": 'root ::= "a" root'},
    {"structured_outputs": {"regex": r"(a)\1"}},
    {"structured_outputs": {"json": {"enum": []}}},
    {"structured_outputs": {"grammar": "?!"}},
)


@dataclass(frozen=True)
class Job:
    """A request's constraint, and the judge of its output (None: it must be refused)."""

    name: str
    body: dict[str, Any]
    judge: Judge | None
    constraint: Constraint | None = None


def good_jobs(limit: int) -> list[Job]:
    """Constraints that compile, each with its outside judge."""
    jobs = [
        Job("regex", {"guided_regex": r"\d{1,3}(\.\d{1,3}){3}"}, judges.regex(r"\d{1,3}(\.\d{1,3}){3}")),
        Job(
            "choice",
            {"guided_choice": ["yes", "no", "Ünïcode", "no!"]},
            judges.choice(["yes", "no", "Ünïcode", "no!"]),
        ),
        Job("object", {"response_format": {"type": "json_object"}}, judges.json_object),
    ]
    if not corpora.DATA.is_dir():
        return jobs
    cases = [*corpora.reported(), *corpora.peers()]
    schemas = corpora.maskbench()
    random.shuffle(schemas)
    for case in [*cases, *schemas[:limit]]:
        job = _job_of(case)
        if job is not None:
            jobs.append(job)
    return jobs


def _job_of(case: corpora.Case) -> Job | None:
    field = KINDS.get(case.kind)
    if field is None or case.constraint in ("", []):
        return None
    try:
        check_constraint(case.kind if field != "grammar" else "grammar", case.constraint)
        judge = _judge_of(case)
        if judge is not None and any(judge(text) is not None for text in case.accept):
            return None  # it reads the constraint in another way
    except Exception:  # a judge that cannot read the constraint is no judge for it
        return None
    text = case.constraint if isinstance(case.constraint, str) else json.dumps(case.constraint)
    constraint = Constraint(case.kind if field != "grammar" else "grammar", text)
    return Job(case.id, {f"guided_{field}": case.constraint}, judge, constraint) if judge else None


def _judge_of(case: corpora.Case) -> Judge | None:
    if case.kind == "json_schema":
        return judges.json_schema(case.constraint, formats=False)
    if case.kind == "regex":
        re.compile(case.constraint)
        return judges.regex(case.constraint)
    if case.kind == "choice":
        return judges.choice(case.constraint)
    return judges.lark(case.constraint) if case.kind == "lark" else None


def bad_jobs() -> list[Job]:
    """Constraints that must be refused."""
    jobs = [Job(f"malformed {i}", body, None) for i, body in enumerate(MALFORMED)]
    if corpora.DATA.is_dir():
        for case in corpora.peer_errors():
            field = KINDS.get(case.kind)
            if field is None or case.constraint in ("", []):
                continue
            try:
                check_constraint(case.kind if field != "grammar" else "grammar", case.constraint)
            except GrammarError:
                jobs.append(Job(case.id, {f"guided_{field}": case.constraint}, None))
    return jobs


class Beginnings:
    """Whether a text may go on under a constraint."""

    def __init__(self) -> None:
        single = [bytes([value]) for value in range(256)]
        self._compiler = vg.GrammarCompiler(vg.Vocabulary([*single, None], stop_token_ids=[256]))

    def fault(self, constraint: Constraint, text: str) -> str | None:
        """What is wrong with ``text`` as a beginning; None if nothing is."""
        automaton = automaton_in_process(constraint.job, hand_over=False)
        if automaton.symbols:  # its special tokens are no part of the text
            return None
        matcher = self._compiler.bind(automaton).matcher()
        data = text.rstrip("\ufffd").encode()
        for position, byte in enumerate(data):
            if not matcher.accept_tokens([byte]):
                return f"no beginning from byte {position} on"
        return None


class Soak:
    """The clients and what they found."""

    def __init__(
        self, url: str, good: list[Job], bad: list[Job], bad_share: float, drafts: int, thought: int | None
    ) -> None:
        self.client = openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key="none",
            max_retries=0,
            timeout=REQUEST_SECONDS,
            # The server closes what is idle for 5 seconds; a request on its way there then would fail.
            http_client=openai.DefaultAsyncHttpxClient(limits=httpx.Limits(keepalive_expiry=2)),
        )
        self.good, self.bad, self.bad_share, self.drafts = good, bad, bad_share, drafts
        #: The token that ends the reasoning, where the model reasons.
        self.thought = thought
        self.beginnings = Beginnings()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    async def run(self, seconds: float, requests: int | None, clients: int) -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._client(end, requests) for _ in range(clients)))

    async def _client(self, end: float, requests: int | None) -> None:
        model = (await self.client.models.list()).data[0].id
        while time.monotonic() < end and (requests is None or self.counts["good ones"] < requests):
            job = random.choice(self.bad if random.random() < self.bad_share else self.good)
            self.counts["good ones"] += job.judge is not None
            try:
                await self._ask(model, job)
            except openai.BadRequestError as error:
                self.counts["refused" if job.judge is None else "good one refused"] += 1
                if job.judge is not None:
                    self.faults.append(f"{job.name}: refused: {error}")
                elif len(str(error)) < 40:
                    self.faults.append(f"{job.name}: a refusal without a reason: {error}")
            except openai.APIError as error:
                # A stream has begun with status 200 when vLLM checks the constraint: the refusal is an event.
                if job.judge is None and "parameter=structured_outputs" in str(error):
                    self.counts["refused in the stream"] += 1
                else:
                    self.counts["failed"] += 1
                    self.faults.append(f"{job.name}: {type(error).__name__}: {error}")
            except Exception as error:
                self.counts["failed"] += 1
                self.faults.append(f"{job.name}: {type(error).__name__}: {error}")

    async def _ask(self, model: str, job: Job) -> None:
        response_format = job.body.get("response_format")
        extra = {name: value for name, value in job.body.items() if name != "response_format"}
        options: dict[str, Any] = {"response_format": response_format} if response_format else {}
        stream = random.random() < 0.3
        for name, value in (("min_tokens", 5), ("top_k", 20), ("repetition_penalty", 1.1)):
            # vLLM 0.32's rejection sampler fails on top_k in a step in which nobody has a draft.
            if random.random() < 0.1 and not (self.drafts and name == "top_k"):
                extra[name] = value
        if random.random() < 0.1:
            options |= {"logprobs": True, "top_logprobs": 2}
        if random.random() < 0.1:
            options["stop"] = random.choice(['"', "a", "1", ","])
            extra["include_stop_str_in_output"] = True  # a stop token's text, too: so not both
        elif random.random() < 0.1:
            extra["stop_token_ids"] = random.sample(range(1000), 20)
        if self.thought is not None:
            extra["return_token_ids"] = True
        request = {
            "model": model,
            "messages": [{"role": "user", "content": random.choice(["Hi", "Go on.", "Ünïcode 日本"])}],
            "max_tokens": random.choice([5, 20, 100, 300]),
            # With drafts vLLM 0.32 on CPU divides by temperatures that it has put into a copy: it samples
            # what was never allowed, or token 0.
            "temperature": 0.0 if self.drafts else random.choice([0.0, 1.0]),
            "extra_body": extra,
            **options,
        }
        if stream:
            await self._ask_stream(request, job)
            return
        outputs = random.choice([1, 2]) if request["temperature"] else 1
        reply = await self.client.chat.completions.create(**request, n=outputs)
        for choice in reply.choices:
            reasons = self.thought is not None and self.thought not in choice.token_ids
            self._judge(job, choice.message.content or "", _ended_by(choice), reasons)

    async def _ask_stream(self, request: dict[str, Any], job: Job) -> None:
        leave_after = random.choice([None, None, 3])
        text, reason = "", None
        reasons = self.thought is not None
        stream = await self.client.chat.completions.create(**request, stream=True)
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons = reasons and self.thought not in (getattr(choice, "token_ids", None) or ())
                reason = _ended_by(choice) or reason
            if leave_after is not None:
                leave_after -= 1
                if leave_after == 0:
                    await stream.close()
                    self.counts["left in the middle"] += 1
                    return
        self._judge(job, text, reason, reasons)

    def _judge(self, job: Job, text: str, reason: str | None, reasons: bool) -> None:
        if reasons and not text:
            self.counts["ended while it reasoned"] += 1
        elif job.judge is None:
            self.counts["bad one answered"] += 1
            self.faults.append(f"{job.name}: a bad constraint was answered: {json.dumps(job.body)[:200]}")
        elif reason == "stop":
            wrong = job.judge(text)
            self.counts["valid" if wrong is None else "invalid"] += 1
            if wrong is not None:
                self.faults.append(f"{job.name}: invalid: {wrong}: {text[:200]!r}")
        elif reason in ("length", "stop string"):
            wrong = self.beginnings.fault(job.constraint, text) if job.constraint else None
            self.counts[f"{reason}: " + ("a beginning" if wrong is None else "no beginning")] += 1
            if wrong is not None:
                self.faults.append(f"{job.name}: {wrong}: {text[:400]!r}")
        else:
            self.counts[f"ended by {reason}"] += 1
            self.faults.append(f"{job.name}: ended by {reason}")


def _ended_by(choice: Any) -> str | None:
    """Why an output ended; None while it goes on."""
    stopped_by = getattr(choice, "stop_reason", None)
    return "stop string" if isinstance(stopped_by, str) else choice.finish_reason


def server_options(options: argparse.Namespace) -> list[str]:
    """The command line of the server that is asked for."""
    chosen = [*SERVER_OPTIONS, "--guided-decoding-backend", "vllm_guided"]
    if options.drafts:
        speculation = {"method": "ngram", "num_speculative_tokens": options.drafts}
        speculation |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
        chosen += ["--speculative-config", json.dumps(speculation)]
    if options.reasoning:
        chosen += ["--reasoning-parser", "deepseek_r1"]
    for kind in ("tensor", "pipeline", "data"):
        if (count := getattr(options, f"{kind}_parallel")) > 1:
            chosen += [f"--{kind}-parallel-size", str(count)]
            if kind != "data":
                os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(count)))
    if options.blocks:
        chosen += ["--num-gpu-blocks-override", str(options.blocks)]
    if options.pipeline_parallel > 1:
        chosen.remove("--enforce-eager")
    return chosen


def token_id(model: Path, text: str) -> int:
    """The id of an added token of the model in a folder."""
    added = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    return next(int(token["id"]) for token in added if token["content"] == text)


def _counted(server: VllmServer, name: str) -> float:
    """The sum of a series of the server's metrics."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def main() -> int:
    """Parse the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--schemas", type=int, default=400, help="MaskBench schemas among the constraints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, help="end after so many good requests")
    parser.add_argument("--bad", type=float, default=1 / 3, help="share of bad requests")
    parser.add_argument("--drafts", type=int, default=0, help="draft tokens by n-grams")
    parser.add_argument("--log", type=Path, help="copy the server's log to this file at the end")
    parser.add_argument("--reasoning", action="store_true", help="with a reasoning parser")
    parser.add_argument("--blocks", type=int, help="of the KV cache, 128 tokens each")
    parser.add_argument("--async", action="store_true", dest="asynchronous", help="async scheduling")
    for kind in ("tensor", "pipeline", "data"):
        parser.add_argument(f"--{kind}-parallel", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    good, bad = good_jobs(options.schemas), bad_jobs()
    print(f"{len(good)} good constraints, {len(bad)} bad ones", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        model.mkdir()
        if options.asynchronous:
            async_on_cpu.install(folder / "plugin")
        write_tiny_model(model, special={THOUGHT: 0.3} if options.reasoning else None)
        server = VllmServer(model, server_options(options), folder)
        with server:
            thought = token_id(model, THOUGHT) if options.reasoning else None
            soak = Soak(server.url, good, bad, options.bad, options.drafts, thought)
            asyncio.run(soak.run(60 * options.minutes, options.requests, options.clients))
            alive = server.alive()
            preemptions = _counted(server, "vllm:num_preemptions_total")
            log = server.log()
    if options.asynchronous and async_on_cpu.SIGN not in log:
        soak.faults.append("async scheduling was not on")
    if options.log:
        options.log.write_text(log)
    print(f"preemptions: {preemptions:.0f}")
    for trouble in ("EngineDeadError", "vllm_guided failed", "vllm_guided could not"):
        if trouble in log:
            soak.faults.append(f"the log has {trouble!r} {log.count(trouble)} times")
            print(log[log.index(trouble) - 500 : log.index(trouble) + 3000])
    for line in soak.faults[:40]:
        print(" ", line)
    print(dict(soak.counts), f"{len(soak.faults)} faults, server {'alive' if alive else 'DEAD'}")
    return 0 if alive and not soak.faults else 1


if __name__ == "__main__":
    raise SystemExit(main())
