"""What a trace says about a request besides its text: its client, and its deadlines.

    client             the sender: fair policies count by it
    slo_ttft_s         the first token is due this long after arrival
    slo_tpot_s         each further token may take this long
    deadline_s         the last token is due this long after arrival
    max_tokens         the longest answer that its client asked for
    predicted_tokens   a prediction of its answer's length, made beforehand

Only policies read them (sim/policies); they are in the workload's labels, and in the results.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

PS_PER_S = 10**12


class Facts(NamedTuple):
    """What is known about one request; None if nothing is."""

    client: str = ""
    slo_ttft_ps: int | None = None
    slo_tpot_ps: int | None = None
    deadline_ps: int | None = None
    predicted_tokens: int | None = None
    max_tokens: int | None = None


UNTOLD = Facts()
TIMES = ("slo_ttft_s", "slo_tpot_s", "deadline_s")
LABELS = ("client", *TIMES, "predicted_tokens", "max_tokens")


def facts_of(labels: Mapping[str, npt.NDArray[np.generic]]) -> Sequence[Facts] | None:
    """The facts of each row of a workload with these labels; None if no label says anything."""
    told = [labels.get(name) for name in LABELS]
    found = [None if column is None else column.tolist() for column in told]
    rows = next((len(column) for column in found if column is not None), None)
    if rows is None:
        return None
    blank = [None] * rows
    of_row: dict[tuple[Any, ...], Facts] = {}
    known: dict[Facts, Facts] = {}  # a value that is missing (NaN) makes a row unlike any other
    facts = []
    for row in zip(*(column or blank for column in found), strict=True):
        one = of_row.get(row)
        if one is None:
            client, ttft, tpot, deadline, predicted, most = row
            one = Facts(
                "" if client is None else str(client),
                _ps(ttft),
                _ps(tpot),
                _ps(deadline),
                _whole(predicted),
                _whole(most),
            )
            one = of_row[row] = known.setdefault(one, one)
        facts.append(one)
    return facts


def _ps(seconds: Any) -> int | None:  # noqa: ANN401 - a value of a column
    return None if seconds is None or isnan(seconds) else round(seconds * PS_PER_S)


def _whole(value: Any) -> int | None:  # noqa: ANN401
    return None if value is None or isnan(value) else int(value)
