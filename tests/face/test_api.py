"""`import kvsim`: what simulate, compare and load return is what the command writes and reads."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import kvsim
from kvsim import cli
from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.paged import Paged

ROOT = Path(cli.__file__).resolve().parent
SMALL = {"num_prompts": 40, "request_rate": 4.0}


class Rounded(Contiguous):
    """Extents in multiples of 256 slots."""

    def slots_needed(self, tokens, bound):
        return -(-max(tokens, bound) // 256) * 256


@pytest.fixture(scope="module")
def recorded():
    """A run with everything that can be recorded."""
    return kvsim.simulate(**SMALL, step_log=True, record_map=10)


def timeless(config_or_summary):
    return {name: value for name, value in config_or_summary.items() if name != "simulation"}


# -- the same as the command ------------------------------------------------------------------------


def test_a_simulation_is_what_the_command_writes(tmp_path, recorded):
    line = ["run", "--num-prompts", "40", "--request-rate", "4", "--step-log", "--record-map", "10"]
    assert cli.main([*line, "--no-plots", "-q", "--out", str(tmp_path / "cli")]) == 0
    recorded.save(tmp_path / "face")
    for path in sorted((tmp_path / "cli").iterdir()):
        twin = tmp_path / "face" / path.name
        if path.name == "summary.json":
            assert timeless(json.loads(path.read_text())) == timeless(json.loads(twin.read_text()))
        else:
            assert path.read_bytes() == twin.read_bytes(), path.name


def test_a_loaded_run_has_the_same_tables_and_numbers(tmp_path, recorded):
    loaded = kvsim.load(recorded.save(tmp_path / "out"))
    assert isinstance(loaded, kvsim.Run)
    assert loaded.summary == recorded.summary
    assert loaded.config == recorded.config
    for name in ("requests", "timeline", "steps", "events", "map"):
        left, right = getattr(loaded, name), getattr(recorded, name)
        for column in right:
            if right[column].dtype == "category":
                assert left[column].astype(str).tolist() == right[column].astype(str).tolist(), (name, column)
        numbers = right.select_dtypes("number").columns
        pd.testing.assert_frame_equal(left[numbers], right[numbers], check_dtype=False)
        assert list(left) == list(right)


def test_scenario_and_traffic_may_be_given_and_options_take_their_place():
    scenario = kvsim.Scenario(allocator="contiguous", reserve="oracle")
    traffic = kvsim.Traffic(num_prompts=40, request_rate=1.0)
    run = kvsim.simulate(scenario, traffic, request_rate=4.0)
    other = kvsim.simulate(allocator="contiguous:oracle", **SMALL)
    assert run.label == "contiguous-oracle"
    assert timeless(run.summary) == timeless(other.summary)


def test_a_comparison_that_was_written_reads_back_as_one(tmp_path):
    line = ["compare", "--num-prompts", "40", "--request-rate", "4", "--no-plots", "-q"]
    assert cli.main([*line, "--allocator", "contiguous,paged", "--out", str(tmp_path / "two")]) == 0
    loaded = kvsim.load(tmp_path / "two")
    made = kvsim.compare(["contiguous", "paged"], **SMALL)
    assert [run.label for run in loaded] == [run.label for run in made] == ["contiguous", "paged"]
    assert [timeless(run.summary) for run in loaded] == [timeless(run.summary) for run in made]


# -- classes of one's own ---------------------------------------------------------------------------


def test_a_class_is_accepted_where_a_name_is():
    run = kvsim.simulate(allocator=Rounded, reserve="oracle", **SMALL)
    assert run.label.endswith("Rounded-oracle")
    exact = kvsim.simulate(allocator="contiguous:oracle", **SMALL)
    assert exact.summary.memory.average.internal < run.summary.memory.average.internal


def test_a_class_that_no_import_finds_is_accepted_too():
    class Local(Paged):
        pass

    run = kvsim.simulate(allocator=Local, scheduler="vllm-v1", **SMALL)
    assert run.summary.memory == kvsim.simulate(**SMALL).summary.memory
    assert "slots_add_up" in kvsim.check_allocator(Local, calls=20)


def test_a_class_of_a_notebook_goes_by_its_own_name():
    Cell = type("Cell", (Paged,), {"__module__": "__main__"})
    runs = kvsim.compare(["paged", Cell], scheduler="vllm-v1", **SMALL)
    assert runs["Cell"].summary.memory == runs["paged"].summary.memory
    assert "Cell" in runs._repr_html_()


def test_a_broken_allocator_is_told_by_its_rule():
    class Greedy(Paged):
        def can_admit(self, tokens, bound, content=None):
            return True

    with pytest.raises(kvsim.KvsimError, match="breaks a rule: an_empty_arena_admits_what_fits"):
        kvsim.check_allocator(Greedy, calls=100)


# -- several runs -----------------------------------------------------------------------------------


def test_the_table_has_a_row_per_run_and_names_what_differs():
    runs = kvsim.compare(["contiguous", "paged"], seeds=2, **SMALL)
    table = runs.table
    assert table["label"].tolist() == ["contiguous", "contiguous", "paged", "paged"]
    assert table["seed"].tolist() == [0, 1, 0, 1]
    assert "request_rate" not in table
    assert table["latency.ttft_s.p99"].tolist() == [run.summary.latency.ttft_s.p99 for run in runs]


def test_the_table_names_models_and_gpus_and_not_their_numbers():
    small = kvsim.compare(
        [{"gpu": "l40s"}, {"gpu": "h100", "tensor_parallel_size": 2}], model="llama-3.1-8b", **SMALL
    )
    assert {"label", "gpu", "tensor_parallel_size"} <= set(small.table)
    assert small.table["gpu"].tolist() == ["l40s", "h100"]
    assert "memory_bytes" not in small.table


def test_systems_may_be_scenarios_mappings_names_or_classes():
    runs = kvsim.compare(
        [kvsim.Scenario(allocator="buddy"), {"allocator": "paged", "block_size": 32}, "paged", Rounded],
        **SMALL,
    )
    assert [run.config["scenario"]["engine"]["block_size"] for run in runs] == [16, 32, 16, 16]
    assert [run.config["scenario"]["engine"]["allocator"] for run in runs][:3] == ["buddy", "paged", "paged"]


def test_runs_are_found_by_label_place_and_slice():
    runs = kvsim.compare(["contiguous", "paged"], **SMALL)
    assert runs["paged"] is runs[1]
    assert len(runs[:1]) == 1
    assert len(runs + runs[:1]) == 3
    with pytest.raises(KeyError, match=r"0 runs are called 'buddy' \(labels: contiguous, paged\)"):
        runs["buddy"]


# -- tables, pictures, pages ------------------------------------------------------------------------


def test_tables_are_frames_with_a_row_each(recorded):
    assert len(recorded.requests) == 40
    assert recorded.steps["running"].max() == recorded.summary.engine.max_running
    assert set(recorded.events["event"]) >= {"admit", "decode", "finish"}
    assert {"start", "size", "owners"} <= set(recorded.map)
    ledger = recorded.timeline[["token", "reserved", "internal", "cached", "external", "free"]].sum(axis=1)
    assert (ledger == recorded.summary.memory.capacity_tokens).all()
    assert np.isclose(recorded.requests["ttft_s"].mean(), recorded.summary.latency.ttft_s.mean)


def test_what_was_not_recorded_says_what_would_record_it():
    run = kvsim.simulate(**SMALL)
    with pytest.raises(kvsim.KvsimError, match="steps were not recorded in run paged: they need step_log"):
        run.steps  # noqa: B018
    with pytest.raises(kvsim.KvsimError, match="events were not recorded"):
        run.events  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["memory", "waste", "requests", "latency", "lengths", "map"])
def test_a_figure_is_returned_and_shows_in_a_notebook(recorded, figure):
    drawn = recorded.plot(figure)
    assert isinstance(drawn, Figure)
    assert drawn._repr_png_().startswith(b"\x89PNG")


def test_a_notebook_shows_each_run_of_one_allocator_by_the_setting_that_differs():
    names = ("contiguous", "paged")
    runs = kvsim.compare(
        [
            {"allocator": name, "request_rate": rate}
            for rate in (1.0, 4.0)
            for name in ("contiguous", "paged")
        ],
        num_prompts=40,
    )
    cell = runs._repr_html_()
    for name in names:
        for rate in ("1.0", "4.0"):
            assert f"<th>{name}, request rate {rate}</th>" in cell


def test_an_answer_of_fit_is_shown_in_a_line():
    answer = kvsim.fit("llama-3.1-8b", "h100", tensor_parallel_size=2)
    assert repr(answer).startswith("<kvsim.Fit llama-3.1-8b on 2 x h100: ")
    assert f"{answer.capacity.kv_tokens:,} tokens" in repr(answer)
    assert "\n" not in repr(answer)


@pytest.mark.slow
def test_several_rates_are_drawn_as_curves():
    rates = [kvsim.simulate(num_prompts=40, request_rate=rate) for rate in (1.0, 4.0)]
    runs = kvsim.Comparison(rates)
    assert isinstance(runs.plot("throughput", latency="ttft:p99"), Figure)
    with pytest.raises(kvsim.KvsimError, match="figure 'wast' is unknown; did you mean 'waste'"):
        runs.plot("wast")


def test_a_page_is_made_and_a_life_is_told(tmp_path, recorded):
    page = recorded.report(tmp_path / "page.html")
    assert page.read_text(encoding="utf-8").startswith("<!")
    told = recorded.explain("slowest")
    assert "where its time went" in str(told)
    assert kvsim.simulate(**SMALL).explain(told.request).lines == told.lines


def test_the_page_of_a_comparison_names_runs_by_the_setting_that_differs(tmp_path):
    runs = kvsim.compare([{"request_rate": rate} for rate in (1.0, 4.0)], num_prompts=40)
    page = runs.report(tmp_path / "page.html").read_text(encoding="utf-8")
    for rate in ("1.0", "4.0"):
        assert f"paged, request rate {rate}" in page
    assert not any(run.path.parent.name in page for run in runs)


def test_saving_over_a_run_says_how_to_replace_it(tmp_path):
    run = kvsim.simulate(**SMALL)
    run.save(tmp_path / "out")
    with pytest.raises(kvsim.KvsimError, match="exists; pass force=True to replace it"):
        run.save(tmp_path / "out")
    assert run.save(tmp_path / "out", force=True) == tmp_path / "out"


def test_a_comparison_is_saved_under_labels_that_tell_its_runs_apart(tmp_path):
    runs = [kvsim.simulate(num_prompts=20, request_rate=rate) for rate in (1, 2)]
    both = kvsim.results.Comparison(runs)
    found = kvsim.load(both.save(tmp_path / "both"))
    assert [run.label for run in found] == ["paged-request-rate-1", "paged-request-rate-2"]
    assert [run.summary.requests for run in found] == [run.summary.requests for run in runs]
    with pytest.raises(kvsim.KvsimError, match="is saved already"):
        found.save(tmp_path / "again")
    with pytest.raises(kvsim.KvsimError, match="must differ"):
        kvsim.results.Comparison([runs[0], runs[0]]).save(tmp_path / "twins")


def test_what_a_notebook_shows_of_a_run_names_its_numbers(recorded):
    assert "served 40 requests" in repr(recorded)
    cell = recorded._repr_html_()
    assert "requests finished</th><td>40</td>" in cell
    assert "paged" in kvsim.compare(["contiguous", "paged"], **SMALL)._repr_html_()


# -- names and mistakes -----------------------------------------------------------------------------


def test_every_public_name_is_there_and_documented():
    for name in kvsim.__all__:
        assert getattr(kvsim, name).__doc__ or name == "__version__"
    assert set(kvsim.__all__) <= set(dir(kvsim))


def test_a_guessed_name_is_suggested():
    with pytest.raises(AttributeError, match="did you mean 'simulate'"):
        kvsim.simulation  # noqa: B018
    with pytest.raises(kvsim.KvsimError, match="unknown; did you mean 'max_num_seqs'"):
        kvsim.simulate(max_num_seq=3)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (
            lambda: kvsim.simulate(policy="lifo"),
            r"policy 'lifo' is unknown; did you mean 'lof'\? \(known: fcfs, priority, sjf, lof, lpm, ",
        ),
        (lambda: kvsim.simulate(model="gpt-5"), "model 'gpt-5' is unknown"),
        (
            lambda: kvsim.simulate("paged"),
            "scenario must be a kvsim.Scenario, got 'paged'; options are keywords",
        ),
        (lambda: kvsim.compare(["paged"], "sharegpt"), "traffic must be a kvsim.Traffic, got 'sharegpt'"),
        (lambda: kvsim.simulate(request_rate="fast"), "request_rate must be float or None, got str"),
        (lambda: kvsim.simulate(trace=pd.DataFrame()), "trace must be str, got DataFrame"),
        (lambda: kvsim.simulate(allocator=3), "allocator must be str or type, got int"),
        (lambda: kvsim.compare("paged"), "systems to compare must be a list, got 'paged'"),
        (lambda: kvsim.compare([]), "runs to compare must be at least one, got 0"),
        (lambda: kvsim.compare(["paged"], seeds=0), "seeds must be at least 1, got 0"),
        (lambda: kvsim.load("nowhere"), "nowhere is not a directory"),
        (lambda: kvsim.check_allocator("paged", calls=0), "calls must be from 1 to 1,000,000, got 0"),
    ],
)
def test_a_mistake_names_the_field_and_what_is_allowed(call, complaint):
    with pytest.raises(kvsim.KvsimError, match=complaint):
        call()


def test_the_options_are_in_the_docstring():
    text = kvsim.simulate.__doc__
    for name in ("max_num_seqs", "request_rate", "gpu_memory_utilization", "closed_sessions"):
        assert f"\n    {name} : " in text


def test_importing_kvsim_imports_nothing_slow():
    code = "import sys, kvsim; print(sorted({'numpy', 'pandas', 'typer', 'matplotlib'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_the_help_does_not_import_pandas_or_numpy():
    code = (
        "import sys\nfrom kvsim import cli\ncli.main(['--help'])\n"
        "print(sorted({'numpy', 'pandas', 'matplotlib', 'pyarrow'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.endswith("[]\n")
