"""How a request's life reads, wherever it is told: `sim explain`, the HTML report, timeline traces.

Everything that says why a request waits or what happens to it takes its words from here: STATES names what
it does and the colour of that, REASONS why the head of the queue is not admitted, HAPPENED what an event did.
The texts are templates with the names of the columns of events.parquet in braces, so that a page may fill
them in by itself; `reason_text` and `event_text` fill them in here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Look:
    """A state of a request: its name in a list, its colour, and its glyph where there is no colour."""

    name: str
    colour: str
    glyph: str
    ascii: str


STATES: dict[str, Look] = {
    "step": Look("waiting for the step under way", "#C9C9C9", "·", "."),
    "behind": Look("waiting behind others", "#8C8C8C", "░", ":"),
    "head": Look("heading the queue", "#E69F00", "▒", "="),
    "prefill": Look("prefill", "#56B4E9", "▓", "p"),
    "decode": Look("decode", "#0072B2", "█", "#"),
    "preempted": Look("preempted, in the queue again", "#D55E00", "▚", "x"),
    "recompute": Look("recomputing what was lost", "#CC79A7", "▞", "r"),
    "swapped": Look("swapped out", "#009E73", "▤", "s"),
}
"""In the order of a life; the keys are those of reports/lives.py."""

REASONS: dict[str, str] = {
    "no room": "needs {need} slots, {free} free",
    "watermark": "needs {need} slots; of the {free} free ones the watermark keeps too many",
    "seats": "all {seats} seats were taken",
    "token budget": "the token budget of {budget} was spent",
    "eviction": "nobody enters in a step that evicts",
    "batch": "the batch was not over",
    "swapped": "swapped requests come first",
}
"""Why the head of the queue is not admitted."""
IN_PIECES = "needs {need} contiguous slots; {free} free, the largest free extent {largest}"
"""Instead of `no room`, where enough is free in all."""
NOT_ENOUGH_LEFT = "needs {need} slots; {free} free once the step was decided"
"""Instead of `no room`, where it would fit by what was left after the decision."""
SHORT_REASONS = {"batch": "batch not over", "eviction": "step that evicts", "swapped": "swapped come first"}
"""Beside a number, where the name of the reason alone does not say it."""

HAPPENED: dict[str, str] = {
    "admit": "admitted with {tokens}",
    "admit again": "admitted again with {tokens}",
    "cached": ", {cached} of them cached",
    "decode": "prompt computed, first token",
    "decode again": "recomputed, decoding on",
    "preempt": "preempted: {by} needed the room; {tokens} thrown away, to be computed again",
    "swap_out": "swapped out to the host pool with {tokens}: {by} needed the room",
    "swap_in": "swapped in again with {tokens}",
    "fork": "one more answer forked off, sharing {tokens}",
    "copy": "{slots} copied",
    "finish": "finished",
    "reject": "rejected: {reason}",
}
"""What an event does; `{by}` is `request 17`, or `itself` (see `event_text`)."""
BY_ITSELF = {
    "preempt": "preempted itself: no room to grow; {tokens} thrown away, to be computed again",
    "swap_out": "swapped itself out with {tokens}: no room to grow",
}
"""Instead, where the request itself needed the room, and was the one to go."""


def reason_text(
    reason: str, numbers: Mapping[str, int], seats: int | None = None, budget: int | None = None
) -> str:
    """Why the head of the queue was not admitted, with the numbers of the event."""
    template = REASONS.get(reason, reason)
    if reason == "no room" and {"need", "free", "largest"} <= numbers.keys():
        if numbers["need"] <= numbers["largest"]:
            template = NOT_ENOUGH_LEFT
        elif numbers["need"] <= numbers["free"]:
            template = IN_PIECES
    if seats is None:
        template = template.replace("all {seats} seats", "all seats")
    if budget is None:
        template = template.replace("the token budget of {budget}", "the token budget")
    return _filled(template, {**numbers, "seats": seats, "budget": budget})


def event_text(event: str, numbers: Mapping[str, int], again: bool = False, reason: str = "") -> str:
    """What happened, with the numbers of the event; `again`: after a preemption."""
    template = HAPPENED.get(f"{event} again" if again else event) or HAPPENED[event]
    by = numbers.get("by")
    if by is not None and by == numbers.get("request"):
        template = BY_ITSELF.get(event, template)
    if numbers.get("cached"):
        template += HAPPENED["cached"]
    tokens = numbers.get("tokens", 0)
    own = {
        "tokens": f"{tokens:,} token{'s' * (tokens != 1)}",
        "slots": f"{tokens:,} slot{'s' * (tokens != 1)}",
        "by": "another request" if by is None else f"request {by}",
        "reason": reason,
    }
    return _filled(template, {**numbers, **own})


def reason_name(reason: str) -> str:
    """The reason in two or three words."""
    return SHORT_REASONS.get(reason, reason)


def _filled(template: str, values: Mapping[str, Any]) -> str:
    """The template with thousands separated."""
    return template.format_map(
        {name: f"{value:,}" if isinstance(value, int) else value for name, value in values.items()}
    )
