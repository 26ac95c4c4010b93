"""The interface of predictors of answer lengths, by which policies order requests.

class Mine(Predictor):
    def tokens(self, request, generated):
        return 2 * request.prompt_tokens

kvsim's predictors see the true length and err as their argument says; how a real predictor works is not
modelled. Errors depend only on a request's number and sample, so all policies get the same predictions.
`--predictor NAME[:ARGUMENT]`, or `package.module:Class`.
"""

from abc import abstractmethod
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from kvsim.allocators.option import option
from kvsim.sim.classes import class_named
from kvsim.sim.errors import KvsimError
from kvsim.sim.predictors import PREDICTORS
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class PredictorOptions:
    """Options of policies that order by predicted answer lengths."""

    predictor: str = option(
        "What predicts answer lengths: see sim predictors.",
        default="oracle",
        value="NAME",
        doc="what predicts answer lengths: a [predictor](policies.md#predictors), or your own "
        "`package.module:Class`",
    )


class Predictor:
    """Predicts how long answers will be.

    Parameters
    ----------
    argument : str
        What follows the name and a colon, or "".
    longest : int
        Tokens of the longest sequence.
    """

    form: ClassVar[str] = ""
    """Form of its argument; "": it takes none."""
    moves: ClassVar[bool] = False
    """Whether predictions change as an answer grows."""

    def __init__(self, argument: str, longest: int) -> None:
        self.longest = longest
        if argument and not self.form:
            raise KvsimError(f"predictor takes no argument, got {argument!r}")

    @abstractmethod
    def tokens(self, request: Request, generated: int) -> int:
        """Predicted length of the answer to a request that has `generated` tokens so far; at least 1."""

    def finished(self, request: Request) -> None:
        """An answer is complete: the predictor may learn from it."""

    def numbers(self, argument: str, *limits: tuple[float, float]) -> list[float]:
        """The numbers of an argument, `0.5` or `10:0.9`, each within its limits."""
        words = argument.split(":")
        try:
            found = [float(word) for word in words]
            if len(found) == len(limits) and all(
                low <= value <= high for value, (low, high) in zip(found, limits, strict=True)
            ):
                return found
        except ValueError:
            pass
        allowed = ", ".join(f"{low:g} to {high:g}" for low, high in limits)
        raise KvsimError(f"predictor must be {self.form} with numbers from {allowed}, got {argument!r}")


def noise_of(request: Request) -> Random:
    """The source of random errors for a request."""
    return Random(request.index * 65_537 + request.sample)


def predictor_of(text: str, longest: int) -> Predictor:
    """The predictor of `name`, `name:argument` or `package.module:Class`."""
    name, _, argument = text.partition(":")
    if name not in PREDICTORS:
        name, argument = text, ""
    found = class_named("predictor", name, PREDICTORS, Predictor)  # type: ignore[type-abstract]
    return found(argument, longest)
