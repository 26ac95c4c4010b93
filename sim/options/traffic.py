"""The user's description of traffic: which requests, how many, and when they arrive.

None means the trace's own or its usual value. `kvsim.workloads.source.opened` reads the trace and draws the
requests. Every field is an option of `sim run`, a keyword of `kvsim.simulate` and a row of docs/commands.md
(sim/option.py).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Self

from kvsim.sim.errors import KvsimError
from kvsim.sim.option import check_allowed, checked_names, option, options_of

WORKLOAD, ARRIVALS = "Workload", "Arrivals"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What arrives, and when."""

    trace: str = option(
        "The requests, see: sim traces; or a file: CSV, JSONL, parquet.",
        panel=WORKLOAD,
        default="sharegpt",
        value="NAME|FILE",
        doc="one of `sim traces`, or [a file](traces.md#your-own-trace) in any format",
    )
    num_prompts: int | None = option(
        "Number of requests; if the trace has fewer, they are drawn from it.",
        panel=WORKLOAD,
        default=None,
        value="N",
        shown="1000; all of FILE",
    )
    shuffle: bool | None = option(
        "Draw rows of the trace at random, by the seed, instead of taking the first.",
        panel=WORKLOAD,
        default=None,
        shown="with several seeds",
        doc="draw rows of the trace at random, by the seed, instead of taking the first ones; not if "
        "requests arrive at the trace's own times; `--no-shuffle`: the first ones with every seed",
    )
    tokenizer: str | None = option(
        "Counts the tokens of a trace of texts: a tokenizer.json.",
        panel=WORKLOAD,
        default=None,
        value="FILE",
        shown="none",
        doc="counts the tokens of a trace of texts: a Hugging Face [`tokenizer.json`](traces.md#tokenizers)",
    )
    turns: str = option(
        "Which turns to take from a trace of texts.",
        panel=WORKLOAD,
        default="first",
        allowed=("first", "all"),
        doc="for a trace of texts: only the first question and answer of each conversation, or all turns "
        "as sessions",
    )
    columns: str | None = option(
        "What FILE calls its fields, as in prompt_tokens=isl.",
        panel=WORKLOAD,
        default=None,
        value="OURS=THEIRS,...",
        shown="by their usual names",
        doc="what FILE [calls its fields](traces.md#your-own-trace), as in `prompt_tokens=isl,arrival_ms=ts`",
    )
    start: float = option(
        "Start at this second of the trace.",
        panel=WORKLOAD,
        default=0.0,
        value="S",
        doc="start at this second of the trace, which becomes 0",
    )
    duration: float | None = option(
        "Take only S seconds of the trace.",
        panel=WORKLOAD,
        default=None,
        value="S",
        shown="to its end",
    )
    input_len: str | None = option(
        "Prompts: TOKENS, uniform:LOW:HIGH, lognormal:MEAN:SIGMA, zipf:ALPHA:MAX, trace:NAME.",
        panel=WORKLOAD,
        default=None,
        value="DIST",
        shown="the trace's; synthetic: 1024",
        doc="prompt lengths: `512`, `uniform:LOW:HIGH`, `lognormal:MEAN:SIGMA`, `zipf:ALPHA:MAX`, "
        "`trace:NAME` ([more](traces.md#synthetic))",
    )
    output_len: str | None = option(
        "Answer lengths, in the same forms.",
        panel=WORKLOAD,
        default=None,
        value="DIST",
        shown="the trace's; synthetic: 128",
    )
    shared_prefix: str | None = option(
        "One of G system prompts of T tokens before each prompt; GxT:ALPHA: zipf.",
        panel=WORKLOAD,
        default=None,
        value="GxT",
        shown="none",
        doc="one of G system prompts of T tokens in front of every prompt; an appended `:ALPHA` makes some "
        "[more popular](traces.md#shared-system-prompts)",
    )
    clients_mix: str | None = option(
        "Clients by shares, as in A:0.8:ttft=1,B:0.2:deadline=30.",
        panel=WORKLOAD,
        default=None,
        value="MIX",
        shown="the trace's own",
        commas=True,
        doc="[clients by shares](policies.md#clients-and-goals), with the goals of each: "
        "`A:0.8:ttft=1,B:0.2:deadline=30`",
    )
    n: int = option(
        "Answers per prompt, if the trace does not say.",
        panel=WORKLOAD,
        default=1,
        value="N",
        doc="answers per prompt, if the trace does not say how many; at most 64",
    )
    beam_width: int = option(
        "Candidates of a beam search (vllm-v0); 1: none.",
        panel=WORKLOAD,
        default=1,
        value="N",
        doc="candidates of a beam search for every request; 1: none",
    )
    beam_process: str = option(
        "How surviving candidates are drawn.",
        panel=WORKLOAD,
        default="replace:0.1",
        value="NAME:X",
        doc="how surviving candidates are drawn, because traces hold no scores",
    )
    seed: int = option(
        "The same seed gives the same bytes.",
        panel=WORKLOAD,
        default=0,
        value="N",
    )
    arrivals: str | None = option(
        "poisson, gamma, onoff:ON_S:OFF_S, diurnal:PERIOD_S:PEAK_TO_MEAN, trace, trace:FILE.",
        panel=ARRIVALS,
        default=None,
        value="NAME",
        shown="the trace's own, else gamma",
        doc="`poisson`, `gamma`, `onoff:ON_S:OFF_S`, `diurnal:PERIOD_S:PEAK_TO_MEAN`, `trace`, or "
        "`trace:NAME` for those of another trace",
    )
    request_rate: float | None = option(
        "Mean requests per second; inf: all at once.",
        panel=ARRIVALS,
        default=None,
        value="R",
        shown="2.0, or FILE's own arrivals",
        doc="mean requests per second; `inf`: all at once",
    )
    burstiness: float | None = option(
        "1: Poisson arrivals; less: burstier; more: more regular.",
        panel=ARRIVALS,
        default=None,
        value="X",
        shown="1.0",
    )
    rate_scale: float = option(
        "Divide the trace's own arrival times by X.",
        panel=ARRIVALS,
        default=1.0,
        value="X",
    )
    spread: float = option(
        "Spread arrivals that share a rounded time over the next S seconds.",
        panel=ARRIVALS,
        default=0.0,
        value="S",
    )
    clients: int | None = option(
        "A closed loop of N clients instead; each sends its next request after its answer.",
        panel=ARRIVALS,
        default=None,
        value="N",
        shown="none: open arrivals",
    )
    think_time: str | None = option(
        "Seconds from an answer to the next request, or exponential:MEAN_S.",
        panel=ARRIVALS,
        default=None,
        value="S",
        shown="0",
        doc="seconds from an answer to the next request, or `exponential:MEAN_S`; `trace`: the delays in "
        "the trace, the default if it has them",
    )
    closed_sessions: bool = option(
        "A turn of a session waits for the previous answer.", panel=ARRIVALS, default=False
    )

    def __post_init__(self) -> None:
        check_allowed(self)

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> Self:
        """The inverse of `as_json`; fields unknown to an older version keep their defaults."""
        checked_names(cls, options)
        known = {each.name: each for each in options_of(cls)}
        given: dict[str, Any] = {}
        for name, value in options.items():
            kind = known[name].type
            if value is None and known[name].optional:
                given[name] = None
                continue
            if kind in (str, bool) and not isinstance(value, kind):
                raise KvsimError(f"{name} must be {kind.__name__}, got {value!r:.60}")
            try:
                given[name] = kind(value)  # also for "inf"
            except (TypeError, ValueError, OverflowError) as error:
                raise KvsimError(f"{name} must be {kind.__name__}, got {value!r:.60}") from error
        return cls(**given)

    def as_json(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The options in JSON types, which have no infinity.

        Parameters
        ----------
        named : mapping
            The actual values of options that are None.
        """
        found = {
            each.name: named.get(each.name) if value is None else value
            for each, value in zip(fields(self), asdict(self).values(), strict=True)
        }
        rate = found["request_rate"]
        return found | {"request_rate": rate if rate is None or isfinite(rate) else str(rate)}
