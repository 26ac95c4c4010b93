"""Pictures of a tier below the memory: by size, over time, and in the life of a request."""

import json
import re

import numpy as np
import pytest
from support.sheets import assert_within
from support.summaries import PAGED, plain

from kvsim import cli
from kvsim.reports.comparison import Comparison
from kvsim.reports.figures.choices import Choices
from kvsim.reports.figures.style import SCREEN, STYLES
from kvsim.reports.figures.swept.tiers import tiers
from kvsim.reports.figures.systems import systems as systems_of
from kvsim.reports.figures.tier import tier
from kvsim.reports.html.charts import chart_data
from kvsim.reports.html.numbers import numbers
from kvsim.reports.links import links_in_words
from kvsim.reports.rundir.formats import read_columns
from kvsim.reports.rundir.run import read_runs
from kvsim.reports.rundir.stack import held_by
from kvsim.reports.sweeps.systems import systems
from kvsim.reports.sweeps.words import sweep_words

SIZE = "kv_offloading_size"
TOKEN_BYTES = 131_072
"""Keys and values of llama-3.1-8b."""


def row(size, mean_s, **more):
    found = {
        SIZE: size,
        "status": "finished",
        "latency.ttft_s.mean": mean_s,
        "latency.ttft_s.p50": mean_s,
        "latency.ttft_s.p99": 3 * mean_s,
        "duration_s": 10.0,
        "throughput.total_tokens_per_s": 120.0,
        "throughput.output_tokens_per_s": 20.0,
        "throughput.requests_per_s": 1.0,
        "engine.prefix_hit_tokens": 300,
        "requests.finished": 9,
        "requests.submitted": 10,
    }
    return found | ({} if size in (None, "0") else {"tier.hit_tokens": 200}) | more


def drawn(rows, names=(SIZE,), style=SCREEN):
    return tiers(systems(rows, list(names)), None, None, style)


def test_the_smallest_size_that_gains_nearly_all_is_the_answer():
    figure = drawn([row("64", 4.2), row("0", 10.0), row("256GiB", 4.0), row("16GiB", 9.5)])
    assert figure.get_label() == (
        "A tier of 64 GiB cuts the mean TTFT from 10.0 to 4.20 s (p99: 30.0 to 12.6 s)"
    )
    left, right = figure.axes
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["none", "16 GiB", "64 GiB", "256 GiB"]
    assert left.lines[0].get_ydata().tolist() == [10.0, 9.5, 4.2, 4.0]
    heights = [bar.get_height() for bar in right.patches]
    assert heights == pytest.approx([30, 30, 30, 30, 0, 20, 20, 20])


def test_no_gain_is_said_to_be_none():
    figure = drawn([row(None, 10.0), row("16GiB", 9.8)])
    assert figure.get_label() == (
        "No tier cuts the mean TTFT by a tenth: 10.0 to 9.80 s at best, with 16 GiB (p99: 30.0 to 29.4 s)"
    )

    same = drawn([row(None, 0.0127), row("16GiB", 0.0127)])
    assert same.get_label() == "No tier shortens the mean TTFT: 12.7 ms (p99: 38.1 ms)"


def test_a_tier_that_halves_the_tail_alone_gains():
    tails = [(0.5, 20.0, 166.0), (2.0, 12.0, 104.0), (8.0, 8.0, 80.0)]
    rows = [
        row(None, mean, hicache_ratio=ratio) | {"latency.ttft_s.p50": 0.77, "latency.ttft_s.p99": p99}
        for ratio, mean, p99 in tails
    ]
    assert drawn(rows, ("hicache_ratio",)).get_label() == (
        "A tier of 8 times the GPU's memory cuts the mean TTFT from 20.0 to 8.00 s (p99: 166 to 80.0 s); "
        "compared with 0.5 times the GPU's memory"
    )


def test_each_of_several_systems_is_told_what_it_gains():
    sizes = [(2, "0", 10.0), (2, "64", 9.9), (64, "0", 10.0), (64, "64", 2.0), (128, "0", 10.0)]
    rows = [row(size, mean, max_num_seqs=seats) for seats, size, mean in sizes]
    text = plain(sweep_words(rows, [SIZE, "max_num_seqs"], None))
    text = " ".join(text.split())
    assert "No tier cuts the mean TTFT of seats 2 by a tenth: 10.0 to 9.90 s" in text
    assert "A tier of 64 GiB cuts the mean TTFT of seats 64 from 10.0 to 2.00 s" in text
    assert "of seats 128" not in text  # one size says nothing
    assert " of seats 64 from 10.0 " in drawn(rows, (SIZE, "max_num_seqs")).get_label()


def test_a_size_of_hicache_that_the_ratio_says_is_as_large_as_it_was():
    rows = [
        row(None, time, hicache_size=size, gpus=2, **{"tier.capacity_bytes": held})
        for size, held, time in ((0, 2 * 64e9, 2.0), (8, 2 * 8e9, 8.0))
    ]
    figure = drawn(rows, ("hicache_size",))
    assert figure.get_label().startswith("A tier of 64 GB cuts the mean TTFT from 8.00 to 2.00 s")
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["8 GB", "64 GB"]
    assert drawn([row(None, 2.0, hicache_size=size) for size in (0, 8)], ("hicache_size",)) is None


def test_systems_that_differ_in_more_have_a_curve_each():
    rows = [
        row(size, time * factor, gpu=gpu)
        for size, time in (("0", 8.0), ("64GiB", 2.0))
        for gpu, factor in (("h100", 1), ("l40s", 3))
    ]
    figure = drawn(rows, (SIZE, "gpu"))
    left, right = figure.axes
    assert [line.get_ydata().tolist() for line in left.lines] == [[8.0, 2.0], [24.0, 6.0]]
    assert [list(line.get_ydata()) for line in right.lines] == [pytest.approx([30, 50])] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["h100", "l40s"]
    assert left.get_yscale() == "linear"


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_many_systems_are_told_apart_in_every_style_and_panels_keep_to_themselves(style):
    gpus = ["h100", "l40s", "a100-80gb", "h200", "b200", "l4", "t4", "a10", "a10g", "h20", "gb200"]
    rows = [row(size, 8.0 + place, gpu=gpu) for size in ("0", "64GiB") for place, gpu in enumerate(gpus)]
    figure = drawn(rows, (SIZE, "gpu"), style)
    looks = [(line.get_color(), line.get_marker()) for line in figure.axes[1].lines]
    assert len(set(looks)) == len(gpus)
    assert_within(figure)
    one, other = (axes.get_tightbbox() for axes in figure.axes)
    assert not one.overlaps(other)


def test_kinds_of_traffic_that_come_at_rates_of_their_own_are_compared_on_one_axis():
    rows = [
        row(size, time * factor, case=name, request_rate=rate)
        for size, time in (("0", 0.1), ("64GiB", 0.05))
        for name, rate, factor in (("chat", 9, 1), ("agents", 0.3, 90))
    ]
    figure = drawn(rows, (SIZE, "case", "request_rate"))
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [
        pytest.approx([0.1, 0.05]),
        pytest.approx([9.0, 4.5]),
    ]
    assert figure.axes[0].get_yscale() == "log", "times that are 180 times apart"
    two_rates = [*rows, row("0", 0.2, case="chat", request_rate=18)]
    assert drawn(two_rates, (SIZE, "case", "request_rate")) is None
    unlike = [row("0", 0.1, case="chat", request_rate=9), row("64GiB", 0.1, case="chat", request_rate=8)]
    assert drawn(unlike, (SIZE, "request_rate")) is None, "no size is compared at the same load"


def test_what_each_traffic_of_a_study_served_is_said_once_for_all_sizes():
    rows = [
        row(size, 1.0, **{"case": name, "requests.finished": finished})
        for size in ("0", "64GiB")
        for name, finished in (("chat", 10), ("agents", 7))
    ]
    text = " ".join(plain(sweep_words(rows, [SIZE, "case"], None)).split())
    assert text.startswith("Requests served: agents 7 of 10; not ranked with the others. ")
    rows[-1]["requests.finished"] = 6
    text = " ".join(plain(sweep_words(rows, [SIZE, "case"], None)).split())
    assert text.startswith("Requests served: no tier, agents 7 of 10, tier 64GiB, agents 6 of 10")


def test_there_is_no_such_figure_without_sizes():
    assert drawn([row("0", 1.0)]) is None
    assert drawn([{"gpu": gpu, **row("64GiB", 1.0)} for gpu in ("h100", "l40s")], ("gpu",)) is None


def test_a_sweep_names_sizes_and_says_once_what_all_of_them_served():
    text = plain(sweep_words([row("0", 10.0), row("64GiB", 4.0)], [SIZE], None))
    assert text.startswith("Requests served: 9 of 10 each. ")
    lines = [line.split("  ")[0] for line in text.splitlines()]
    assert {"no tier", "tier 64GiB"} <= set(lines)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Agents whose prompts come back from a tier."""
    out = tmp_path_factory.mktemp("tier") / "run"
    words = "run --model llama-3.1-8b --gpu h100 --trace agents --num-prompts 60 --rate-scale 6"
    tier = "--kv-tokens 140000 --kv-offloading-size 100GiB --kv-offloading-link 0.5 --blocks-per-chunk 16"
    assert cli.main([*words.split(), *tier.split(), "--no-plots", "--quiet", "--out", str(out)]) == 0
    return out


def test_the_life_of_a_request_tells_of_its_load(run, capsys):
    waited = json.loads((run / "summary.json").read_text())["tier"]["requests_waited"]
    assert waited > 0
    capsys.readouterr()
    assert cli.main(["explain", str(run), "slowest", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    states = [span["state"] for span in told["spans"]]
    assert states[states.index("loading") :][:3] == ["loading", "loaded", "prefill"]
    texts = [line["text"] for line in told["lines"]]
    assert sum(text.endswith("found elsewhere: loading them") for text in texts) == 1
    assert sum(part["seconds"] for part in told["division"]) == pytest.approx(
        told["finish_s"] - told["arrival_s"]
    )


def test_a_timeline_shows_loads_and_what_the_tier_holds(run, tmp_path):
    out = tmp_path / "timeline.json"
    assert cli.main(["trace-events", str(run), "--out", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    waited = json.loads((run / "summary.json").read_text())["tier"]["requests_waited"]
    assert sum(event["name"] == "loading keys and values" for event in events) == waited
    held = [event["args"]["tier_held_bytes"] for event in events if event["name"] == "tier: held (bytes)"]
    assert max(held) > 0


def test_the_timeline_sums_to_what_the_summary_says(run):
    names = ("tier_held_bytes", "tier_loaded_bytes", "tier_stored_bytes")
    columns = read_columns(run / "timeline.parquet", ("time_s", *names))
    tier = json.loads((run / "summary.json").read_text())["tier"]
    assert [int(columns[name][-1]) for name in names[1:]] == [tier["loaded_bytes"], tier["stored_bytes"]]
    assert 0 < columns["tier_held_bytes"].max() <= tier["peak_used_bytes"]


def test_a_run_with_a_tier_has_its_picture_and_one_without_is_told_why_not(run, tmp_path, capsys):
    assert cli.main(["plot", str(run), "--figure", "tier", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "tier.png").is_file()
    plainly = tmp_path / "plain"
    words = f"run --model llama-3.1-8b --gpu h100 --num-prompts 5 --no-plots --quiet --out {plainly}"
    assert cli.main(words.split()) == 0
    capsys.readouterr()
    assert cli.main(["plot", str(plainly), "--figure", "tier", "--out", str(tmp_path)]) == 2
    assert "figure tier needs the column tier_held_bytes" in capsys.readouterr().err


def test_a_comparison_has_rows_of_a_tier_where_any_system_has_one():
    below = {
        "hit_tokens": 1_400,
        "promoted_tokens": 96,
        "load_busy_share": 0.25,
        "store_busy_share": 0.5,
        "mean_wait_s": 0.2,
    }
    tiered = PAGED | {"label": "tiered", "tier": below}
    lines = plain(Comparison([[PAGED], [tiered]])).splitlines()
    rows = {words[0]: words[1:] for line in lines if len(words := re.split(r"\s{2,}", line.strip())) == 3}
    assert rows["tier hits, tokens"] == ["-", "1,400"]
    assert rows["from further below"] == ["-", "96"]
    assert rows["tier's link busy, loads"] == ["-", "25.0 %"]
    assert rows["tier's link busy, stores"] == ["-", "50.0 %"]
    assert rows["wait for a load, mean"] == ["-", "200 ms"]
    assert "tier" not in plain(Comparison([[PAGED], [PAGED | {"label": "other"}]]))


def test_links_that_are_shared_are_told_by_machine_in_tables_words_picture_and_page(tmp_path):
    out = tmp_path / "run"
    words = "run --model llama-3.1-8b --gpu h100 --trace agents --num-prompts 60 --kv-tokens 60000 --quiet"
    below = "host:4GiB:uplink=60:shared=2 ssd:2TiB:nvme:shared=2 far:9TiB:100gb"
    given = ["--replicas", "4", "--tier", below, "--no-plots", "--out", str(out)]
    assert cli.main([*words.split(), *given]) == 0
    links = json.loads((out / "summary.json").read_text())["tier"]["links"]
    machines = [f"{name} of machine {number}" for name in ("uplink", "ssd") for number in (0, 1)]
    assert [*links] == [*machines, "far"]
    most = max(links[f"ssd of machine {number}"]["load_busy_share"] for number in (0, 1))
    (run,) = read_runs(out)
    (said,) = [each for each in links_in_words([run.summary], ["loads"]) if "ssd" in each]
    assert said == f"the ssd links of 2 machines at most {100 * most:.1f} %"
    compared = plain(Comparison([[run.summary], [PAGED]]))
    assert [compared.count(f"\n{name} busy, ") for name in ("uplink", "ssd link", "far link")] == [2, 2, 1]
    rows = numbers([run])["rows"]
    assert [row["name"] for row in rows if "of machine 1 is busy" in row["name"]] == [
        "The uplink of machine 1 is busy with loads",
        "The uplink of machine 1 is busy with stores",
        "The ssd link of machine 1 is busy with loads",
        "The ssd link of machine 1 is busy with stores",
    ]
    above = " ".join(tier(systems_of([run]), Choices()).axes[-2].get_title().split())
    assert said in above and "the far link 0.0 %" in above


@pytest.fixture(scope="module")
def hicache(tmp_path_factory):
    """Agents on SGLang above a host and a storage."""
    out = tmp_path_factory.mktemp("hicache") / "run"
    words = (
        "run --model llama-3.1-8b --gpu h100 --trace agents --num-prompts 60 --kv-tokens 50000 --record-map 3"
    )
    below = "--enable-hierarchical-cache --hicache-ratio 1 --hicache-storage-backend file:2TiB:nvme"
    parts = "--allocator sglang --scheduler sglang --no-plots --quiet"
    assert cli.main([*words.split(), *below.split(), *parts.split(), "--out", str(out)]) == 0
    return out


def test_a_life_on_hicache_tells_what_was_asked_for_fetched_and_loaded(hicache, capsys):
    tier = json.loads((hicache / "summary.json").read_text())["tier"]
    assert tier["requests_waited"] > 0 and tier["mean_wait_s"] > 0
    read_s = tier["promoted_bytes"] / 6.9e9  # and 100 us for each 128 pages
    duration_s = json.loads((hicache / "summary.json").read_text())["duration_s"]
    assert read_s < tier["links"]["file"]["load_busy_share"] * duration_s < 1.5 * read_s
    texts, tokens = [], dict.fromkeys(("loading them layer by layer, beside the step", "to the host"), 0)
    for request in range(60):
        capsys.readouterr()
        assert cli.main(["explain", str(hicache), str(request), "--json"]) == 0
        told = [line["text"] for line in json.loads(capsys.readouterr().out)["lines"]]
        texts += told
        for text in told:
            for end in tokens:
                if text.endswith(end):
                    tokens[end] += int(text.split()[0].replace(",", ""))
    assert list(tokens.values()) == [tier["hit_tokens"], tier["promoted_bytes"] // TOKEN_BYTES]
    asked = sum(text.endswith("asked of the storage below the host") for text in texts)
    assert asked == sum(text.endswith("came from the storage to the host") for text in texts) > 0


def test_a_timeline_shows_the_copies_of_hicache_beside_its_steps(hicache, tmp_path):
    out = tmp_path / "timeline.json"
    assert cli.main(["trace-events", str(hicache), "--out", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    tier = json.loads((hicache / "summary.json").read_text())["tier"]
    moved = {}
    for event in (each for each in events if each.get("cat") == "transfer"):
        begin, end = moved.setdefault((event["name"], event["id"]), []), event
        begin.append((end["ph"], end["ts"], end["args"]["tokens"]))
    totals = {"loads beside steps": 0, "reads from the storage": 0}
    for (name, _), ((begins, start, tokens), (ends, stop, _)) in moved.items():
        assert (begins, ends) == ("b", "e") and start <= stop
        totals[name] += tokens
    assert list(totals.values()) == [tier["hit_tokens"], tier["promoted_bytes"] // TOKEN_BYTES]
    assert all(totals.values())


def test_sizes_of_hicache_are_drawn_as_those_of_other_tiers():
    rows = [row(None, time, hicache_ratio=ratio) for ratio, time in ((2.0, 8.0), (0.5, 10.0))]
    figure = drawn(rows, ("hicache_ratio",))
    assert figure.get_label() == (
        "A tier of 2 times the GPU's memory cuts the mean TTFT from 10.0 to 8.00 s (p99: 30.0 to 24.0 s); "
        "compared with 0.5 times the GPU's memory"
    )
    left = figure.axes[0]
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["0.5", "2"]
    assert left.get_xlabel() == "host memory / the GPU's memory"
    rows = [row(None, time, hicache_size=size) for size, time in ((8, 8.0), (64, 2.0))]
    ticks = drawn(rows, ("hicache_size",)).axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["8 GB", "64 GB"]


def test_a_sweep_over_stacks_says_what_they_gain():
    stacks = [("host:64GiB ssd:2TiB:nvme", 2.0), ("none", 8.0), ("host:16GiB:arc", 7.5)]
    rows = [row(None, time, tier=stack) for stack, time in stacks]
    text = " ".join(plain(sweep_words(rows, ["tier"], None)).split())
    assert ("host:64GiB ssd:2TiB:nvme cuts the mean TTFT from 8.00 to 2.00 s (p99: 24.0 to 6.00 s).") in text
    ticks = drawn(rows, ("tier",)).axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["none", "host:16GiB:arc", "host:64GiB ssd:2TiB:nvme"]
    assert "no tier" in text


@pytest.fixture(scope="module")
def stacked(tmp_path_factory):
    """Two replicas, each above a host and an SSD of its own and a remote tier that both share."""
    out = tmp_path_factory.mktemp("stack") / "run"
    words = "run --model llama-3.1-8b --gpu h100 --trace agents --num-prompts 60 --rate-scale 6 --replicas 2"
    tiers = ["--tier", "host:20GiB ssd:60GiB:nvme remote:1TiB:100gb:shared", "--blocks-per-chunk", "16"]
    more = ["--kv-tokens", "140000", "--no-plots", "--quiet", "--out", str(out)]
    assert cli.main([*words.split(), *tiers, *more]) == 0
    return out


REMOTE = "tier_remote_of_all_held_bytes"


def test_each_tier_of_a_stack_has_a_column_and_a_shared_one_counts_once(stacked):
    (run,) = read_runs(stacked)
    timeline, whole = run.columns.timeline, run.as_one.columns.timeline
    assert held_by(whole) == {
        "host": "tier_held_bytes",
        "ssd": "tier_ssd_held_bytes",
        "remote, shared": REMOTE,
    }
    assert whole[REMOTE].max() == timeline[REMOTE].max() > 0
    assert (np.diff(whole[REMOTE]) >= 0).all()  # it is never full
    ssd = [timeline["tier_ssd_held_bytes"][timeline["replica"] == place] for place in (0, 1)]
    assert whole["tier_ssd_held_bytes"][-1] == ssd[0][-1] + ssd[1][-1]
    assert whole[REMOTE][-1] <= whole["tier_stored_bytes"][-1]  # what a host stores goes on, once


def test_the_picture_and_the_page_show_every_tier_of_a_stack(stacked):
    (system,) = systems_of(read_runs(stacked))
    figure = tier([system], Choices(SCREEN))
    assert [axes.get_title().partition(":")[0] for axes in figure.axes] == [
        "held by the GPU, with free prefixes (GiB)",
        *(f"held by {name} (GiB)" for name in ("host", "ssd", "remote, shared")),
        "loaded (GB/s)",
        "stored (GB/s)",
    ]
    promoted = f"{system.first.summary['tier']['promoted_tokens']:,}"
    said = f"from the host; {promoted} tokens moved up to it from the ssd and the remote"
    above = figure.get_suptitle().replace("\u00a0", " ")
    assert said in " ".join(above.split()) and above.count("\n") < 2
    gpus = 2 * 140_000 * TOKEN_BYTES / 2**30
    assert 0.5 * gpus < figure.axes[0].lines[0].get_ydata().max() < 1.001 * gpus
    runs = [run.as_one for run in read_runs(stacked)]
    (page,) = chart_data(runs, [runs])["overTime"]
    assert list(page["tiers"]) == ["host", "ssd", "remote, shared"]


def test_a_timeline_counts_a_shared_tier_once(stacked, tmp_path):
    out = tmp_path / "timeline.json"
    assert cli.main(["trace-events", str(stacked), "--out", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    held = [event for event in events if event["name"] == "tier: held (bytes)"]
    assert len({event["pid"] for event in held}) == 2
    assert len({event["pid"] for event in held if REMOTE in event["args"]}) == 1
