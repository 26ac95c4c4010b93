"""The requirements of the published Trace Event Format, as a checker for tests.

Written from the document "Trace Event Format", which Perfetto's documentation links: the JSON object
form, the phases used here, and the rules of nesting that Perfetto enforces.
"""

from collections import defaultdict
from math import isfinite

NEEDS = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "B": {"name", "ts", "pid", "tid"},
    "E": {"ts", "pid", "tid"},
    "i": {"name", "ts", "pid", "tid", "s"},
    "C": {"name", "ts", "pid", "args"},
    "b": {"name", "cat", "id", "ts", "pid"},
    "n": {"name", "cat", "id", "ts", "pid"},
    "e": {"name", "cat", "id", "ts", "pid"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "t": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid"},
    "M": {"name", "pid", "args"},
}
"""Phase -> the keys that an event must have besides `ph`."""
METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}
"""Name of a metadata event -> its one argument, and the type."""


def check_trace(trace):
    """Raise AssertionError if the file breaks the format."""
    assert isinstance(trace, dict)
    assert trace.get("displayTimeUnit", "ms") in ("ms", "ns")
    events = trace["traceEvents"]
    assert isinstance(events, list)
    for event in events:
        check_event(event)
    timed = [event for event in events if event["ph"] != "M"]
    times = [event["ts"] for event in timed]
    assert times == sorted(times), "not in order of time"
    check_nesting(timed)
    check_pairs(timed)
    check_flows(timed)
    check_names(events)


def check_event(event):
    """One event has the keys its phase needs, and nothing else is wrong with it."""
    phase = event.get("ph")
    assert phase in NEEDS, event
    assert event.keys() >= NEEDS[phase], (NEEDS[phase] - event.keys(), event)
    for key in ("pid", "tid"):
        assert isinstance(event.get(key, 0), int) and not isinstance(event.get(key), bool), event
        assert 0 <= event.get(key, 0) < 2**32, event
    for key in ("ts", "dur"):
        value = event.get(key, 0)
        assert isinstance(value, int | float) and isfinite(value) and value >= 0, event
    if "name" in event:
        assert isinstance(event["name"], str) and event["name"], event
    assert isinstance(event.get("args", {}), dict), event
    assert isinstance(event.get("cat", ""), str), event
    if phase == "i":
        assert event["s"] in ("g", "p", "t"), event
    if phase == "C":
        assert event["args"], event
        for value in event["args"].values():
            assert isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value), event
    if phase == "M":
        assert event["name"] in METADATA, event
        key, kind = METADATA[event["name"]]
        assert set(event["args"]) == {key} and isinstance(event["args"][key], kind), event


def check_nesting(events):
    """Slices of one thread nest: none begins in another and ends after it; B and E balance."""
    open_ends = defaultdict(list)
    for event in events:
        thread = event["pid"], event.get("tid")
        start, ends = _ns(event["ts"]), open_ends[thread]
        if event["ph"] == "B":
            ends.append(None)
        elif event["ph"] == "E":
            assert ends and ends.pop() is None, event
        elif event["ph"] in "Xi":
            end = start + _ns(event.get("dur", 0))
            while ends and ends[-1] is not None and ends[-1] <= start:
                ends.pop()
            inner = [above for above in ends if above is not None]
            assert not inner or end <= min(inner), ("overlaps", event)
            ends.append(end)
    for thread, ends in open_ends.items():
        assert None not in ends, ("unbalanced", thread)


def check_pairs(events):
    """Each async begin has its end, of the same category and id, in the right order."""
    depth = defaultdict(int)
    for event in events:
        if event["ph"] in "be":
            key = event["cat"], event["id"], event["pid"]
            depth[key] += 1 if event["ph"] == "b" else -1
            assert depth[key] >= 0, event
    assert not any(depth.values()), depth


def check_flows(events):
    """Each arrow starts once, in a slice; it ends once, exactly where a slice begins."""
    starts, ends, slices = defaultdict(list), defaultdict(list), defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            (starts if event["ph"] == "s" else ends)[event["cat"], event["name"], event["id"]].append(event)
        elif event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((_ns(event["ts"]), _ns(event["dur"])))
    assert starts.keys() == ends.keys()
    for key, (start, *more) in starts.items():
        assert not more and len(ends[key]) == 1, key
        end = ends[key][0]
        assert end["ts"] >= start["ts"], key
        at = _ns(start["ts"])
        assert any(t <= at < t + d for t, d in slices[start["pid"], start["tid"]]), start
        assert any(t == _ns(end["ts"]) for t, _ in slices[end["pid"], end["tid"]]), end


def check_names(events):
    """Every thread with slices has a name, and so has every process."""
    named = {(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    for event in events:
        if event["ph"] in "Xi":
            assert ("thread_name", event["pid"], event["tid"]) in named, event
        assert any(name == "process_name" and pid == event["pid"] for name, pid, _ in named), event


def _ns(time_us):
    """A time as Perfetto reads it: to the nearest nanosecond."""
    return round(time_us * 1000)
