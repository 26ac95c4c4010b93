"""The page: frame, style, scripts and data combined into one text that fetches nothing.

A content security policy forbids the browser to load anything.
"""

import base64
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

SCRIPTS = (
    "base",
    "arena",
    "paint",
    "player",
    "input",
    "lives",
    "story",
    "life",
    "charts",
    "fleet",
    "table",
    "start",
)
GENERATOR = '<meta name="generator" content="kvsim">'
PLOTLY = "vendor/plotly-basic.min.js.gz"


def page(title: str, data: Mapping[str, Any], packs: Mapping[str, str]) -> str:
    """Build the whole file.

    Parameters
    ----------
    title : str
        A description of the runs, for the window's title.
    data : mapping
        All data that is not packed, in JSON's types.
    packs : mapping of str
        Gzipped data in base64, by name.
    """
    script = "\n".join(_text(f"scripts/{name}.js") for name in SCRIPTS)
    every = {**packs, "plotly": base64.b64encode(_bytes(PLOTLY)).decode()}
    holders = "\n".join(
        f'<script type="application/octet-stream" id="pack-{name}">{text}</script>'
        for name, text in every.items()
    )
    parts = {
        "TITLE": html.escape(title),
        "STYLE": style(),
        "DATA": _json(data),
        "PACKS": holders,
        "SCRIPT": f'(() => {{\n"use strict";\n{script}\n}})();',
    }
    return _filled(_text("page.html"), parts)


def style() -> str:
    """The style of all pages."""
    return "".join(_text(f"{name}.css") for name in ("page", "parts"))


def _filled(frame: str, parts: Mapping[str, str]) -> str:
    """The frame with each `{{NAME}}` replaced once; inserted text is not scanned again."""
    pieces: Sequence[str] = frame.split("{{")
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        out += [parts[name], rest]
    return "".join(out)


def _json(data: Mapping[str, Any]) -> str:
    """JSON that cannot close the HTML element that contains it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _text(name: str) -> str:
    return _bytes(name).decode("utf-8")


def _bytes(name: str) -> bytes:
    return resources.files("kvsim.reports.html").joinpath(name).read_bytes()
