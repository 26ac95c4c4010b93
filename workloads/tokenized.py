"""Traces that hold texts: tokens are counted with the tokenizer of the user's model.

    1. the loader asks for the length of each text; texts are collected and counted in bulk,
       on all cores (`tokenizers` does that itself)
    2. the loader asks again, for the same texts in the same order, and gets the lengths

So the file is read twice, which takes seconds while counting takes minutes, and no text is kept. For first
turns, prompts and answers each include the tokenizer's special tokens, as in vLLM's and FastChat's scripts;
the turns of a session do not. Chat templates are ignored.
"""

import os
from array import array
from collections.abc import Callable
from typing import Any

from kvsim.sim.errors import KvsimError
from kvsim.workloads import load
from kvsim.workloads.formats import TEXT_FORMATS, recognised
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.sharegpt_json import FEWEST_TOKENS, TURNS

TEXTS_AT_ONCE = 1024


def load_counted(
    trace: str,
    tokenizer: str | None,
    turns: str = "first",
    done: Callable[[int], None] = lambda size: None,
    columns: str | None = None,
) -> Lengths:
    """All requests of any trace; if it holds texts, their tokens are counted.

    Parameters
    ----------
    tokenizer : str or None
        A Hugging Face `tokenizer.json`.
    turns : str
        Which turns of a conversation to use, see `load_sharegpt`.
    done : function
        Called repeatedly with the number of characters tokenized.
    columns : str or None
        Field names in a file of lengths, see `load`.

    Raises
    ------
    KvsimError
        An unusable trace or tokenizer, or a tokenizer or `turns` for a trace without texts.
    """
    if turns not in TURNS:
        raise KvsimError(f"turns must be one of {', '.join(TURNS)}, got {turns!r}")
    if tokenizer is None and turns == TURNS[0]:
        return load(trace, columns=columns)
    path = file_of(trace)
    if path is None or columns is not None or recognised(path) not in TEXT_FORMATS:
        option, given = ("turns", turns) if tokenizer is None else ("tokenizer", tokenizer)
        raise KvsimError(f"{option} must be left out for trace {trace}, which holds no texts, got {given!r}")
    if tokenizer is None:
        return load(trace, turns=turns)
    counted = _Counted(tokenizer, turns == "first", done)
    load(trace, count=counted.collect, turns=turns)
    counted.flush()
    lengths = iter(counted.lengths)
    return load(trace, count=lambda text: next(lengths), turns=turns)


def file_of(trace: str) -> str | None:
    """The file of a trace, if the trace is a file that exists."""
    from kvsim.workloads import TRACES
    from kvsim.workloads.catalogue import entries

    if trace in TRACES:
        return None
    if trace in entries() and not os.path.exists(trace):
        return str(entries()[trace].path) if entries()[trace].here else None
    return trace if os.path.isfile(trace) else None


class _Counted:
    """The lengths of texts, in the order in which they were requested."""

    def __init__(self, path: str, special: bool, done: Callable[[int], None]) -> None:
        self.lengths = array("q")
        self._path = path
        self._tokenizer = _tokenizer(path)
        self._special = special
        self._done = done
        self._characters = 0
        self._waiting: list[str] = []

    def collect(self, text: str) -> int:
        """Collect a text whose length is unknown so far; returns a length that will not be filtered out."""
        self._waiting.append(text)
        if len(self._waiting) == TEXTS_AT_ONCE:
            self.flush()
        return FEWEST_TOKENS

    def flush(self) -> None:
        """Tokenize the collected texts."""
        try:
            found = self._tokenizer.encode_batch(self._waiting, add_special_tokens=self._special)
        except Exception as error:  # such as a word that its vocabulary lacks
            raise KvsimError(f"tokenizer {self._path} cannot count a text: {_why(error)}") from error
        self.lengths.extend(map(len, found))
        self._characters += sum(map(len, self._waiting))
        self._waiting.clear()
        self._done(self._characters)


def _tokenizer(path: str) -> Any:  # noqa: ANN401 - of a package that may be missing
    """Load a tokenizer from a file, without truncation and padding."""
    try:
        from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise KvsimError(
            "--tokenizer needs the package tokenizers, which is not installed: pip install tokenizers"
        ) from error
    try:
        with open(path, encoding="utf-8") as file:
            found = Tokenizer.from_str(file.read())
    except OSError as error:
        raise KvsimError(f"tokenizer {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # it reports errors in a file as a plain Exception
        raise KvsimError(f"tokenizer {path} is no Hugging Face tokenizer.json: {_why(error)}") from error
    found.no_truncation()
    found.no_padding()
    return found


def _why(error: Exception) -> str:
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__
