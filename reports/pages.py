"""Pages of the docs with parts that programs write: `python -m kvsim.reports.NAME docs/PAGE.md ...`."""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def rewrite(changed: Callable[[str], str]) -> None:
    """Change the pages that the command line names."""
    for path in map(Path, sys.argv[1:]):
        path.write_text(changed(path.read_text(encoding="utf-8")), encoding="utf-8")


def with_blocks(page: str, mark: str, lines: Callable[[str], Sequence[str]]) -> str:
    """The page with the lines of NAME in the text block below each line `<!-- MARK: NAME -->`."""

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}\n```text\n" + "\n".join(lines(found[2])) + "\n```"

    return re.sub(rf"(<!-- {mark}: (.+?) -->)\n```text\n.*?```", block, page, flags=re.DOTALL)


def with_table(page: str, mark: str, rows: Sequence[str]) -> str:
    """The page with these rows as the table below the line `<!-- MARK -->`, if it has one."""
    before, found, rest = page.partition(f"<!-- {mark} -->\n")
    return before + found + "\n".join(rows) + "\n\n" + rest.partition("\n\n")[2] if found else page
