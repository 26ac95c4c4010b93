"""What SGLang's scheduler reckons with: the share of answers that requests will need, a step's budget.

    ratio     0.7 at first (times --schedule-conservativeness), 600 decode steps later 14 % of that;
              after a retraction (tokens generated + 20 each) / tokens that may be generated
    offset    sum over running requests of (most tokens still to come, at most 4096) * ratio
    admit     prompt + most tokens + a page < free and cached tokens - offset - what was admitted before
              lengths known (ignore_eos): ratio 1; without a tree, memory must last until each one has ended

Source: SGLang 0.5.23, `new_token_ratio_tracker.py`, `prefill_budget.py`, `schedule_policy.py` (PrefillAdder).
"""

from collections.abc import Iterable
from operator import itemgetter

INIT_RATIO, MIN_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
RETRACT_STEPS = 20
"""Decode steps that a retraction makes room for."""
MOST_ESTIMATED = 4096
"""Longer answers are taken for this long."""


class NewTokenRatio:
    """The share of the longest possible answers that is set aside for those who run."""

    def __init__(self, conservativeness: float = 1.0) -> None:
        self.first = min(INIT_RATIO * conservativeness, 1.0)
        self.least = min(self.first * MIN_FACTOR, 1.0)
        self.decay = (self.first - self.least) / DECAY_STEPS
        self.now = self.first

    def decode(self, steps: int = 1) -> None:
        """So many steps decode, and all fit."""
        now, least, decay = self.now, self.least, self.decay
        for _ in range(steps):
            if now == least:
                break
            now = max(now - decay, least)
        self.now = now

    def reset(self) -> None:
        """There is nothing left to do."""
        self.now = self.first

    def retracted(self, left: Iterable[tuple[int, int]]) -> None:
        """Of those that are left, (tokens generated, most tokens)."""
        pairs = list(left)
        generated = sum([done for done, _ in pairs]) + RETRACT_STEPS * len(pairs)
        self.now = min(1.0, generated / (sum([most for _, most in pairs]) + 1))


class FixedAnswers:
    """Answers of known length that are to come: how many tokens, and what their requests hold by now.

    Until the one with the fewest left ends, every one takes a token a step; then it gives back what it held.
    A token for each of them must be free all the time.
    """

    def __init__(self, others: Iterable[tuple[int, int]]) -> None:
        self._others: Iterable[tuple[int, int]] | None = others  # until the first candidate is looked at
        self._answers: list[tuple[int, int]] = []

    def add(self, left: int, held: int) -> None:
        """A candidate; a later one goes before the first with no fewer left, or (SGLang's way) the last."""
        answers, new = self._answers, [(left, held)] if left > 0 else []
        if self._others is not None:
            answers += sorted([*new, *(each for each in self._others if each[0] > 0)], key=itemgetter(0))
            self._others = None
        else:
            later = (at for at, (other, _) in enumerate(answers) if left <= other)
            at = next(later, max(len(answers) - 1, 0))
            answers[at:at] = new

    def fit(self, free: int) -> bool:
        """Whether so many free tokens are enough for all of them."""
        running = len(self._answers)
        for left, held in self._answers:
            if free - left * running <= running:
                return False
            free += held
            running -= 1
        return True


class Budget:
    """What a step's prompts may take.

    Parameters
    ----------
    free : int
        Tokens that are free or cached.
    page_size : int
        Of the pool: every admission is charged a page more than it has.
    decoding : float
        Set aside for those who run.
    most_tokens : int
        Prompt tokens of the step.
    chunked : bool
        Whether a prompt may be cut there; else the first one may be longer.
    mixed : int
        Sequences that decode in the same step.
    """

    def __init__(  # noqa: PLR0917 - the state of a server, then its settings
        self, free: int, page_size: int, decoding: float, most_tokens: int, chunked: bool, mixed: int
    ) -> None:
        self.page_size = page_size
        self.chunked = chunked
        self.tokens = most_tokens - mixed
        self.admitted = 0
        self._free = free
        self._total: float = mixed + decoding
        self._current = mixed

    @property
    def left(self) -> float:
        """Tokens that are left for whole requests."""
        return self._free - self._total

    def hold(self, woken: int, windowed: int = 0) -> None:
        """Cached tokens are in use again; of so many, `windowed` ones too."""
        self._free -= woken

    def give(self, offset: float) -> None:
        """A running request was preempted: nothing needs to be set aside for it."""
        self._total -= offset

    def paged(self, tokens: int) -> int:
        """So many tokens in whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def charge(self, tokens: int, most_new: int) -> None:
        """Admit so many tokens of a prompt, and the answer that may follow."""
        self.admitted += 1
        charged = self.paged(tokens)
        self._total += charged + self.page_size + most_new
        self._current += charged + self.page_size
        self.tokens -= charged

    @property
    def has_room(self) -> bool:
        """Whether there is memory for anybody more."""
        return self.left > 0 and self._free - self._current > 0

    @property
    def spent(self) -> bool:
        """Whether the step's tokens are used up, while there is memory."""
        return self.has_room and self.tokens <= 0

    def next_piece(self, missing: int) -> int:
        """How much of a prompt that was cut before is next: it must go on, to give its memory back."""
        piece = min(self.tokens, int(self.left))
        return min(missing, piece if piece > 0 else max(self.tokens, self.page_size))

    def admit(self, cached: int, missing: int, most_new: int, below: int = 0) -> int | None:
        """How many of `missing` tokens of a prompt the step computes; 0: no more; None: no memory.

        What is `cached` is held already, but for the last `below` tokens, which come from a tier below.
        """
        if not below + missing + most_new + self.page_size < self.left:
            return None
        most = self._most(missing, most_new)
        if most is None:
            return None
        size, paged = self.page_size, self.paged(missing)
        if not self.chunked:
            return 0 if self.admitted and paged >= self.tokens else missing
        if paged <= most:
            return missing
        piece = most // size * size
        return max((cached + piece) // size * size - cached, 0)

    def admit_fixed(self, missing: int, most_new: int, answers: FixedAnswers) -> int | None:
        """As `admit`, where the lengths of all answers are known and nothing is cached."""
        needed = self.paged(missing) + self.page_size
        if needed > min(self.left, self._free - self._current):
            return None
        if not self._lasts(missing, most_new, needed, answers):
            return None
        return min(missing, max(self.tokens, 0)) if self.chunked else missing

    def _lasts(self, missing: int, most_new: int, needed: int, answers: FixedAnswers) -> bool:
        """Whether the memory lasts until the last answer ends, if `needed` tokens of it are taken now."""
        return answers.fit(self._free - self._current - needed)

    def _most(self, missing: int, most_new: int) -> int | None:
        """The longest piece of such a prompt; None: no memory."""
        return self.tokens


class WindowBudget(Budget):
    """The same with a second pool, for what a sliding window sees.

    A prompt needs there what it computes at once, and then a window:

        max(0, computed - window) + min(prompt + answer, window) + page

    If that will never fit, a shorter piece may; if it does not fit now, the prompt waits.

    Parameters
    ----------
    budget : tuple
        As of `Budget`.
    windowed, pool : int
        Tokens of the second pool that are free or cached, and all of them.
    window : int
    """

    def __init__(
        self, budget: tuple[int, int, float, int, bool, int], windowed: int, pool: int, window: int
    ) -> None:
        super().__init__(*budget)
        self._windowed, self._pool, self._window = windowed, pool, window

    def hold(self, woken: int, windowed: int = 0) -> None:
        self._free -= woken
        self._windowed -= windowed

    def needs(self, tokens: int, most_new: int) -> int:
        """What a prompt of so many tokens, and its answer, take of the second pool."""
        computed = min(tokens, self.tokens) if self.chunked else tokens
        most = min(tokens + most_new, self._window)
        return max(0, computed - self._window) + most + self.page_size

    def charge(self, tokens: int, most_new: int) -> None:
        self._windowed -= self.needs(self.paged(tokens), most_new)
        super().charge(tokens, most_new)

    @property
    def has_room(self) -> bool:
        return super().has_room and self._windowed > 0

    def next_piece(self, missing: int) -> int:
        """As in the base, but 0 if the second pool is too full: the prompt waits."""
        piece = min(self.tokens, int(self.left), self._windowed - self.page_size)
        return max(0, min(missing, piece))

    def _lasts(self, missing: int, most_new: int, needed: int, answers: FixedAnswers) -> bool:
        """Windows give memory back before the end: only what is taken now counts."""
        return self.needs(missing, most_new) <= self._windowed

    def _most(self, missing: int, most_new: int) -> int | None:
        needed = self.needs(self.paged(missing), most_new)
        if needed < self._windowed:
            return self.tokens
        least = self._windowed - self.needs(0, most_new)
        if not self.chunked or needed < self._pool or least < self.page_size:
            return None
        return min(self.tokens, least // self.page_size * self.page_size)
