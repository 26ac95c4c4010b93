"""SGLang's budget of a step.

    admit     prompt + most tokens + a page < free and cached tokens - reserved - tokens admitted before
              reserved: for running answers (sglang_lengths.py)
              lengths known (ignore_eos), no tree: memory must last until each answer has ended

Source: SGLang 0.5.23, `prefill_budget.py`, `schedule_policy.py` (PrefillAdder).
"""

from collections.abc import Iterable
from operator import itemgetter


class FixedAnswers:
    """Running answers of known length: their remaining tokens, and what their requests hold now.

    Each takes a token per step, until the one with the fewest remaining tokens ends and frees what it held.
    One token for each must be free at all times.
    """

    def __init__(self, others: Iterable[tuple[int, int]]) -> None:
        self._others: Iterable[tuple[int, int]] | None = others  # until the first candidate is considered
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
        """Whether `free` tokens suffice for all of them."""
        running = len(self._answers)
        for left, held in self._answers:
            if free - left * running <= running:
                return False
            free += held
            running -= 1
        return True


class Budget:
    """The memory and tokens that a step's prompts may take.

    Parameters
    ----------
    free : int
        Free or cached tokens.
    page_size : int
        Page size of the pool: every admission is charged one page more than it has.
    decoding : float
        Tokens reserved for running requests.
    most_tokens : int
        Prompt tokens per step.
    chunked : bool
        Whether a prompt may be cut at this limit; else the first one may exceed it.
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
        """Tokens of the step left for whole requests."""
        return self._free - self._total

    def hold(self, woken: int, windowed: int = 0) -> None:
        """Cached tokens are in use again: `woken` of them, and `windowed` in the windowed pool."""
        self._free -= woken

    def give(self, offset: float) -> None:
        """A running request was preempted: its reserved tokens are free."""
        self._total -= offset

    def paged(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def charge(self, tokens: int, most_new: int) -> None:
        """Admit `tokens` tokens of a prompt, and the answer that may follow."""
        self.admitted += 1
        charged = self.paged(tokens)
        self._total += charged + self.page_size + most_new
        self._current += charged + self.page_size
        self.tokens -= charged

    @property
    def has_room(self) -> bool:
        """Whether there is memory for another request."""
        return self.left > 0 and self._free - self._current > 0

    @property
    def spent(self) -> bool:
        """Whether the step's tokens are used up while memory is left."""
        return self.has_room and self.tokens <= 0

    def next_piece(self, missing: int) -> int:
        """Next chunk of a prompt cut earlier, which must continue to free its memory eventually."""
        piece = min(self.tokens, int(self.left))
        return min(missing, piece if piece > 0 else max(self.tokens, self.page_size))

    def admit(self, cached: int, missing: int, most_new: int, below: int = 0) -> int | None:
        """How many of a prompt's `missing` tokens the step computes; 0: none; None: memory is short.

        `cached` tokens are already held, except the last `below` ones, which come from a lower tier.
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
        """Like `admit`, if the lengths of all answers are known and nothing is cached."""
        needed = self.paged(missing) + self.page_size
        if needed > min(self.left, self._free - self._current):
            return None
        if not self._lasts(missing, most_new, needed, answers):
            return None
        return min(missing, max(self.tokens, 0)) if self.chunked else missing

    def _lasts(self, missing: int, most_new: int, needed: int, answers: FixedAnswers) -> bool:
        """Whether the memory suffices until the last answer ends, if `needed` tokens are taken now."""
        return answers.fit(self._free - self._current - needed)

    def _most(self, missing: int, most_new: int) -> int | None:
        """The longest chunk of such a prompt; None: memory is short."""
        return self.tokens


class WindowBudget(Budget):
    """The same with a second pool, for the tokens that a sliding window sees.

    In that pool, a prompt needs the tokens that it computes in one step, then a window:

        max(0, computed - window) + min(prompt + answer, window) + page

    If that can never fit, a shorter chunk may fit; if it does not fit now, the prompt waits.

    Parameters
    ----------
    budget : tuple
        As in `Budget`.
    windowed, pool : int
        Free or cached tokens of the second pool, and its size.
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
        """Tokens of the second pool for a prompt of `tokens` tokens and its answer."""
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
        """As in the base, but 0 if the second pool is too full: the prompt then waits."""
        piece = min(self.tokens, int(self.left), self._windowed - self.page_size)
        return max(0, min(missing, piece))

    def _lasts(self, missing: int, most_new: int, needed: int, answers: FixedAnswers) -> bool:
        """Windows free memory before the end, so only what is taken now counts."""
        return self.needs(missing, most_new) <= self._windowed

    def _most(self, missing: int, most_new: int) -> int | None:
        needed = self.needs(self.paged(missing), most_new)
        if needed < self._windowed:
            return self.tokens
        least = self._windowed - self.needs(0, most_new)
        if not self.chunked or needed < self._pool or least < self.page_size:
            return None
        return min(self.tokens, least // self.page_size * self.page_size)
