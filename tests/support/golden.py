"""The golden files, kvsim's answer to each through its command line alone, and their differences.

    golden file --rows, flags--> trace.jsonl, command line --sim run--> Answer --differences--> sentences

A step takes one second, so golden step k starts at k seconds. Golden steps that compute nothing have no
row in kvsim's log: steps are matched by `start_s`. Request tables count executed steps: their numbers are
looked up in the log, which says when those steps started.
"""

import gzip
import io
import json
from collections import Counter
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyarrow import parquet

from kvsim import cli
from kvsim.sim.build import build_engine
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.run import deployment_of
from kvsim.sim.workload import PS_PER_S
from kvsim.workloads.source import opened
from support.shared_data import goldens

SCHEDULERS = {
    "v0110": "vllm-v1@0.11.0",
    "v033": "vllm-v1@0.33.0",
    "v042": "vllm-v0@0.4.2",
    "nano": "nano-vllm",
}
"""Folder of golden files -> the scheduler that must behave like its engine."""
FIRST_BLOCK = {"v0110": 1, "v033": 1, "nano": 0}
"""The engine's number of the first block that it allocates (vLLM V1 keeps block 0)."""

_COMMON = (
    *("running", "waiting", "preemptions_cum", "blocks_in_use", "prefill_tokens", "decode_tokens"),
    *("running_end", "blocks_in_use_end"),
)
_V1 = (*_COMMON, "hit_tokens", "recomputed_tokens", "kv_tokens", "finished", "waiting_end")
_V0 = (
    *(*_COMMON, "swapped", "swapouts_cum", "logical_blocks", "shared_blocks", "cow_copies"),
    *("swap_in_blocks", "swap_out_blocks", "cpu_blocks_in_use"),
)
STEP_COLUMNS = {"v0110": _V1, "v033": _V1, "nano": _V1, "v042": _V0}
"""Columns of `per_step` that `steps.parquet` must also hold, with the same numbers."""
TOTALS = {
    "busy_steps": "steps",
    "preemptions": "preemptions_recompute",
    "swapouts": "preemptions_swap",
    "hit_tokens": "prefix_hit_tokens",
    "cow_copies": "cow_copies",
}
"""Golden total -> its name under `engine` in `summary.json`."""
REQUEST_COLUMNS = {
    "first_scheduled_step": min,
    "first_token_step": min,
    "finish_step": max,
    "num_preemptions": max,
}
"""Columns of `per_request`, and how a request with several answers derives its own from theirs."""


# -- golden files -------------------------------------------------------------------------------------


def _names() -> tuple[list[str], list[str]]:
    """The goldens with their own files, and those that share an `edge_cases.json`; none without ../shared."""
    try:
        folder = goldens()
    except (pytest.skip.Exception, pytest.fail.Exception):
        return [], []
    files = [path for engine in SCHEDULERS for path in sorted((folder / engine).glob("*.json.gz"))]
    edges = [path for engine in SCHEDULERS for path in sorted((folder / engine).glob("edge_cases.json"))]
    return (
        [f"{path.parent.name}/{path.name.removesuffix('.json.gz')}" for path in files],
        [f"{path.parent.name}/edge_cases/{case}" for path in edges for case in json.loads(path.read_bytes())],
    )


GOLDENS, EDGE_CASES = _names()


@cache
def golden(name):
    """The content of the file, with `engine`, and with `requests`, the workload. Not to be changed."""
    engine, stem, *case = name.split("/")
    if case:
        return json.loads(goldens(f"{engine}/{stem}.json").read_bytes())[case[0]] | {"engine": engine}
    found = _unzipped(f"{name}.json.gz") | {"engine": engine}
    return found | _unzipped(f"workloads/{stem.partition('__')[0]}.json.gz")


def _unzipped(path):
    return json.loads(gzip.decompress(goldens(path).read_bytes()))


def busy_steps(case):
    """The steps that compute something."""
    tokens = zip(case["per_step"]["prefill_tokens"], case["per_step"]["decode_tokens"], strict=True)
    return [step for step, both in enumerate(tokens) if any(both)]


# -- golden -> command line ---------------------------------------------------------------------------


def rows(case):
    """A tuple of golden request ids per row of the trace, in order of arrival.

    Only vLLM V0 forks: there the children of a parent are the answers to one request. In other engines
    they are separate requests.
    """
    groups = {}
    for request in sorted(case["requests"], key=lambda request: (request["arrival"], request["id"])):
        forks = case["engine"] == "v042" and "parent" in request
        key = ("parent", request["parent"]) if forks else ("id", request["id"])
        groups.setdefault(key, []).append(request)
    return [
        tuple(request["id"] for request in sorted(group, key=lambda request: request.get("child", 0)))
        for group in groups.values()
    ]


def trace_lines(case):
    """The workload as kvsim's own JSONL."""
    requests = {request["id"]: request for request in case["requests"]}
    for ids in rows(case):
        first, outputs = requests[ids[0]], [requests[i]["output_len"] for i in ids]
        row = {"arrival_s": first["arrival"], "prompt_tokens": first["prompt_len"]}
        row |= {"output_tokens": outputs, "n": len(ids)} if len(ids) > 1 else {"output_tokens": outputs[0]}
        if "prompt_ids" in first:
            row["prompt_token_ids"] = first["prompt_ids"]
        yield json.dumps(row) + "\n"


def flags(case):
    """The engine's configuration as command-line flags."""
    config, engine = case["config"], case["engine"]
    yield from ("--allocator", "paged", "--scheduler", SCHEDULERS[engine], "--cost", "constant:1")
    yield from ("--model", "llama-2-7b")  # any that allows the longest max_model_len
    yield from ("--num-gpu-blocks", str(config["usable_blocks"]))
    for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        yield from (f"--{name.replace('_', '-')}", str(config[name]))
    if engine != "nano":  # which always caches
        yield "--enable-prefix-caching" if config["caching"] else "--no-enable-prefix-caching"
    if "watermark" in config:
        yield from ("--watermark", str(config["watermark"]))
    if not config.get("scheduler_reserve_full_isl", True):
        yield "--no-reserve-full-prompt"
    if engine == "v033":
        yield "--no-async-scheduling"
    if "cpu_blocks" in config:
        yield from ("--num-cpu-blocks", str(config["cpu_blocks"]))
    if config.get("chunked"):
        yield "--enable-chunked-prefill"


def command(case, directory, step_log):
    """The arguments of `sim`; writes the trace into the directory; the results will be in its `run`."""
    trace = directory / "trace.jsonl"
    trace.write_text("".join(trace_lines(case)))
    out = ("--no-plots", "--quiet", "--out", str(directory / "run"))
    return ["run", "--trace", str(trace), *flags(case), *(["--step-log"] if step_log else []), *out]


# -- command line -> answer ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A run directory: tables as columns of plain values, and the bytes of its files except `config.json`.

    (That one names the temporary directory.)
    """

    steps: dict[str, list] | None
    requests: dict[str, list]
    samples: dict[str, list] | None
    summary: dict
    files: dict[str, bytes]

    @classmethod
    def read(cls, directory):
        def columns(name):
            path = directory / f"{name}.parquet"
            return parquet.ParquetFile(path).read().to_pydict() if path.exists() else None

        names = sorted({path.name for path in directory.iterdir()} - {"config.json"})
        files = {name: (directory / name).read_bytes() for name in names}
        summary = json.loads(files["summary.json"])
        del summary["simulation"]  # wall times
        files["summary.json"] = json.dumps(summary).encode()
        return cls(columns("steps"), columns("requests"), columns("samples"), summary, files)


def answer(name, step_log=True):
    """The results of `sim run` for a golden's workload."""
    return _answered(name, step_log)[0]


@cache
def _answered(name, step_log):
    """The same, with the scenario and the workload of its `config.json`."""
    with TemporaryDirectory() as directory:
        run = _run(golden(name), Path(directory), step_log)
        scenario, traffic = deployment_of(json.loads((run / "config.json").read_text()))
        return Answer.read(run), scenario, opened(Traffic.from_json(traffic)).workload()


def _run(case, directory, step_log):
    arguments, said = command(case, directory, step_log), io.StringIO()
    with redirect_stderr(said):
        code = cli.main(arguments)
    assert code == 0, said.getvalue()
    return directory / "run"


# -- answer and golden -> differences -----------------------------------------------------------------


def differences(case, answer):
    """A sentence for each column and total that differs from the golden file; none if all agree."""
    starts = answer.steps["start_s"]
    if starts != busy_steps(case):
        return [_difference("start_s", range(len(starts)), starts, busy_steps(case))]
    return [
        *_step_differences(case, answer.steps),
        *_request_differences(case, answer),
        *_total_differences(case, answer.summary["engine"]),
    ]


def _difference(name, labels, got, expected):
    """The first difference of two columns; None if they are equal."""
    if got == expected:
        return None
    if len(got) != len(expected):
        return f"{name}: {len(got)} rows, golden {len(expected)}"
    wrong = [place for place in zip(labels, got, expected, strict=True) if place[1] != place[2]]
    where, ours, theirs = wrong[0]
    return f"{name}: {len(wrong)} of {len(got)} differ, first at {where}: {ours}, golden {theirs}"


def _step_differences(case, steps):
    busy = busy_steps(case)
    if steps["step"] != list(range(len(busy))):
        yield "step: does not count the executed steps from 0"
    for name in STEP_COLUMNS[case["engine"]]:
        if name not in steps:
            yield f"{name}: steps.parquet lacks it"
            continue
        column = case["per_step"][name]
        if wrong := _difference(name, busy, steps[name], [column[step] for step in busy]):
            yield wrong


def _request_differences(case, answer):
    told, groups, busy = {row["id"]: row for row in case["per_request"]}, rows(case), busy_steps(case)
    for name, of_group in REQUEST_COLUMNS.items():
        expected = [of_group(told[i][name] for i in ids) for ids in groups]
        got = answer.requests[name]
        if name.endswith("_step"):
            got = [_golden_step(step, busy) for step in got]
        if wrong := _difference(name, groups, got, expected):
            yield wrong
    if wrong := _difference(
        "status", groups, answer.requests["status"], [_status(case, ids) for ids in groups]
    ):
        yield wrong
    if any(len(ids) > 1 for ids in groups):
        samples = answer.samples or {"request": [], "sample": [], "finish_step": []}
        places = zip(samples["request"], samples["sample"], strict=True)
        got = {
            place: _golden_step(step, busy)
            for place, step in zip(places, samples["finish_step"], strict=True)
            if len(groups[place[0]]) > 1
        }
        expected = {
            (row, sample): told[i]["finish_step"]
            for row, ids in enumerate(groups)
            for sample, i in enumerate(ids)
            if len(ids) > 1
        }
        wrong = [(place, step, got.get(place)) for place, step in expected.items() if got.get(place) != step]
        if wrong or len(got) != len(expected):
            yield f"samples: {len(got)} rows, golden {len(expected)}; (row, sample), golden, got: {wrong[:3]}"


def _golden_step(step, busy):
    """The golden number of the executed step."""
    return None if step is None else busy[int(step)] if int(step) < len(busy) else f"executed step {step}"


def _status(case, ids):
    """nano-vLLM does not stop at the longest length."""
    if case["engine"] == "nano":
        return "finished"
    lengths = {row["id"]: row["prompt_len"] + row["output_len"] for row in case["requests"]}
    cut = any(lengths[i] > case["config"]["max_model_len"] for i in ids)
    return "truncated" if cut else "finished"


def _total_differences(case, engine):
    for theirs, ours in TOTALS.items():
        if theirs in case["totals"] and engine.get(ours) != case["totals"][theirs]:
            yield f"total {ours}: {engine.get(ours)}, golden {case['totals'][theirs]}"


# -- block tables, queues and the free list -------------------------------------------------------------


def notes(name):
    """For each executed step the facts of `detail` after the decision, noted on kvsim's own engine.

    The engine is that of the run's `config.json`.
    """
    case, (_, scenario, workload) = golden(name), _answered(name, True)
    engine = build_engine(scenario, workload, max_span=1)
    look = _look_v0 if case["engine"] == "v042" else _look
    ids, decide, seen = rows(case), engine.replica.decide, {}

    def after_the_step():
        if seen and case["engine"] != "v042":
            seen[max(seen)]["free_queue_end"] = _free_queue(case, engine.replica.server)

    def noting(server):
        after_the_step()
        decision = decide(server)
        seen[server.now_ps // PS_PER_S] = look(case, ids, server)
        return decision

    engine.replica.decide = noting
    engine.run()
    after_the_step()
    return seen


def _free_queue(case, server):
    return [block + FIRST_BLOCK[case["engine"]] for block in server.allocator.free_queue()]


def _look(case, ids, server):
    """Numbers of requests and blocks as in the recorded engine."""
    first = FIRST_BLOCK[case["engine"]]
    tables = {ids[r.index][0]: server.allocator.block_table(seq) for seq, r in server.running.items()}
    return {
        "running_order": list(tables),
        "waiting_order": [ids[request.index][0] for request in server.waiting],
        "tables": {str(i): [block + first for block in table] for i, table in tables.items()},
        "free_queue": _free_queue(case, server),
    }


def _look_v0(_case, _ids, server):
    """Reference counts of each table's blocks, by request: vLLM V0's block numbers are accidental."""
    tables = [(r.index, server.allocator.block_table(seq)) for seq, r in server.running.items()]
    owners = Counter(block for _, table in tables for block in table)
    return {"references": _by_row((row, [owners[block] for block in table]) for row, table in tables)}


def detail(case, step):
    """The golden's `detail` of a step, in the form of `notes`."""
    told = case["detail"][step]
    assert told["step"] == step
    if case["engine"] != "v042":
        facts = ("running_order", "waiting_order", "tables", "free_queue", "free_queue_end")
        return {fact: told[fact] for fact in facts}
    row_of = {i: row for row, ids in enumerate(rows(case)) for i in ids}
    tables = [(case["seq_to_request"][seq], table) for seq, table in told["tables"].items()]
    assert all(place == "GPU" for _, table in tables for _, place, _ in table)
    return {"references": _by_row((row_of[i], [owners for *_, owners in table]) for i, table in tables)}


def _by_row(tables):
    """The tables of each row of the trace, in an order that does not depend on the order of forks."""
    found = {}
    for row, table in tables:
        found.setdefault(row, []).append(table)
    return {row: sorted(found[row]) for row in sorted(found)}
