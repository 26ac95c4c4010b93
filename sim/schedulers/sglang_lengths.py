"""How long SGLang's answers may get, and what share of that is reserved while they run.

    ratio     0.7 at first (times --schedule-conservativeness), 600 decode steps later 14 % of that;
              after a retraction (tokens generated + 20 each) / tokens that may be generated
    reserved  (most tokens still to come, at most 4096) * ratio; with ignore_eos all of them

Source: SGLang 0.5.23, `new_token_ratio_tracker.py`, `schedule_policy.py` (PrefillAdder).
"""

from collections.abc import Iterable

from kvsim.sim.schedulers.sglang_options import SglangOptions
from kvsim.sim.serving.request import Request

INIT_RATIO, MIN_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
RETRACT_STEPS = 20  # decode steps for which a retraction makes room
MOST_ESTIMATED = 4096  # longer answers count as this long


class NewTokenRatio:
    """The share of the longest possible answers that is reserved for running requests."""

    def __init__(self, conservativeness: float = 1.0) -> None:
        self.first = min(INIT_RATIO * conservativeness, 1.0)
        self.least = min(self.first * MIN_FACTOR, 1.0)
        self.decay = (self.first - self.least) / DECAY_STEPS
        self.now = self.first
        self._decoded_at = -1  # step of the last decision to decode without retraction
        self._waits = -1

    def catch_up(self, step: int, waits: int) -> None:
        """Decision `step` begins; `waits` counts how often no work was left before."""
        if self._decoded_at >= 0:
            self.decode(step - self._decoded_at - 1)
            self._decoded_at = -1
        if self._waits != waits:
            self.now, self._waits = self.first, waits

    def decode_from(self, step: int) -> None:
        """Step `step` decodes, as do all until the next decision."""
        self.decode()
        self._decoded_at = step

    def decode(self, steps: int = 1) -> None:
        """`steps` steps decoded, all of them with enough memory."""
        now, least, decay = self.now, self.least, self.decay
        for _ in range(steps):
            if now == least:
                break
            now = max(now - decay, least)
        self.now = now

    def retracted(self, left: Iterable[tuple[int, int]]) -> None:
        """After a retraction; `left`: (tokens generated, most tokens) of the remaining requests."""
        pairs = list(left)
        generated = sum([done for done, _ in pairs]) + RETRACT_STEPS * len(pairs)
        self.now = min(1.0, generated / (sum([most for _, most in pairs]) + 1))


class AnswerLengths:
    """How long answers may get beside their prompts in `capacity` tokens, and what is reserved for them."""

    def __init__(self, options: SglangOptions, ratio: NewTokenRatio, capacity: int, page: int) -> None:
        self.capacity, self.page = capacity, page
        self.fixed = options.ignore_eos  # whether answers are as long as asked
        self._ratio = ratio
        self._max_tokens = options.max_tokens or 0
        self._room = capacity - page - 1

    def room(self, prompt: int) -> int:
        """The longest answer to a prompt that fits in the empty memory, as SGLang computes it."""
        return self._room - -(-prompt // self.page) * self.page

    def most_new(self, request: Request) -> int:
        """The tokens that a request may generate: its client's limit, or what it will generate."""
        asked = max(request.output_tokens, self._max_tokens)
        return max(0, min(asked, self.room(request.prompt_tokens)))

    def estimated(self, request: Request) -> int:
        """The same, as long as it may count."""
        return min(self.most_new(request), MOST_ESTIMATED)

    def reserved(self, request: Request, generated: int) -> float:
        """Tokens reserved for the rest of a running request's answer."""
        left = min(self.most_new(request) - generated, MOST_ESTIMATED)
        return left if self.fixed else left * self._ratio.now
