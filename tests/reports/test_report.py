"""`sim report`: the numbers in the page are those of the run, and it fetches nothing."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_run import fake_run
from support.report_page import PACK, opened, record, slots_of_file, slots_of_page

from kvsim import cli
from kvsim.reports.html import report as reporting
from kvsim.reports.html import words
from kvsim.reports.html.arena import read_arena
from kvsim.reports.html.charts import chart_data
from kvsim.reports.html.lives import SAID, tick_s
from kvsim.reports.html.numbers import numbers
from kvsim.reports.html.packing import NOTHING, Pack, unpacked
from kvsim.reports.html.report import report, write_report
from kvsim.reports.lives.event_log import EVENTS, read_events
from kvsim.reports.lives.spans import STATES, lives
from kvsim.reports.rundir.run import read_runs
from kvsim.reports.rundir.writing import write_comparison, write_run

pytestmark = pytest.mark.slow

SMALL = ("--num-prompts", 30, "--num-gpu-blocks", 160, "--max-model-len", 1024)
KINDS_OF_RUNS = {
    "paged": ("--request-rate", "inf"),
    "contiguous": ("--request-rate", "inf", "--allocator", "contiguous"),
    "buddy": ("--request-rate", "inf", "--allocator", "buddy", "--reserve", "pow2"),
    "prefixes": ("--request-rate", 20, "--shared-prefix", "2x64", "--enable-prefix-caching"),
    "radix": ("--request-rate", 20, "--shared-prefix", "2x64", "--allocator", "radix"),
    "answers": ("--request-rate", 20, "--scheduler", "vllm-v0", "--n", 3),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of each kind, with its map; made on first use."""
    root = tmp_path_factory.mktemp("recorded")

    def made(kind):
        out = root / kind
        return out if out.exists() else record(out, *SMALL, *KINDS_OF_RUNS[kind])

    return made


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    return record(
        tmp_path_factory.mktemp("compared") / "two",
        *SMALL,
        *("--allocator", "contiguous,paged", "--request-rate", "inf"),
        command="compare",
    )


def written(directory, **choices):
    run = fake_run(**choices)
    write_run(directory, **run)
    return directory


# -- the map ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS_OF_RUNS)
def test_the_map_in_the_page_is_the_recorded_one_slot_by_slot(recorded, kind):
    directory = recorded(kind)
    data, columns = opened(report(read_runs(directory)))
    about = data["runs"][0]["arena"]
    count = len(about["times"])
    assert count >= 20
    some_owner = False
    for instant in (0, 1, count // 3, count // 2, count - 2, count - 1):
        expected, times = slots_of_file(directory / "map.parquet", instant)
        assert slots_of_page(about, columns["map-0"], instant) == expected
        some_owner |= any(owners for owners, _, _ in expected)
    assert some_owner
    assert np.allclose(about["times"], times, rtol=0, atol=1e-9)


def test_shared_and_cached_slots_come_through(recorded):
    data, columns = opened(report(read_runs(recorded("prefixes"))))
    assert columns["map-0"]["setSize"].max() > 1
    assert columns["map-0"]["cached"].any()
    assert data["runs"][0]["arena"]["unit"] == 16


@pytest.mark.parametrize("kind", ["paged", "buddy", "prefixes"])
def test_every_other_instant_shows_what_all_of_them_show_then(recorded, kind):
    arena = read_arena(recorded(kind) / "map.parquet")
    for _ in range(3):
        half = arena.halved()
        times, kept = arena.map.instants, half.map.instants
        assert list(kept) == list(times[(len(times) + 1) % 2 :: 2])
        assert kept[-1] == times[-1]
        assert len(half.map.rows.start) <= len(arena.map.rows.start)
        for place, time in enumerate(kept):
            whole = int(np.flatnonzero(times == time)[0])
            shown = [
                slots_of_page(*reversed(packed(each)), at) for each, at in ((half, place), (arena, whole))
            ]
            assert shown[0] == shown[1]
        arena = half


def packed(arena):
    pack, about = arena.packed()
    return unpacked(pack.text(), pack.entries), about


def test_a_page_too_large_loses_instants_and_says_so(recorded, monkeypatch):
    runs = read_runs(recorded("paged"))
    sizes = {name: len(text) for name, text in PACK.findall(report(runs))}
    monkeypatch.setattr(reporting, "_FRAME_BYTES", 0)
    room = sizes["requests-0"] + sizes["events-0"] + sizes["map-0"] * 4 // 5
    monkeypatch.setattr(reporting, "LARGEST_BYTES", room)
    page = report(runs)
    about = opened(page)[0]["runs"][0]["arena"]
    assert 8 <= len(about["times"]) < about["recorded"]
    assert len(dict(PACK.findall(page))["map-0"]) <= sizes["map-0"] * 4 // 5


# -- requests and events ----------------------------------------------------------------------------


def test_the_table_of_requests_holds_their_numbers(recorded):
    directory = recorded("paged")
    data, columns = opened(report(read_runs(directory)))
    table = pq.read_table(directory / "requests.parquet")
    tick, found = data["runs"][0]["tick"], columns["requests-0"]
    assert tick == 1e-6
    assert found["request"].tolist() == table["request"].to_pylist()
    assert found["prompt_tokens"].tolist() == table["prompt_tokens"].to_pylist()
    assert found["output_tokens"].tolist() == table["output_tokens"].to_pylist()
    for name, column in (("wait", "queueing_s"), ("first", "ttft_s"), ("whole", "e2e_s")):
        seconds = np.where(found[name] == NOTHING, np.nan, found[name] * tick)
        np.testing.assert_allclose(seconds, table[column].to_numpy(), atol=1e-6)
    np.testing.assert_allclose(found["tpot_s"], table["tpot_s"].to_numpy(), rtol=1e-4)


def test_rejected_requests_have_no_times(tmp_path):
    data, columns = opened(report(read_runs(written(tmp_path / "run", requests=9, rejected=4))))
    found = columns["requests-0"]
    assert [data["status"][code] for code in found["status"]] == ["rejected"] * 4 + ["finished"] * 5
    for name in ("wait", "first", "whole"):
        assert (found[name][:4] == NOTHING).all()
        assert (found[name][4:] < NOTHING).all()


def test_the_events_in_the_page_are_those_of_the_file(recorded):
    directory = recorded("answers")
    data, columns = opened(report(read_runs(directory)))
    run, found = data["runs"][0], columns["events-0"]
    rows = pq.read_table(directory / "events.parquet").to_pylist()
    names = ("tokens", "by", "largest")
    expected = [(row["request"], row["event"], *(row[n] for n in names), row["reason"] or "") for row in rows]
    page = [
        (
            int(found["request"][i]),
            data["events"][found["event"][i]],
            *(int(found[name][i]) - 1 if found[name][i] else None for name in names),
            run["reasons"][found["reason"][i]],
        )
        for i in range(len(found["request"]))
    ]
    assert {row[1] for row in page} >= {"admit", "refuse", "decode", "fork", "copy", "finish"}
    assert page == sorted(expected, key=lambda row: row[0])
    times = sorted(row["time_s"] for row in rows if row["event"] == "finish")
    finish = found["event"] == EVENTS.index("finish")
    np.testing.assert_allclose(np.sort(found["time"][finish] * run["tick"]), times, atol=1e-6)


@pytest.mark.parametrize("kind", ["answers", "contiguous"])
def test_the_spans_in_the_page_are_those_of_the_lives(recorded, kind):
    directory = recorded(kind)
    (run,) = read_runs(directory)
    told = lives(read_events(directory), run.columns.requests)
    data, columns = opened(report([run]))
    found = columns["spans-0"]
    assert found["request"].tolist() == told.request.tolist()
    assert found["sample"].tolist() == told.sample.tolist()
    assert np.cumsum(found["many"]).tolist() == told.first[1:].tolist()
    assert [data["states"][code % SAID] for code in found["state"]] == [STATES[code] for code in told.state]
    said = [code >= SAID for code in found["state"]]
    assert said == [told.reason(row) != "" for row in told.row] and any(said)
    own = found["start"] > 0
    assert own.sum() > len(told.request)
    np.testing.assert_allclose(found["start"][own] * 1e-6, told.start_ps[own] / 1e12, atol=1e-6)


def test_ticks_are_microseconds_until_the_run_is_too_long():
    assert tick_s(0) == tick_s(268) == 1e-6
    assert tick_s(269) == tick_s(2684) == pytest.approx(1e-5)
    assert tick_s(1e6) == pytest.approx(1e-2)


@given(
    whole=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    rising=st.lists(st.integers(0, 2**31), max_size=40).map(sorted),
    small=st.lists(st.integers(0, 200), max_size=40),
)
def test_packed_columns_come_out_as_they_went_in(whole, rising, small):
    pack = Pack()
    for name, values in (("whole", whole), ("rising", rising), ("small", small)):
        pack.add(name, np.array(values, np.int64), delta=name != "whole")
    found = unpacked(pack.text(), pack.entries)
    assert {name: column.tolist() for name, column in found.items()} == {
        "whole": whole,
        "rising": rising,
        "small": small,
    }


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"column size must lie in 0 \.\. 4294967295, got -1 \.\. 3"):
        Pack().add("size", np.array([-1, 3]))


# -- charts -----------------------------------------------------------------------------------------


def test_a_slice_holds_the_mean_over_its_time(tmp_path):
    run = fake_run(requests=3)
    run["timeline"] = {name: np.zeros(3, np.int64) for name in run["timeline"]}
    run["timeline"] |= {"time_s": np.array([0.0, 1.5, 3.0]), "free": np.array([100, 50, 100])}
    run["timeline"] |= {"token": np.array([0, 50, 0]), "running": np.array([0, 2, 0])}
    run["requests"] |= {name: np.array([0.0, 1.0, 1.5]) for name in ("arrival_s", "finish_s")}
    run["summary"]["duration_s"] = 3.0
    write_run(tmp_path / "run", **run)
    runs = read_runs(tmp_path / "run")
    (found,) = chart_data(runs, [runs])["overTime"]
    assert found["end"] == 3.0
    assert found["kinds"]["token"] == [0.0] * 150 + [50.0] * 150
    assert found["running"] == [0.0] * 150 + [2.0] * 150
    assert sum(found["throughput"]) * 3.0 / 60 == pytest.approx(3)


def test_every_finished_request_is_in_one_bin(tmp_path):
    runs = [
        run
        for seed in (1, 2)
        for run in read_runs(written(tmp_path / str(seed), requests=50, rejected=5, seed=seed))
    ]
    latencies = chart_data(runs, [[run] for run in runs])["latency"]
    assert not latencies.pop("queueing_s")["edges"]  # all of them are 0
    for latency in latencies.values():
        for shares, quantiles in zip(latency["shares"], latency["quantiles"], strict=True):
            assert sum(shares) == pytest.approx(100, abs=0.01)
            assert quantiles == sorted(quantiles)


def test_the_waste_bars_are_the_shares_of_the_summary(compared):
    data, _ = opened(report(read_runs(compared)))
    for bar, run in zip(data["charts"]["waste"], read_runs(compared), strict=True):
        saturated = run.summary["memory"]["saturated"]
        assert bar["saturated"]
        assert bar["percent"] == {kind: round(share, 3) for kind, share in saturated.items()}


# -- words ------------------------------------------------------------------------------------------


def test_the_answer_is_a_sentence_with_numbers(compared):
    said = words.answer(read_runs(compared))
    numbers = r"paged holds [\d.]+ times as many requests at once as contiguous and finishes [\d.]+ times"
    assert said.startswith(
        "Served: 26 of 30 requests; rejected: prompt leaves no room for an answer within 1,024"
    )
    assert "Schedulers differ: orca (contiguous), vllm-v1 (paged)." in said
    assert re.search(
        numbers + r" as many per second; waste [\d.]+ % against [\d.]+ % while requests waited\.", said
    )


def loads(tmp_path, *rates):
    """Runs at these rates, the first of two allocators."""
    both = tmp_path / "both"
    record(both, *SMALL, "--allocator", "contiguous,paged", "--request-rate", rates[0], command="compare")
    more = []
    for rate in rates[1:]:
        record(tmp_path / f"at-{rate}", *SMALL, "--request-rate", rate)
        more += read_runs(tmp_path / f"at-{rate}")
    return words.distinct([*read_runs(both), *more])


def test_runs_of_different_loads_are_not_ranked_but_those_of_one_load_are(tmp_path):
    runs = loads(tmp_path, 3, 0.5)
    said = words.answer(runs)
    assert "The runs had different traffic, so they are not ranked against each other: " in said
    assert said.count("as many requests at once as contiguous") <= 1
    assert "at-0.5 holds" not in said and "as at-0.5" not in said
    assert "At 3.00 requests/s (Poisson): " in said
    found = numbers(runs)
    assert not found["ranked"] and not any(any(row["best"]) for row in found["rows"])
    assert any(any(row["best"]) for row in numbers(runs[:2])["rows"])
    assert words.differences_in_words(runs) == []


def test_seeds_of_two_loads_under_one_name_are_not_put_together(tmp_path):
    for rate in (1, 2):
        seeds = ("--seeds", 2, "--jobs", 1, "--request-rate", rate)
        record(tmp_path / f"at-{rate}", *SMALL, *seeds)
    runs = words.distinct([run for rate in (1, 2) for run in read_runs(tmp_path / f"at-{rate}")])
    assert [len(group) for group in words.grouped(runs)] == [2, 2]
    assert len({words.group_label(group) for group in words.grouped(runs)}) == 2


def test_seeds_that_are_not_the_same_ones_are_not_paired(tmp_path):
    for first, name in ((0, "a"), (5, "b")):
        seeds = ("--seeds", 2, "--jobs", 1, "--seed", first)
        record(tmp_path / name, *SMALL, *seeds, "--block-size", 16 if first else 32)
    runs = words.distinct([run for name in "ab" for run in read_runs(tmp_path / name)])
    assert [len(group) for group in words.grouped(runs)] == [1, 1, 1, 1]


def test_of_one_run_the_answer_tells_its_numbers(tmp_path):
    said = words.answer(read_runs(written(tmp_path / "run")))
    assert said.startswith("paged served 60 requests in ")


def test_what_the_runs_share_is_said_once_and_what_not_for_each(compared):
    runs = read_runs(compared)
    facts = dict(words.facts(runs))
    assert facts["Model"] == "opt-13b"
    assert facts["Arrivals"] == "all at once"
    assert facts["Scheduler"] == "orca (contiguous); vllm-v1 (paged)"
    assert facts["Allocator"] == "contiguous; paged"
    assert words.title(runs) == "opt-13b on a100-40gb serving sharegpt"


def test_several_seeds_are_one_column_with_their_spread(tmp_path):
    out = tmp_path / "seeds"
    record(out, *SMALL, "--allocator", "contiguous,paged", "--seeds", 3, "--jobs", 1, command="compare")
    runs = read_runs(out)
    data, columns = opened(report(runs))
    assert "contiguous is overloaded with all 3 seeds: " in data["answer"]
    assert "% of the time. With 3 seeds and 95 % confidence, paged finishes " in data["answer"]
    assert data["groups"] == data["numbers"]["columns"] == ["contiguous", "paged"]
    assert [run["group"] for run in data["runs"]] == [0, 0, 0, 1, 1, 1]
    assert {name for name in columns if name.startswith("map")} == {"map-0", "map-3"}
    (rate,) = [row for row in data["numbers"]["rows"] if row["name"] == "Requests per second"]
    assert all("±" in text for text in rate["texts"])
    assert rate["best"] == [False, True]


def test_runs_of_one_name_go_by_their_directories(tmp_path):
    runs = [run for name in ("a", "b") for run in read_runs(written(tmp_path / name))]
    assert [run.label for run in words.distinct(runs)] == ["a", "b"]
    again = words.distinct([*runs, *runs])
    assert len({run.label for run in again}) == 4


# -- the page ---------------------------------------------------------------------------------------


def test_the_page_fetches_nothing(compared):
    page = report(read_runs(compared))
    assert "default-src 'none'" in page
    text = re.sub(r'(<script type="application/octet-stream"[^>]*>)[^<]*', r"\1", page)
    assert not re.findall(r"https?://[^\s\"']*", text)
    assert not re.findall(r"@import|url\(|\ssrc=|fetch\(|XMLHttpRequest|\simport\s", text)


def test_the_same_runs_give_the_same_bytes(compared, tmp_path):
    first, second = (write_report([compared], tmp_path / f"{name}.html").read_bytes() for name in "ab")
    assert first == second


def test_the_page_is_small(compared):
    assert len(report(read_runs(compared))) < 1_500_000


def test_a_label_cannot_end_the_script_in_which_it_stands(tmp_path):
    run = fake_run()
    run["summary"]["label"] = run["summary"]["engine"]["allocator"] = "</script><b>&\u2028x"
    write_run(tmp_path / "run", **run)
    page = report(read_runs(tmp_path / "run"))
    assert "</script><b>" not in page
    assert opened(page)[0]["runs"][0]["label"] == "</script><b>& x"


@pytest.mark.parametrize(
    ("requests", "rejected"),
    [(0, 0), (1, 0), (1, 1), (5, 5)],
    ids=["none", "one", "one-rejected", "rejected"],
)
def test_runs_in_which_little_happened_have_a_page(tmp_path, requests, rejected):
    directory = tmp_path / "run"
    run = fake_run(requests=max(1, requests), rejected=rejected)
    if not requests:
        run = fake_run(requests=0)
    write_run(directory, **run)
    data, columns = opened(report(read_runs(directory)))
    assert len(columns["requests-0"]["request"]) == requests
    assert data["answer"].endswith(".")


def test_a_run_of_which_everything_is_rejected_has_a_page(tmp_path):
    record(tmp_path / "run", "--num-prompts", 3, "--kv-tokens", 16)
    data, columns = opened(report(read_runs(tmp_path / "run")))
    assert {data["status"][code] for code in columns["requests-0"]["status"]} == {"rejected"}


def test_six_runs_with_long_names_have_a_page(tmp_path):
    runs = []
    for seed in range(6):
        run = fake_run(seed=seed)
        label = f"my.very.long.package.name.of.an.allocator.Mine{seed}"
        run["summary"]["label"] = run["config"]["scenario"]["engine"]["allocator"] = label
        runs.append(run)
    write_comparison(tmp_path / "six", runs, config={})
    data, _ = opened(report(read_runs(tmp_path / "six")))
    assert len(data["runs"]) == len(set(data["colours"])) == 6


# -- mistakes ---------------------------------------------------------------------------------------


def spoil_bytes(path):
    path.write_bytes(b"no parquet at all")


def lacks(column):
    def spoil(path):
        table = pq.read_table(path)
        pq.write_table(table.drop_columns([column]), path)

    return spoil


def holds(column, value):
    def spoil(path):
        table = pq.read_table(path)
        values = table[column].to_pylist()
        values[0] = value
        place = table.column_names.index(column)
        pq.write_table(table.set_column(place, column, pa.array(values)), path)

    return spoil


DAMAGES = {
    "map no parquet": ("map.parquet", spoil_bytes, r"map\.parquet is damaged: "),
    "map lacks owners": ("map.parquet", lacks("owners"), r"map\.parquet is damaged: it lacks .*owners"),
    "map not whole": ("map.parquet", holds("start", 1), r"map\.parquet is damaged: "),
    "map odd owner": ("map.parquet", holds("owners", "seventeen"), r"map\.parquet is damaged: "),
    "events no parquet": ("events.parquet", spoil_bytes, r"events\.parquet is damaged: "),
    "events lack reason": (
        "events.parquet",
        lacks("reason"),
        r"events\.parquet is damaged: it lacks .*reason",
    ),
    "events negative": ("events.parquet", holds("request", -1), r"events\.parquet is damaged: "),
    "events texts": ("events.parquet", lambda p: holds_texts(p, "need"), r"need must be numbers"),
    "summary gone": ("summary.json", lambda path: path.unlink(), r"summary\.json is missing"),
}


def holds_texts(path, column):
    table = pq.read_table(path)
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, pa.array(["x"] * table.num_rows)), path)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_is_one_error_line(recorded, tmp_path, capsys, damage):
    name, spoil, message = DAMAGES[damage]
    shutil.copytree(recorded("paged"), tmp_path / "run")
    spoil(tmp_path / "run" / name)
    assert cli.main(["report", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert re.match(rf"error: .*{message}", error)
    assert error.count("\n") == 1
    assert not (tmp_path / "run" / "report.html").exists()


def test_the_page_goes_where_it_is_told_and_else_into_the_first_run(tmp_path, capsys):
    directory = written(tmp_path / "run", requests=3)
    assert cli.main(["report", str(directory)]) == 0
    assert capsys.readouterr().out == f"{directory}/report.html\n"
    assert cli.main(["report", str(directory), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_bytes() == (directory / "report.html").read_bytes()
    capsys.readouterr()
    assert cli.main(["report", str(directory), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: out must be a file, got the directory {tmp_path}\n"
    assert cli.main(["report", str(directory), "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]


def test_the_chart_library_is_the_one_that_the_docs_name():
    import gzip
    from importlib import resources

    vendor = resources.files("kvsim.reports.html") / "vendor"
    script = gzip.decompress((vendor / "plotly-basic.min.js.gz").read_bytes()).decode()
    assert "plotly.js (basic - minified) v4.1.1" in script[:200]
    assert "MIT License" in (vendor / "LICENSE.plotly.txt").read_text()
    assert json.loads(json.dumps(EVENTS))  # the page's words for them are looked up by name
