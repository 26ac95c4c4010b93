"""The events of a run as dicts."""

from kvsim.sim.record.events import NONE


def rows(events):
    """The events as dicts of the columns that apply."""
    numbers, texts = events.table()
    columns = {name: column.tolist() for name, column in numbers.items()}
    columns |= {name: [column.texts[code] for code in column.codes] for name, column in texts.items()}
    return [
        {name: column[row] for name, column in columns.items() if column[row] not in (NONE, "")}
        for row in range(len(columns["event"]))
    ]
