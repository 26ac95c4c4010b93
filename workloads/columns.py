"""The names of a trace's fields: kvsim's own, usual ones of other tools, or those in --columns.

    arrival_s        timestamp, arrived_at, arrival_time, ...     in seconds, or the unit the name ends with:
                                                                   timestamp_ms, arrival_us, ts_ns
    prompt_tokens    prompt_len, input_length, input_tokens, isl, ...
    output_tokens    output_len, completion_tokens, osl, ...

Case and separators do not matter: `Input Length` is `input_length`. --columns takes precedence over kvsim's
own names, and these over usual ones. Other fields are ignored, with a note; but a name one letter off a
missing field is reported as a typo. Only these three fields have usual names: a `session_id`, say, does not
imply that prompts repeat the conversation, as `session` does here.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvsim.sim.errors import KvsimError, unknown
from kvsim.workloads.values import shown

ARRIVAL, PROMPT, OUTPUT = "arrival_s", "prompt_tokens", "output_tokens"

FIELDS = (
    *(ARRIVAL, PROMPT, OUTPUT, "n", "segments", "prompt_token_ids"),
    *("session", "turn", "priority", "client", "drafts"),
    *("slo_ttft_s", "slo_tpot_s", "deadline_s", "predicted_tokens", "max_tokens"),
)
"""The fields of kvsim's own format, explained in docs/traces.md."""

USUAL_NAMES: dict[str, tuple[str, ...]] = {
    ARRIVAL: (
        *(
            "arrival",
            "arrival_time",
            "arrival_timestamp",
            "arrived_at",
            "timestamp",
            "time",
            "ts",
            "datetime",
        ),
        *("request_time", "request_timestamp", "start_time", "submit_time", "submitted_at", "created_at"),
    ),
    PROMPT: (
        *("prompt_len", "prompt_length", "prompt_size", "input_tokens", "input_len", "input_length", "isl"),
        *("num_prompt_tokens", "num_input_tokens", "prompt_token_count", "input_token_count"),
        *("num_prefill_tokens", "prefill_tokens", "context_tokens", "request_tokens"),
    ),
    OUTPUT: (
        *("output_len", "output_length", "output_size", "osl", "completion_tokens", "completion_length"),
        *("num_output_tokens", "num_completion_tokens", "output_token_count", "completion_token_count"),
        *("num_decode_tokens", "decode_tokens", "generated_tokens", "response_tokens", "response_length"),
    ),
}
"""Other tools' names for these fields."""

UNITS: dict[str, int] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), 10**3),
    **dict.fromkeys(("us", "usec", "micros", "microsecond", "microseconds"), 10**6),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanosecond", "nanoseconds"), 10**9),
}
"""Suffix of an arrival field's name -> units per second."""

UNIT_NAMES = {1: "seconds", 10**3: "milliseconds", 10**6: "microseconds", 10**9: "nanoseconds"}
OURS = (*FIELDS, "arrival_ms", "arrival_us", "arrival_ns")
"""Names allowed on the left-hand side in --columns."""

SHORTEST_SLIP = 4
MOST_NAMED = 8


class Column(NamedTuple):
    """The meaning of a column of a file.

    Attributes
    ----------
    field : str
        One of FIELDS.
    per_second : int or None
        For arrivals, units per second; None if the name does not say.
    """

    field: str
    per_second: int | None = None


class Named(NamedTuple):
    """The columns to read, by their names in the file, and the names of the others."""

    columns: dict[str, Column]
    rest: list[str]

    def notes(self, dates: bool) -> list[str]:
        """Notes on columns that were read under another name or unit, and on columns that were not read.

        `dates`: arrivals are dates, which have no unit.
        """
        renamed = []
        for name, column in self.columns.items():
            per_second = column.per_second or 1
            if column.field == ARRIVAL and (name != ARRIVAL or per_second != 1):
                unit = "" if dates else f" in {UNIT_NAMES[per_second]}"
                renamed.append(f"{printable(name)} as arrivals{unit}")
            elif name != column.field:
                renamed.append(f"{printable(name)} as {column.field}")
        notes = [f"Read by other names: {', '.join(renamed)}."] if renamed else []
        return notes + ([f"Fields that were not read: {_listed(self.rest)}."] if self.rest else [])


def parse_columns(text: str) -> dict[str, Column]:
    """Parse `prompt_tokens=isl,arrival_ms=ts` into names in the file -> columns.

    Raises
    ------
    KvsimError
        Wrong syntax, a name on the left that is not a field, or a duplicate name.
    """
    found: dict[str, Column] = {}
    for pair in text.split(","):
        ours, equals, theirs = (part.strip() for part in pair.partition("="))
        if not (ours and equals and theirs):
            raise KvsimError(f"columns must be OURS=THEIRS,..., as in prompt_tokens=isl, got {text!r}")
        if ours not in OURS and theirs in OURS:
            raise KvsimError(
                f"columns must be OURS=THEIRS, got {ours}={theirs}; did you mean {theirs}={ours}?"
            )
        if ours not in OURS:
            raise unknown("columns: field", ours, list(OURS))
        column = Column(ours)
        if ours.startswith("arrival_"):
            column = Column(ARRIVAL, UNITS[ours.removeprefix("arrival_")])
        if theirs in found or column.field in [each.field for each in found.values()]:
            raise KvsimError(f"columns must name each field and each column once, got {text!r}")
        found[theirs] = column
    return found


def column_of(name: str, chosen: Mapping[str, Column]) -> Column | None:
    """The meaning of a column of that name; None if it is not read."""
    if name in chosen:
        return chosen[name]
    if name in FIELDS:
        return Column(name, 1 if name == ARRIVAL else None)
    return _USUAL.get(_plain(name))


def named(where: str, names: Mapping[str, str], chosen: Mapping[str, Column]) -> Named:
    """Decide which columns are read as which field.

    Parameters
    ----------
    where : str
        The file, for errors.
    names : mapping of str to str
        All names in the file -> where each occurs first, for errors.
    chosen : mapping of str to Column
        The user's choices.

    Raises
    ------
    KvsimError
        A name given by the user that does not exist, two columns for one field, a typo in a name.
    """
    for name in chosen:
        if name not in names:
            there = _listed(names)
            raise KvsimError(f"{where}: columns names {name!r}, which is not there (there are: {there})")
    found: dict[str, Column] = {}
    for field in FIELDS:
        name = _chosen_for(where, field, names, chosen)
        if name is not None:
            column = column_of(name, chosen)
            assert column is not None
            found[name] = column
    rest = [name for name in names if name not in found]
    _refuse_slips(names, rest, {column.field for column in found.values()})
    if names and OUTPUT not in (fields := [column.field for column in found.values()]):
        _refuse_without(where, OUTPUT, names)
    if names and not {PROMPT, "segments", "prompt_token_ids"}.intersection(fields):
        _refuse_without(where, PROMPT, names)
    return Named(found, rest)


def _chosen_for(where: str, field: str, names: Iterable[str], chosen: Mapping[str, Column]) -> str | None:
    """The column to read as a field: the user's choice, else its own name, else a usual name."""
    given = [name for name, column in chosen.items() if column.field == field]
    if given:
        return given[0]
    if field in names and field not in chosen:
        return field
    usual = [
        name
        for name in names
        if name not in chosen and (column := column_of(name, {})) and column.field == field
    ]
    if len(usual) > 1:
        choices = " or ".join(f"--columns {field}={printable(name)}" for name in usual[:3])
        raise KvsimError(f"{where}: {field} may be {_listed(usual)}: say which with {choices}")
    return usual[0] if usual else None


def _refuse_without(where: str, field: str, names: Iterable[str]) -> None:
    raise KvsimError(
        f"{where}: one column must be {field}, by this or a usual name, got {_listed(names)}: "
        f"say which with --columns {field}=NAME"
    )


def _refuse_slips(names: Mapping[str, str], rest: Iterable[str], there: set[str]) -> None:
    """Raise for a name that is almost the name of a missing field."""
    for name in rest:
        for plain, (field, meant) in _KNOWN.items():
            if field not in there and one_letter_off(_plain(name), plain):
                raise KvsimError(
                    f"{names[name]}: field {name!r} is unknown; did you mean {meant!r}? "
                    f"Rename it, or say --columns {field}={printable(name)}"
                )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(printable, names[:MOST_NAMED])) + more


def printable(name: str) -> str:
    """A name for errors and notes: short, printable and on one line."""
    return shown(name)[1:-1]


def one_letter_off(name: str, other: str) -> bool:
    """Whether one letter is missing, extra or different, or two adjacent ones are swapped."""
    if name == other or abs(len(name) - len(other)) > 1 or min(len(name), len(other)) < SHORTEST_SLIP:
        return False
    while name and other and name[0] == other[0]:
        name, other = name[1:], other[1:]
    while name and other and name[-1] == other[-1]:
        name, other = name[:-1], other[:-1]
    return max(len(name), len(other)) <= 1 or (len(name) == 2 and name == other[::-1])


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


_USUAL: dict[str, Column] = {
    _plain(name): Column(field) for field in (PROMPT, OUTPUT) for name in (field, *USUAL_NAMES[field])
}
_USUAL |= {
    _plain(name) + suffix: Column(ARRIVAL, per_second)
    for name in USUAL_NAMES[ARRIVAL]
    for suffix, per_second in {"": None, **UNITS}.items()
}
_KNOWN: dict[str, tuple[str, str]] = {
    _plain(name): (field, name) for field in FIELDS for name in (field, *USUAL_NAMES.get(field, ()))
}
