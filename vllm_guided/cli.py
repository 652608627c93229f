"""``vllm-guided``: look at a constraint, at a mask, at a refused output; measure; see it work.

Exit status: 0 all is well, 1 the constraint or the output is refused (or a demo's output is wrong), 2 the
command itself cannot be carried out. Everything heavy is imported by the command that needs it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_guided.cli_input import BadInputError, Constraint, Kind, Order, read_constraint, read_text
from vllm_guided.errors import GrammarError

if TYPE_CHECKING:
    import vllm_guided as vg

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Structured output for vLLM.")
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

FileArgument = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help="the constraint; - for standard input"),
]
TextOption = Annotated[
    str | None, typer.Option("-e", "--text", help="the constraint itself, instead of FILE")
]
KindOption = Annotated[Kind | None, typer.Option("-k", "--kind", help="instead of guessing it")]
OrderOption = Annotated[
    Order | None,
    typer.Option("--property-order", help="of an object's members: any, or as the schema has them"),
]
TokenizerOption = Annotated[
    str | None,
    typer.Option(
        "-t", "--tokenizer",
        help="folder, tokenizer.json, tekken.json, *.model, or a package with a tokenizer.json; by default "
        "the tokens are single bytes",
    ),
]  # fmt: skip
StopOption = Annotated[list[str] | None, typer.Option("--stop", help="a stop token, by id or name")]


@app.command()
def check(
    file: FileArgument = None,
    text: TextOption = None,
    kind: KindOption = None,
    property_order: OrderOption = None,
    tokenizer: TokenizerOption = None,
    stop: StopOption = None,
) -> None:
    """Say whether a constraint is accepted: what it is and how large, or what is wrong and where."""
    constraint = read_constraint(file, text, kind, property_order)
    grammar = _compile(constraint, tokenizer, stop)
    milliseconds = constraint.compile_seconds() * 1000
    size = escape(_size(grammar))
    console.print(f"[green]accepted[/] as {constraint.kind.value}: {size}, compiled in {milliseconds:.1f} ms")


@app.command()
def explain(
    output: Annotated[str | None, typer.Option("-o", "--output", help="the output itself")] = None,
    output_file: Annotated[
        str | None, typer.Option("-f", "--output-file", help="a file; - for standard input")
    ] = None,
    file: FileArgument = None,
    text: TextOption = None,
    kind: KindOption = None,
    property_order: OrderOption = None,
) -> None:
    """Say whether an output is in a constraint's language; if not, where it leaves it and what fits there."""
    if (output is None) == (output_file is None):
        raise BadInputError("give the output with -o, or a file that holds it with -f")
    from vllm_guided import cli_explain

    constraint = read_constraint(file, text, kind, property_order)
    grammar = _compile(constraint, None, None)
    data = (output if output is not None else read_text(str(output_file))).encode("utf-8")
    found = cli_explain.explain(grammar, data)
    if found.complete:
        console.print(f"[green]valid[/]: all {len(data)} bytes, and the output may end there")
        return
    where = cli_explain.place(data, found.position)
    if found.position == len(data):
        console.print(f"[yellow]unfinished[/]: the output may not end at {where}")
    else:
        console.print(f"[red]refused[/] at {where}, byte {found.position}:")
    for line in cli_explain.pointed_at(data, found.position):
        console.print("  " + line, markup=False, soft_wrap=True)
    if found.expected:
        console.print(f"expected: {found.expected}", markup=False)
    if len(found.forced) > 1:
        console.print(f"the only way on: {found.forced}", markup=False)
    if found.may_end:
        console.print("or the end of the output")
    raise typer.Exit(1)


@app.command()
def mask(
    file: FileArgument = None,
    text: TextOption = None,
    kind: KindOption = None,
    property_order: OrderOption = None,
    tokenizer: TokenizerOption = None,
    stop: StopOption = None,
    after: Annotated[str, typer.Option("-a", "--after", help="the output so far")] = "",
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="tokens shown")] = 40,
) -> None:
    """Show the tokens that a constraint allows after an output prefix."""
    from vllm_guided.cli_mask import MaskView

    constraint = read_constraint(file, text, kind, property_order)
    grammar = _compile(constraint, tokenizer, stop)
    view = MaskView.after(grammar, after.encode("utf-8"))
    if view.refused_at is not None:
        errors.print(
            f"[red]refused:[/] the output leaves the language at byte {view.refused_at}; try explain"
        )
        raise typer.Exit(1)
    console.print(
        f"{len(view.allowed):,} of {view.size:,} tokens allowed"
        + (
            f", and the end ({', '.join(map(str, view.stop))})"
            if view.stop
            else "; the output may not end here"
        )
    )
    if view.forced:
        console.print(f"the only way on: {view.forced}", markup=False)
    table = Table("id", "token", box=None, pad_edge=False)
    for token_id, shown in view.rows(limit):
        table.add_row(str(token_id), escape(shown))
    console.print(table)
    if len(view.allowed) > limit:
        console.print(f"[dim]… and {len(view.allowed) - limit:,} more (--limit)[/]")


@app.command()
def warmup() -> None:
    """Compile the engine's functions ahead of time, so that no server has to."""
    start = time.monotonic()
    import vllm_guided as vg
    from vllm_guided.cachedir import cache_directory
    from vllm_guided.cli_mask import MaskView
    from vllm_guided.cli_vocabulary import byte_vocabulary

    compiler = vg.GrammarCompiler(byte_vocabulary())
    MaskView.after(compiler.compile_regex('[a-z]{2,9}( x)*"'), b"ab")
    if find_spec("torch") is not None:
        from vllm_guided import kernels

        kernels.warmup("cpu")
    console.print(f"ready after {time.monotonic() - start:.1f} s; compiled code lies in {cache_directory()}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="a script of benchmarks/, without .py")] = None,
) -> None:
    """Run a benchmark of the repository's benchmarks/ folder, with its own arguments after its name."""
    folder = Path(__file__).resolve().parent.parent / "benchmarks"
    scripts = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    if not scripts:
        raise BadInputError(
            "the benchmarks are in the repository, not in the installed package: run this in a clone"
        )
    if name is None:
        console.print("Benchmarks: " + ", ".join(scripts))
        return
    if name not in scripts:
        raise BadInputError(f"there is no benchmark named {name}; there are {', '.join(scripts)}")
    raise typer.Exit(subprocess.call([sys.executable, str(folder / f"{name}.py"), *context.args]))


@app.command()
def demo(
    timeout: Annotated[float, typer.Option(help="seconds that the server may take to start")] = 600.0,
    log: Annotated[Path | None, typer.Option(help="keep the server's log in this file")] = None,
    backend: Annotated[str, typer.Option(hidden=True)] = "vllm_guided",
) -> None:
    """Start a real vLLM server on CPU, send it every kind of constraint, and check every output."""
    from vllm_guided.demo.run import run_demo

    raise typer.Exit(run_demo(backend=backend, timeout=timeout, keep_log=log))


def _compile(constraint: Constraint, tokenizer: str | None, stop: list[str] | None) -> vg.CompiledGrammar:
    """The compiled grammar; a refusal is shown with its place, and ends with 1."""
    import vllm_guided as vg
    from vllm_guided.cli_vocabulary import load_vocabulary

    compiler = vg.GrammarCompiler(load_vocabulary(tokenizer, stop or ()))
    try:
        return constraint.compile(compiler)
    except GrammarError as error:
        _show_refusal(constraint, error)
        raise typer.Exit(1) from None


def _show_refusal(constraint: Constraint, error: GrammarError) -> None:
    from vllm_guided.cli_input import source_line

    errors.print(f"[red]refused[/] as {constraint.kind.value}: {escape(str(error))}", soft_wrap=True)
    for line in source_line(constraint.text, error.where):
        errors.print("  " + line, markup=False, soft_wrap=True)


def _size(grammar: vg.CompiledGrammar) -> str:
    automaton = grammar.automaton
    return f"{automaton.rule_count:,} rules, {automaton.state_count:,} states, {grammar.nbytes:,} bytes"


def main() -> None:
    """The console script's entry."""
    try:
        app()
    except BadInputError as error:
        errors.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
