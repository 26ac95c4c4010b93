"""The dashboard: what it shows of a made-up run, what it reads from a real one, what it leaves behind."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from support.contents import contents

from kvsim import cli
from kvsim.reports import live
from kvsim.reports.live import Dashboard, Pace, clock, span
from kvsim.reports.live_chart import Chart, _cell, slice_means
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.record.glance import LATEST, Glance, glance
from kvsim.sim.record.instants import TIMELINE_COLUMNS
from kvsim.sim.run import prepare, with_allocator
from kvsim.workloads.source import opened

pytestmark = pytest.mark.slow

ROOT = Path(cli.__file__).resolve().parent
S = 10**12


def row(time_s, token, reserved=0, internal=0, cached=0, external=0, running=1, waiting=0):
    """A row of the timeline of an arena of 100 slots."""
    free = 100 - token - reserved - internal - cached - external
    return (
        int(time_s * S),
        token,
        reserved,
        internal,
        cached,
        external,
        free,
        running,
        waiting,
        free,
        *[0] * 6,
    )


ROWS = [row(0, 10), row(10, 30, 10), row(20, 50, 10, 10, running=4), row(30, 60, 10, 10, 0, 20, 6, 12)]
SEEN = Glance(
    simulated_s=3720.0,
    requests=40_000,
    finished=9_990,
    rejected=10,
    tokens=2_481_240,
    preemptions=1,
    capacity_slots=100,
    rows=ROWS,
    first_token_s=(0.0415, 3.1),
)
BEFORE = ["contiguous: 0.977 requests/s, 18.3 % tokens, 81.7 % waste"]


def pace():
    """Two seconds in which 20 s, 50 requests and 13,000 tokens were simulated."""
    found = Pace()
    found.note(100.0, SimpleNamespace(simulated_s=3700.0, finished=9_940, rejected=10, tokens=2_468_240))
    found.note(102.0, SEEN)
    return found


def shown(dashboard, width=80, height=24, **how):
    console = Console(width=width, height=height, file=StringIO(), **how)
    console.print(dashboard)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


PICTURE = """\
paged: opt-13b on a100-40gb
━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  10,000 of 40,000 requests, 25 %, 20:00 left

simulated    62 min 0 s
speed        10 s per second
requests/s   2.69, lately 2.50
tokens/s     667, lately 650
first token  41.5 ms p50, 3.10 s p99
preempted    1 time
rejected     10 requests
running      6        ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅█
waiting      12                                                                █

████████████████████████████████████████████████▒▒▒▒▒▒▒▒▚▚▚▚▚▚▚▚▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
█ token 60.0 %   ▒ reserved 10.0 %   ▚ internal 10.0 %   ▓ external 20.0 %
"""


def test_the_picture_of_a_run_without_colour():
    lines = shown(Dashboard("paged: opt-13b on a100-40gb", SEEN, pace()), height=17)
    assert lines == PICTURE.splitlines()


def test_a_higher_terminal_shows_the_memory_over_time_and_the_runs_before():
    lines = shown(Dashboard("paged", SEEN, pace(), BEFORE), height=29)
    assert lines[-1] == BEFORE[0]
    assert lines[-3] == f"0 s{'30.0 s':>77}"
    chart = lines[16:-3]
    assert len(chart) == 10
    assert chart[-1] == "█" * 80 and chart[0] == " " * 79 + "▓"
    assert chart[6] == " " * 26 + "▒" * 27 + "█" * 27


@pytest.mark.parametrize("width", [20, 40, 79, 80, 120, 200])
@pytest.mark.parametrize("height", [5, 12, 24, 40])
def test_it_fits_any_terminal(width, height):
    seen = Glance(**{**vars(SEEN), "requests": 123_456_789, "simulated_s": 1e9})
    for how in ({}, {"force_terminal": True, "color_system": "truecolor"}):
        lines = shown(Dashboard("paged " * 40, seen, pace(), BEFORE * 3), width, height, **how)
        plain = [Console(file=StringIO()).render_str(line) for line in lines] if not how else []
        assert all(
            len(line) <= min(width, 120) or line.plain.startswith(("paged", "contig")) for line in plain
        )
        assert all(len(line) <= width for line in plain)


def test_a_screen_is_never_longer_than_the_terminal():
    from rich.screen import Screen

    lines = shown(Screen(Dashboard("paged", SEEN, pace(), BEFORE)), width=40, height=10)
    assert len(lines) == 10
    assert lines[2] == "10,000 of 40,000, 25 %, 20:00 left"


def test_before_anything_has_happened_there_is_a_picture_too():
    nothing = Glance(0.0, 1000, 0, 0, 0, 0, 100, [], None)
    start = Pace()
    start.note(0.0, nothing)
    lines = shown(Dashboard("paged", nothing, start))
    assert lines[1].endswith("  0 of 1,000 requests, 0 %")
    assert "requests/s   -" in lines and "speed        - s per second" in lines


def test_a_terminal_without_unicode_gets_plain_signs():
    console = Console(width=60, height=24, file=open(os.devnull, "w", encoding="ascii"))  # noqa: SIM115
    with console.capture() as captured:
        console.print(Dashboard("paged", SEEN, pace(), BEFORE))
    assert captured.get().isascii()
    assert "#####" in captured.get()


# -- its numbers ----------------------------------------------------------------------------------


def test_the_pace_is_that_of_the_last_seconds():
    found = Pace()
    for wall in range(11):
        fast = max(0, wall - 5)
        seen = SimpleNamespace(
            simulated_s=100.0 * wall + 900 * fast, finished=10 * wall, rejected=0, tokens=0
        )
        found.note(float(wall), seen)
    assert found.speed() == 1000  # of seconds 7 to 10
    assert found.left_s(200) == 10  # 100 left at 10 a second


def test_a_pace_needs_two_looks():
    found = Pace()
    assert found.speed() is None and found.left_s(10) is None
    found.note(0.0, SEEN)
    assert found.rates() == (None, None)


@pytest.mark.parametrize(
    ("duration_s", "said"),
    [
        (0, "0.0 s"),
        (99.94, "99.9 s"),
        (320, "5 min 20 s"),
        (5999, "99 min 59 s"),
        (6000, "1 h 40 min"),
        (11_800, "3 h 16 min"),
        (359_999, "99 h 59 min"),
        (360_000, "4 d 4 h"),
    ],
)
def test_times_are_told_in_words(duration_s, said):
    assert span(duration_s) == said


@pytest.mark.parametrize(
    ("duration_s", "said"), [(7, "0:07"), (59.6, "1:00"), (750, "12:30"), (3723, "1:02:03")]
)
def test_time_left_is_told_as_clocks_do(duration_s, said):
    assert clock(duration_s) == said


def test_slices_are_means_and_hold_what_began_before():
    rows = [row(0, 10), row(1, 20), row(2, 60), row(10, 90)]
    assert slice_means(rows, 5, ("token", "running")) == [[30, 60, 60, 60, 90], [1, 1, 1, 1, 1]]
    assert slice_means([], 5, ("token",)) == [[]]


@pytest.mark.parametrize(
    ("edges", "mark", "ink", "back"),
    [
        ([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], "█", "token", None),
        ([0.5, 0.5, 2.0, 2.0, 2.0, 2.0, 2.0], "▄", "token", "reserved"),
        ([0.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], "▄", "token", "held"),
        ([0.25] * 7, "▂", "token", None),
        ([0.0, 0.0, 0.0, 0.75, 2.0, 2.0, 2.0], "▆", "internal", "external"),
        ([0.0] * 7, " ", None, None),
    ],
)
def test_a_character_shows_two_kinds(edges, mark, ink, back):
    glyph, style = _cell(edges, 0, coloured=True)
    assert glyph == mark
    if ink is None:
        assert style is None
        return
    assert style.color.name.upper() == live.KINDS[ink].colour
    assert (style.bgcolor.name.upper() if style.bgcolor else None) == (
        live.KINDS[back].colour if back else None
    )


def test_the_chart_is_as_high_as_asked_for():
    lines = shown(Chart(ROWS, 5), width=40)
    assert len(lines) == 5 and all(len(line) <= 40 for line in lines)


# -- what it reads --------------------------------------------------------------------------------


def simulation(allocator="paged", **traffic):
    source = opened(Traffic(**{"num_prompts": 300, "request_rate": 3.0} | traffic))
    scenario = Scenario(scheduler="vllm-v0", kv_tokens=4096, max_model_len=2048).deployed()
    if allocator != "paged":
        scenario = Scenario(kv_tokens=4096, max_model_len=2048).deployed()
    return prepare(with_allocator(scenario, allocator), source.workload(), source.as_json())


@pytest.mark.parametrize("allocator", ["paged", "contiguous", "buddy:pow2"])
def test_after_a_run_a_glance_sees_what_the_summary_says(allocator):
    run = simulation(allocator)
    outcome = run.outcome()
    seen, summary = glance(run.engine), outcome.summary
    assert seen.finished == summary["requests"]["finished"]
    assert seen.rejected == summary["requests"]["rejected"]
    assert seen.preemptions == summary["engine"]["preemptions_recompute"]
    done = outcome.requests["status"] != "rejected"
    assert seen.tokens == outcome.requests["output_tokens"][done].sum()
    assert [each[0] / S for each in seen.rows] == outcome.timeline["time_s"].tolist()
    assert seen.now["running"] == outcome.timeline["running"][-1]
    waits = outcome.requests["ttft_s"][done][-LATEST:]
    assert seen.first_token_s == pytest.approx(np.quantile(waits, [0.5, 0.99]))


@pytest.mark.parametrize(
    ("allocator", "traffic"),
    [("paged", {}), ("paged", {"num_prompts": 60, "n": 3, "request_rate": 0.3}), ("buddy:pow2", {})],
)
def test_every_token_is_counted_as_soon_as_its_step_is_over(allocator, traffic):
    run = simulation(allocator, **({"num_prompts": 100} | traffic))
    replica, finished, found = run.engine.replica, [], []
    server, finish = replica.server, replica.scheduler.finish
    groups = getattr(replica.scheduler, "_groups", None)

    def note(server, request):
        finished.append(request.output_tokens)
        finish(server, request)

    def look(now_ps):
        running = [
            server.progress.generated(request) if request.is_decoding else request.generated
            for request in server.running.values()
        ]
        swapped = [each for group in (groups.swapped if groups else ()) for each in group.sequences]
        told = sum(finished) + sum(running) + sum(each.generated for each in [*server.waiting, *swapped])
        found.append((glance(run.engine).tokens, told))

    replica.scheduler.finish = note
    run.engine.wait_before_steps(look, 7)
    outcome = run.outcome()
    assert [seen for seen, _ in found] == [told for _, told in found]
    assert len(found) > 500
    assert glance(run.engine).tokens == sum(finished) >= int(outcome.requests["output_tokens"].sum())


def test_before_a_run_there_is_nothing_to_see():
    seen = glance(simulation().engine)
    assert (seen.finished, seen.rows, seen.first_token_s, seen.simulated_s) == (0, [], None, 0)
    assert set(seen.now) == set(TIMELINE_COLUMNS)


@pytest.mark.parametrize(
    ("allocator", "traffic"),
    [
        ("paged", {"num_prompts": 1200}),
        ("paged", {"num_prompts": 400, "n": 3}),
        ("buddy:pow2", {"num_prompts": 1200}),
        ("dynamic", {"num_prompts": 800}),
    ],
)
def test_looking_while_it_runs_never_fails_and_changes_nothing(allocator, traffic):
    run, alone = simulation(allocator, **traffic), simulation(allocator, **traffic).outcome()
    found, failed, over = [], [], threading.Event()

    def look():
        try:
            while not over.is_set():
                found.append(glance(run.engine))
        except BaseException as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        outcome = run.outcome()
    finally:
        over.set()
        watcher.join()
        sys.setswitchinterval(interval)
    assert not failed and len(found) > 20
    steps = [(seen.simulated_s, seen.finished, seen.tokens) for seen in found]
    for course in zip(*steps, strict=True):
        assert list(course) == sorted(course)
    assert all(sum(each[1:7]) == seen.capacity_slots for seen in found[::7] for each in seen.rows[-3:])
    assert {**outcome.summary, "simulation": 0} == {**alone.summary, "simulation": 0}


def test_drawing_takes_no_more_than_its_share(monkeypatch):
    looks = []

    def slow(engine):
        looks.append(time.thread_time())
        while time.thread_time() < looks[-1] + 0.03:
            pass
        return SEEN

    monkeypatch.setattr(live, "glance", slow)
    monkeypatch.setattr(live, "MOST_SHARE", 1 / 10)
    screen, over = SimpleNamespace(update=lambda *_, **__: None), threading.Event()
    engine = SimpleNamespace(engine=None)
    watcher = threading.Thread(target=live._watch, args=(over, engine, "", (), screen, False))
    monkeypatch.setattr(live, "REFRESH_S", 0.0)
    watcher.start()
    start_s = time.process_time()
    while time.process_time() < start_s + 1.2:
        pass
    over.set()
    watcher.join()
    assert 2 <= len(looks) <= 5  # 0.03 CPU seconds of every 0.33


# -- in a terminal --------------------------------------------------------------------------------


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def in_a_terminal(*arguments, term="xterm-256color", interrupt_after=None, by=signal.SIGINT, columns=80):
    """Exit code and all that a terminal of 24 lines receives; Ctrl-C or so after some text was seen."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from kvsim import cli; sys.exit(cli.main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": term},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as in test_cli
    )
    os.close(theirs)
    out, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # nobody holds the other end any more
                break
            out += piece
            if interrupt_after and interrupt_after in out:
                process.send_signal(by)
                interrupt_after = None
    os.close(ours)
    return process.wait(10), out.decode(), process


ON, OFF, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


@pytest.mark.parametrize("columns", [40, 80])
def test_a_run_in_a_terminal_draws_on_a_second_screen_and_then_reports(workplace, columns):
    line = ("run", "--live", "--num-prompts", "3000", "--no-plots", "--out", "watched")
    code, out, _ = in_a_terminal(*line, columns=columns)
    assert code == 0
    assert (out.count(ON), out.count(OFF)) == (1, 1)
    picture, report = out.split(OFF)
    assert "simulated" in picture and "of 3,000" in picture
    assert CURSOR in out[out.index(OFF) - 20 :]
    assert "served 3,000 requests" in " ".join(report.split()).replace("\x1b[0m", "")
    assert cli.main(["run", "--num-prompts", "3000", "--no-plots", "--out", "alone", "--quiet"]) == 0
    assert contents("watched") == contents("alone")


def test_a_run_at_a_pace_is_drawn_more_often_and_gives_the_same(workplace):
    line = ("run", "--num-prompts", "20", "--no-plots", "--out")
    code, out, _ = in_a_terminal(*line, "paced", "--live", "--pace", "15x")
    assert code == 0
    assert out.split(OFF)[0].count("simulated") >= 4
    assert cli.main([*line, "alone", "--quiet"]) == 0
    assert contents("paced") == contents("alone")


def test_a_comparison_says_which_run_and_what_came_before(workplace):
    line = ("compare", "--live", "--allocator", "contiguous,paged", "--num-prompts", "2000", "--no-plots")
    code, out, _ = in_a_terminal(*line)
    assert code == 0 and out.count(ON) == out.count(OFF) == 2
    assert "contiguous (1 of 2)" in out and "paged (2 of 2)" in out


def test_an_interrupt_leaves_the_terminal_clean_and_nothing_written(workplace):
    line = ("run", "--live", "--num-prompts", "500000", "--no-plots", "--out", "never")
    code, out, _ = in_a_terminal(*line, interrupt_after=b"speed")
    assert code == 130
    assert out.count(ON) == out.count(OFF) == 1
    after = out.split(OFF)[1]
    assert CURSOR in out[out.index(OFF) - 20 :]
    assert "interrupted; nothing was written" in after and "Traceback" not in out
    assert not list(Path().iterdir())


def test_who_ends_it_gets_the_terminal_back_too(workplace):
    line = ("run", "--live", "--num-prompts", "500000", "--no-plots", "--out", "never")
    code, out, _ = in_a_terminal(*line, interrupt_after=b"speed", by=signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert out.count(ON) == 1 and out.endswith(CURSOR + OFF + "interrupted; nothing was written\r\n")
    assert not list(Path().iterdir())


def test_a_dumb_terminal_is_told_so(workplace):
    code, out, _ = in_a_terminal("run", "--live", "--num-prompts", "20", "--no-plots", term="dumb")
    assert code == 0 and ON not in out
    assert "--live needs a terminal that can be drawn on: running without it" in out


@pytest.mark.parametrize("command", ["run", "compare"])
def test_without_a_terminal_one_line_says_so(workplace, capsys, command):
    assert cli.main([command, "--live", "--num-prompts", "20", "--no-plots"]) == 0
    out, err = capsys.readouterr()
    assert err == "--live needs a terminal that can be drawn on: running without it\n"
    assert "written to runs/" in out


@pytest.mark.parametrize("wish", ["--quiet", "--json"])
def test_quiet_and_json_win(workplace, capsys, wish):
    assert cli.main(["run", "--live", wish, "--num-prompts", "20", "--no-plots"]) == 0
    out, err = capsys.readouterr()
    assert err == ("" if wish == "--quiet" else "written to runs/sharegpt-paged-prompts20\n")
    assert (
        (out == "runs/sharegpt-paged-prompts20\n")
        if wish == "--quiet"
        else json.loads(out)["requests"]["finished"] == 20
    )


@pytest.mark.parametrize("wish", ["--quiet", "--json"])
def test_quiet_and_json_win_in_a_terminal_too(workplace, wish):
    code, out, _ = in_a_terminal("run", "--live", wish, "--num-prompts", "20", "--no-plots")
    assert code == 0 and ON not in out
