"""Recorded runs of SGLang's scheduler, and kvsim's answer to each: through its command line, and from inside.

    recording --rows, flags--> trace.jsonl, command line --sim run--> steps, requests   (what is written)
                                            --engine of its config.json--> steps             (the rest)

A step takes one second, so recorded step k starts at k seconds.
"""

import io
import json
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from pyarrow import parquet

from kvsim import cli
from kvsim.sim.build import build_engine
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.run import deployment_of
from kvsim.sim.workload import PS_PER_S
from kvsim.workloads.source import opened
from support.zoo import rows_at

RECORDED = rows_at("sglang/scheduler.json.gz")
RUNS = RECORDED.get("runs", {})
WRITTEN = ("running_end", "waiting_end", "prefill_tokens", "decode_tokens", "hit_tokens")
SEATS, INTERVAL = 256, 128


def rows(name):
    """The requests of a run in order of arrival."""
    found = RECORDED["workloads"][name.partition("__")[0]]
    return sorted(found, key=lambda row: (row["arrival"], row["id"]))


def trace_lines(name):
    """The requests as kvsim's own JSONL; SGLang serves high priorities first, kvsim low ones."""
    for row in rows(name):
        line = {"arrival_s": row["arrival"], "prompt_tokens": row["prompt_len"]}
        line["output_tokens"] = row["output_len"]
        if "prompt_ids" in row:
            line["prompt_token_ids"] = row["prompt_ids"]
        if "priority" in row:
            line["priority"] = -row["priority"]
        yield json.dumps(line) + "\n"


def flags(name):
    """The run's configuration as command-line flags."""
    config, size = RUNS[name]["config"], RUNS[name]["config"]["page_size"]
    tokens = config.get("chunk") or config.get("max_prefill_tokens", 16_384)
    windows = config.get("swa")
    yield from ("--scheduler", "sglang", "--cost", "constant:1", "--block-size", str(size))
    if windows:
        yield from ("--allocator", "sglang-dual", "--model", "model.json")
        yield from ("--swa-full-tokens-ratio", str(windows["size_swa"] / config["size"]))
        yield from ("--swa-eviction-interval", str(config.get("swa_eviction_interval", INTERVAL)))
    else:
        yield from ("--allocator", "sglang", "--model", "llama-2-7b")
    slots = config["size"] + (windows["size_swa"] if windows else 0)
    yield from ("--num-gpu-blocks", str(slots // size), "--max-num-batched-tokens", str(tokens))
    yield from ("--max-num-seqs", str(min(config.get("max_running", SEATS), tokens)))
    yield from ("--schedule-conservativeness", str(config.get("conservativeness", 1)))
    yield "--enable-chunked-prefill" if config.get("chunk") else "--no-enable-chunked-prefill"
    if not config.get("radix", True):
        yield "--no-enable-prefix-caching"
    if config.get("ignore_eos"):
        yield "--ignore-eos"
    if config.get("mixed"):
        yield "--enable-mixed-chunk"
    if config.get("priority"):
        yield from ("--policy", "priority", "--preemption-threshold", str(config["preempt_threshold"]))
    elif "policy" in config:
        yield from ("--policy", config["policy"])
    if not config.get("ignore_eos") and any(row["max_new"] != row["output_len"] for row in rows(name)):
        (asked,) = {row["max_new"] for row in rows(name)}
        yield from ("--max-tokens", str(asked))


def model_of(name):
    """A model of one full layer and one with the run's window."""
    return {
        **{"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "torch_dtype": "bfloat16"},
        **{"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
        **{"hidden_size": 64, "intermediate_size": 64, "vocab_size": 256, "head_dim": 64},
        **{"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 131_072},
        **{"num_local_experts": 1, "num_experts_per_tok": 1, "tie_word_embeddings": False},
        "sliding_window": RUNS[name]["config"].get("swa", {}).get("window", 1),
    }


def _run(name, directory, *more):
    model = directory / "model.json"
    model.write_text(json.dumps(model_of(name)))
    (directory / "trace.jsonl").write_text("".join(trace_lines(name)))
    out = ("--no-plots", "--quiet", "--out", str(directory / "run"))
    said = io.StringIO()
    typed = [str(model) if word == model.name else word for word in flags(name)]
    with redirect_stderr(said):
        code = cli.main(["run", "--trace", str(directory / "trace.jsonl"), *typed, *more, *out])
    assert code == 0, said.getvalue()
    return directory / "run"


def busy(name):
    """The recorded steps that computed something."""
    columns = RUNS[name]["columns"]
    steps = (dict(zip(columns, row, strict=True)) for row in RUNS[name]["per_step"])
    return {step["step"]: step for step in steps if step["kind"] != "idle"}


def written(name, step_log=True):
    """The output of `sim run`: its step log by columns, if there is one, and its requests."""
    return _answer(name, step_log)[:2]


@cache
def _answer(name, step_log):
    """The same, and an engine from its `config.json` that has not run yet."""
    with TemporaryDirectory() as folder:
        run = _run(name, Path(folder), *(["--step-log"] if step_log else []))
        files = [run / f"{table}.parquet" for table in ("steps", "requests")]
        tables = [parquet.read_table(file).to_pydict() if file.exists() else {} for file in files]
        scenario, traffic = deployment_of(json.loads((run / "config.json").read_text()))
        return *tables, build_engine(scenario, opened(Traffic.from_json(traffic)).workload(), max_span=1)


@cache
def inside(name):
    """Per step the facts that only the engine knows; per request its retractions and its hits."""
    engine = _answer(name, True)[2]
    look = Look(engine, [row["id"] for row in rows(name)])
    engine.run()
    return look.steps, look.retracted, look.admitted


class Look:
    """Records each step of an engine after it is planned, and after it is carried out."""

    def __init__(self, engine, ids):
        replica = engine.replica
        self.server, self.scheduler, self.ids = replica.server, replica.scheduler, ids
        self.steps, self.retracted, self.admitted = {}, {}, {}
        self._finished, self._evicted = [], []
        self._decide, self._evict = replica.decide, self.server.preempt
        self._admit, self._finish, self._commit = (
            self.server.admit_head,
            self.scheduler.finish,
            replica.commit.carry_out,
        )
        replica.decide, self.scheduler.finish = self.schedule, self.finish
        self.server.preempt, self.server.admit_head = self.evict, self.admit_head
        replica.commit.carry_out = self.commit

    @property
    def now(self):
        return self.server.now_ps // PS_PER_S

    def evict(self, request, **more):
        self._evicted.append(self.ids[request.index])
        self.retracted.setdefault(self.ids[request.index], []).append(self.now)
        self._evict(request, **more)

    def admit_head(self, tokens, match=None, **more):
        hits = match.tokens if match else 0
        request = self.server.waiting[0]
        self.admitted.setdefault(self.ids[request.index], []).append([self.now, hits])
        return self._admit(tokens, match, **more)

    def finish(self, server, request):
        self._finished.append(self.ids[request.index])
        self._finish(server, request)

    def schedule(self, server):
        self._evicted.clear()
        step, cut = self._decide(server), self.scheduler.chunked_req
        self.steps[self.now] = {
            "kind": ("mixed" if step.decodes else "prefill") if step.chunks else "decode",
            **self.memory(),
            "new_token_ratio": round(self.scheduler.ratio.now, 9),
            "retracted": sorted(self._evicted),
            "aborted": [],
            "chunked_req": None if cut is None else self.ids[cut.index],
        }
        return step

    def commit(self, plan):
        step = self.steps[self.now]
        self._finished.clear()
        self._commit(plan)
        step["finished_end"] = sorted(self._finished)
        step |= {f"{key}_end": count for key, count in self.memory().items() if "protected" not in key}
        step["batch_is_full_end"] = self.server.batch.full.now

    def memory(self):
        """Tokens in the pool, or in both pools: free, cached, in use."""
        allocator = self.server.allocator
        tree, windowed = allocator.tree, self.server.memory.windowed
        counts = {"available": allocator.pool.available}
        counts |= {"evictable": tree.evictable, "protected": tree.protected}
        if windowed is None:
            return counts
        free = windowed.pairs.windowed.available
        return {f"full_{key}": count for key, count in counts.items()} | {
            "swa_available": free,
            "swa_evictable": tree.windowed_evictable,
            "swa_protected": tree.windowed_protected,
        }
