"""Run `sim explain` and `sim trace-events`: earlier runs, request by request.

If a recording is missing, the run is repeated with progress shown.
"""

import json
from pathlib import Path

from kvsim.commands.run import repeated, traced
from kvsim.reports.listing import show
from kvsim.reports.lives.apart import story_of
from kvsim.reports.lives.event_log import event_log, read_events
from kvsim.reports.lives.story import chosen
from kvsim.reports.lives.view import stories_view, story_view
from kvsim.reports.rundir.run import read_runs
from kvsim.reports.timeline.events import chosen_requests, is_timeline, write_trace
from kvsim.sim.files.whole_file import check_file


def explained(directory: Path, request: str, *, as_json: bool) -> None:
    """Explain the life of one request, in every run that served it."""
    runs, number, how = chosen(read_runs(directory), request)
    stories = []
    for run in runs:
        log = read_events(run.path)
        if log is None:
            log = event_log(repeated(run, "events").events)
        stories.append(story_of(run, log, number, how))
    if as_json:
        found = [each.as_json() for each in stories]
        print(json.dumps(found if len(found) > 1 else found[0], indent=2, ensure_ascii=False))
    else:
        show(stories_view(stories) if len(stories) > 1 else story_view(stories[0]))


def written_timeline(
    directory: Path,
    out: Path | None,
    requests: str | None,
    steps: bool | None,
    *,
    force: bool,
) -> None:
    """Write a timeline of these requests for a trace viewer."""
    first, last = chosen_requests(requests)
    target = directory / "trace-events.json" if out is None else out
    runs = read_runs(directory)
    check_file(target, force=force, ours=is_timeline)
    shown = [each for run in runs for each in traced(run, steps)]
    written = write_trace(shown, target, first, last, force)
    if written.requests < written.submitted:
        print(
            f"requests {first:,} to {first + written.requests - 1:,} of {written.submitted:,}, and what the "
            "engine did in their time; all: --requests all"
        )
    print(f"{written.events:,} events, {written.bytes / 1e6:.1f} MB: open it in ui.perfetto.dev\n{target}")
