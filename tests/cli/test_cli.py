"""The command line from outside: what it prints, what it writes, how it refuses and how it stops."""

import errno
import io
import json
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from kvsim import cli
from kvsim.allocators import ALLOCATORS
from kvsim.reports import progress
from kvsim.reports.rundir import claims, writing
from kvsim.sim import __version__, installed_build
from kvsim.sim.errors import KvsimError, listed
from kvsim.sim.models.catalog import model_names
from kvsim.sim.schedulers import SCHEDULERS
from kvsim.workloads import TRACES

ROOT = Path(cli.__file__).resolve().parent
SMALL = ("--cost", "constant:0.03", "--num-prompts", "20")
FILES = {".kvsim.json", "config.json", "summary.json", "requests.parquet", "timeline.parquet"}
FIGURES = {"memory.png", "waste.png", "requests.png", "latency.png"}


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    """80 columns, a clock that ticks half a second when read, and nothing around."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    ticks = count()
    clock = SimpleNamespace(perf_counter=lambda: 0.5 * next(ticks), process_time=lambda: 0.5 * next(ticks))
    monkeypatch.setattr("kvsim.sim.run.time", clock)


@pytest.fixture
def sim(capsys):
    """Carry out a command line: exit code, stdout and stderr without blanks at the ends of lines."""

    def sim(*arguments):
        code = cli.main(arguments)
        out, err = capsys.readouterr()
        return code, "\n".join(line.rstrip() for line in out.splitlines()), err

    return sim


def start(*arguments, **how):
    """The command as a process of its own, in the current directory."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from kvsim import cli; sys.exit(cli.main())"
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **how}
    how["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs ignore it
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **how)


def files_of(directory):
    """All files below, by relative path; the wall times of a summary left out."""
    found = {}
    for path in sorted(Path(directory).rglob("*")):
        if path.name == "summary.json":
            value = json.loads(path.read_text())
            for summary in value if isinstance(value, list) else [value]:
                del summary["simulation"]
            found[str(path.relative_to(directory))] = json.dumps(value)
        elif path.is_file():
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found


# -- one run --------------------------------------------------------------------------------------

RUN = """\
paged served 20 requests in 33.0 s: 0.605 requests/s, 161 output tokens/s; KV
memory 14.0 % tokens, 0.2 % waste over the whole run (no request ever waited).

███████████·····································································
█ token 14.0 %   ▒ reserved 0.2 %   · free 85.8 %

latency                            mean    p50    p90    p95    p99    max
──────────────────────────────────────────────────────────────────────────
TTFT, time to first token (ms)     43.3   45.2   50.9   52.2   52.8   53.0
TPOT, time per output token (ms)   30.0   30.0   30.0   30.0   30.0   30.0
ITL, time between tokens (ms)      30.0   30.0   30.0   30.0   30.0   30.0
E2E, end-to-end latency (s)        7.98   6.29   17.1   22.4   22.9   23.1
normalised latency (ms/token)      30.2   30.1   30.4   30.6   32.2   32.6
queueing delay (ms)                13.3   15.2   20.9   22.2   22.8   23.0

KV memory, 15,744 tokens               whole run
────────────────────────────────────────────────
token: holds a key and value              14.0 %
reserved: empty, will be written           0.2 %
internal: empty, never written             0.0 %
external: free, in pieces too small        0.0 %
cached: prefix that may be hit again       0.0 %
free: room for the next request           85.8 %

engine     vllm-v1 on paged: 1,088 steps, 4.82 requests at once on average, 13
           at most
counted    peak used tokens 6,393
clock      constant 0.03 s
           not validated
simulated  in 1.00 s of CPU, 20 requests/CPU-s
note: ShareGPT: first question and first answer, LLaMA tokens, at most 2,048 in
total.
note: The first 20 of the 8,156 rows of sharegpt, whatever the seed (see
--shuffle).
note: KV memory of 15,744 tokens: reported by the PagedAttention paper (Figure
2; 12 GiB).

written to runs/sharegpt-paged-constant-0.03-prompts20"""

COMPARISON = """\
Schedulers differ: orca (contiguous, buddy), vllm-v1 (paged).

                           contiguous       buddy       paged
─────────────────────────────────────────────────────────────
scheduler                        orca        orca     vllm-v1
requests finished                  20          20          20
requests/s                      0.633       0.633     0.867 *
output tokens/s                   168         168       230 *
requests at once, mean           5.04        5.04        6.91
requests at once, most              7           7        20 *

tokens in KV memory            14.6 %      14.6 %    20.0 % *
tokens, requests waiting       10.9 %      10.9 %    19.5 % *
total waste                    56.1 %      59.9 %     0.3 % *
  reserved                      7.0 %       7.0 %       0.3 %
  internal                     43.9 %      43.9 %       0.0 %
  external                      5.2 %       8.9 %       0.0 %
waste, requests waiting        89.1 %      89.1 %     0.9 % *

TTFT p50                       5.42 s      5.42 s   30.0 ms *
TTFT p99                       14.4 s      14.4 s    114 ms *
normalised latency, mean      85.6 ms     85.6 ms   30.1 ms *
preemptions                         0           0           0
blocked by KV memory           45.7 %      45.7 %       0.0 %
blocked by token budget         0.0 %       0.0 %       0.3 %
* best of its row; memory: means of the whole run

paged holds 1.4 times as many requests at once as contiguous and finishes 1.4
times as many per second; waste 0.3 % against 56.1 % over the whole run.

clock: constant 0.03 s; not validated
note: ShareGPT: first question and first answer, LLaMA tokens, at most 2,048 in
total.
note: The first 20 of the 8,156 rows of sharegpt, whatever the seed (see
--shuffle).
note: KV memory of 15,744 tokens: reported by the PagedAttention paper (Figure
2; 12 GiB).

written to runs/sharegpt-compare-constant-0.03-prompts20-rateinf"""


def test_a_run_reports_in_80_columns(sim):
    assert sim("run", *SMALL, "--no-plots") == (0, RUN, "")


def test_a_run_leaves_a_whole_directory(sim):
    name = "sharegpt-paged-constant-0.03-prompts20"
    assert sim("run", *SMALL, "--step-log", "--quiet") == (0, f"runs/{name}", "")
    assert set(files_of(f"runs/{name}")) == FILES | FIGURES | {"steps.parquet"}
    assert [path.name for path in Path("runs").iterdir()] == [name]


def test_vllms_way_to_switch_the_prefix_cache_off_is_the_default(sim):
    for out, switch in (("off", ["--no-enable-prefix-caching"]), ("usual", [])):
        assert sim("run", *SMALL, *switch, "--no-plots", "--quiet", "--out", out)[0] == 0
    assert files_of("off") == files_of("usual")


def test_several_answers_get_a_table_of_their_own_and_fork(sim):
    choices = ("--scheduler", "vllm-v0", "--n", "3")
    code, out, err = sim("run", *SMALL, *choices, "--no-plots")
    assert (code, err) == (0, "")
    assert set(files_of("runs/sharegpt-paged-constant-0.03-vllm-v0-prompts20-n3")) == {
        *FILES,
        "samples.parquet",
    }
    assert " blocks copied on write" in out
    assert "prefix cache" not in out


def test_what_prompts_share_is_found_and_reported(sim):
    questions = ((0, "first"), (0.1, "second"), (5, "third"))
    rows = [
        {"arrival_s": arrival, "segments": [["system", 160], [question, 40]], "output_tokens": 20}
        for arrival, question in questions
    ]
    Path("chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = sim("run", "--trace", "chat.jsonl", "--enable-prefix-caching", "--no-plots")
    assert (code, err) == (0, "")
    assert "prefixes   320 tokens were found in the prefix cache, 53.3 % of the prompts" in out


def test_without_out_every_run_gets_a_new_directory(sim):
    for _ in range(3):
        assert sim("run", *SMALL, "--no-plots", "--quiet")[0] == 0
    names = {f"sharegpt-paged-constant-0.03-prompts20{n}" for n in ("", "-2", "-3")}
    assert {path.name for path in Path("runs").iterdir()} == names
    assert sim("run", *SMALL, "--no-plots", "--quiet", "--force")[0] == 0
    assert len(list(Path("runs").iterdir())) == 3


def test_json_is_the_summary_and_nothing_else(sim):
    code, out, err = sim("run", *SMALL, "--no-plots", "--json", "--request-rate", "inf")
    target = "runs/sharegpt-paged-constant-0.03-prompts20-rateinf"
    assert (code, err) == (0, f"written to {target}\n")
    summary = json.loads(out)
    assert summary == json.loads(Path(target, "summary.json").read_text())
    assert summary["requests"]["finished"] == 20
    unknown = dict.fromkeys(("profile", "device", "date", "validated"))
    assert summary["cost"] == unknown | {
        "source": "constant 0.03 s",
        "extrapolated_share": 0.0,
        "clock": "constant 0.03 s",
        "trust": "not validated",
    }
    names = {name: summary["engine"][name] for name in ("allocator", "scheduler", "reserve")}
    assert names == {"allocator": "paged", "scheduler": "vllm-v1", "reserve": None}
    assert summary["simulation"] == {"cpu_s": 1.0, "wall_s": 1.0, "requests_per_cpu_s": 20.0}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(sim):
    for out in ("first", "second"):
        assert sim("run", *SMALL, "--step-log", "--out", out)[0] == 0
    assert files_of("first") == files_of("second")
    assert sim("run", *SMALL, "--step-log", "--out", "other", "--seed", "1", "--no-plots")[0] == 0
    assert files_of("other")["requests.parquet"] != files_of("first")["requests.parquet"]


def test_step_mode_changes_nothing(sim):
    common = ("run", *SMALL, "--request-rate", "inf", "--no-plots", "--kv-tokens", "4096")
    assert sim(*common, "--out", "spans")[0] == sim(*common, "--out", "steps", "--step-mode")[0] == 0
    assert files_of("spans") == files_of("steps")


def test_a_run_repeats_from_its_config_without_the_files_it_was_made_from(sim):
    geometry = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8}
    geometry |= {"intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 2048}
    Path("model.json").write_text(json.dumps(geometry))
    choices = ("--model", "model.json", "--gpu", "l4", "--allocator", "buddy:pow2", "--request-rate", "inf")
    assert sim("run", *choices, "--num-prompts", "20", "--seed", "3", "--no-plots", "--out", "first")[0] == 0
    Path("model.json").unlink()
    assert sim("run", "--config", "first/config.json", "--no-plots", "--out", "second")[0] == 0
    assert files_of("first") == files_of("second")
    config = json.loads(Path("first/config.json").read_text())
    assert config["kvsim"] == __version__
    assert config["workload"]["request_rate"] == "inf"
    assert config["scenario"]["engine"]["scheduler"] == "orca"
    assert config["scenario"]["model"]["layers"] == 8


def test_what_can_never_fit_is_rejected_and_counted_and_the_rest_is_served(sim):
    code, out, _ = sim("run", *SMALL, "--no-plots", "--kv-tokens", "512", "--max-model-len", "2048", "--json")
    summary = json.loads(out)
    assert code == 0
    counts = summary["requests"]
    assert counts["finished"] + counts["rejected"] == 20
    assert 0 < counts["rejected"] < 20
    reason = "does not fit an empty arena of 512 slots"
    assert counts["rejected_reasons"] == {reason: counts["rejected"]}
    assert f"{counts['rejected']} requests rejected: {reason}." in summary["notes"]


def test_a_cut_answer_is_noted(sim):
    _, out, _ = sim("run", *SMALL, "--no-plots", "--max-model-len", "512", "--json")
    summary = json.loads(out)
    cut = summary["requests"]["truncated"]
    assert cut
    assert f"{cut} answers cut at the maximum length of 512 tokens." in summary["notes"]


def test_a_users_own_allocator_is_found_in_the_current_directory(sim):
    Path("own_allocator.py").write_text("from allocators.paged import Paged\nclass Mine(Paged):\n    pass\n")
    choices = ("--allocator", "own_allocator:Mine", "--scheduler", "vllm-v1")
    code, target, _ = sim("run", *SMALL, *choices, "--quiet", "--no-plots")
    assert code == 0 and target.startswith("runs/sharegpt-own_allocator.Mine-")
    summary = json.loads(Path(target, "summary.json").read_text())
    assert summary["engine"]["allocator"] == "own_allocator:Mine"


@pytest.mark.parametrize("command", [("run",), ("compare",), ("run", "--seeds", "2", "--jobs", "1")])
def test_without_out_nothing_is_written_and_the_rest_is_the_same(sim, command):
    words = (*command, *SMALL, "--no-plots")
    code, out, err = sim(*words, "--no-out")
    assert (code, err) == (0, "")
    assert not list(Path().iterdir())
    written = sim(*words)[1]
    assert written.startswith(out) and written.removeprefix(out).strip().startswith("written to runs/")


NAMES = {
    "run": "sharegpt-paged",
    "run --request-rate 4 --seed 3": "sharegpt-paged-rate4-seed3",
    "run --request-rate inf --num-gpu-blocks 500": "sharegpt-paged-blocks500-rateinf",
    "run --allocator buddy:pow2": "sharegpt-buddy-pow2",
    "run --model llama-3.1-8b --gpu h100": "sharegpt-paged-llama-3.1-8b-h100",
    "run --scheduler nano-vllm": "sharegpt-paged-nano-vllm",
    "run --scheduler vllm-v1@0.11.0": "sharegpt-paged-vllm-v1-0.11.0",
    "run --trace synthetic --input-len uniform:10:20": "synthetic-paged-in-uniform-10-20",
    "run --clients 8 --think-time exponential:2": "sharegpt-paged-clients8-thinkexponential-2",
    "run --enable-prefix-caching --no-enable-chunked-prefill --max-num-batched-tokens 4096": (
        "sharegpt-paged-batched4096-no-chunked-prefix"
    ),
    "compare --gpu-memory-utilization 0.95": "sharegpt-compare-util0.95",
    "run --seeds 3 --seed 2": "sharegpt-paged-seed2-3-seeds",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", NAMES)
def test_a_directory_that_was_not_named_says_what_differs_from_the_defaults(sim, monkeypatch, line):
    @contextmanager
    def told(directory):
        raise KvsimError(f"{directory}")
        yield

    monkeypatch.setattr(claims, "first_free", told)
    assert sim(*line.split()) == (2, "", f"error: runs/{NAMES[line]}\n")


def test_what_a_config_repeats_has_the_same_name(sim):
    choices = ("--request-rate", "4", "--scheduler", "vllm-v0", "--seed", "3", "--no-plots", "--quiet")
    _, first, _ = sim("run", *SMALL, *choices)
    _, second, _ = sim("run", "--config", f"{first}/config.json", "--no-plots", "--quiet")
    assert second == f"{first}-2"


# -- several runs ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_reports_in_80_columns_and_leaves_a_whole_directory(sim):
    assert sim("compare", *SMALL, "--allocator", "contiguous,buddy,paged", "--request-rate", "inf") == (
        0,
        COMPARISON,
        "",
    )
    labels = ("contiguous", "buddy", "paged")
    out = "runs/sharegpt-compare-constant-0.03-prompts20-rateinf"
    expected = {f"{label}/{name}" for label in labels for name in FILES}
    assert set(files_of(out)) == expected | FIGURES | {
        ".kvsim.json",
        "config.json",
        "summary.json",
    }
    summaries = json.loads(Path(out, "summary.json").read_text())
    assert [summary["label"] for summary in summaries] == list(labels)
    config = json.loads(Path(out, "config.json").read_text())
    assert list(config["runs"]) == list(labels)


def test_a_run_of_a_comparison_is_the_same_run_alone(sim):
    assert sim("compare", *SMALL, "--quiet", "--no-plots", "--out", "all")[0] == 0
    assert sim("run", *SMALL, "--quiet", "--no-plots", "--out", "alone")[0] == 0
    assert sim("run", "--config", "all/paged/config.json", "--quiet", "--no-plots", "--out", "again")[0] == 0
    assert files_of("all/paged") == files_of("alone") == files_of("again")


def test_each_allocator_may_name_its_reserve_and_the_others_take_the_common_one(sim):
    names = "contiguous,buddy:pow2,dynamic,paged"
    _, out, _ = sim(
        "compare",
        *SMALL,
        "--allocator",
        names,
        "--reserve",
        "oracle",
        "--json",
        "--no-plots",
        "--scheduler",
        "orca",
    )
    found = [
        (each["label"], each["engine"]["reserve"], each["engine"]["scheduler"]) for each in json.loads(out)
    ]
    assert found == [
        ("contiguous-oracle", "oracle", "orca"),
        ("buddy-pow2", "pow2", "orca"),
        ("dynamic", None, "orca"),
        ("paged", None, "orca"),
    ]


@pytest.mark.slow
def test_figures_are_drawn_again_from_runs_and_comparisons(sim):
    assert sim("compare", *SMALL, "--out", "all", "--allocator", "buddy,paged", "--quiet")[0] == 0
    before = files_of("all")
    code, out, err = sim("plot", "all")
    assert (code, err) == (0, "")
    more = {f"{name}.png" for name in ("batched", "fragmentation", "lengths", "ranking", "utilisation")}
    assert set(out.split()) == {f"all/{name}" for name in {*FIGURES, *more}}
    after = files_of("all")
    assert json.loads(after.pop(".kvsim.json"))["files"] == sorted(
        {*FIGURES, *more, "config.json", "summary.json"}
    )
    del before[".kvsim.json"]
    assert {name: data for name, data in after.items() if name not in more} == before
    usual = ",".join(name.removesuffix(".png") for name in FIGURES)
    assert sim("plot", "all/paged", "all", "--out", "new", "--format", "svg", "--figure", usual)[0] == 0
    assert set(files_of("new")) == {".kvsim.json", *(name.replace("png", "svg") for name in FIGURES)}


# -- mistakes -------------------------------------------------------------------------------------

MODELS = listed(model_names())
ALLOCATOR_NAMES = listed(list(ALLOCATORS))
SCHEDULER_NAMES = listed(list(SCHEDULERS))
GPUS = (
    "a100-40gb, a100-80gb, h100, h100-pcie, h100-nvl, h200, h20, b200, b300, gb200, l4, l40s, a10g, a10, t4, "
)
MISTAKES = {
    "run --allocator pagd": f"allocator 'pagd' is unknown; did you mean 'paged'? (known: {ALLOCATOR_NAMES})",
    "run --scheduler kvsim.sim.schedulers.orca:Orka": "scheduler 'kvsim.sim.schedulers.orca:Orka' is not in "
    "kvsim: module 'kvsim.sim.schedulers.orca' has no attribute 'Orka'",
    "run --allocator no_module:Mine": "allocator 'no_module:Mine' cannot be imported: "
    "No module named 'no_module'",
    "run --trace sharegtp": f"trace 'sharegtp' is unknown; did you mean 'sharegpt'? "
    f"(known: {listed(list(TRACES))})",
    "run --model opt-13": f"model 'opt-13' is unknown; did you mean 'opt-13b'? (known: {MODELS})",
    "run --gpu a100-40": "gpu 'a100-40' is unknown; did you mean 'a100-40gb'? "
    f"(known: {GPUS}rtx-4090 and 6 more)",
    "run --cost calibrated": "cost calibrated needs a measured profile of gpu 'a100-40gb', and there is "
    "none: measure one with sim calibrate, name one with --gpu FILE, or use --cost roofline",
    "run --cost roofine": "cost 'roofine' is unknown; did you mean 'roofline'? "
    "(known: roofline, calibrated, measured-elsewhere, constant, logged, a100-40gb-sosp23, "
    "a100-80gb-osdi24, dgx-isca24)",
    "run --model foo/bar": "model 'foo/bar' is neither built in nor a file (see: sim models; of any "
    "other model, download its config.json from the hub and give that file)",
    "run --columns prompt_tokens=isl": "columns must be left out for trace sharegpt, which is no file, got "
    "'prompt_tokens=isl'",
    "run --gpu no/profile.json": "gpu 'no/profile.json' cannot be read: No such file or directory",
    "run --scheduler vllm-v1@9": "vLLM release must be 0.7.0 to 0.33.0, got '9'",
    "check-allocator pagd": f"allocator 'pagd' is unknown; did you mean 'paged'? (known: {ALLOCATOR_NAMES})",
    "check-allocator paged --calls 0": "calls must be from 1 to 1,000,000, got 0",
    "run --record-map 0": "record_map must be at least 1 instant, got 0",
    "run --watermark 1": "watermark must be at least 0 and below 1, got 1.0",
    "run --watermark 0.1 --scheduler orca": "watermark must be left out for scheduler "
    "orca: it belongs to scheduler vllm-v1, vllm-v0, sarathi, got 0.1",
    "run --scheduler vllm-v0@0.1": "scheduler version '0.1' is unknown; did you mean '0.1.0'? "
    "(known: 0.1.0, 0.1.7, 0.4.2)",
    "run --scheduler vllm-v0 --allocator contiguous": "allocator must be paged for scheduler vllm-v0, "
    "got contiguous",
    "run --scheduler vllm-v0@0.1.7 --enable-prefix-caching": "enable_prefix_caching must be off for "
    "scheduler vllm-v0@0.1.7, which lacks it",
    "run --scheduler vllm-v0@0.1.7 --enable-chunked-prefill": "enable_chunked_prefill must be off for "
    "scheduler vllm-v0@0.1.7, which lacks it",
    "run --scheduler nano-vllm --no-enable-prefix-caching": "enable_prefix_caching must be on for "
    "scheduler nano-vllm, which has no switch for it",
    "run --scheduler nano-vllm --no-enable-chunked-prefill": "enable_chunked_prefill must be on for "
    "scheduler nano-vllm, which has no switch for it",
    "run --enable-prefix-caching --scheduler orca": "enable_prefix_caching must be left out for "
    "scheduler orca, got True",
    "run --enable-prefix-caching --no-enable-prefix-caching": "enable_prefix_caching must be either on or "
    "off, got both",
    "run --async-scheduling --scheduler vllm-v1@0.11.0": "async_scheduling must be left out for "
    "scheduler vllm-v1@0.11.0, got True",
    "run --no-reserve-full-prompt --scheduler vllm-v1@0.11.0": "reserve_full_prompt must be left out for "
    "scheduler vllm-v1@0.11.0, got False",
    "run --policy lifo": "policy 'lifo' is unknown; did you mean 'lof'? (known: fcfs, priority, sjf, lof, "
    "lpm, dfs-weight, hrrn, shortest-prefill-first, random, routing-key, priority-lof, ssjf, srpt, pars, "
    "ltr, mlfq and 11 more)",
    "run --preemption drop --scheduler vllm-v0": "preemption must be one of recompute, swap, got 'drop'",
    "run --preemption swap": "preemption must be left out for scheduler vllm-v1: "
    "it belongs to scheduler vllm-v0, got 'swap'",
    "run --enforce-eager": "enforce_eager must be left out for cost roofline, which knows no launches",
    "run --num-cpu-blocks -1 --scheduler vllm-v0": "num_cpu_blocks must be at least 0, got -1",
    "run --num-cpu-blocks 100": "num_cpu_blocks must be left out for scheduler vllm-v1: "
    "it belongs to scheduler vllm-v0, got 100",
    "run --kv-cache-dtype int4": "kv_cache_dtype must be one of auto, fp8, fp8_e4m3, fp8_e5m2, fp16, bf16, "
    "bfloat16, fp32, got 'int4'",
    "run --n 0": "n must be a whole number from 1 to 64, got 0",
    "run --n 2 --beam-width 2 --scheduler vllm-v0": "n must be 1 with beam search (beam_width 2), got 2",
    "run --beam-width 0": "beam_width must be a whole number from 1 to 64, got 0",
    "run --beam-width 4": "beam_width must be 1 for scheduler vllm-v1, which cannot search by beams, got 4",
    "run --beam-width 4 --scheduler vllm-v0 --beam-process greedy": "beam_process must be uniform or "
    "replace:PROBABILITY, got 'greedy'",
    "run --beam-width 4 --scheduler vllm-v0 --beam-process replace:2": "beam_process replace needs a "
    "probability from 0 to 1, got 'replace:2'",
    "run --fit best": "fit must be left out for allocator paged: "
    "it belongs to allocator contiguous, dynamic, got 'best'",
    "run --scheduler vllm": "scheduler 'vllm' is unknown; did you mean 'vllm-v1'? "
    f"(known: {SCHEDULER_NAMES})",
    "run --block-size 0": "block_size must be a whole number of at least 1, got 0",
    "run --block-size 24": "block_size must be a power of two, got 24",
    "run --model llama-2-70b": "model llama-2-70b does not fit on 1 x a100-40gb: weights 128.5 GiB + "
    "activations 0.5 GiB + runtime 0.1 GiB + CUDA graphs 0.9 GiB need 93.5 GiB more than the 36.4 GiB "
    "available (39.6 GiB x 0.92); try --tensor-parallel-size 4 or a larger GPU",
    "run --request-rate 0": "request_rate must be above 0 requests/s (inf: all at once), got 0.0",
    "run --request-rate=-2": "request_rate must be above 0 requests/s (inf: all at once), got -2.0",
    "compare --request-rate nan": "request_rate must be above 0 requests/s (inf: all at once), got nan",
    "run --burstiness=-1": "burstiness must be above 0 and finite, got -1.0",
    "run --trace synthetic --shuffle": "shuffle must be left out for trace synthetic, whose rows are all "
    "equal, got True",
    "run --seeds 0": "seeds must be at least 1, got 0",
    "compare --seeds=-3": "seeds must be at least 1, got -3",
    "run --no-out --out x": "out must be left out with no_out, which writes nothing",
    "run --no-out --seeds 2 --step-log": "step_log must be left out with no_out, which writes nothing",
    "run --seeds 2 --jobs 0": "jobs must be at least 1, got 0",
    "run --seeds 5 --live": "live must be left out with seeds 5, which run side by side",
    "run --seed=-1": "seed must be a whole number of at least 0, got -1",
    "run --num-prompts 0": "num_prompts must be at least 1, got 0",
    "run --cost constant:abc": "cost constant needs seconds, as in constant:0.03, got 'constant:abc'",
    "run --reserve all": "reserve must be one of max, pow2, oracle, predicted:MODEL, got 'all'",
    "run --reserve max": "reserve must be left out for allocator paged, which reserves nothing",
    "compare --allocator paged --reserve max": "reserve must be left out: none of paged takes it, got 'max'",
    "compare --allocator buddy,paged --fit best": "fit must be left out: none of buddy, paged takes it, "
    "got 'best'",
    "compare --allocator paged,paged": "allocators to compare must differ, got paged 2 times",
    "compare --allocator paged,": f"allocator '' is unknown (known: {ALLOCATOR_NAMES})",
    "run --kv-tokens 8": "kv_tokens must be at least one block (16 tokens), got 8",
    "run --config none.json": "config none.json cannot be read: No such file or directory",
    "run --config none.json --seed 1 --gpu l4": "config none.json holds every choice: "
    "leave out --seed, --gpu",
    "plot none": "none is not a directory",
    "plot none --style grey": "style must be one of screen, paper, dark, got 'grey'",
    "plot none --at=-1": "at must be at least 0 and finite, in seconds, got -1.0",
    "plot none --latency tfft": "latency 'tfft' is unknown; did you mean 'ttft'? (known: ttft, tpot, itl, "
    "e2e, normalized, queueing)",
    "plot none --latency ttft:p42": "latency must be NAME:STATISTIC with one of mean, p50, p90, p95, p99, "
    "max, got 'ttft:p42'",
    "plot none --figure wast": "figure 'wast' is unknown; did you mean 'waste'? (known: memory, utilisation, "
    "fragmentation, waste, ranking, replicas, tier, hand-over, scaling, batched, requests, latency, "
    "throughput, block-size, lengths, fairness and 2 more)",
    "plot none --format gif": "format must be one of png, svg, pdf, or several, got 'gif'",
    "calibrate show none": "profile 'none' is unknown (known: h100-triton, h200-triton, "
    f"a100-40gb-sosp23, {GPUS[:-11]} and 7 more)",
    "calibrate show none.json": "profile none.json cannot be read: No such file or directory",
    "calibrate show h200 --style grey": "style must be one of screen, paper, dark, got 'grey'",
    "calibrate show h200 --format gif": "format must be one of png, svg, pdf, or several, got 'gif'",
    "calibrate --quick show h200": "--quick must be left out with calibrate show",
    "report none": "none is not a directory",
    "explain none 0": "none is not a directory",
    "trace-events none": "none is not a directory",
    "trace-events none --requests 0": "requests must be a number of them, A-B or all, got '0'",
    "trace-events none --requests 9-3": "requests must go up, got '9-3'",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_gets_one_line_and_leaves_nothing(sim, line):
    assert sim(*line.split()) == (2, "", f"error: {MISTAKES[line]}\n")
    assert not list(Path().iterdir())


@pytest.mark.parametrize("line", ["rum", "run --allocater paged", "run extra", "plot", "run --seed x"])
def test_a_mistyped_command_line_gets_one_line_too(sim, line):
    code, out, err = sim(*line.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")


def test_an_allocator_that_breaks_a_rule_is_told_which_and_one_that_keeps_them_what_they_say(sim):
    Path("leaky.py").write_text(
        "from allocators.paged import Paged\n\n\nclass Leaky(Paged):\n"
        "    def release(self, seq):\n        self._tables.pop(seq)\n"
    )
    code, out, err = sim("check-allocator", "leaky:Leaky", "--calls", "30")
    assert (code, out) == (2, "")
    assert err.startswith("error: allocator leaky:Leaky breaks a rule: slots_add_up: release(")
    code, out, err = sim("check-allocator", "radix", "--calls", "20")
    assert (code, err) == (0, "")
    assert "refusals change nothing" in out and "same calls give same addresses" in out
    assert "All of them hold: 20 random calls" in out


def test_a_directory_that_exists_needs_force(sim):
    assert sim("run", *SMALL, "--no-plots", "--quiet", "--out", "mine")[0] == 0
    refused = "error: output directory mine exists; pass --force to replace it\n"
    assert sim("run", *SMALL, "--out", "mine") == (2, "", refused)
    assert sim("compare", *SMALL, "--out", "mine") == (2, "", refused)
    assert sim("run", *SMALL, "--no-plots", "--quiet", "--out", "mine", "--force") == (0, "", "")


def test_an_unwritable_path_is_refused_before_the_run(sim, monkeypatch):
    monkeypatch.setattr(
        "kvsim.sim.serving.engine.Engine.run", lambda engine: pytest.fail("the run has begun")
    )
    Path("file").touch()
    below = f"error: cannot write file/out: {Path('file').resolve()} is not a directory\n"
    assert sim("run", *SMALL, "--out", "file/out") == (2, "", below)

    def refuse(path, *how):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("os.open", refuse)
    denied = "error: cannot write out: no permission to write there\n"
    assert sim("compare", *SMALL, "--out", "out") == (2, "", denied)
    assert [path.name for path in Path().iterdir()] == ["file"]


def wrapped(stop):
    """As `__set_name__` until Python 3.12 raises a stop that arrives within it: in any import."""
    error = RuntimeError("Error calling __set_name__ on 'member' instance 'field' in 'Made'")
    error.__cause__ = stop
    return error


def raised_from_itself(error):
    error.__cause__ = error
    return error


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            2,
            "error: cannot write deep/out: the disk is full\n",
        ),
        (
            raised_from_itself(OSError(errno.EDQUOT, "")),
            2,
            "error: cannot write deep/out: the disk is full\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written\n"),
        (wrapped(KeyboardInterrupt()), 130, "interrupted; nothing was written\n"),
    ],
    ids=["full disk", "disk from itself", "interrupt", "interrupt in another"],
)
def test_what_stops_the_writing_leaves_nothing(sim, monkeypatch, command, error, code, line):
    def fail(columns, path):
        if path.name == "timeline.parquet":
            raise error

    monkeypatch.setattr(writing, "write_columns", fail)
    assert sim(command, *SMALL, "--out", "deep/out") == (code, "", line)
    assert not list(Path().iterdir())


def test_a_damaged_config_is_refused(sim):
    assert sim("run", *SMALL, "--no-plots", "--quiet", "--out", "good")[0] == 0
    config = json.loads(Path("good/config.json").read_text())
    for damage, complaint in (
        (
            "{",
            "is not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ("{}", "cannot be used: it lacks 'scenario'"),
        (json.dumps({"scenario": config["scenario"]}), "cannot be used: it lacks 'workload'"),
        (
            json.dumps(config | {"workload": {"trace": "sharegpt", "rate": 3}}),
            "cannot be used: option 'rate' is unknown; did you mean 'rate_scale'? (known: "
            + listed(list(config["workload"]))
            + ")",
        ),
        ('{"runs": {"paged": {}}}', "belongs to a comparison: choose one of its runs (paged)"),
        ("[" * 5000, "is nested too deeply: more than 100 levels"),
        ("[" * 101 + "]" * 101, "is nested too deeply: more than 100 levels"),
    ):
        Path("bad.json").write_text(damage)
        line = f"error: config bad.json {complaint}\n"
        assert sim("run", "--config", "bad.json", "--out", "bad") == (2, "", line)


def test_a_bug_is_called_one_with_its_place_and_its_traceback_where_asked_for(sim, monkeypatch):
    def stumble(engine):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("kvsim.sim.serving.engine.Engine.run", stumble)
    code, out, err = sim("run", *SMALL)
    assert (code, out) == (1, "")
    assert err.startswith(f"bug: ZeroDivisionError: by nothing at {__file__}:")
    assert err.endswith(", in stumble; please report it (KVSIM_TRACEBACK=1 shows all of it)\n")
    assert err.count("\n") == 1
    monkeypatch.setenv("KVSIM_TRACEBACK", "1")
    code, out, traced = sim("run", *SMALL)
    assert code == 1 and traced.startswith("Traceback (most recent call last)") and traced.endswith(err)


# -- as a process ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_interrupt_in_the_middle_leaves_nothing():
    Path("slow.py").write_text(
        "from pathlib import Path\nfrom allocators.paged import Paged\n"
        "class Slow(Paged):\n    def admit(self, *how):\n"
        "        Path('started').touch()\n        return super().admit(*how)\n"
    )
    process = start("run", "--allocator", "slow:Slow", "--num-prompts", "1000000", "--out", "out")
    for _ in range(600):
        if Path("started").exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "interrupted; nothing was written\n")
    assert process.returncode == 130
    assert {path.name for path in Path().iterdir()} <= {"slow.py", "started", "__pycache__"}


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error():
    process = start("models")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=30) == 1


@pytest.mark.slow
def test_the_exit_code_reaches_the_shell():
    process = start("run", "--block-size", "24")
    assert process.communicate(timeout=30) == ("", "error: block_size must be a power of two, got 24\n")
    assert process.returncode == 2


# -- progress -------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stderr", [Terminal, io.StringIO])
def test_progress_shows_only_on_a_terminal(monkeypatch, stderr):
    monkeypatch.setattr(sys, "stderr", stderr())
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with progress.progress("paged", 1000, lambda: 250):
        time.sleep(0.5)
    shown = sys.stderr.getvalue()
    assert ("250/1000" in shown, "25 %" in shown) == ((True, True) if stderr is Terminal else (False, False))


@pytest.mark.parametrize(
    ("done", "total", "elapsed_s", "text"),
    [
        (0, 6, 9.0, ""),
        (1, 6, 13.0, "1:05 left"),
        (1, 100, 60.0, "1:39:00 left"),
        (6, 6, 9.0, "0:00 left"),
        (3, None, 1.0, ""),
    ],
)
def test_the_time_left_is_told_from_the_first_that_is_done(done, total, elapsed_s, text):
    assert progress.left(done, total, elapsed_s) == text


def test_until_one_is_done_the_longest_time_is_told():
    assert progress.left(0, 6, 9.0, longest_s=74.0) == "up to 1:05 left"
    assert progress.left(0, 6, 75.0, longest_s=74.0) == ""
    assert progress.left(1, 6, 13.0, longest_s=900.0) == "1:05 left"


def test_progress_is_seen_within_a_second():
    assert progress.PATIENCE_S + progress._GLANCE_S < 1


def test_a_short_run_shows_no_progress(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.progress("paged", 1000, lambda: 250):
        pass
    assert sys.stderr.getvalue() == ""


# -- help and lists -------------------------------------------------------------------------------


def test_every_command_and_option_has_help():
    for name, command in typer.main.get_command(cli.app).commands.items():
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "hidden", False) or parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("command", ["run", "compare"])
def test_every_option_is_whole_in_80_columns_of_help(sim, command):
    code, out, err = sim(command, "--help-all")
    assert (code, err) == (0, "")
    assert "…" not in out
    for option in typer.main.get_command(cli.app).commands[command].params:
        assert getattr(option, "hidden", False) or f" {option.opts[0]} " in out, option.opts[0]


@pytest.mark.parametrize("words", [[], ["traces"], ["calibrate"]])
def test_what_a_command_does_fits_in_a_line(sim, words):
    code, out, _ = sim(*words, "--help")
    assert code == 0 and "\nCommands:\n" in out
    listed = out.split("\nCommands:\n")[1].splitlines()
    assert listed and all(line.endswith(".") and not line.endswith("...") for line in listed)


@pytest.mark.parametrize("command", ["models", "gpus", "allocators", "schedulers", "traces"])
def test_lists_fit_in_80_columns(sim, command):
    code, out, err = sim(command)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_the_version_is_that_of_the_project(sim):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project.get("version", __version__) == __version__
    assert sim("--version") == (0, f"kvsim {__version__}, {installed_build()}", "")


@pytest.mark.parametrize(
    ("option", "text", "meant"),
    [("--num-prompts", " 10", 10), ("--num-prompts", "10.0", 10), ("--request-rate", "1e1", 10.0)],
)
def test_numbers_are_read_as_typer_reads_them(sim, option, text, meant):
    code, out, err = sim("run", "--num-prompts", "10", option, text, "--no-out", "--json")
    assert (code, err) == (0, "")
    plain = sim("run", "--num-prompts", "10", option, str(meant), "--no-out", "--json")
    assert json.loads(out) == json.loads(plain[1])


@pytest.mark.parametrize("text", ["10.5", "ten", "", "0x10", "1e1"])
def test_what_is_no_whole_number_is_refused(sim, text):
    code, _, err = sim("run", "--num-prompts", text, "--no-out")
    assert (code, err) == (2, f"error: num_prompts must be a whole number, got {text!r}\n")


def test_a_run_without_figures_imports_no_validator_and_no_matplotlib(tmp_path):
    options = ["run", "--num-prompts", "10", "--no-plots", "-q", "--out", str(tmp_path / "out")]
    code = (
        f"import sys, cli; cli.main({options});"
        "sys.exit(str({'pydantic', 'matplotlib', 'pandas'} & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.stderr == "set()\n"


def test_help_imports_nothing_slow():
    slow = "{'numpy', 'pyarrow', 'matplotlib', 'simpy', 'rich'}"
    code = f"import sys, cli; cli.main(['--help']); sys.exit(str({slow} & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.stderr == "set()\n"
