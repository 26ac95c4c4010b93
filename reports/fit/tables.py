"""`sim fit` in the terminal: memory use, groups of layers, what fits, what would help."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.console import Group as Lines
from rich.table import Table
from rich.text import Text

from kvsim.reports.fitting import FittingTable
from kvsim.sim.fit.answer import Fit, group_json
from kvsim.sim.fit.log import StartupLog
from kvsim.sim.fit.log_terms import Term
from kvsim.sim.fit.what_if import WhatIf
from kvsim.sim.models.catalog import GIB

BAR_WIDTH = 72
"""Columns of the bar in a terminal that has as many."""
PARTS = {
    "weights": ("#0072B2", "█"),
    "draft": ("#CC79A7", "▞"),
    "activations": ("#E69F00", "▓"),
    "CUDA graphs": ("#CC79A7", "▒"),
    "runtime": ("#56B4E9", "▚"),
    "profiled": ("#E69F00", "▓"),
    "KV cache": ("#009E73", "░"),
    "not used": ("#9A9A9A", "·"),
}
"""Colour and glyph of each part of the memory."""

KINDS = {
    "full_attention": "full attention",
    "sliding_window": "window",
    "chunked_local_attention": "chunks",
    "mla_attention": "latent",
    "cross_attention": "cross attention",
    "mamba": "recurrent",
}


def fit_report(
    fits: Sequence[Fit], what_ifs: Sequence[WhatIf] = (), log: tuple[StartupLog, list[Term]] | None = None
) -> Lines:
    """The whole report: one answer in full, or several side by side."""
    if len(fits) > 1:
        return Lines(side_by_side(fits), *(_note(note) for note in dict.fromkeys(_all_notes(fits))))
    fit = fits[0]
    parts: list[RenderableType] = [Text(headline(fit), style="bold"), Text("")]
    if fit.lines:
        parts += [_Bar(fit), Text(""), memory_table(fit), Text("")]
    parts += [groups_table(fit), Text(""), pool_table(fit)]
    if fit.lengths:
        parts += [Text(""), lengths_table(fit)]
    if what_ifs:
        parts += [Text(""), what_if_table(fit, what_ifs)]
    if log is not None:
        parts += [Text(""), log_table(*log)]
    notes = (note for note in fit.notes if not note.startswith(REFUSED))  # the headline says it
    return Lines(*parts, Text(""), *(_note(note) for note in notes))


def headline(fit: Fit) -> str:
    """The question and the answer in one line."""
    where = fit.gpus_in_words
    if fit.capacity.refusal:
        return f"{fit.model.name} on {where}: {_verdict(fit)}"
    longest = fit.request.max_model_len
    return (
        f"{fit.model.name} on {where}: {fit.capacity.max_concurrency:.2f} requests of {longest:,} tokens, "
        f"{max(0, fit.capacity.num_blocks):,} blocks"
    )


REFUSED = "vLLM would not start: "
"""The first words of the note on a refusal (sim/fit/answer.py)."""


def _verdict(fit: Fit) -> str:
    """Why the engine would not start, by how much memory, and what would help, if known."""
    why = next((note for note in fit.notes if note.startswith(REFUSED)), f"{REFUSED}{fit.capacity.refusal}")
    return why.replace("vLLM", f"vLLM {fit.engine.release}", 1)


@dataclass(frozen=True)
class _Bar:
    """One GPU's memory as a bar, as wide as the terminal allows; it says if the parts do not fit."""

    fit: Fit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines, total = self.fit.lines, self.fit.gpu.memory_bytes
        left = columns = min(BAR_WIDTH, options.max_width)
        bar = Text()
        for line in lines:
            width = min(round(columns * max(0, line.bytes) / total), left)
            left -= width
            colour, glyph = PARTS[line.name]
            bar.append(glyph * width, style=colour)
        needed = sum(max(0, line.bytes) for line in lines if line.name not in ("KV cache", "not used"))
        if needed > total:
            bar.append(f"\n{needed / GIB:,.1f} GiB, before any cache, for the {total / GIB:,.1f} of one GPU")
        yield bar


def memory_table(fit: Fit) -> Table:
    """The use of one GPU's memory: bytes, share, formula, source."""
    table = _table("one GPU's memory", "GiB", "", "how", "from")
    for line in fit.lines:
        colour, glyph = PARTS[line.name]
        name = Text.assemble((glyph, colour), f" {line.name}")
        part = line.bytes / fit.gpu.memory_bytes
        share = f"{100 * part:.1f} %" if 0 <= part <= 1 else "missing" if part < 0 else f"{part:.2f} GPUs"
        source = line.source.removeprefix("https://huggingface.co/")
        table.add_row(name, f"{line.bytes / GIB:,.2f}", share, line.formula, source)
    return table


def groups_table(fit: Fit) -> Table:
    """How the layers share block tables; identical groups share a row."""
    table = _table(
        "groups of layers", "layers each", "tokens a block", "page KiB", "padding", "blocks of a request"
    )
    rows: dict[tuple[str, ...], int] = {}
    for group in fit.groups:
        told = group_json(group, fit.request)
        page = group.page
        seen = page.window or page.chunk
        name = KINDS[group.kind] + (f" of {seen:,}" if seen and group.kind != "full_attention" else "")
        content = sum(each.content_bytes for each in group.pages)
        padding = 100 * (1 - content / sum(each.bytes for each in group.pages))
        row = (
            name,
            str(len(group.layers)),
            f"{page.block_size:,}",
            f"{page.bytes / 1024:,.0f}",
            f"{padding:.1f} %",
            f"{told['blocks_per_request']:,}",
        )
        rows[row] = rows.get(row, 0) + 1
    for (name, *rest), count in rows.items():
        table.add_row(f"{count} x {name}", *rest)
    return table


def pool_table(fit: Fit) -> Table:
    """The size of the pool, and what the engine's log prints about it."""
    capacity, engine = fit.capacity, fit.engine
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    asked = fit.options
    given = {
        "max_num_batched_tokens": f"token budget {engine.max_num_batched_tokens:,}",
        "max_num_seqs": f"{engine.max_num_seqs:,} seats",
        "enable_prefix_caching": f"prefix caching {_on(engine.enable_prefix_caching)}",
        "async_scheduling": f"asynchronous scheduling {_on(engine.async_scheduling)}",
        "gpu_memory_utilization": f"{100 * engine.gpu_memory_utilization:g} % of the memory",
    }
    own = ", ".join(text for name, text in given.items() if getattr(asked, name) is None)
    chosen = ", ".join(text for name, text in given.items() if getattr(asked, name) is not None)
    table.add_row("cache", f"{fit.kv_memory_bytes / GIB:,.2f} GiB on each GPU")
    table.add_row("a block", f"{capacity.bytes_per_block / 2**20:,.2f} MiB in all layers of a group")
    blocks = f"{capacity.num_blocks:,}, one of them the null block" if capacity.num_blocks else "none"
    table.add_row("blocks", blocks)
    table.add_row(
        "a request", f"at most {capacity.blocks_per_request:,} blocks at {fit.request.max_model_len:,} tokens"
    )
    if capacity.refusal is None:  # vLLM stops before it prints this
        table.add_row("the log says", fit.log_line)
    if own:
        table.add_row(f"default of vLLM {engine.release}", own)
    if chosen:
        table.add_row("asked for", chosen)
    return table


def lengths_table(fit: Fit) -> Table:
    """How many requests of each length fit."""
    table = _table("prompt + answer", "blocks", "of the pool", "fit at once", "of their bytes in use")
    for each in fit.lengths:
        table.add_row(
            f"{each.prompt:,} + {each.output:,}",
            f"{each.blocks:,}",
            f"{each.pool_percent:.2f} %",
            f"{each.requests:,}",
            f"{each.used_percent:.1f} %",
        )
    return table


def what_if_table(base: Fit, what_ifs: Sequence[WhatIf]) -> Table:
    """What other settings would change."""
    table = _table("instead", "cache GiB", "blocks", "printed tokens", "requests", "")
    table.add_row(*_row("as asked", base), "")
    for each in what_ifs:
        if each.fit is None:
            table.add_row(each.name, "", "", "", "", each.error or "")
            continue
        now, then = base.capacity.max_concurrency, each.fit.capacity.max_concurrency
        change = f"x {then / now:.2f}" if now > 0 else ""
        table.add_row(*_row(each.name, each.fit), "does not start" if each.fit.capacity.refusal else change)
    return table


def side_by_side(fits: Sequence[Fit]) -> Table:
    """Several models or GPUs, a row each."""
    table = _table("model", "GPU", "weights GiB", "cache GiB", "blocks", "printed tokens", "requests", "")
    for fit in fits:
        name, *numbers = _row(fit.model.name, fit)
        where = fit.gpus_in_words
        state = "does not start" if fit.capacity.refusal else ""
        table.add_row(name, where, f"{fit.weights_bytes / GIB:,.1f}", *numbers, state)
    return table


def log_table(log: StartupLog, terms: Sequence[Term]) -> Table:
    """The log's numbers beside kvsim's, the largest difference first."""
    table = _table("the log", "says", "here", "in printed tokens")
    for term in terms:
        table.add_row(term.name, term.logged, term.ours, term.effect)
    return table


def _row(name: str, fit: Fit) -> tuple[str, ...]:
    capacity = fit.capacity
    return (
        name,
        f"{fit.kv_memory_bytes / GIB:,.2f}",
        f"{capacity.num_blocks:,}",
        f"{capacity.kv_tokens:,}",
        f"{capacity.max_concurrency:.2f}",
    )


def _all_notes(fits: Sequence[Fit]) -> list[str]:
    refused = [f"{fit.model.name} on {fit.gpu.name}: {fit.notes[-1]}" for fit in fits if fit.capacity.refusal]
    return [*refused, *(f"{fit.model.name}: {note}" for fit in fits for note in fit.model.notes)]


def _note(note: str) -> Text:
    return Text(f"note: {note}", style="yellow")


def _on(switch: bool) -> str:
    return "on" if switch else "off"


def _table(*columns: str) -> FittingTable:
    """A table whose text columns wrap and whose numbers do not."""
    table = FittingTable()
    for index, column in enumerate(columns):
        text = index == 0 or column in ("how", "from", "GPU", "")
        table.add_column(column, justify="left" if text else "right", overflow="fold", no_wrap=not text)
    return table
