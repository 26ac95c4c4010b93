"""Predicted answer lengths: the predictors of `--reserve predicted:MODEL`.

    buckets-N-P N equal buckets up to the model's longest sequence; the right one is predicted with
                  probability P, else a neighbour of it; the upper end of the bucket counts (S3)
    noise-S       the true length times a log-normal factor of standard deviation S
    s3, s3-nq, s3-pile   10 buckets, as often right as S3's classifier on Alpaca, Natural Questions, the Pile

A predictor sees the true length and errs at random; how a real predictor works is not modelled. Errors depend
only on the request's number, so all allocators get the same predictions.

Source: Jin et al., S3: Increasing GPU utilization during generative inference for higher throughput,
NeurIPS 2023 (accuracies: 98.61 %, 77.13 %, 65.6 %). It does not say which bucket a wrong prediction names.
"""

from dataclasses import dataclass
from math import ceil, exp
from random import Random

from kvsim.sim.errors import KvsimError

PREFIX = "predicted:"
NAMED = {"s3": "buckets-10-0.9861", "s3-nq": "buckets-10-0.7713", "s3-pile": "buckets-10-0.656"}
FORMS = f"{', '.join(NAMED)}, buckets-N-P or noise-S"


@dataclass(frozen=True)
class Predictor:
    """Predicts answer lengths.

    Attributes
    ----------
    buckets : int
        Number of buckets; 0: the length is estimated as a number.
    accuracy : float
        How often the right bucket is predicted.
    noise : float
        Standard deviation of the logarithm of the estimate over the truth.
    """

    buckets: int = 0
    accuracy: float = 1.0
    noise: float = 0.0

    def tokens(self, index: int, output_tokens: int, longest: int) -> int:
        """Predicted length of request `index`'s answer of `output_tokens` tokens; at most `longest`."""
        random = Random(index)
        if not self.buckets:
            return min(longest, max(1, ceil(output_tokens * exp(self.noise * random.gauss(0.0, 1.0)))))
        bucket = (output_tokens - 1) * self.buckets // longest
        if random.random() >= self.accuracy:
            bucket += random.choice((-1, 1))
        bucket = min(max(bucket, 0), self.buckets - 1)
        return -(-(bucket + 1) * longest // self.buckets)


def predictor_named(model: str) -> Predictor:
    """The predictor for a name, `buckets-N-P` or `noise-S`.

    Raises
    ------
    KvsimError
        If it is none of them, or one of its numbers is out of range.
    """
    kind, *numbers = NAMED.get(model, model).split("-")
    try:
        if kind == "buckets" and len(numbers) == 2:
            found = Predictor(buckets=int(numbers[0]), accuracy=float(numbers[1]))
            if found.buckets >= 1 and 0 <= found.accuracy <= 1:
                return found
        elif kind == "noise" and len(numbers) == 1:
            found = Predictor(noise=float(numbers[0]))
            if 0 <= found.noise <= 10:
                return found
    except ValueError:
        pass
    raise KvsimError(f"reserve must be predicted:MODEL with MODEL {FORMS}, got {PREFIX + model!r}")
