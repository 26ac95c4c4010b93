"""A page without scripts, for sweeps and replays: results, figures, tables."""

import base64
import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kvsim.reports.figures.style import SCREEN, Style
from kvsim.reports.html.page import GENERATOR, style

_LONG = 24
"""Longer cells are wrapped, in characters."""
_SHORT = 16
_BEFORE_UNITS = re.compile(r"(?<=[\d±]) (?!±)")  # as in base.js
"""Spaces at which a number is not broken."""


def plain_page(name: str, answer: str, sections: Mapping[str, str], about: str = "") -> str:
    """The whole file, which fetches nothing; `sections` are headings with their HTML.

    `about` stands below the name: what all runs have in common.
    """
    below = f'<p class="lead">{html.escape(about)}</p>' if about else ""
    parts = "".join(
        f'<section aria-labelledby="part-{place}"><h2 id="part-{place}">{html.escape(heading)}</h2>'
        f"{content}</section>"
        for place, (heading, content) in enumerate(sections.items())
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{GENERATOR}
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{html.escape(f"{name} - kvsim report")}</title><style>{style()}
img {{ width: 100%; height: auto; background: #fff; border-radius: 8px; }}</style></head>
<body><header class="page top"><p class="brand">kvsim report</p><h1>{html.escape(name)}</h1>
{below}<p class="answer">{html.escape(answer)}</p></header><main class="page" id="main">
{parts}</main></body></html>
"""


def drawn(draw: Callable[[Path, Style], Sequence[Path]]) -> str:
    """Draw figures into a temporary directory, and return them as images for a page."""
    with TemporaryDirectory() as part:
        paths = draw(Path(part), replace(SCREEN, formats=("svg",)))
        return "".join(_figure(each.stem, each.read_bytes()) for each in paths)


def _figure(name: str, svg: bytes) -> str:
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return f'<figure class="figure"><img alt="{name}: its numbers are in the table" src="{source}"></figure>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], remark: str = "") -> str:
    """A table that scrolls by itself if it is wide, with a remark below; each row begins with its name."""
    head = "".join(f'<th scope="col"{_whole(each)}>{html.escape(each)}</th>' for each in heads)
    lines = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th>{"".join(map(_cell, row))}</tr>' for name, *row in rows
    )
    below = f'<p class="hint">{html.escape(remark)}</p>' if remark else ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of numbers">'
        f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>{below}'
    )


def _whole(head: str) -> str:
    """The class of heads whose words stay whole."""
    return ' class="whole"' if len(head) <= _SHORT else ""


def _cell(text: str) -> str:
    kind = ' class="long"' if len(text) > _LONG else ""
    return f"<td{kind}>{html.escape(_BEFORE_UNITS.sub(chr(0xA0), text))}</td>"
