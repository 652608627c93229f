"""What is asked of a server: free text, one schema, many schemas, schemas that were never seen.

Outputs have ``max_tokens`` tokens, whatever they say. Where a constraint ends before, vLLM leaves the rest
unconstrained; so the schemas of the throughput loads are such that the model's output under them, which is
greedy and thus known, does not end before.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _data import samples
from _serve_client import Client, Reply
from _serve_server import processor_seconds

SCHEMAS = 64
#: Characters of a schema: larger ones take some backends too long.
LARGEST = 4000
PROMPT_TOKENS = 16
#: How many schemas are tried at once until enough are found.
AT_ONCE = 16

#: What applications ask for, a few times: as long as an output here is, it does not end.
WARM: dict[str, Any] = {
    "type": "array", "minItems": 4, "maxItems": 5,
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "integer"}, "name": {"type": "string", "maxLength": 60},
            "status": {"enum": ["open", "closed", "in progress"]}, "score": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
            "done": {"type": "boolean"},
            "address": {
                "type": "object", "properties": {"city": {"type": "string"}, "code": {"type": "string"}},
                "required": ["city", "code"], "additionalProperties": False,
            },
        },
        "required": ["id", "name", "status", "score", "tags", "done", "address"],
        "additionalProperties": False,
    },
}  # fmt: skip
#: The same for streams of LONG_TOKENS tokens, and the tokens of those that come in between.
LONG = WARM | {"minItems": 500, "maxItems": 600}
LONG_TOKENS, SHORT_TOKENS = 8000, 8


def prompt(number: int) -> list[int]:
    """The prompt of a request: some token ids, the same for each number."""
    return random.Random(number).choices(range(1000, 100_000), k=PROMPT_TOKENS)


@dataclass
class Load:
    """The requests to one server.

    Args:
        client: to it.
        tokens: of each output.
        fresh: schemas that were not sent before.
        schemas: those of the load of many, with the numbers of their prompts.
    """

    client: Client
    tokens: int
    fresh: Iterator[str]
    schemas: list[tuple[str, int]] = field(default_factory=list)

    def constrained(self, number: int, schema: str | dict[str, Any], tokens: int = 0, **more: Any) -> bytes:
        """A request under a schema."""
        value = json.loads(schema) if isinstance(schema, str) else schema
        fields = {"structured_outputs": {"json": value}} | more
        return self.client.body(prompt(number), tokens or self.tokens, **fields)

    def free(self, number: int, tokens: int = 0) -> bytes:
        """A request without a constraint."""
        return self.client.body(prompt(number), tokens or self.tokens)

    def never_seen(self, number: int, tokens: int = 0) -> bytes:
        """A request under a schema that this server has not seen."""
        return self.constrained(number, next(self.fresh), tokens)

    def bodies(self, kind: str, count: int) -> Iterator[bytes]:
        """Requests of a kind of load; never-seen ones go on, since some are refused."""
        if kind == "free":
            yield from [self.free(number) for number in range(count)]
        elif kind == "one schema":
            yield from [self.constrained(number, WARM) for number in range(count)]
        elif kind == "64 schemas":
            chosen = [self.schemas[number % len(self.schemas)] for number in range(count)]
            yield from [self.constrained(number, schema) for schema, number in chosen]
        else:
            yield from [self.never_seen(number) for number in range(count)]

    async def warm_up(self, candidates: Iterator[str]) -> None:
        """Let the server see the schemas of the throughput loads, and choose those of the many."""
        await self.client.ask_all([self.free(number) for number in range(AT_ONCE)], AT_ONCE)
        for number in range(2):
            reply = await self.client.ask(self.constrained(number, WARM, ignore_eos=False))
            if reply.error or reply.tokens != self.tokens:
                raise RuntimeError(f"the one schema's output: {reply.tokens} tokens, {reply.error}")
        number = 0
        while len(self.schemas) < SCHEMAS:
            some = list(zip(itertools.islice(candidates, AT_ONCE), itertools.count(number)))
            if not some:
                return
            number += len(some)
            replies = await asyncio.gather(
                *(self.client.ask(self.constrained(one, text, ignore_eos=False)) for text, one in some)
            )
            self.schemas += [
                one for one, reply in zip(some, replies, strict=True)
                if reply.error is None and reply.tokens == self.tokens
            ]  # fmt: skip
        del self.schemas[SCHEMAS:]


def split(path: Path | None) -> tuple[str, list[str], list[str]]:
    """A name for the data; schemas for the load of many to choose from; and those that are never seen."""
    name, found = samples(None, path)
    random.Random(3).shuffle(found)
    small = [sample.schema for sample in found if sample.size <= LARGEST]
    unique = list(dict.fromkeys(small))
    half = min(len(unique) // 2, 8 * SCHEMAS)
    return name.partition(" schemas of ")[2], unique[:half], unique[half:]


@dataclass
class Wave:
    """The figures of some requests that ran together."""

    seconds: float
    tokens: int
    first: list[float]
    gaps: list[float]
    refused: int
    cpu: dict[str, float]

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return self.tokens / self.seconds


def measured(replies: list[Reply], cpu: dict[str, float]) -> Wave:
    """The figures of replies."""
    good = [reply for reply in replies if reply.error is None and reply.times]
    if not good:
        raise RuntimeError(f"no request was answered; the first said: {replies[0].error}")
    begin = min(reply.sent for reply in replies)
    return Wave(
        max(reply.times[-1] for reply in good) - begin,
        sum(reply.tokens for reply in good),
        [reply.first for reply in good],
        [gap for reply in good for gap in reply.gaps],
        len(replies) - len(good),
        cpu,
    )


async def arrivals(load: Load, kind: str, bystanders: int, seconds: float) -> tuple[Wave, list[Reply]]:
    """Streams under one schema while a request arrives each second: "free", "never seen", or "none".

    Returns:
        The streams' figures and the replies to those that arrived.
    """
    client = load.client
    streams = [Reply() for _ in range(bystanders)]
    bodies = [load.constrained(number, LONG, LONG_TOKENS) for number in range(bystanders)]
    running = [
        asyncio.create_task(client.ask(body, reply)) for body, reply in zip(bodies, streams, strict=True)
    ]
    while not all(reply.times or reply.error for reply in streams):
        await asyncio.sleep(0.1)
    begin, spent = time.perf_counter(), processor_seconds()
    came = []
    for second in range(round(seconds)):
        await asyncio.sleep(max(0.0, begin + second - time.perf_counter()))
        if kind != "none":
            body = load.free(1000 + second, SHORT_TOKENS)
            if kind == "never seen":
                body = load.never_seen(1000 + second, SHORT_TOKENS)
            came.append(asyncio.create_task(client.ask(body)))
    await asyncio.sleep(max(0.0, begin + seconds - time.perf_counter()))
    end = time.perf_counter()
    wave = _between(streams, begin, end, _difference(spent))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return wave, list(await asyncio.gather(*came))


def _between(streams: list[Reply], begin: float, end: float, cpu: dict[str, float]) -> Wave:
    times = [[time for time in reply.times if begin <= time <= end] for reply in streams]
    gaps = [later - sooner for own in times for sooner, later in itertools.pairwise(own)]
    ended = [reply for reply in streams if reply.end or reply.error]
    if ended:
        one = ended[0]
        raise RuntimeError(
            f"{len(ended)} streams ended before the others: one after {len(one.times)} tokens, {one.error}"
        )
    return Wave(end - begin, sum(map(len, times)), [reply.first for reply in streams], gaps, 0, cpu)


async def wave(load: Load, kind: str, concurrency: int, count: int) -> Wave:
    """``count`` requests of a kind, ``concurrency`` at a time."""
    bodies = list(load.bodies(kind, count))
    spent = processor_seconds()
    replies = await load.client.ask_all(bodies, concurrency)
    return measured(replies, _difference(spent))


async def first_tokens(load: Load, count: int) -> dict[str, list[float]]:
    """Seconds to the first token of free text and of never-seen schemas, in turn, one at a time."""
    found: dict[str, list[float]] = {"free": [], "never seen": []}
    for number in range(count):
        for kind, body in (("free", load.free(number, 2)), ("never seen", load.never_seen(number, 2))):
            reply = await load.client.ask(body)
            if reply.error is None:
                found[kind].append(reply.first)
    return found


def _difference(before: dict[str, float]) -> dict[str, float]:
    return {role: seconds - before.get(role, 0.0) for role, seconds in processor_seconds().items()}
