"""The user's settings of speculative decoding: vLLM's `--speculative-config`, as checked JSON.

{"method": "eagle3", "num_speculative_tokens": 3, "synthetic_acceptance_length": 2.4}

method        lookahead   a block is found by   budget   asynchronous
ngram             0       its own text             0     no (ngram_gpu: yes)
draft_model       K       its own text             1     yes
eagle, mtp        K       1 token more, too        0     yes
mtp, modules      K       K tokens more, too       0     yes
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any, Final, Self

from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.serving.draft_records import DraftRules

SAME: Final = {"eagle3": "eagle", "deepseek_mtp": "mtp"}
"""Other names of methods that schedule alike."""
METHODS: Final = ("ngram", "ngram_gpu", "eagle", "eagle3", "mtp", "deepseek_mtp", "draft_model")
UNUSED: Final = ("draft_tensor_parallel_size", "prompt_lookup_max", "prompt_lookup_min", "max_model_len")
"""Keys of vLLM that change nothing in a simulation."""
PER_BATCH: Final = "num_speculative_tokens_per_batch_size"
CONFIG: Final = "speculative_config"
SHORT: Final = {
    "speculative_method": "method",
    "num_speculative_tokens": "num_speculative_tokens",
    "acceptance_length": "synthetic_acceptance_length",
}
"""Options that are short forms of keys of the JSON."""
ACCEPTANCE: Final = ("synthetic_acceptance_length", "synthetic_acceptance_rates", "acceptance")
MOST_DRAFTS: Final = 64


@dataclass(frozen=True)
class Speculation:
    """How an engine speculates.

    Attributes
    ----------
    method : str
        One of `METHODS`.
    num_speculative_tokens : int
        K: number of drafts proposed at a time.
    model : str or None
        The draft, if it is a separate model.
    num_speculative_tokens_per_batch_size : tuple of (int, int, int)
        (smallest batch, largest, K there), in ascending order; empty: always the same.
    synthetic_acceptance_length : float or None
        Average tokens per step and sequence, 1 to K + 1.
    synthetic_acceptance_rates : tuple of float or None
        How often the draft at each place is accepted if those before it were.
    acceptance : str or None
        Name of published numbers (sim/models/acceptance.toml), instead of the two above.
    num_nextn_predict_layers : int
        Modules of MTP; 0: as many as the model has.
    disable_lookahead_block_hashes, disable_eagle_block_drop : bool
        Drop the last block of each hit, instead of finding blocks by the tokens after them; do neither.
    """

    method: str
    num_speculative_tokens: int
    model: str | None = None
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    synthetic_acceptance_length: float | None = None
    synthetic_acceptance_rates: tuple[float, ...] | None = None
    acceptance: str | None = None
    num_nextn_predict_layers: int = 0
    disable_lookahead_block_hashes: bool = False
    disable_eagle_block_drop: bool = False

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Parse the command line's JSON; KvsimError names the key that is wrong."""
        return cls.of(_object(text))

    @classmethod
    def of_options(cls, options: Mapping[str, object]) -> Self | None:
        """The settings in an engine's options, as JSON or in short forms; None if there are none."""
        said = options.get(CONFIG)
        given = {} if said is None else _object(str(said))
        given |= {key: options[name] for name, key in SHORT.items() if options.get(name) is not None}
        if not given or given.get("num_speculative_tokens") == 0:
            return None
        return cls.of(given)

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Self:
        """The settings in a mapping."""
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in (*known, *UNUSED, "rejection_sample_method"):
                raise unknown("speculative_config key", name, known)
        values = {
            name: _frozen(value) for name, value in given.items() if name in known and value is not None
        }
        for name in ("method", "num_speculative_tokens"):
            if name not in values:
                raise KvsimError(f"speculative_config must have {name}, got {json.dumps(dict(given))}")
        return cls(**values)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("speculative method", str(self.method), list(METHODS))
        _whole("num_speculative_tokens", self.num_speculative_tokens, 1, MOST_DRAFTS)
        _whole("num_nextn_predict_layers", self.num_nextn_predict_layers, 0, MOST_DRAFTS)
        self._check_ranges()
        self._check_acceptance()
        if self.method == "draft_model" and self.model is None:
            raise KvsimError("speculative_config must have model for method draft_model, got none")

    def _check_ranges(self) -> None:
        most = self.num_speculative_tokens
        ranges = self.num_speculative_tokens_per_batch_size
        for each in ranges:
            if not (isinstance(each, tuple) and len(each) == 3 and all(type(one) is int for one in each)):
                raise KvsimError(f"{PER_BATCH} must be a list of [from, to, K], got {_shown(each)}")
            if not (1 <= each[0] <= each[1] and 0 <= each[2] <= most):
                raise KvsimError(
                    f"{PER_BATCH} must have ranges from 1 on, with K from 0 to {most}, got {_shown(each)}"
                )
        if any(after[0] <= before[1] for before, after in pairwise(ranges)):
            raise KvsimError(f"{PER_BATCH} must have ascending ranges, got {_shown(ranges)}")

    def _check_acceptance(self) -> None:
        most = self.num_speculative_tokens
        length, rates = self.synthetic_acceptance_length, self.synthetic_acceptance_rates
        told = [name for name in ACCEPTANCE if getattr(self, name) is not None]
        if len(told) > 1:
            raise KvsimError(f"{told[1]} must be left out beside {told[0]}, got both")
        if self.acceptance is not None:
            published_rates(self.acceptance, most)
        if length is not None and not (_is_number(length) and 1 <= length <= most + 1):
            raise KvsimError(
                f"synthetic_acceptance_length must be from 1 to {most + 1} (num_speculative_tokens + 1), "
                f"got {length!r}"
            )
        if rates is not None:
            if not isinstance(rates, tuple) or len(rates) != most:
                raise KvsimError(
                    f"synthetic_acceptance_rates must be {most} numbers (num_speculative_tokens), "
                    f"got {_shown(rates)}"
                )
            for rate in rates:
                if not (_is_number(rate) and 0 <= rate <= 1):
                    raise KvsimError(f"synthetic_acceptance_rates must be from 0 to 1, got {rate!r}")

    @property
    def kind(self) -> str:
        """The method's canonical name."""
        return SAME.get(self.method, self.method)

    @property
    def asynchronous(self) -> bool:
        """Whether vLLM schedules asynchronously with it."""
        return self.method != "ngram"

    def rules(self, caches: bool, seats: int) -> DraftRules:
        """The rules it imposes on vLLM's scheduler, with or without a prefix cache, for `seats` requests."""
        most, kind = self.num_speculative_tokens, self.kind
        kept_back = 0
        if kind in ("eagle", "mtp"):
            kept_back = most if kind == "mtp" and self.num_nextn_predict_layers > 1 else 1
        hashed = caches and not (self.disable_lookahead_block_hashes or self.disable_eagle_block_drop)
        return DraftRules(
            most,
            lookahead=0 if kind.startswith("ngram") else most,
            kept_back=kept_back,
            hash_lookahead=kept_back if hashed else 0,
            slots=int(kind == "draft_model"),
            to_the_end=kind.startswith("ngram"),
            by_batch=self._by_batch(seats),
        )

    @property
    def drops_last(self) -> bool:
        """Whether the last block of a hit is recomputed."""
        drops = self.disable_lookahead_block_hashes and not self.disable_eagle_block_drop
        return drops and self.kind in ("eagle", "mtp")

    def _by_batch(self, seats: int) -> tuple[int, ...]:
        """K by the number of requests in a step; beyond a range, its K still applies."""
        ranges = self.num_speculative_tokens_per_batch_size
        if not ranges:
            return ()
        found, now = [0], self.num_speculative_tokens
        for size in range(1, seats + 1):
            now = next((drafts for first, last, drafts in ranges if first <= size <= last), now)
            found.append(now)
        return tuple(found)

    @property
    def rates(self) -> tuple[float, ...]:
        """The acceptance rate of the draft at each place, if those before it were accepted.

        For a mean length L, these are the rates whose number of accepted drafts varies least, as in vLLM's
        synthetic sampler: floor(L - 1) places are always right, the next one with the rest of L.
        """
        if self.synthetic_acceptance_rates is not None:
            return self.synthetic_acceptance_rates
        if self.acceptance is not None:
            return published_rates(self.acceptance, self.num_speculative_tokens)
        most, length = self.num_speculative_tokens, self.synthetic_acceptance_length
        if length is None:
            raise KvsimError(
                "speculative_config must say how many drafts are accepted: synthetic_acceptance_length (1 to "
                f"{most + 1}), synthetic_acceptance_rates ({most} numbers) or acceptance "
                f"({', '.join(published())}); or a trace that has drafts"
            )
        return rates_of(length, most)


def _object(text: str) -> dict[str, object]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise KvsimError(f"speculative_config must be JSON, got {text!r}: {error}") from error
    if not isinstance(given, dict):
        raise KvsimError(f"speculative_config must be an object of JSON, got {text!r}")
    return given


def rates_of(length: float, most: int) -> tuple[float, ...]:
    """Rates for a mean length with `most` drafts, with the least variance of the accepted drafts."""
    whole = int(length - 1)
    return (*[1.0] * whole, *[length - 1 - whole] * (whole < most), *[0.0] * max(most - whole - 1, 0))


@cache
def published() -> Mapping[str, Mapping[str, Any]]:
    """Published numbers of accepted drafts, by name."""
    text = resources.files("kvsim.sim.models").joinpath("acceptance.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def published_rates(name: str, most: int) -> tuple[float, ...]:
    """Rates from published numbers, for `most` drafts."""
    if name not in published():
        raise unknown("acceptance", str(name), list(published()))
    found = published()[name]
    numbers = found.get("lengths") or found["at_each_place"]
    if most > len(numbers):
        raise KvsimError(
            f"num_speculative_tokens must be at most {len(numbers)} with acceptance {name}, got {most}"
        )
    if "lengths" in found:
        return rates_of(numbers[most - 1], most)
    return tuple(after / before for before, after in pairwise([1.0, *numbers[:most]]))


def _frozen(value: object) -> object:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


def _shown(value: object) -> str:
    return json.dumps(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise KvsimError(f"{name} must be a whole number from {least} to {most}, got {_shown(value)}")
