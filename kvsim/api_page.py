"""The API reference, docs/api.md, generated from the docstrings of the names in `kvsim.__all__`.

`python -m kvsim.api_page docs/api.md` regenerates it.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import kvsim

SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
SKIPPED = ("Notes",)
"""Sections that other pages show in full: the options."""
FIRST = """# API reference

Everything that `import kvsim` offers, from its docstrings; `help(kvsim.simulate)` shows the same, with all
options, which [commands](commands.md#options-of-run-and-compare) explains. [What is stable](stable.md) says
what will stay. Written by `python -m kvsim.api_page docs/api.md`.
"""


def reference() -> str:
    """The whole page."""
    names = [name for name in kvsim.__all__ if name != "__version__"]
    functions = [name for name in names if not inspect.isclass(getattr(kvsim, name))]
    classes = [name for name in names if name not in functions]
    return "\n".join([FIRST, *map(_function, functions), *map(_class, classes)])


def _function(name: str) -> str:
    found = getattr(kvsim, name)
    return f"## kvsim.{name}\n\n{_signature(name, found)}\n{_text(found)}"


def _class(name: str) -> str:
    found = getattr(kvsim, name)
    members = "".join(f"{line}\n" for line in _members(found))
    return "\n".join(filter(None, [f"## kvsim.{name}\n", _text(found), members]))


def _members(found: type) -> Iterator[str]:
    """A line per public method and property that the class, or one of our base classes, documents."""
    for name, member in inspect.getmembers(found):
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        said = inspect.getdoc(member)
        if said:
            call = "" if isinstance(member, property) else "()"
            yield f"- `{name}{call}`: {_line(said)}"


def _line(doc: str) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(doc.partition("\n\n")[0].split())


def _signature(name: str, found: object) -> str:
    assert callable(found)
    parameters = inspect.signature(found).parameters.values()
    said = [str(each).partition(":")[0].partition("=")[0].strip() for each in parameters]
    star = [place for place, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY]
    if star:
        said.insert(star[0], "*")
    whole = f"kvsim.{name}({', '.join(said)})"
    return f"```python\n{textwrap.fill(whole, 110, subsequent_indent='    ', break_long_words=False)}\n```\n"


def _text(found: object) -> str:
    """A docstring as Markdown: section titles in bold, their entries as list items."""
    doc = inspect.getdoc(found) or ""
    head, *rest = SECTION.split(doc)
    parts = [head.strip()]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        if title not in SKIPPED:
            parts.append(f"**{title}**\n\n{_body(title, body)}")
    return "\n\n".join(parts) + "\n"


def _body(title: str, body: str) -> str:
    if title == "Examples":
        return f"```python\n{body.strip()}\n```"
    points: list[tuple[str, list[str]]] = []
    for line in body.strip().splitlines():
        if line and not line.startswith(" "):
            points.append((line, []))
        elif points:
            points[-1][1].append(line.strip())
    return "\n".join(_point(name, [line for line in text if line]) for name, text in points)


def _point(name: str, text: list[str]) -> str:
    what, _, kind = name.partition(" : ")
    said = f"`{what}`" + (f" ({kind})" if kind else "")
    return f"- {said}: {' '.join(text)}" if text else f"- {said}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
