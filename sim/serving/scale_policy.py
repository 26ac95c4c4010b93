"""What a policy of scaling sees of a replica, and what it must say."""

from collections.abc import Sequence
from typing import Protocol


class Load(Protocol):
    """What a policy sees of a replica."""

    @property
    def waiting(self) -> int:
        """Requests in its queue."""

    @property
    def used_share(self) -> float:
        """Share of its KV memory that is allocated."""

    @property
    def waiting_tokens(self) -> int:
        """Tokens of the prompts in its queue."""

    @property
    def decode_tokens(self) -> int:
        """Tokens that its decoding sequences have, all together."""

    @property
    def capacity_tokens(self) -> int:
        """Tokens that its KV memory can hold."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of one of its steps, at most."""

    @property
    def max_num_seqs(self) -> int:
        """Sequences of one of its steps, at most."""

    def step_s(self, prompts: int, prompt_tokens: int, sequences: int, context_tokens: int) -> float:
        """Seconds of a step with so many equal prompts, of these tokens, beside sequences that decode."""


class ScalePolicy(Protocol):
    """How many replicas there are, and when that is decided."""

    @property
    def first(self) -> int:
        """Replicas in the beginning."""

    @property
    def times_s(self) -> list[float]:
        """When it decides."""

    @property
    def every_s(self) -> float:
        """It also decides every so many seconds; 0: no."""

    def target(self, now_s: float, loads: Sequence[Load], alive: int) -> int:
        """How many there should be from now on.

        `loads` are those to which requests are sent, `alive` also counts those that start.
        """
