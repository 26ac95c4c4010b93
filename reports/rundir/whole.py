"""Create directories atomically; an earlier one by kvsim is replaced only if requested."""

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
    """Yield a fresh hidden directory to fill; it becomes `directory`, marked, if the block succeeds.

    After any exception, including an interrupt, nothing is left, not even parents created for it, and an
    earlier `directory` is unchanged.

    Parameters
    ----------
    directory : Path or Claim
        A claim says itself what may be replaced, and stays held.
    kind : str
        Its kind, for the marker file; the code that fills nested directories must mark them.
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
    """Rename `part` to the target, moving an existing one aside until then."""
    target = claim.target
    if not os.path.lexists(target):
        part.rename(target)
        return
    check_replaceable(claim.path, target, claim.force)  # it may have appeared meanwhile
    old = hidden(target, "old")
    try:
        target.rename(old)
        if foreign(old):  # added after the check
            raise KvsimError(f"output directory {claim.path} was written to meanwhile: it stays as it is")
        part.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    with suppress(OSError):
        remove_marked(old)
