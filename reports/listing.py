"""The available choices as tables: models, GPUs, and the names in a registry."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console, RenderableType

from kvsim.reports.fitting import FittingTable
from kvsim.sim.classes import class_named
from kvsim.sim.cost.profile_files import ProfileFile, directory, profile_files
from kvsim.sim.cost.published import profile_names
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import GIB, gpu_named, gpu_names, model_named, model_names
from kvsim.sim.models.spec import ModelSpec
from kvsim.sim.option import options_of
from kvsim.sim.parts import KINDS, is_own, part_named
from kvsim.sim.schedulers import SCHEDULERS
from kvsim.sim.sources import module_doc


def models_table() -> FittingTable:
    """The built-in models: geometry and source."""
    columns = ("name", "parameters", "weights", "layers", "heads/KV", "KV/token", "max len", "source")
    return table_of(
        columns,
        (
            (
                model.name,
                f"{model.parameters / 1e9:,.1f} B",
                f"{model.weight_bytes / GIB:,.1f} GiB",
                _layers(model),
                f"{model.heads}/{'MLA' if model.kv_latent_dim else model.kv_heads}",
                f"{model.kv_bytes_per_token / 1024:,.0f} KiB",
                f"{model.max_model_len:,}",
                model.source.removeprefix("https://huggingface.co/").replace(" config.json", ""),
            )
            for model in map(model_named, model_names())
        ),
    )


def _layers(model: ModelSpec) -> str:
    """`10+52w`: 10 full-attention, 52 sliding-window layers; c: chunks, r: recurrent, x: cross attention."""
    if not model.kv_layers:
        full = model.layers - model.window_layers
        windowed = f"{model.window_layers}w" if model.window_layers else ""
        return "+".join(filter(None, (str(full) if full else "", windowed)))
    letters = {"sliding_window": "w", "chunked_local_attention": "c", "mamba": "r", "cross_attention": "x"}
    counts: dict[str, int] = {}
    for each in model.kv_layers:
        letter = letters.get(each.kind, "")
        counts[letter] = counts.get(letter, 0) + len(each.layers)
    return "+".join(f"{count}{letter}" for letter, count in sorted(counts.items()))


def gpus_table() -> FittingTable:
    """The built-in GPUs: memory, speeds and source."""
    columns = ("name", "memory", "GB/s", "TFLOP/s", "link GB/s", "source")
    return table_of(
        columns,
        (
            (
                gpu.name,
                f"{round(gpu.memory_bytes / GIB, 1):g} GiB",
                f"{gpu.bandwidth_bytes_per_s / 1e9:,.0f}",
                f"{gpu.flops_per_s / 1e12:,.0f}",
                f"{gpu.link_bytes_per_s / 1e9:,.0f}" if gpu.link_bytes_per_s else "-",
                gpu.source,
            )
            for gpu in map(gpu_named, gpu_names())
        ),
    )


def profiles_table(found: Iterable[ProfileFile | KvsimError]) -> FittingTable:
    """Measured profiles and their origin; for a damaged one, the error."""
    columns = ("profile", "GPU", "measured", "error", "whose", "by")
    return table_of(columns, (_profile_row(each) for each in found))


def _profile_row(found: ProfileFile | KvsimError) -> tuple[str, ...]:
    if isinstance(found, KvsimError):
        return ("damaged", "-", "-", "-", "yours", str(found))
    measured, error = found.content["measured"], found.composed_error
    versions = [f"{key} {measured[key]}" for key in ("driver", "torch", "triton") if measured.get(key)]
    if found.elsewhere:
        versions = [f"measured elsewhere: {found.engine}, {found.content['source']}"]
    return (
        found.path.stem if found.origin == "yours" else found.name,
        found.gpu or str(found.content["device"]["name"]),
        "rehearsal" if found.rehearsal else "elsewhere" if found.elsewhere else found.date,
        "-" if error is None else f"{100 * error:.1f} %",
        found.origin,
        ", ".join([*(["faulty"] * bool(found.faults)), *(["few points"] if found.quick else []), *versions]),
    )


def names_table(registry: Mapping[str, str]) -> FittingTable:
    """Each name of a registry (name -> `module:attribute`) with the first line of its module."""
    said = {name: module_doc(where.partition(":")[0]) for name, where in registry.items()}
    return table_of(("name", "what it is"), ((name, _first_line(text)) for name, text in said.items()))


def part_card(kind: str, name: str) -> str:
    """One scheduler, cost or router: its releases, its own options, and its module's docstring."""
    registry, base = KINDS[kind]
    text = name.partition("@")[0]
    found: Any = class_named(kind, text if is_own(text, registry) else text.partition(":")[0], registry, base)
    facts = {"releases": ", ".join(getattr(found, "VERSIONS", ()))}
    return card_of(name, facts, *own_options(found.declares), "", module_doc(found.__module__))


def card_of(name: str, facts: Mapping[str, str], *lines: str) -> str:
    """A description of something: its name, the facts that are known, and lines below them."""
    return "\n".join([name, *(f"{what:9}{text}" for what, text in facts.items() if text), *lines])


def own_options(declared: type) -> list[str]:
    """The options of one part, a line each: flag, meaning, default."""
    lines = []
    for each in options_of(declared):
        flag = f"{each.flag} {each.about.value}".strip()
        default = f" Default: {each.in_words}." if each.in_words else ""
        lines.append(f"{flag}  {each.about.help}{default}")
    return [f"{'options' if not place else '':9}{line}" for place, line in enumerate(lines)]


def releases() -> list[str]:
    """`name@release` for each release that a scheduler supports, the default last."""
    return [f"{name}@{each}" for name in SCHEDULERS for each in part_named("scheduler", name).VERSIONS]


def rules_table(rules: Iterable[Callable[..., object]]) -> FittingTable:
    """Each rule of the contract with its docstring."""
    said = {rule.__name__.replace("_", " "): (rule.__doc__ or "").strip() for rule in rules}
    numbers = re.compile(r"( \([\d, ]+\))?\.$")
    return table_of(("rule", "what it says"), ((name, numbers.sub("", text)) for name, text in said.items()))


def _first_line(text: str) -> str:
    """The text after the name: `Paged: fixed blocks ...` gives `fixed blocks ...`."""
    line = text.partition("\n")[0]
    said = line.partition(": ")[2]
    return line if said.startswith("`") else said


def table_of(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> FittingTable:
    """A table whose first column does not wrap and whose last does; the others are right-aligned."""
    return FittingTable.of(columns, rows, words=columns[-1:])


def show(table: RenderableType, remark: str = "", *, stderr: bool = False) -> None:
    """Print a table, and a remark below it."""
    console = Console(highlight=False, stderr=stderr)
    console.print(table)
    if remark:
        console.print(f"\n{remark}", markup=False)


def show_gpus() -> None:
    """Print the datasheets of the built-in GPUs, and the measured profiles."""
    show(
        gpus_table(),
        "Analytic: datasheet values, dense 16 bit, one direction; nothing is measured.\n"
        "Your own: --gpu FILE with six numbers, see the page on cost.",
    )
    published = ", ".join(f"--cost {name}" for name in profile_names())
    show(f"Analytic too, from published figures, for a few models: {published}\n")
    show(
        profiles_table(profile_files()),
        "Used automatically for their GPU, yours before those measured elsewhere. Error: mean, on composed\n"
        f"steps. Show one: sim calibrate show NAME. Yours, by sim calibrate: {directory()}",
    )
