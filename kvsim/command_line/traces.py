"""`sim traces`: list the traces; show one in numbers and figures, convert one, fetch a public one."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.command_line.common import Force, Front, show
from kvsim.command_line.flags import flat
from kvsim.command_line.help import Plain

if TYPE_CHECKING:
    from kvsim.command_line.option_groups import Pictures

traces_app = typer.Typer(cls=Front, help="List the traces, look at one, convert it, fetch a public one.")

_Tokenizer = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Counts the tokens of texts: a tokenizer.json.", show_default="none"),
]
_Turns = Annotated[str, typer.Option(metavar="first|all", help="Turns of conversations that are texts.")]
_Columns = Annotated[
    str | None,
    typer.Option(
        metavar="OURS=THEIRS,...", help="What a file calls its fields.", show_default="by their usual names"
    ),
]


@traces_app.callback(invoke_without_command=True)
def traces(ctx: typer.Context) -> None:
    """List the traces, look at one, convert it, fetch a public one."""
    if ctx.invoked_subcommand is not None:
        return
    from kvsim.reports.traces import list_tables
    from kvsim.workloads.listing import listed

    show(
        list_tables(listed()),
        "Tokens are means; CV: variation of the gaps, 1 for Poisson arrivals.\n"
        "To fetch: sim traces fetch NAME. Not verified: no checksum is known.\n"
        "Your own: --trace FILE, in any format of the page on traces.",
    )


@traces_app.command("show", cls=Plain)
@flat
def show_trace(
    *,
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A name or a file in any format.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw its lengths and arrivals there.", show_default="no"),
    ] = None,
    tokenizer: _Tokenizer = None,
    turns: _Turns = "first",
    columns: _Columns = None,
    pictures: Pictures,
    force: Force = False,
    miss_ratio: Annotated[
        bool, typer.Option("--miss-ratio", help="What prefix caches of any size would hit.")
    ] = False,
    block_size: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens per block.", show_default="16, or a few more")
    ] = None,
    eviction: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="Policies of the caches, see: sim eviction; or all.", show_default="nine"
        ),
    ] = None,
) -> None:
    """Show a trace in numbers, and draw it."""
    from kvsim.commands.traces import trace_shown
    from kvsim.sim.options.traffic import Traffic

    described = Traffic(trace=trace, tokenizer=tokenizer, turns=turns, columns=columns)
    asked = {"miss_ratio": miss_ratio, "block_size": block_size, "eviction": eviction}
    trace_shown(described, out, pictures, force=force, **asked)


@traces_app.command("convert", cls=Plain)
def convert_trace(
    *,
    trace: Annotated[str, typer.Argument(metavar="IN", help="A name or a file in any format.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Ends with .jsonl or .parquet.")],
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
    tokenizer: _Tokenizer = None,
    turns: _Turns = "first",
    columns: _Columns = None,
) -> None:
    """Write a trace in kvsim's own format."""
    from kvsim.commands.run import opened
    from kvsim.reports.progress import progress
    from kvsim.sim.options.traffic import Traffic
    from kvsim.workloads.convert import convert
    from kvsim.workloads.tokenized import file_of

    source = file_of(trace) or trace
    described = Traffic(trace=trace, tokenizer=tokenizer, turns=turns, columns=columns)
    texts = tokenizer is not None or turns != "first"
    at = (0, 0)

    def wrote(rows: int, total: int) -> None:
        nonlocal at
        at = (rows, total)

    with nullcontext() if texts else progress(trace, lambda: at[1], lambda: at[0], "rows"):
        read = (lambda: opened(described).lengths) if texts else None
        done = convert(source, out, force=force, columns=columns, lengths=read, done=wrote)
    for note in done.notes:
        print(note)
    print(f"{done.rows:,} requests written to {out}")


@traces_app.command("fetch", cls=Plain)
def fetch_trace(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of those to fetch, see: sim traces.")],
) -> None:
    """Download a public trace, once, into the platform's cache."""
    from kvsim.reports.progress import progress
    from kvsim.workloads.catalogue import Bytes, fetch

    arrived = Bytes()
    with progress(name, lambda: arrived.total, lambda: arrived.done, "bytes"):
        entry, found = fetch(name, arrived)
    print(f"{entry.path}\nsha256 {found}, {'as expected' if entry.sha256 else 'not verified: none is known'}")
    print(f"{entry.licence}, {entry.source}")
