"""Synthetic requests with lengths from distributions, see --input-len and --output-len; no external data.

    fixed:TOKENS             always the same
    uniform:LOW:HIGH         integers from LOW to HIGH, equally likely
    lognormal:MEAN:SIGMA     exp(normal): MEAN is the mean of the lengths, SIGMA the standard deviation of
                             their logarithm; the median is MEAN * exp(-SIGMA**2 / 2)
    zipf:ALPHA:MAX           k from 1 to MAX with a probability proportional to k**-ALPHA

The distributions may also replace the lengths of another trace. Lengths are rounded to whole tokens, at least
1. Prompts and answers are drawn independently.
"""

import math

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Int64Column
from kvsim.workloads.choices import chosen, whole
from kvsim.workloads.lengths import Lengths

DISTRIBUTIONS = {"fixed": "TOKENS", "uniform": "LOW:HIGH", "lognormal": "MEAN:SIGMA", "zipf": "ALPHA:MAX"}
"""Name of a distribution -> its parameters."""

USUAL_LENGTHS = ("fixed:1024", "fixed:128")
"""Default prompt and answer, as in `vllm bench serve --dataset-name random`."""

MOST_TOKENS = 1_000_000_000
MOST_SIGMA = 20
"""e**20 is half of `MOST_TOKENS`."""

MOST_RANKS = 10_000_000
"""Largest MAX of zipf, which tabulates its probabilities."""


def load_lengths() -> Lengths:
    """The default request, repeated without limit."""
    prompt, output = (int(text.partition(":")[2]) for text in USUAL_LENGTHS)
    return Lengths("synthetic", np.array([prompt]), np.array([output]), endless=True)


def draw_lengths(option: str, text: str, n: int, rng: np.random.Generator) -> Int64Column:
    """Lengths of n requests; a larger n only appends more.

    Parameters
    ----------
    option : str
        The option, for errors: `input_len` or `output_len`.
    text : str
        A distribution as above; a number alone means `fixed`.

    Raises
    ------
    KvsimError
        An unknown distribution, or a parameter out of range.
    """
    name, numbers = chosen(option, text, DISTRIBUTIONS)
    if name == "fixed":
        return np.full(n, whole(option, text, "TOKENS", numbers[0], least=1, most=MOST_TOKENS))
    if name == "uniform":
        low = whole(option, text, "LOW", numbers[0], least=1, most=MOST_TOKENS)
        high = whole(option, text, "HIGH", numbers[1], least=low, most=MOST_TOKENS)
        return rng.integers(low, high, size=n, endpoint=True)
    if name == "zipf":
        alpha, most = numbers[0], whole(option, text, "MAX", numbers[1], least=1, most=MOST_RANKS)
        if alpha < 0:
            raise KvsimError(f"{option} must have an ALPHA of at least 0, got {text!r}")
        return zipf_ranks(alpha, most, n, rng) + 1
    mean, sigma = numbers
    if not 1 <= mean <= MOST_TOKENS or not 0 <= sigma <= MOST_SIGMA:
        must = f"a MEAN from 1 to {MOST_TOKENS:,} and a SIGMA from 0 to {MOST_SIGMA}"
        raise KvsimError(f"{option} must have {must}, got {text!r}")
    with np.errstate(over="ignore"):
        drawn = np.exp(math.log(mean) - sigma**2 / 2 + sigma * rng.standard_normal(n))
    tokens: Int64Column = np.rint(np.clip(drawn, 1, MOST_TOKENS)).astype(np.int64)
    return tokens


def zipf_ranks(alpha: float, ranks: int, n: int, rng: np.random.Generator) -> Int64Column:
    """Ranks from 0, the probability of rank k proportional to (k + 1)**-alpha."""
    up_to = np.cumsum(np.arange(1, ranks + 1, dtype=np.float64) ** -alpha)
    drawn: Int64Column = np.searchsorted(up_to, rng.random(n) * up_to[-1], side="right").astype(np.int64)
    return np.minimum(drawn, ranks - 1)
