"""Types that allocators and their callers exchange: texts, matches, holdings, errors.

the text of a prompt     (stream 3, first 0, length 512), (stream 9, first 0, length 80)      a Content
                          '- system prompt, shared with others     '- of this chat          two Runs
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from mypy_extensions import mypyc_attr

T = TypeVar("T")

Id = Any
"""A sequence or a block: an integer that is only looked up and passed on; compiled code need not unbox it."""

Run = tuple[int, int, int]
"""Tokens `first, first + 1, ...` of a stream: (stream, first, length). Equal runs are equal text."""

Content = tuple[Run, ...]
"""The text of a prefix, from its first token, as runs: neighbours that continue each other are one run."""


@mypyc_attr(native_class=False)
class InvariantError(RuntimeError):
    """The bookkeeping contradicts itself: a bug in an allocator or in its caller."""


@mypyc_attr(native_class=False)
class Holdings(dict[int, T]):
    """What each sequence holds, by id; looking up one that holds nothing is a bug in the caller.

    A look-up takes three times as long as in a plain dict.
    """

    def __missing__(self, seq: int) -> T:
        raise self.holds_nothing(seq)

    def holds_nothing(self, seq: int) -> InvariantError:
        """The error for a sequence that holds nothing."""
        return holds_nothing(self, seq)

    def expect_new(self, seq: int, tokens: int) -> None:
        """Raise InvariantError unless the sequence can be placed: it holds nothing yet and has a token."""
        expect_new(self, seq, tokens)


def holds_nothing(held: Mapping[int, object], seq: int) -> InvariantError:
    """The error for a sequence that is not in `held`."""
    return InvariantError(f"sequence {seq} holds nothing; {len(held)} others do")


def expect_new(held: Mapping[int, object], seq: int, tokens: int) -> None:
    """Raise InvariantError unless the sequence can be placed: it is not in `held` yet and has a token."""
    if seq in held:
        raise InvariantError(f"sequence {seq} cannot be placed twice: it holds {held[seq]}")
    if tokens < 1:
        raise InvariantError(f"sequence {seq} must be placed with at least 1 token, got {tokens}")


@mypyc_attr(allow_interpreted_subclasses=True)
class Match:
    """A prefix found by a caching allocator: valid until its next change.

    Attributes
    ----------
    tokens : int
        Tokens of the prefix whose keys and values are already there.
    woken_slots : int
        Slots of these tokens that no sequence uses now, which still count as free.
    """

    __slots__ = ("tokens", "woken_slots")

    def __init__(self, tokens: int, woken_slots: int) -> None:
        self.tokens = tokens
        self.woken_slots = woken_slots


@mypyc_attr(allow_interpreted_subclasses=True)
class Found(Match):
    """A prefix of a text found in a tree, valid while the tree has had exactly `changes` changes.

    The text is `content`, which others may share, then private text under the name `own`.
    """

    __slots__ = ("changes", "content", "own")

    def __init__(self, tokens: int, woken_slots: int, content: Content, own: int, changes: int) -> None:
        super().__init__(tokens, woken_slots)
        self.content = content
        self.own = own
        self.changes = changes

    def check(self, seq: int, tokens: int, changes: int) -> None:
        """Raise InvariantError unless a new sequence of `tokens` can use the match now."""
        if self.changes != changes or self.tokens > tokens:
            made = f"{self.tokens} tokens after {self.changes} changes, now {changes}"
            raise InvariantError(f"sequence {seq} with {tokens} tokens cannot use a match of {made}")
