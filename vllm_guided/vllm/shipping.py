"""Rows by number, the engine core's side: open a table on every worker, and know what each of them holds.

Where any worker cannot hold one (it runs without the plugin, it has no memory left, its vLLM is of another
shape), whole rows are sent as before.
"""

from __future__ import annotations

import functools
import secrets
from types import ModuleType
from typing import Any

from vllm_guided.environment import number
from vllm_guided.vllm import metrics
from vllm_guided.vllm.manager import is_ours
from vllm_guided.vllm.selection import expect, logger

ENVIRONMENT = "VLLM_GUIDED_ROW_TABLE_MB"
DEFAULT_MEGABYTES = 64
MOST_MEGABYTES = 65_536.0
"""Of each worker's device, and of the engine core's memory; 0: whole rows are sent in each step."""

FEWEST_ROWS = 16

# Sent by value: a worker without this package must answer, not fail, since vLLM would lose count of answers.
_OPEN = """
def open_table(worker, number, rows, words):
    try:
        from vllm_guided.vllm.table import open_on_worker
        return open_on_worker(worker, number, rows, words)
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}"
"""


def table_rows(words: int) -> int:
    """How many rows of ``words`` words the table has, by ``$VLLM_GUIDED_ROW_TABLE_MB``."""
    megabytes = number(ENVIRONMENT, DEFAULT_MEGABYTES, least=0, most=MOST_MEGABYTES)
    return int(megabytes * (1 << 20)) // (4 * words)


def open_tables(module: ModuleType) -> None:
    """Let an engine core open its workers' tables as the last act of its making."""
    core = expect(module, "EngineCore")
    original = expect(core, "__init__", parameters=("self", "vllm_config"))

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        manager = getattr(self, "structured_output_manager", None)
        if manager is None or not is_ours(manager) or getattr(manager, "backend", None) is None:
            return
        try:
            reason = open_table(manager, self.model_executor)
        except Exception as fault:
            reason = f"{type(fault).__name__}: {fault}"
        rank = getattr(manager.vllm_config.parallel_config, "data_parallel_index", 0)
        metrics.publish(f"{rank}", functools.partial(metrics.engine_gauges, manager))
        logger.info(
            "Structured outputs: vllm_guided, %d tokens, %s.",
            manager.vllm_config.model_config.get_vocab_size(),
            f"whole mask rows are sent to the workers ({reason})"
            if reason
            else f"{manager.row_table.index.capacity} mask rows lie with each worker",
        )

    core.__init__ = __init__


def open_table(manager: Any, executor: Any) -> str | None:
    """Open one table on every worker and give its index to the manager; the reason where that cannot be."""
    from vllm_guided.runtime.row_table import RowTable

    words = (manager.vllm_config.model_config.get_vocab_size() + 31) // 32
    rows = table_rows(words)
    if rows < FEWEST_ROWS or words < 2:
        return f"{ENVIRONMENT} leaves room for {rows} rows"
    number = secrets.randbits(62)
    scope: dict[str, Any] = {"__name__": "vllm_guided_by_value"}
    exec(_OPEN, scope)
    answers = executor.collective_rpc(scope["open_table"], args=(number, rows, words))
    refusals = sorted({str(answer) for answer in answers if answer is not None})
    if refusals:
        return "; ".join(refusals)
    manager.row_table = ShippedTable(number, RowTable(rows, words))
    note_sent(executor, manager.row_table)
    return None


class ShippedTable:
    """The index of the workers' tables, and whether the rows of the last step were sent to them.

    Args:
        number: of the table, as the workers know it.
        index: a ``RowTable``.
    """

    def __init__(self, number: int, index: Any) -> None:
        self.number = number
        self.index = index
        self.is_sent = True

    def begin(self) -> None:
        """Begin a step; what the step before has added and nobody sent is forgotten."""
        if not self.is_sent:
            self.index.forget_added()
        self.index.begin()
        self.is_sent = False


def note_sent(executor: Any, table: ShippedTable) -> None:
    """Note each step's masks that ``executor`` sends; vLLM may drop those of a step that samples nothing."""
    original = executor.sample_tokens

    @functools.wraps(original)
    def sample_tokens(grammar_output: Any, *args: Any, **kwargs: Any) -> Any:
        # Whole rows, which a step that failed half-way sends, say nothing of what it had added.
        if (
            grammar_output is not None
            and getattr(grammar_output.grammar_bitmask, "table", -1) == table.number
        ):
            table.is_sent = True
        return original(grammar_output, *args, **kwargs)

    executor.sample_tokens = sample_tokens
