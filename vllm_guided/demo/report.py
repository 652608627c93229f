"""The demo's table and its summary, from the outcomes of its requests."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from vllm_guided.demo.client import Outcome

EXCERPT = 88
EXCERPT_END = 24
MESSAGE = 240


def results_table(outcomes: list[Outcome]) -> Table:
    """One row for each request; a line between those to be answered and those to be refused."""
    table = Table(title="A random model's output, judged by jsonschema, re and lark", expand=True)
    table.add_column("sent as", style="cyan", no_wrap=True)
    table.add_column("constraint", ratio=3)
    table.add_column("output", ratio=7)
    table.add_column("tokens", justify="right")
    table.add_column("ms", justify="right")
    table.add_column("verdict", no_wrap=True)
    for number, outcome in enumerate(outcomes):
        case, answer = outcome.case, outcome.answer
        if number and (case.judge is None) != (outcomes[number - 1].case.judge is None):
            table.add_section()
        output = excerpt(answer.text, *((EXCERPT, EXCERPT_END) if case.judge else (MESSAGE, 0)))
        if outcome.wrong is not None:
            output += f"\n[red]{escape(outcome.wrong)}[/]"
        good = "refused" if case.judge is None else "valid"
        table.add_row(
            case.sent_as,
            case.constraint + (" [dim](streamed)[/]" if case.stream else ""),
            output,
            str(answer.tokens) if answer.tokens else "",
            f"{answer.seconds * 1000:.0f}",
            f"[green]{good}[/]" if outcome.wrong is None else "[bold red]WRONG[/]",
        )
    return table


def excerpt(text: str, width: int = EXCERPT, end: int = EXCERPT_END) -> str:
    """``text`` on one line, blanks shortened, cut before its last ``end`` characters; safe with markup."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(line) > width:
        line = line[: width - end - 3] + " … " + line[len(line) - end :]
    return escape(line)


def summary(alone: list[Outcome], together: list[Outcome], seconds: float) -> str:
    """How many are as they should be; of the second round, what is not, since it has no table."""
    tokens = sum(outcome.answer.tokens for outcome in together)
    lines = [
        f"One at a time: {_count(alone)} as they should be. "
        f"All at once: {_count(together)}, {tokens} tokens in {seconds:.1f} s."
    ]
    for outcome in together:
        if outcome.wrong is not None:
            case, text = outcome.case, excerpt(outcome.answer.text, 3 * EXCERPT)
            lines.append(
                f"[red]at once: {case.sent_as}, {case.constraint}: {escape(outcome.wrong)}:[/] {text}"
            )
    return "\n".join(lines)


def _count(outcomes: list[Outcome]) -> str:
    good = sum(outcome.wrong is None for outcome in outcomes)
    colour = "green" if good == len(outcomes) else "bold red"
    return f"[{colour}]{good} of {len(outcomes)}[/]"
