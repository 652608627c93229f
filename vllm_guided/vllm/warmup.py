"""Load and compile our own code while the server starts, not while its first client waits.

``LLM`` checks constraints before its first request, and the engine core fills masks in its step; both are
compiled code that takes seconds to build the first time on a machine and part of a second to load later.
"""

from __future__ import annotations

import functools
import json
from types import ModuleType
from typing import Any

from vllm_guided.vllm import compiled, engine
from vllm_guided.vllm.engine import Constraint
from vllm_guided.vllm.selection import expect, is_selected, logger


def samples() -> tuple[Constraint, ...]:
    """A constraint of each kind, and a schema with what many have in common."""
    # Here, so that a process which imports this module for its hooks alone loads no front end.
    from vllm_guided.frontends.json_schema.common import common_schema

    return (
        Constraint(
            "json_schema",
            '{"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$", '
            '"maxLength": 9}, "b": {"type": "array", "items": {"type": "integer", "maximum": 99}}}, '
            '"required": ["a"]}',
        ),
        Constraint("json_schema", json.dumps(common_schema())),
        Constraint("json_object"),
        Constraint("regex", r"\d{1,3}(\.\d+)?"),
        Constraint("choice", '["yes", "no"]'),
        Constraint("grammar", 'start: "a" start | WORD\nWORD: /[a-z]+/'),
        Constraint("grammar", 'root ::= "a" root | [0-9]+'),
    )


def check_samples(module: ModuleType) -> None:
    """Let the offline front (``LLMEngine``) check a constraint of each kind when it is made.

    The server's (``AsyncLLM``) has a compile service, which does so itself.
    """
    owner = expect(module, "LLMEngine")
    original = expect(owner, "__init__", parameters=("self", "vllm_config"))

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, vllm_config, *args, **kwargs)
        if is_selected(vllm_config.structured_outputs_config):
            try:
                for sample in samples():
                    engine.check(sample)
            except Exception:
                logger.exception("vllm_guided could not warm up its checks; the first request will do it.")

    owner.__init__ = __init__


def fill_samples(made: Any, vocabulary_size: int) -> None:
    """Fill and advance once with an engine, in one call as in a step.

    Args:
        made: an ``engine.Engine``.
        vocabulary_size: of the model, padding included.
    """
    import numpy as np

    try:
        for sample in samples():
            compiled.automaton_in_process(sample.job, hand_over=False)  # now, while nobody waits
        matchers = [made.compile(sample).matcher() for sample in samples()]
        bitmask = np.zeros((len(matchers), (vocabulary_size + 31) // 32), dtype=np.int32)
        engine.fill_rows(matchers, bitmask, list(range(len(matchers))))
        for row, matcher in enumerate(matchers):
            word = int(np.flatnonzero(bitmask[row])[0])
            token = 32 * word + int(bitmask[row, word] & -bitmask[row, word]).bit_length() - 1
            matcher.accept_tokens([token])
            matcher.validate_tokens([token])
            matcher.rollback(1)
    except Exception:
        logger.exception("vllm_guided could not warm up its engine; the first request will do it.")
