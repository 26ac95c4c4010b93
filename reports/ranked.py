"""Which systems may be ranked against each other, which ones served fewer requests, and what else differs.

Only systems that have the same clock and served the most requests are ranked: rejecting difficult requests
makes a system look fast and economical. A system is a list of summaries, one per seed.
"""

from collections.abc import Mapping, Sequence

from kvsim.reports import clocks
from kvsim.reports.palette import Summary, count, every

System = Sequence[Summary]
_MOST = 4
"""At most this many systems are listed by name."""


def ranked(systems: Sequence[System]) -> list[bool]:
    """Whether each may be ranked: none if clocks differ, else those that served the most requests."""
    if different_clocks(systems):
        return [False] * len(systems)
    most = max(map(_served, systems), default=())
    return [_served(system) == most for system in systems]


def different_clocks(systems: Sequence[System]) -> str:
    """A warning that clocks differ, and how to fix it; empty if systems share one."""
    return clocks.differ((str(each[0]["label"]), each[0].get("cost", {})) for each in systems)


def rejections(systems: Sequence[System]) -> str:
    """`Served: paged 7 of 100 requests, contiguous none of 100; ...`, or "" if all were served."""
    if none := all_rejected(systems):
        return none
    if all(
        finished == submitted
        for system in systems
        for finished, submitted in zip(*_counts(system), strict=True)
    ):
        return ""
    said = dict.fromkeys(served_words(system) for system in systems)
    if len(said) == 1:
        words = f"Served: {next(iter(said))}"
    else:
        by_count: dict[str, list[str]] = {}
        for system in sorted(systems, key=_served, reverse=True):
            by_count.setdefault(served_words(system), []).append(str(system[0]["label"]))
        words = "Served: " + ", ".join(f"{_listed(names)} {served}" for served, names in by_count.items())
    reasons = _reasons([summary for system in systems for summary in system])
    return f"{words}; rejected: {reasons}." if reasons else f"{words}."


def all_rejected(systems: Sequence[System]) -> str:
    """`All 12 requests were rejected: ...` if no system served any; else ""."""
    told = [summary["requests"] for system in systems for summary in system]
    counts = {sum(_counts(system)[1]) for system in systems}
    if not any(counts) or any(each.get("rejected", 0) < each.get("submitted", 1) for each in told):
        return ""
    reasons = _reasons([summary for system in systems for summary in system])
    many = counts.pop() if len(counts) == 1 else 0
    who = every(many, "request").capitalize() if many > 1 else "The only request" if many else "All requests"
    said = f"{who} {'was' if many == 1 else 'were'} rejected"
    by = f" by {every(len(systems), 'system')}" if len(systems) > 1 else ""
    return f"{said}{by}: {reasons}." if reasons else f"{said}{by}."


def why_rejected(system: System) -> str:
    """` (rejected: does not fit an empty arena of 64 slots)`, or ""."""
    reasons = _reasons(system)
    return f" (rejected: {reasons})" if reasons else ""


def served_words(system: System) -> str:
    """`7 of 100 requests`, over all seeds; `all 100 requests`."""
    finished, submitted = (sum(each) for each in _counts(system))
    of = f"{count(submitted)} request{'s' * (submitted != 1)}"
    if finished == submitted:
        return f"all {of}" if finished > 1 else of
    return f"{count(finished) if finished else 'none'} of {of}"


def left_out(systems: Sequence[System]) -> str:
    """The systems that served fewer requests and so are not ranked; "" if all are, or none is."""
    kept = ranked(systems)
    names = [str(system[0]["label"]) for system, each in zip(systems, kept, strict=True) if not each]
    if not names or len(names) == len(systems):
        return ""
    return f"not ranked, with fewer requests served: {_listed(names)}"


def schedulers(systems: Sequence[System]) -> list[str]:
    """The scheduler of each system if they differ; allocators choose their own unless one is given."""
    names = [str(system[0]["engine"].get("scheduler") or "") for system in systems]
    return names if len(set(names)) > 1 and all(names) else []


def by_scheduler(systems: Sequence[System]) -> str:
    """`Schedulers differ: orca (contiguous, buddy), vllm-v1 (paged).`; for many systems, their allocators."""
    found: dict[str, dict[str, str]] = {}
    for name, (first, *_) in zip(schedulers(systems), systems, strict=False):
        label = str(first["label"])
        found.setdefault(name, {})[label] = str(first["engine"].get("allocator") or label)
    said = ", ".join(f"{name} ({_listed(_names(labels))})" for name, labels in found.items())
    return f"Schedulers differ: {said}." if said else ""


def _names(allocators: Mapping[str, str]) -> list[str]:
    """The names of the systems, or of their allocators if there are many."""
    return list(allocators if len(allocators) <= _MOST else dict.fromkeys(allocators.values()))


def _reasons(summaries: Sequence[Summary]) -> str:
    found = (each["requests"].get("rejected_reasons") or {} for each in summaries)
    return ", ".join(dict.fromkeys(reason for reasons in found for reason in reasons))


def _counts(system: System) -> tuple[list[int], list[int]]:
    """(finished, submitted) requests of each seed."""
    each = [summary["requests"] for summary in system]
    finished = [int(one["finished"]) for one in each]
    return finished, [int(one.get("submitted", one["finished"])) for one in each]


def _served(system: System) -> tuple[int, ...]:
    return tuple(_counts(system)[0])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST else f"{len(names)} systems"
