"""Directories that appear whole or not at all; an earlier one of kvsim's is replaced only where asked for."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

from kvsim.reports.rundir.claims import Claim, check_replaceable, claimed
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.marker import UNFINISHED, foreign, hidden, mark, remove_marked
from kvsim.sim.files.stopping import at_forced_exit, unstoppable
from kvsim.sim.files.whole_file import explained


@contextmanager
def whole_directory(directory: Path | Claim, force: bool = False, kind: str = "run") -> Iterator[Path]:
    """Give a fresh hidden directory to fill; it becomes `directory`, marked, if the block ends well.

    After any exception, an interrupt too, nothing is left: not the files, not the parents made for
    them; what stood at `directory` still stands there.

    Parameters
    ----------
    directory : Path or Claim
        A claim says itself what may be replaced, and stays held.
    kind : str
        What the marker calls it; directories inside are to be marked by who fills them.
    """
    held = nullcontext(directory) if isinstance(directory, Claim) else claimed(directory, force)
    with held as claim, explained(claim.path):
        part = hidden(claim.target)
        remove = partial(shutil.rmtree, part, ignore_errors=True)
        with at_forced_exit(remove):
            try:
                part.mkdir()
                mark(part, UNFINISHED)
                yield part
                mark(part, kind)
                with unstoppable():
                    _put_in_place(part, claim)
            except BaseException:
                with unstoppable():
                    remove()
                raise


def _put_in_place(part: Path, claim: Claim) -> None:
    """Rename `part` to the target, moving what stands there aside until the new one is in its place."""
    target = claim.target
    if not os.path.lexists(target):
        part.rename(target)
        return
    check_replaceable(claim.path, target, claim.force)  # it may have come meanwhile
    old = hidden(target, "old")
    try:
        target.rename(old)
        if foreign(old):  # what came after the check
            raise KvsimError(f"output directory {claim.path} was written to meanwhile: it stays as it is")
        part.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    with suppress(OSError):
        remove_marked(old)
