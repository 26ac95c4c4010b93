"""Help in plain lines, as wide as the terminal; of commands with a hundred options the dozen common ones.

sim run --help        USUAL, with two examples
sim run --help-all    every option, in ORDER
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Any

from typer.core import TyperCommand, TyperOption

ALL = "--help-all"
CONTEXT = {"help_option_names": ["-h", "--help", ALL]}
WIDEST, NARROW = 80, 60
"""Terminal columns: the longest line; the width below which meanings go under names."""
_NAMES = 28
_BRACES = re.compile(r"\{(\w+(?:\.\.\.)?)\}(?:\.\.\.)?")
"""What click puts around the name of an argument."""
_BY_WORDS: Any = {"break_on_hyphens": False, "break_long_words": False}

ORDER = (
    *("Model and GPU", "Workload", "Arrivals", "Engine", "Memory", "Fleet"),
    *("Goals", "Search", "Sweep", "Replay", "Output", "Figures"),
)
"""Panels in the order in which a user needs them."""
OTHER = "Other"
"""The last panel."""


@dataclass(frozen=True)
class Usual:
    """Option names, without the dashes, in order of use; two example command lines."""

    options: tuple[str, ...]
    examples: tuple[str, str]


_SERVER = ("model", "gpu", "tensor-parallel-size")
_TRAFFIC = ("trace", "num-prompts", "request-rate")

USUAL = {
    "run": Usual(
        (*_SERVER, *_TRAFFIC, "scheduler", "allocator", "replicas", "slo", "seeds", "out", "record-map"),
        (
            "sim run --model llama-3.1-8b --gpu h100 --request-rate 20 --slo ttft:p99=1s",
            "sim run --trace agents --num-prompts 200 --record-map --out runs/agents",
        ),
    ),
    "compare": Usual(
        (*_SERVER, *_TRAFFIC, "allocator", "scheduler", "slo", "seeds", "out", "record-map"),
        (
            "sim compare --num-prompts 300 --request-rate inf",
            "sim compare --allocator paged,vattention --request-rate 2 --seeds 3 --out runs/two",
        ),
    ),
    "sweep": Usual(
        (*_SERVER, *_TRAFFIC, "scheduler", "allocator", "max-num-seqs", "slo", "seeds", "dry-run", "out"),
        (
            "sim sweep --request-rate 1:3:1 --allocator contiguous,paged --num-prompts 200",
            "sim sweep --gpu a100-80gb,h100 --model llama-3.1-8b --request-rate 8,16",
        ),
    ),
    "capacity": Usual(
        (
            *_SERVER,
            "trace",
            "scheduler",
            "allocator",
            "slo",
            "for-rate",
            "margin",
            "gpu-price",
            "seeds",
            "out",
        ),
        (
            "sim capacity --model llama-3.1-8b --gpu h100 --slo ttft:p99=1s,tpot:p99=50ms",
            "sim capacity --model llama-3.1-8b --gpu l40s,h100 --for-rate 30 --slo ttft:p99=1s",
        ),
    ),
    "replay": Usual(
        (
            *_SERVER,
            *("log", "run", "fit", "what-if", "scheduler", "max-num-seqs", "max-num-batched-tokens"),
            *("gpu-memory-utilization", "json", "out"),
        ),
        (
            "sim replay result.json --model llama-3.1-8b --gpu h100 --log vllm.log",
            "sim replay result.json --model llama-3.1-8b --gpu h100 --what-if block_size=32",
        ),
    ),
}


class Plain(TyperCommand):
    """A command whose help has every option, by panel, with nothing cut."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Every argument and option."""
        width = min(get_terminal_size().columns, WIDEST)
        formatter.write("\n".join(self._every(ctx, width)) + "\n")

    def _every(self, ctx: Any, width: int) -> Iterator[str]:  # noqa: ANN401
        yield from self._head(ctx, width)
        panels: dict[str, list[Any]] = {}
        for each in self.get_params(ctx):
            if not getattr(each, "hidden", False):
                usual = "Options" if isinstance(each, TyperOption) else "Arguments"
                panels.setdefault(getattr(each, "rich_help_panel", None) or usual, []).append(each)
        for name, found in panels.items():
            yield from ("", f"{name}:")
            for each in found:
                yield from _option(each, width)

    def _head(self, ctx: Any, width: int) -> Iterator[str]:  # noqa: ANN401
        pieces = " ".join(_BRACES.sub(r"\1", each) for each in self.collect_usage_pieces(ctx))
        yield from textwrap.wrap(f"Usage: {ctx.command_path} {pieces}", width)
        for paragraph in (self.help or "").split("\n\n"):
            yield from ("", *textwrap.wrap(paragraph, width))


class WithUsual(Plain):
    """A command listed in USUAL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer hides click's types
        """Record which help is requested."""
        ctx.meta[ALL] = ALL in args
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        """The parameters; for the full help, in order of use."""
        found = super().get_params(ctx)
        if not ctx.meta.get(ALL):
            return found
        for each in found:
            if isinstance(each, TyperOption) and each.rich_help_panel is None:
                each.rich_help_panel = OTHER
        return sorted(found, key=_place)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """The short help, or every option."""
        if ctx.meta.get(ALL):
            super().format_help(ctx, formatter)
            return
        width = min(get_terminal_size().columns, WIDEST)
        formatter.write("\n".join(self._lines(ctx, width)) + "\n")

    def _lines(self, ctx: Any, width: int) -> Iterator[str]:  # noqa: ANN401
        usual = USUAL[self.name or ""]
        by_flag = {flag: each for each in self.get_params(ctx) for flag in each.opts}
        yield from self._head(ctx, width)
        yield from ("", "Examples:")
        for example in usual.examples:
            yield from _command_line(example, width)
        yield from ("", "Options in common use:")
        for name in usual.options:
            yield from _option(by_flag[f"--{name}"], width)
        yield from (
            "",
            *textwrap.wrap(f"All {len(_shown(by_flag))} options: {ctx.command_path} {ALL}", width),
        )


def _place(parameter: Any) -> int:  # noqa: ANN401
    panel = getattr(parameter, "rich_help_panel", None)
    return ORDER.index(panel) if panel in ORDER else len(ORDER)


def _shown(by_flag: dict[str, Any]) -> set[int]:
    return {id(each) for each in by_flag.values() if not getattr(each, "hidden", True)}


def _command_line(text: str, width: int) -> Iterator[str]:
    """A command, wrapped with backslashes if it is too long, so that it can be copied."""
    whole = re.sub(r"(--\S+) (?!-)", "\\1\0", text)  # an option and its value stay together
    indents = {"initial_indent": "  ", "subsequent_indent": "      "}
    *lines, last = textwrap.wrap(whole, width - 2, **indents, **_BY_WORDS)
    yield from (f"{line} \\".replace("\0", " ") for line in lines)
    yield last.replace("\0", " ")


def _option(option: Any, width: int) -> Iterator[str]:  # noqa: ANN401
    """An option's name and value, with its meaning beside or below."""
    name = f"  {_names_of(option)}"
    meaning = f"{option.help or ''}{_default(option)}".strip() or "-"
    beside = width >= NARROW
    indent = " " * (_NAMES + 2) if beside else "    "
    lines = textwrap.wrap(meaning, width, initial_indent=indent, subsequent_indent=indent, **_BY_WORDS)
    if beside and len(name) <= _NAMES:
        lines[0] = name.ljust(len(indent)) + lines[0].lstrip()
    else:
        indents = {"initial_indent": "  ", "subsequent_indent": "      "}
        lines[:0] = textwrap.wrap(name.strip(), width, break_on_hyphens=False, **indents)
    yield from lines


def _names_of(parameter: Any) -> str:  # noqa: ANN401
    """`--out DIR`, `-h, --help`, or an argument's own name."""
    if not isinstance(parameter, TyperOption):
        return str(parameter.metavar or parameter.name.upper())
    kind = "" if parameter.is_flag else "NAME" if isinstance(parameter.default, str) else "N"
    given = parameter.metavar or kind
    flags = [*parameter.opts, *parameter.secondary_opts]
    return f"{', '.join(sorted(flags, key=len)) if len(flags) > 1 else flags[0]} {given}".rstrip()


def _default(option: Any) -> str:  # noqa: ANN401
    """The default in words, if there is one."""
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    if shown in (None, False, "", "none", "no") or option.required:
        return ""
    return f" Default: {shown}."
