"""The report in a real browser."""

import json
import re
import time

import pytest
from support.bench_files import GUIDELLM
from support.browser import violations
from support.fake_run import fake_run
from support.report_page import record

from kvsim import cli
from kvsim.reports.html.report import write_report
from kvsim.reports.lives.apart import story_of
from kvsim.reports.lives.event_log import read_events
from kvsim.reports.lives.spans import STATES, lives
from kvsim.reports.lives.story import story
from kvsim.reports.rundir.run import read_run, read_runs
from kvsim.reports.rundir.writing import write_comparison, write_run

pytestmark = pytest.mark.slow

TIGHT = ("--num-gpu-blocks", 100, "--max-model-len", 1024, "--request-rate", "inf", "--cost", "constant:0.01")
LIVES = {
    "alone": ("--num-prompts", 40, "--allocator", "contiguous:oracle,paged,dynamic"),
    "answers": ("--num-prompts", 25, "--scheduler", "vllm-v0", "--n", 3),
    "beam": ("--num-prompts", 25, "--scheduler", "vllm-v0", "--beam-width", 3),
    "displaced": ("--num-prompts", 40, "--request-rate", 4, "--policy", "srpt", "--max-num-seqs", 4),
    "aside": ("--num-prompts", 25, "--policy", "mlfq", "--max-num-seqs", 4),
    "tier": ("--num-prompts", 60, "--shared-prefix", "9x256", "--kv-offloading-size", 8,
             "--kv-offloading-link", "0.131072", "--max-num-seqs", 3, "--enable-prefix-caching"),
}  # fmt: skip
BLOCK_PER_MS = "2.097152"
"""GB/s at which a block of Llama-3.1-8B takes a millisecond: all times are whole microseconds."""
SEVERAL = {
    "handed": (*("--pool", "prefill:1:kv_tokens=6000", "--pool", "decode:2:kv_tokens=3000"),
               *("--kv-transfer-link", BLOCK_PER_MS, "--direct-decode", 16)),
    "moved": ("--replicas", 3, "--kv-tokens", 6000, "--router", "random",
              "--migrate", f"llumnix:source=200,target=200,last=2,link={BLOCK_PER_MS}"),
}  # fmt: skip
"""Runs in which requests are on several replicas."""
DIED = {
    "died": ("--replicas", 3, "--fail", "replica=0:at=0.5:for=2", "--fail", "replica=1:at=1:for=1",
             "--fail", "replica=2:at=1.25:for=1"),
    "died-apart": ("--pool", "prefill:2:kv_tokens=6000", "--pool", "decode:2:kv_tokens=3000",
                   "--kv-transfer-link", BLOCK_PER_MS, "--fail", "replica=2:at=0.5:for=2",
                   "--fail", "replica=3:at=0.7:for=1", "--fail", "replica=0:at=0.9:for=1"),
    "died-moving": (*SEVERAL["moved"], "--fail", "replica=1:at=1:for=1", "--fail", "replica=0:at=1.5:for=3"),
    "died-answers": ("--replicas", 2, "--scheduler", "vllm-v0", "--n", 3, "--fail", "replica=1:at=1:for=1"),
    "died-forever": ("--replicas", 2, "--fail", "replica=1:at=1:for=1", "--fail", "replica=0:at=1.5",
                     "--fail", "replica=1:at=3"),
}  # fmt: skip
"""Runs in which replicas die with their requests."""
FLEET = ("--model", "llama-3.1-8b", "--gpu", "l40s", "--cost", "constant:0.0117", "--request-rate", "inf")
PATIENCE_S = 120
SIZES = {"wide": (1280, 900), "narrow": (390, 800)}
PLAIN = {
    "sweep": "sweep --num-prompts 20 --request-rate 2,4 --jobs 1 --no-plots --quiet",
    "replay": f"replay {GUIDELLM} --model llama-3.1-8b --gpu l4 --cost roofline",
}
"""Pages without scripts -> the command whose directory they show."""


def viewport(size):
    """The window of a size."""
    return dict(zip(("width", "height"), SIZES[size], strict=True))


@pytest.fixture(scope="session")
def reports(tmp_path_factory):
    """Pages by name: two runs with maps, the same without, one that shares prefixes, odd ones."""
    root = tmp_path_factory.mktemp("reports")
    small = ("--num-prompts", 60, "--num-gpu-blocks", 260, "--request-rate", "inf")
    record(root / "two", *small, "--allocator", "contiguous,paged", command="compare")
    record(root / "shared", *small, "--shared-prefix", "2x64", "--enable-prefix-caching")
    pools = ("--allocator", "split", "--model", "gemma-3-12b", "--gpu", "b200", "--num-gpu-blocks", 500)
    record(root / "pools", "--num-prompts", 12, "--request-rate", "inf", *pools)
    large = (*pools[:-2], "--num-gpu-blocks", 90_000)
    record(root / "large", "--num-prompts", 12, "--request-rate", "inf", *large)
    write_run(root / "rejected", **fake_run(requests=4, rejected=4))
    write_run(root / "one", **fake_run(requests=1))
    write_run(root / "empty", **fake_run(requests=0))
    write_run(root / "plain", **fake_run(requests=300))
    six = [fake_run(seed=seed) for seed in range(6)]
    for seed, run in enumerate(six):
        run["summary"]["label"] = f"a.very.long.package.name.of.some.allocator.Mine{seed}"
    write_comparison(root / "six", six, config={})
    found = {each.name: write_report([each], root / f"{each.name}.html") for each in sorted(root.iterdir())}
    for name, choices in LIVES.items():
        record(root / name, *TIGHT, *choices, command="compare" if name == "alone" else "run")
    for name, choices in (SEVERAL | DIED).items():
        record(root / name, "--num-prompts", 60, *FLEET, *choices)
    pages = {"lives": [*LIVES], "several": [*SEVERAL], "died": [*DIED]}
    return found | {
        page: write_report([root / name for name in names], root / f"{page}.html")
        for page, names in pages.items()
    }


@pytest.fixture(scope="session")
def every_page(reports, tmp_path_factory):
    """All pages, and those without scripts."""
    root = tmp_path_factory.mktemp("plain")
    for name, words in PLAIN.items():
        assert cli.main([*words.split(), "--out", str(root / name)]) == 0
    return reports | {name: write_report([root / name], root / f"{name}.html") for name in PLAIN}


def until(page, holds, arg=None):
    """Poll until a function of the page holds; Playwright's own way needs eval, which the page forbids."""
    end_s = time.monotonic() + PATIENCE_S
    while not page.evaluate(holds, arg):
        assert time.monotonic() < end_s, holds
        page.wait_for_timeout(20)


class Opened:
    """A page, its error messages and its network requests."""

    def __init__(self, browser, path, size="wide", **options):
        options |= {"viewport": viewport(size), "reduced_motion": "reduce"}
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(1000 * PATIENCE_S)
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def check(self):
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith("data:")] == [self.page.url]

    def pixels(self, place=0):
        return self.page.evaluate(
            """place => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
                const canvas = kvsim.player.maps[place].canvas;
                done(canvas.toDataURL());
            })))""",
            place,
        )

    def texts(self, selector):
        return self.page.locator(selector).all_text_contents()

    def slot_of(self, request, place=1):
        """Where to point in a map to hit a request: x and y in the window."""
        return self.page.evaluate(
            """([request, place]) => {
                const { player } = kvsim, { arena, painter, canvas } = player.maps[place];
                const box = canvas.getBoundingClientRect();
                for (let y = 2; y < painter.height; y += 4) for (let x = 2; x < painter.width; x += 4) {
                    const slot = painter.slotAt(player.view, x, y);
                    const owners = slot === null ? [] : arena.range(slot).owners;
                    if (owners.some((owner) => owner.request === request)) return [box.left + x, box.top + y];
                }
                return null;
            }""",
            [request, place],
        )

    def somebody(self, place=1):
        """A request that holds memory now."""
        return self.page.evaluate(
            """place => {
                const { arena } = kvsim.player.maps[place];
                for (let slot = 0; slot < arena.slots; slot++) {
                    const { owners } = arena.range(slot);
                    if (owners.length) return owners[0].request;
                }
            }""",
            place,
        )


@pytest.fixture(scope="session")
def shared_page(browser, reports):
    return Opened(browser, reports["two"])


@pytest.fixture
def two(shared_page):
    """The page of two runs, as when it was opened."""
    shared_page.page.evaluate(
        """() => { const { player, table } = kvsim;
                   player.pause(); player.hide(); player.follow(null); player.magnify(0);
                   player.seek(player.end * 0.1); document.getElementById("filter").value = "";
                   table.order = { name: "request", falling: false }; table.choose(0); scrollTo(0, 0); }"""
    )
    shared_page.pixels()
    yield shared_page
    shared_page.check()


# -- every page -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["two", "shared", "rejected", "one", "empty", "plain", "six"])
def test_a_page_opens_without_a_complaint_and_without_a_network(browser, reports, name):
    opened = Opened(browser, reports[name], "narrow" if name == "six" else "wide")
    opened.check()
    assert opened.page.inner_text("#answer").endswith(".")
    assert opened.page.title().endswith("kvsim report")
    assert not opened.page.is_visible("#failure")
    if name not in ("two", "shared"):
        assert "--record-map" in opened.page.inner_text("#map-missing")
        assert not opened.page.is_visible("#player")
    width, inner = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= inner
    opened.context.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_and_nothing_sticks_out(browser, reports, size, scheme):
    opened = Opened(browser, reports["two"], size, color_scheme=scheme)
    page = opened.page
    page.evaluate("kvsim.player.follow(30, true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert page.evaluate(SMALL_TEXTS) == []
    opened.check()
    opened.context.close()


SMALL_TEXTS = """() => {
    const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const text = walk.currentNode.textContent.trim(), place = walk.currentNode.parentElement;
        if (!text || place.closest("script, style, svg, noscript") || !place.checkVisibility()) continue;
        if (parseFloat(getComputedStyle(place).fontSize) < 12) found.push(text);
    }
    return found;
}"""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_mend_on_any_page(browser, every_page, size, scheme):
    found = []
    for name, path in every_page.items():
        with browser.new_context(viewport=viewport(size), color_scheme=scheme, bypass_csp=True) as context:
            page = context.new_page()
            page.goto(path.as_uri())
            if name not in PLAIN:
                page.wait_for_selector("html[data-ready]", state="attached")
            found += [(name, *each) for each in violations(page)]
            width, inner = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert width <= inner, name
    assert found == []


def test_the_charts_are_drawn_and_change_with_the_theme(browser, reports):
    opened = Opened(browser, reports["two"])
    page = opened.page
    assert page.locator(".chart svg.main-svg").count() >= 8
    assert page.locator("#waste-chart .bars path").count() >= 6
    before = page.locator("#over-time .xtick text").first.evaluate("tick => tick.style.fill")
    page.emulate_media(color_scheme="dark")
    until(page, "before => document.querySelector('#over-time .xtick text').style.fill !== before", before)
    opened.check()
    opened.context.close()


# -- the player -------------------------------------------------------------------------------------


def test_the_slider_moves_the_map_and_a_text_says_the_time(two):
    before, said = two.pixels(1), two.page.inner_text("#clock")
    assert re.fullmatch(r"[\d.,]+ s", said)
    slider = two.page.locator("#time")
    slider.evaluate("slider => { slider.value = 2000; slider.dispatchEvent(new Event('input')); }")
    assert two.pixels(1) != before
    after = two.page.inner_text("#clock")
    assert float(after.removesuffix(" s")) > float(said.removesuffix(" s"))
    assert slider.get_attribute("aria-valuetext") == after


def test_every_slot_of_a_map_is_of_one_kind(two):
    for share in (0.1, 0.3, 0.6):
        found = two.page.evaluate(
            """share => kvsim.player.maps.map(({ arena }) => {
                arena.seek(arena.at(kvsim.player.end * share));
                const t = arena.totals();
                return [t.token + t.empty + t.cached + t.free, arena.slots];
            })""",
            share,
        )
        assert all(total == slots > 0 for total, slots in found)


def test_keys_step_and_play_and_pause(two):
    page = two.page
    page.focus("#time")
    times = [page.inner_text("#clock")]
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
        times.append(page.inner_text("#clock"))
    assert times[1] != times[0] and times[2] != times[1]
    assert times[3] == times[1]
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-label") == "Pause"
    until(page, "said => document.getElementById('clock').textContent !== said", times[3])
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-label") == "Play"
    page.keyboard.press("End")
    until(page, "() => document.querySelectorAll('.map')[1].innerText.includes('over')")


def test_hovering_names_the_owner_and_what_it_holds(two):
    request = two.somebody()
    two.page.locator("#maps").scroll_into_view_if_needed()
    two.page.mouse.move(*two.slot_of(request))
    tip = two.page.inner_text("#tip")
    assert tip.startswith(f"Request {request}\n")
    assert re.search(r"\d+ tokens? here, (no slot|\d+ slots?) empty", tip)
    assert re.search(r"\d+ tokens in \d+ ranges? in all, \d+ empty", tip)
    assert re.search(r"reference count 1; slots [\d,]+ to [\d,]+", tip)
    two.page.mouse.move(2, 2)
    assert not two.page.is_visible("#tip")


def test_shared_slots_say_how_many_share_them(browser, reports):
    opened = Opened(browser, reports["shared"])
    found = opened.page.evaluate(
        """() => { const { player } = kvsim, { arena } = player.maps[0];
            for (const time of player.moments) { arena.seek(arena.at(time));
                for (let slot = 0; slot < arena.slots; slot += arena.unit) { const range = arena.range(slot);
                    if (range.owners.length < 2) continue;
                    return player.about(player.maps[0], range).map((line) => line.textContent); } } }"""
    )
    assert found[0].startswith("Requests ")
    assert re.search(r"reference count ([2-9]|\d\d)", found[3])
    opened.check()
    opened.context.close()


def test_pools_of_unlike_layers_stand_apart_below_their_names(browser, reports):
    """Each slot is on the map once, in a line of its pool; the average and the maximum are shown."""
    opened = Opened(browser, reports["pools"])
    slots, pools, beside = opened.page.evaluate(
        """() => {
            const { player } = kvsim, { arena, painter } = player.maps[0], seen = new Uint8Array(arena.slots);
            let beside = 0;
            for (let line = 0; line < painter.lines; line++) {
                const [first, end] = painter.slotsOf(line);
                for (let slot = first; slot < end; slot++) seen[slot]++;
                const pool = painter.pools.find(({ start, end }) => start <= first && first < end);
                if (first < end && (line < pool.first || end > pool.end)) beside++;
                const at = painter.slotAt(player.view, 1, (line + 0.5) * painter.lineHeight);
                if (at !== (first < end ? first : null)) beside++;
            }
            return [[...new Set(seen)], painter.pools.map(({ name }) => name), beside];
        }"""
    )
    assert (slots, pools, beside) == ([1], ["window 1,024", "full"], 0)
    said = opened.page.inner_text(".map figcaption")
    assert re.search(r"On average window 1,024 [\d.]+ %, full [\d.]+ % of their pools; fullest after", said)
    opened.check()
    opened.context.close()


def test_every_line_of_a_large_memory_is_drawn_also_on_a_phone(browser, reports):
    opened = Opened(browser, reports["large"], "narrow")
    slots, drawn, lines = opened.page.evaluate(
        """() => {
            const { player } = kvsim, { arena, painter } = player.maps[0], drawn = new Set();
            const { fillLine } = painter;
            painter.fillLine = (line, ...more) => fillLine.call(painter, drawn.add(line) && line, ...more);
            painter.draw(player.view);
            return [arena.slots, [...drawn], painter.lines];
        }"""
    )
    assert slots > 1_000_000
    assert drawn == list(range(lines))
    opened.check()
    opened.context.close()


def test_a_click_follows_a_request_and_tells_its_life(two):
    request = two.somebody()
    before = two.pixels(1)
    two.page.locator("#maps").scroll_into_view_if_needed()
    two.page.mouse.click(*two.slot_of(request))
    assert two.pixels(1) != before
    told = two.page.inner_text("#life")
    assert f"Request {request}" in told
    for words in ("Arrived", "Admitted with", "Prompt computed, first token: TTFT", "Finished: E2E"):
        assert words in told
    assert two.page.locator("#life .track").count() == 2
    assert two.page.input_value("#whom") == str(request)
    two.page.keyboard.press("Escape")
    assert two.page.inner_text("#life") == ""


def test_a_finger_selects_drags_zooms_and_scrolls(browser, reports):
    opened = Opened(browser, reports["two"], "narrow", has_touch=True, is_mobile=True)
    page, session = opened.page, opened.context.new_cdp_session(opened.page)
    page.locator(".map canvas >> nth=1").scroll_into_view_if_needed()
    request = opened.somebody()
    x, y = opened.slot_of(request)
    page.touchscreen.tap(x, y)
    assert page.inner_text("#life").startswith(f"Request {request}\n")
    assert page.inner_text("#tip").startswith(f"Request {request}\n")

    def drag(*fingers):
        """Each finger from one point to another."""
        for step in range(7):
            at = [(a + (c - a) * step / 6, b + (d - b) * step / 6) for a, b, c, d in fingers]
            points = [{"x": x, "y": y, "id": finger} for finger, (x, y) in enumerate(at)]
            kind = "touchMove" if step else "touchStart"
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    box = page.locator(".map canvas >> nth=1").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    drag((x - 20, y, x - 60, y), (x + 20, y, x + 60, y))
    until(page, "() => kvsim.player.view.zoom > 2")
    before = page.evaluate("() => kvsim.player.view.x")
    drag((x, y, x - 60, y))
    until(page, "before => kvsim.player.view.x > before", before)
    page.locator("#all").tap()
    top = page.evaluate("() => scrollY")
    drag((x, y, x, y - 60))
    until(page, "top => scrollY > top", top)
    assert not page.is_visible("#tip")
    opened.check()
    opened.context.close()


def test_following_by_number_goes_to_a_moment_at_which_it_is_in_memory(two):
    two.page.fill("#whom", "55")
    two.page.press("#whom", "Enter")
    assert two.slot_of(55, 0) or two.slot_of(55, 1)
    said = two.page.inner_text("#life")
    assert re.search(r"Headed the queue for [\d.]+\sm?s: needs [\d,]+ slots, [\d,]+ free\.", said)
    two.page.fill("#whom", "4711")
    two.page.press("#whom", "Enter")
    assert "No run has a request of this number." in two.page.inner_text("#life")


def test_the_page_tells_of_every_request_what_explain_tells(browser, reports):
    """Word for word, as all times of these runs are whole microseconds, to which the page rounds."""
    opened = Opened(browser, reports["lives"])
    told = {}
    runs = [run for name in LIVES for run in read_runs(reports["lives"].parent / name)]
    for place, run in enumerate(runs):
        lines = opened.page.evaluate(TELL_ALL, place)
        found = lives(read_events(run.path), run.columns.requests)
        for request, own in enumerate(lines):
            assert own == [line.text for line in story(run, found, request).lines], (run.label, request)
        told[place] = "\n".join(map("\n".join, lines))
    holes, paged, moves, answers, beam, displaced, aside, tier = told.values()
    assert "contiguous slots, largest free extent" in holes
    assert "needed the room; " in paged and "preempted itself" in paged
    assert "on a move to a larger extent" in moves
    assert "forked off, sharing" in answers and "swapped out to the host pool" in answers
    assert "a candidate gave way to a fork" in beam
    assert " went first, as less is predicted of its answer; " in displaced
    assert ", as it was in a higher queue, and keeps the memory of its " in aside
    then = r"(waited [\d.]+ m?s in the queue\n)?headed the queue for [\d.]+ m?s: all 3 seats were taken"
    assert re.search(r"\d tokens loaded\n" + then, tier) and "tokens loaded\nwaited" in tier
    all_answers = opened.page.evaluate("() => kvsim.storyOf(kvsim.lives[3], 0).map(({ text }) => text)")
    assert sum(text.startswith("2 more answers forked off, sharing ") for text in all_answers) == 1
    assert any(re.match(r"Answers? [012]", text) for text in all_answers)
    opened.check()
    opened.context.close()


def test_a_request_that_was_on_several_replicas_has_one_life_on_the_page(browser, reports):
    """Lines and spans are those of `sim explain`, with the hand-over or the moves between."""
    opened = Opened(browser, reports["several"])
    told = opened.page.evaluate(TELL_WHOLE)
    runs = [read_run(reports["several"].parent / name) for name in SEVERAL]
    for run, own in zip(runs, told, strict=True):
        log = read_events(run.path)
        assert len(own) == 60
        between = set()
        for request, (lines, spans) in own.items():
            found = story_of(run, log, int(request))
            said = [f"{line.text[0].upper()}{line.text[1:]}." for line in found.lines]
            assert lines == said, (run.label, request)
            parts = [(span.state, span.start_ps, span.end_ps) for span in found.spans]
            assert [(state, start * 10**6, stop * 10**6) for state, start, stop in spans] == parts
            between |= {STATES[state] for state, _, _ in spans} & {"handed", "moving"}
        assert between == {"handed" if run is runs[0] else "moving"}
    there_and_back = opened.page.evaluate(
        "() => kvsim.lives.some((life) => life.run.between === 'moving' && "
        "Array.from(life.requests.request).some((request) => life.tracksOf(request).length > 1))"
    )
    assert there_and_back
    opened.page.fill("#whom", "3")
    opened.page.keyboard.press("Enter")
    assert opened.page.locator("#life .strip").count() == len(runs)
    assert any("has read the prompt" in each for each in opened.texts("#life dd"))
    opened.check()
    opened.context.close()


def test_a_request_whose_replica_died_has_one_life_on_the_page(browser, reports):
    """Lines and spans are those of `sim explain`, through every death."""
    opened = Opened(browser, reports["died"])
    told = opened.page.evaluate(TELL_WHOLE)
    runs = [read_run(reports["died"].parent / name) for name in DIED]
    states = set()
    for run, own in zip(runs, told, strict=True):
        log, died = read_events(run.path), 0
        assert len(own) == 60
        for request, (lines, spans) in own.items():
            found = story_of(run, log, int(request))
            said = [f"{line.text[0].upper()}{line.text[1:]}." for line in found.lines]
            assert lines == said, (run.label, request)
            parts = [(span.state, span.start_ps, span.end_ps) for span in found.spans]
            assert [(state, start * 10**6, stop * 10**6) for state, start, stop in spans] == parts
            died += sum(line.event == "lost" for line in found.lines)
            states |= {STATES[state] for state, _, _ in spans}
        assert died == run.summary["faults"]["resent_requests"] > 5
    assert {"down", "handed", "decode"} <= states
    opened.check()
    opened.context.close()


def test_who_was_passed_over_reads_it_at_the_head_of_its_tale(browser, tmp_path):
    """One seat, the shortest answer first: 0 has the longest of three."""
    rows = [{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": size} for size in (30, 9, 4)]
    (tmp_path / "three.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record(tmp_path / "run", "--trace", tmp_path / "three.jsonl", "--policy", "sjf", "--max-num-seqs", 1)
    opened = Opened(browser, write_report([tmp_path / "run"], tmp_path / "page.html"))
    opened.page.fill("#whom", "0")
    opened.page.press("#whom", "Enter")
    assert opened.texts("#life .tale dd")[0] == "Passed over 2 times, as their answers are shorter."
    opened.page.fill("#whom", "2")
    opened.page.press("#whom", "Enter")
    assert opened.texts("#life .tale dd")[0].startswith("Arrived")
    opened.check()
    opened.context.close()


TELL_WHOLE = """() => [...new Set(kvsim.lives.map(({ run }) => run.system))].map((system) => {
    const lives = kvsim.lives.filter(({ run }) => run.system === system), found = {};
    for (const life of lives) {
        for (const request of life.requests.request) {
            const spans = life.wholeOf(request).filter(({ start, stop }) => stop > start);
            const drawn = spans.map(({ start, stop, state }) => [state, start, stop]);
            found[request] = [kvsim.storyOf(life, request).map(({ text }) => text), drawn];
        }
    }
    return found;
})"""
TELL_ALL = """place => {
    const life = kvsim.lives[place], { Teller } = kvsim, { request } = life.requests;
    return Array.from(request, (each) => new Teller(life, new Teller(life, life.tracksOf(each)[0]).last()))
        .map((teller) => teller.lines().map(({ text }) => text));
}"""


def test_zooming_goes_down_to_single_slots_and_keeps_the_point_below_the_pointer(two):
    page = two.page
    found = page.evaluate(
        """() => { const { player } = kvsim, { painter } = player.maps[1];
            const x = painter.width * 0.3, y = painter.height * 0.6;
            const before = painter.slotAt(player.view, x, y);
            player.magnify(4, painter, 0.3, 0.6); const after = painter.slotAt(player.view, x, y);
            for (let i = 0; i < 12; i++) player.magnify(2, painter, 0.3, 0.6);
            return [before, after, player.view.zoom * painter.width / painter.perLine]; }"""
    )
    assert found[0] == found[1]
    assert found[2] >= 14  # pixels of a slot
    assert page.is_disabled("#in")
    two.pixels(1)
    assert "in part" in page.inner_text(".map >> nth=1")
    page.click("#all")
    assert page.inner_text("#zoom") == "1 ×"


# -- the table --------------------------------------------------------------------------------------


def column(two, place):
    texts = two.texts(f"#table tbody tr:not(.spacer) td:nth-child({place})")
    return [float(text.replace(",", "")) for text in texts]


def test_the_table_sorts_by_a_heading_and_back(two):
    heading = two.page.locator("#table th", has_text="End to end")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    rising = column(two, 9)
    assert rising == sorted(rising) and len(set(rising)) > 5
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    falling = column(two, 9)
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > rising[0]


def test_the_table_makes_only_the_rows_in_sight(two):
    table = two.page.locator("#table table")
    assert table.get_attribute("aria-rowcount") == "61"
    assert two.page.locator("#table tbody tr:not(.spacer)").count() < 40
    two.page.locator("#table").evaluate("place => { place.scrollTop = place.scrollHeight; }")
    until(two.page, "() => document.querySelector('#table tbody').innerText.includes('59')")


def test_the_filter_keeps_what_fulfils_all_conditions_and_names_what_it_does_not_know(two):
    page = two.page
    page.fill("#filter", "prompt > 50, prompt <= 300")
    kept = column(two, 4)
    assert kept and all(50 < value <= 300 for value in kept)
    assert re.fullmatch(rf"{len(kept)} of 60 requests", page.inner_text("#rows")) or len(kept) > 20
    page.fill("#filter", "17")
    assert column(two, 1) == [17]
    page.fill("#filter", "status = rejected")
    assert page.inner_text("#rows").startswith("0 of 60")
    page.fill("#filter", "colour = red")
    assert page.inner_text("#rows") == "Not understood: colour = red"
    assert page.get_attribute("#filter", "aria-invalid") == "true"


def test_a_number_in_the_table_follows_the_request(two):
    two.page.locator("#table tbody button", has_text=re.compile("^7$")).click()
    assert "Request 7" in two.page.inner_text("#life")
    assert two.page.locator("#table tr[data-followed]").count() == 1


# -- for everybody ----------------------------------------------------------------------------------


def test_a_map_is_told_in_words(two):
    label = two.page.get_attribute(".map canvas >> nth=1", "aria-label")
    assert re.match(
        r"Memory map of paged at [\d.,]+ s\. \d+ requests?: [\d.]+ % tokens, [\d.]+ % empty\.", label
    )


def test_the_tab_key_goes_through_the_page_in_order(two):
    two.page.evaluate(
        "document.body.tabIndex = -1, document.body.focus(), document.body.removeAttribute('tabindex')"
    )
    order = []
    for _ in range(30):
        two.page.keyboard.press("Tab")
        order.append(two.page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert order[:2] == ["Skip to the report", "In numbers"]
    assert [each for each in order if each in ("back", "play", "forward", "time", "speed", "in", "whom")] == [
        *("back", "play", "forward", "time", "speed", "in", "whom")
    ]


BROKEN = """() => [...document.querySelectorAll(".numbers td:not(.long)")].filter((cell) => {
    if (!cell.clientWidth || !/^[\\d.,]+[ \u00a0]/.test(cell.textContent)) return false;
    const range = document.createRange();
    range.selectNodeContents(cell.firstChild);
    return new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size > 1;
}).map((cell) => cell.textContent)"""
"""Numbers that are not on one line with their unit."""


@pytest.mark.parametrize("which", ["two", "six", "sweep"])
def test_on_a_phone_the_first_column_leaves_room_for_numbers(browser, every_page, which):
    page = browser.new_page(viewport=viewport("narrow"))
    page.goto(every_page[which].as_uri())
    page.locator(".numbers tbody td").first.wait_for(timeout=20_000)
    widths = """() => {
        const table = document.querySelector(".numbers"), cells = [...table.tBodies[0].rows[0].cells];
        const beyond = table.clientWidth - table.parentElement.clientWidth;
        return [beyond, ...cells.map((each) => each.clientWidth)];
    }"""
    beyond, names, first, *_ = page.evaluate(widths)
    assert beyond <= 2 or (names <= 0.31 * 390 and first <= 110)
    assert page.evaluate(BROKEN) == []
    page.close()


def test_no_column_is_cut_on_paper(browser, tmp_path):
    """A4 with its margins is 690 px wide: a dozen runs take several tables."""
    names = "contiguous,contiguous:pow2,contiguous:oracle,buddy:pow2,buddy:oracle,paged,vattention-128k"
    few = ["--num-prompts", "5", "--no-plots", "--quiet", "--out", str(tmp_path / "runs")]
    assert cli.main(["compare", "--allocator", names, *few]) == 0
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    opened = Opened(browser, tmp_path / "runs/report.html")
    opened.page.emulate_media(media="print")
    opened.page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    tables = "() => [...document.querySelectorAll('.numbers')].filter((each) => each.clientWidth)"
    wide = opened.page.evaluate(f"({tables})().map((each) => [each.clientWidth, each.rows[0].cells.length])")
    assert [cells for _, cells in wide] == [6, 3] and max(width for width, _ in wide) <= 692
    assert opened.page.evaluate(BROKEN) == []
    opened.page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert opened.page.evaluate(f"({tables})().map((each) => each.rows[0].cells.length)") == [8]
    opened.check()
    opened.context.close()


def test_it_prints_without_its_controls(browser, reports):
    opened = Opened(browser, reports["two"], color_scheme="dark")
    opened.page.emulate_media(media="print")
    assert not opened.page.is_visible("#play")
    assert opened.page.is_visible("#answer")
    opened.page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    inked = opened.page.evaluate("() => kvsim.player.maps[1].painter.ground & 0xffffff")
    assert inked == 0xF9FBFB  # the light ground, drawn at once
    widths = "() => [...document.querySelectorAll('.main-svg, .map canvas')].map((each) => each.clientWidth)"
    assert 0 < max(opened.page.evaluate(widths)) <= 690
    opened.page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert opened.page.evaluate("() => document.documentElement.className") == ""
    assert len(opened.page.pdf()) > 20_000
    opened.check()
    opened.context.close()
