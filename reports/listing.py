"""What there is to choose from, as tables: models, GPUs, and whatever a registry names."""

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

from rich import box
from rich.table import Table
from rich.text import Text

from kvsim.sim.catalog import GIB, gpu_named, gpu_names, model_named, model_names
from kvsim.sim.config import ModelSpec
from kvsim.sim.errors import KvsimError
from kvsim.sim.profile_files import ProfileFile


def models_table() -> Table:
    """The geometry of the built-in models and where it is from."""
    columns = ("name", "weights", "layers", "heads/KV", "KV/token", "max len", "source")
    return table_of(
        columns,
        (
            (
                model.name,
                f"{model.parameters / 1e9:.1f} B",
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
    """`10+52w`: 10 that see everything and 52 that see a window."""
    full = model.layers - model.window_layers
    windowed = f"{model.window_layers}w" if model.window_layers else ""
    return "+".join(filter(None, (str(full) if full else "", windowed)))


def gpus_table() -> Table:
    """Memory and speeds of the built-in GPUs and where they are from."""
    columns = ("name", "memory", "GB/s", "TFLOP/s", "link GB/s", "source")
    return table_of(
        columns,
        (
            (
                gpu.name,
                f"{gpu.memory_bytes / GIB:g} GiB",
                f"{gpu.bandwidth_bytes_per_s / 1e9:,.0f}",
                f"{gpu.flops_per_s / 1e12:,.0f}",
                f"{gpu.link_bytes_per_s / 1e9:,.0f}" if gpu.link_bytes_per_s else "-",
                gpu.source,
            )
            for gpu in map(gpu_named, gpu_names())
        ),
    )


def profiles_table(found: Iterable[ProfileFile | KvsimError]) -> Table:
    """Calibrated profiles with what stands behind them; of a damaged one, what is wrong with it."""
    columns = ("profile", "GPU", "measured", "error", "whose", "by")
    return table_of(columns, (_profile_row(each) for each in found))


def _profile_row(found: ProfileFile | KvsimError) -> tuple[str, ...]:
    if isinstance(found, KvsimError):
        return ("damaged", "-", "-", "-", "yours", str(found))
    measured, error = found.content["measured"], found.composed_error
    versions = (f"{key} {measured[key]}" for key in ("driver", "torch", "triton") if measured.get(key))
    return (
        found.path.stem if found.origin == "yours" else found.name,
        found.gpu or str(found.content["device"]["name"]),
        "rehearsal" if found.rehearsal else found.date,
        "-" if error is None else f"{100 * error:.1f} %",
        found.origin,
        ", ".join([*(["few points"] if found.quick else []), *versions]),
    )


def names_table(registry: Mapping[str, str]) -> Table:
    """Each name of a registry (name -> `module:attribute`) with the first line of its module."""
    modules = {name: import_module(where.partition(":")[0]) for name, where in registry.items()}
    return table_of(("name", "what it is"), ((name, _first_line(m.__doc__)) for name, m in modules.items()))


def releases(registry: Mapping[str, str]) -> list[str]:
    """`name@release` for each release that a class of the registry tells apart, the default last."""
    found = []
    for name, where in registry.items():
        module, _, attribute = where.partition(":")
        found += [f"{name}@{version}" for version in getattr(import_module(module), attribute).VERSIONS]
    return found


def rules_table(rules: Iterable[Callable[..., object]]) -> Table:
    """What each rule of the contract says, by the first line of its docstring."""
    said = {rule.__name__.replace("_", " "): (rule.__doc__ or "").strip() for rule in rules}
    numbers = re.compile(r"( \([\d, ]+\))?\.$")
    return table_of(("rule", "what it says"), ((name, numbers.sub("", text)) for name, text in said.items()))


def _first_line(text: str | None) -> str:
    """What stands behind the name: `Paged: fixed blocks ...` says `fixed blocks ...`."""
    return (text or "").partition("\n")[0].partition(": ")[2]


def table_of(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    """The first column stays whole, the last wraps, those between stand to the right."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column(columns[0], no_wrap=True, style="bold")
    for name in columns[1:-1]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(columns[-1], overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
