"""The words for a request's life, shared by `sim explain`, the HTML report and timeline traces.

STATES has names and colours of states, REASONS why the head of the queue is not admitted, HAPPENED what an
event did, LINES the rest of a story's lines. The texts are templates with names in braces, many of them
columns of events.parquet. The HTML report embeds all of them (`for_page`) and fills them in itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.sim.counted import several


@dataclass(frozen=True)
class Look:
    """A state of a request: its name, its colour, and its glyph for output without colour."""

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
    "loading": Look("loading keys and values", "#F0E442", "▨", "l"),
    "loaded": Look("loaded, waiting to be scheduled", "#999933", "▦", "w"),
    "handed": Look("on its way to a decode replica", "#117733", "▥", "h"),
    "moving": Look("moving to another replica", "#882255", "▧", "m"),
    "down": Look("no replica alive", "#000000", "▩", "d"),
}
"""In the order of a life; keys as in reports/lives/spans.py."""

REASONS: dict[str, str] = {
    "no room": "needs {need} slots, {free} free",
    "watermark": "needs {need} slots; of the {free} free ones the watermark keeps too many",
    "seats": "all {seats} seats were taken",
    "token budget": "the token budget of {budget} was spent",
    "eviction": "no request enters in a step that evicts",
    "batch": "the batch was not over",
    "swapped": "swapped requests come first",
    "storage": "its prompt was being read from the storage",
    "tier": "its prefix was being copied to or from a tier",
    "reservation": "the decode replica had no room for it yet",
}
"""Why the head of the queue is not admitted."""
IN_PIECES = "needs {need} contiguous slots, largest free extent {largest}; {free} free in total"
"""Replaces `no room` if enough is free in total."""
NOT_ENOUGH_LEFT = "needs {need} slots; {free} free once the step was decided"
"""Replaces `no room` if what was free after the step was decided would have been enough."""
SHORT_REASONS = {
    "batch": "batch not over",
    "eviction": "step that evicts",
    "swapped": "swapped come first",
    "tier": "prefix being copied",
    "reservation": "no room on the decode replica",
}
"""Shown beside a number if the reason's name alone is unclear."""

HAPPENED: dict[str, str] = {
    "admit": "admitted with {tokens}",
    "admit again": "admitted again with {tokens}",
    "cached": ", {cached} of them cached",
    "decode": "prompt computed, first token",
    "decode again": "recomputed, decoding on",
    "preempt": "preempted: {by} needed the room; {tokens} thrown away, to be computed again",
    "set_aside": "gave up its seat, and keeps the memory of its {tokens}",
    "resume": "has a seat again, decoding on with {tokens}",
    "swap_out": "swapped out to the host pool with {tokens}: {by} needed the room",
    "swap_in": "swapped in again with {tokens}",
    "load": "{tokens} found elsewhere: loading them",
    "reserve": "room reserved for {tokens}, which another replica computes",
    "load_beside": "{tokens} found on the host: loading them layer by layer, beside the step",
    "load_first": "{tokens} found on the host: the step waits until they are loaded",
    "loaded": "{tokens} loaded",
    "ask": "{tokens} asked of the storage below the host",
    "fetched": "{tokens} came from the storage to the host",
    "fork": "{answers} forked off, sharing {tokens}",
    "forked": "forked off, sharing {tokens} with another answer",
    "candidates": "{candidates} of the beam search forked off, sharing {tokens}",
    "survivors": "{times} a candidate gave way to a fork of another, last at {until}; {slots} copied",
    "copy": "{slots} copied",
    "hand_over": "prompt computed; {tokens} held until they are read",
    "move_out": "stopped with {tokens}: the last of its blocks are copied to another replica",
    "move_in": "decodes on here, with {tokens}",
    "finish": "finished",
    "reject": "rejected: {reason}",
}
"""What an event did; `{by}` is `request 17`. A fork for a new answer is `forked`; the forks of a beam search
share lines (`candidates`, `survivors`)."""
BY_ITSELF = {
    "preempt": "preempted itself: no room to grow; {tokens} thrown away, to be computed again",
    "swap_out": "swapped itself out with {tokens}: no room to grow",
}
"""Used if the evicted request is the one that needed the room."""
DISPLACED = {
    "preempt": "preempted: {by} went first, as {reason}; {tokens} thrown away, to be computed again",
    "set_aside": "gave up its seat to {by}, as {reason}, and keeps the memory of its {tokens}",
}
"""Used if the policy put another request first."""

LINES: dict[str, str] = {
    "alone": "arrived; the queue was empty",
    "behind": "arrived behind {others}",
    "among": "arrived; {others} waited too",
    "entered": ", which entered at {time}",
    "all entered": ", the last of which entered at {time}",
    "head": "headed the queue for {time}: {why}",
    "again": "behind others again for {time}",
    "waited": "waited {time} in the queue",
    "queue": "in the queue for {time}: {parts}",
    "part": "{reason} for {time}",
    "others": "behind others",
    "spent": " ({on})",
    "prompts": "prompts of {requests}",
    "prompt": "prompt of {requests}",
    "whole prompt": "; the prompt has {prompt}",
    "ttft": ": TTFT {ttft}",
    "e2e": ": E2E {e2e}, TPOT {tpot}, {normalized} per token overall",
    "comes": "came to {replica}",
    "reserved": "{replica} has reserved room for it",
    "moved": "decodes on at {replica}",
    "died": "{replica} died with {tokens} in memory",
    "died empty": "{replica} died",
    "sent again": "; sent again to {replica}",
    "none alive": "; no replica was alive for {time}, then sent to {replica}",
    "none at first": "arrived; no replica was alive for {time}, then sent to {replica}",
    "read": "{replica} has read the prompt, in {time}",
    "steps": ", in {steps} steps",
    "paged": ", on a write into a shared block",
    "dynamic": ", on a move to a larger extent",
}
"""Words for arrivals, the queue, and details of an event; `paged` and `dynamic`: why these copy."""


def for_page() -> dict[str, Any]:
    """All words, as the HTML report needs them."""
    return {
        "states": {name: {"name": look.name, "colour": look.colour} for name, look in STATES.items()},
        "reasons": REASONS,
        "inPieces": IN_PIECES,
        "notEnoughLeft": NOT_ENOUGH_LEFT,
        "shortReasons": SHORT_REASONS,
        "happened": HAPPENED,
        "byItself": BY_ITSELF,
        "displaced": DISPLACED,
        "lines": LINES,
    }


def more_of(number: int, word: str) -> str:
    """`one more answer`, `3 more answers`."""
    return f"one more {word}" if number == 1 else f"{number:,} more {word}s"


def line_text(name: str, **values: Any) -> str:  # noqa: ANN401 - texts and numbers
    """One of the LINES, filled in."""
    return _filled(LINES[name], values)


def reason_text(
    reason: str, numbers: Mapping[str, int], seats: int | None = None, budget: int | None = None
) -> str:
    """Why the head of the queue was not admitted, with the event's numbers."""
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


def event_text(
    event: str, numbers: Mapping[str, int], again: bool = False, reason: str = "", **more: str
) -> str:
    """What happened, with the event's numbers and `more` filled in; `again`: after a preemption."""
    template = HAPPENED.get(f"{event} again" if again else event) or HAPPENED[event]
    by = numbers.get("by")
    if by is not None and by == numbers.get("request"):
        template = BY_ITSELF.get(event, template)
    elif reason:
        template = DISPLACED.get(event, template)
    if numbers.get("cached"):
        template += HAPPENED["cached"]
    tokens = numbers.get("tokens", 0)
    own = {
        "tokens": several(tokens, "token"),
        "slots": several(tokens, "slot"),
        "by": "another request" if by is None else f"request {by}",
        "reason": reason,
    }
    return _filled(template, {**numbers, **own, **more})


def reason_name(reason: str) -> str:
    """The reason in two or three words."""
    return SHORT_REASONS.get(reason, reason)


def _filled(template: str, values: Mapping[str, Any]) -> str:
    """The template filled in, with thousands separators."""
    return template.format_map(
        {name: f"{value:,}" if isinstance(value, int) else value for name, value in values.items()}
    )
