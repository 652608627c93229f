"""What the benchmarks print and keep: statistics, a table, a chart and the raw numbers.

A terminal gets a drawn table, a file or a pipe a Markdown one. Charts (PNG) and raw results (JSON) go to
``benchmarks/results`` or to ``--out``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from _engines import DEFAULT_ENGINES, ENGINES

# The clone that these scripts lie in is what is measured, whatever is installed beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

RESULTS = Path(__file__).resolve().parent / "results"
COLOURS = {
    "vllm_guided": "#0b6e4f", "llguidance": "#d1495b", "xgrammar": "#2a6fbb", "xgrammar, closed": "#7fb2e5",
    "outlines-core": "#e0a030", "lm-format-enforcer": "#8d6a9f",
}  # fmt: skip
PERCENTILES = (("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9))


def options(description: str, engines: Sequence[str] = DEFAULT_ENGINES) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small part of everything, a minute or two")
    parser.add_argument(
        "--engines", nargs="+", choices=list(ENGINES), default=list(engines), metavar="ENGINE",
        help="which to compare: " + ", ".join(ENGINES),
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, help="what one engine may take for one schema")
    parser.add_argument(
        "--cpu-time", action="store_true",
        help="measure the process's processor time: on a machine that others use, too",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the chart and the raw numbers")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, and what they and all benchmarks set for the processes that work."""
    given = parser.parse_args()
    os.environ["BENCHMARK_CLOCK"] = "cpu" if given.cpu_time else "wall"
    # What is compiled must not come from what an earlier run has stored.
    os.environ["VLLM_GUIDED_DISK_CACHE_MB"] = "0"
    return given


def clock() -> Callable[[], int]:
    """The clock of this run, in nanoseconds."""
    return time.process_time_ns if os.environ.get("BENCHMARK_CLOCK") == "cpu" else time.perf_counter_ns


def one_thread() -> None:
    """Keep the libraries under the engines from using more than one thread; before they are imported."""
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        os.environ[name] = "false" if name.startswith("TOKENIZERS") else "1"


def summary(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Count, mean, percentiles and maximum; NaN where there are no values."""
    array = np.asarray(values, float)
    if not len(array):
        return {name: float("nan") for name in ("mean", *(name for name, _ in PERCENTILES), "max")} | {"n": 0}
    found = {"n": len(array), "mean": float(array.mean()), "max": float(array.max())}
    return found | {name: float(np.percentile(array, share)) for name, share in PERCENTILES}


def number(value: float | None) -> str:
    """A figure with three digits that count, or a dash."""
    if value is None or value != value:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def environment() -> dict[str, str]:
    """The machine and the versions, to lie beside the numbers."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "cpus": str(os.cpu_count())}
    for package in ("vllm-guided", "llguidance", "xgrammar", "outlines-core", "lm-format-enforcer", "numba"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    try:
        with open("/proc/cpuinfo") as file:
            found["cpu"] = next(line.partition(":")[2].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        pass
    return found


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are figures."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        drawn = Table(title=title, title_justify="left")
        for position, name in enumerate(header):
            drawn.add_column(name, justify="right" if position else "left")
        for row in rows:
            drawn.add_row(*row)
        Console().print(drawn)
        return
    print(f"\n**{title}**\n")
    print("| " + " | ".join(header) + " |")
    print("|---" + "|---:" * (len(header) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def keep(
    out: Path, name: str, results: dict[str, Any], draw: Callable[[Any, Any], None], columns: int
) -> None:
    """Write ``NAME.json`` and, where matplotlib is installed, ``NAME.png`` with ``columns`` axes."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"environment": environment(), **results}, indent=1, default=float)
    (out / f"{name}.json").write_text(text + "\n")
    print(f"raw numbers: {_short(out / f'{name}.json')}")
    try:
        import matplotlib
    except ImportError:
        print("no chart: matplotlib is not installed (pip install '.[bench]')")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(5.6 * columns, 4.2), squeeze=False)
    draw(figure, axes[0])
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    figure.tight_layout()
    figure.savefig(out / f"{name}.png", dpi=130)
    print(f"chart: {_short(out / f'{name}.png')}")


def _short(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def lines(axis: Any, curves: dict[str, tuple[Sequence[float], Sequence[float]]], *, x: str, y: str) -> None:
    """Both axes logarithmic, one line an engine."""
    for engine, (places, values) in curves.items():
        axis.plot(places, values, marker="o", markersize=3, label=engine, color=COLOURS.get(engine))
    axis.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axis.legend(fontsize=8, frameon=False)


def bars(axis: Any, groups: Sequence[str], values: dict[str, Sequence[float]], *, y: str) -> None:
    """Groups of bars on a logarithmic axis, one colour an engine."""
    width = 0.8 / max(1, len(values))
    for place, (engine, heights) in enumerate(values.items()):
        left = np.arange(len(groups)) + place * width - 0.4 + width / 2
        axis.bar(left, heights, width, label=engine, color=COLOURS.get(engine))
    axis.set(yscale="log", ylabel=y)
    axis.set_xticks(np.arange(len(groups)), groups)
    axis.legend(fontsize=8, frameon=False)
