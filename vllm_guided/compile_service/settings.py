"""Every tunable of the compile service, with its default and its reason."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_guided.environment import number

SECONDS = "VLLM_GUIDED_COMPILE_SECONDS"
MEGABYTES = "VLLM_GUIDED_COMPILE_MB"
WORKERS = "VLLM_GUIDED_COMPILE_WORKERS"
MOST_WORKERS, MOST_SECONDS, MOST_MEGABYTES = 1024, 86_400.0, float(1 << 20)
"""As good as no limit."""


@dataclass(frozen=True)
class Settings:
    """Sizes and budgets.

    Args:
        workers: processes of the quick lane; of 9,700 real schemas half compile in 1 ms, 99 % in 25 ms.
        slow_workers: processes of the slow lane, at the lowest priority.
        yield_seconds: processor time after which a job has the lowest priority, behind the engine's step; its
            worker is then replaced, so that most jobs should be done by then.
        slice_seconds: processor time in the quick lane.
        slice_wall_seconds: wall time in the quick lane, whatever the processors do.
        cpu_seconds: processor time of one job; the frontends' own budgets end most hostile ones before.
        wall_seconds: wall time of one job in the slow lane, where a busy machine gives it little.
        memory_bytes: address space of one job.
        quick_queue: jobs that may wait in the quick lane, a second's work or two.
        slow_queue: jobs that may wait for the slow lane.
        long_text: characters; a job with more is taken for a long one. Of real schemas one in thousands is.
        patience_seconds: how long a job may wait behind shorter ones that came later.
        start_seconds: for the processes to be there; on a new machine they compile their own code first.
        failures, failure_window: so many failed starts within so many seconds, and no more are tried.
    """

    workers: int = 2
    slow_workers: int = 2
    yield_seconds: float = 0.015
    slice_seconds: float = 0.05
    slice_wall_seconds: float = 1.0
    cpu_seconds: float = 10.0
    wall_seconds: float = 60.0
    memory_bytes: int = 1 << 30
    quick_queue: int = 1024
    slow_queue: int = 32
    long_text: int = 64 << 10
    patience_seconds: float = 0.5
    start_seconds: float = 180.0
    failures: int = 3
    failure_window: float = 60.0


def from_environment() -> Settings | None:
    """The settings of this server; None where it is to compile in its own processes."""
    workers = int(number(WORKERS, Settings.workers, least=0, most=MOST_WORKERS))
    if not workers:
        return None
    seconds = number(SECONDS, Settings.cpu_seconds, least=0.1, most=MOST_SECONDS)
    megabytes = number(MEGABYTES, Settings.memory_bytes >> 20, least=64, most=MOST_MEGABYTES)
    return Settings(
        workers=workers,
        cpu_seconds=seconds,
        wall_seconds=max(Settings.wall_seconds, 2 * seconds),
        memory_bytes=int(megabytes * (1 << 20)),
    )
