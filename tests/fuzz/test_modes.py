"""Random configurations of the command, in fast-forward and in step mode: every file of the runs is equal."""

import json
from pathlib import Path

import pytest
from pyarrow import parquet
from support.attack import attack, tried

pytestmark = pytest.mark.slow

SCHEDULERS = {
    "static": ["--allocator=buddy", "--allocator=dynamic", "--allocator=contiguous"],
    "orca": ["--allocator=buddy", "--allocator=dynamic", "--allocator=contiguous"],
    "vllm-v0": ["--preemption=swap", "--preemption=recompute", "--beam-width=2", "--enable-prefix-caching"],
    "vllm-v0@0.1.0": ["--preemption=swap", "--n=3", "--beam-width=2"],
    "vllm-v1@0.11.0": ["--enable-prefix-caching", "--enable-prefix-caching --allocator=radix"],
    "vllm-v1@0.33.0": ["--enable-prefix-caching", "--async-scheduling", "--watermark=0.05"],
    "nano-vllm": ["--enable-prefix-caching"],
}
"""Each with options that it takes."""

CHOICES = {
    "--block-size": ["8", "16", "32"],
    "--kv-tokens": ["300", "800", "1500", "4000", "20000"],
    "--max-num-seqs": ["2", "8", "64"],
    "--max-num-batched-tokens": ["300", "2048", "4096"],
    "--max-model-len": ["300", "1024"],
    "--input-len": ["uniform:1:400", "lognormal:100:1"],
    "--request-rate": ["0.5", "4", "inf"],
    "--policy": ["priority", "sjf"],
    "--clients": ["1", "5"],
    "--shared-prefix": ["2x50", "3x200"],
    "--n": ["2"],
    "--cost": ["roofline", "constant:0.03"],
    "--seed": ["1", "2", "3"],
}
KINDS = ("token", "reserved", "internal", "cached", "external", "idle", "free")
USUAL = "run --no-plots --quiet --force"


def configuration(rng):
    """A command line, of which most can be carried out."""
    scheduler = rng.choice(list(SCHEDULERS))
    words = [*USUAL.split(), "--num-prompts", rng.choice(["20", "40", "80"]), "--scheduler", scheduler]
    if rng.random() < 0.6:
        words += rng.choice(SCHEDULERS[scheduler]).split()
    for name in rng.sample(list(CHOICES), rng.randint(1, 5)):
        words += [name, rng.choice(CHOICES[name])]
    return [*words, "--record-map", rng.choice(["3", "40"])]


def content_of(directory):
    """The files of a run; of its summary, all but how long it took."""
    files = {path.name: path.read_bytes() for path in Path(directory).iterdir()}
    summary = json.loads(files["summary.json"])
    del summary["simulation"]
    return files | {"summary.json": summary}


def check_books(run):
    """No kind of slot is negative or missing at any instant; what is counted twice is counted alike."""
    timeline = parquet.read_table(run / "timeline.parquet").to_pydict()
    kinds = [timeline[name] for name in KINDS if name in timeline]
    assert min(map(min, kinds)) >= 0
    assert len(set(map(sum, zip(*kinds, strict=True)))) == 1
    engine = json.loads((run / "summary.json").read_text())["engine"]
    requests = parquet.read_table(run / "requests.parquet").to_pydict()
    preempted = engine["preemptions_recompute"] + engine["preemptions_swap"]
    assert sum(requests["num_preemptions"]) == preempted


def test_step_mode_and_fast_forward_write_the_same_files(cases):
    def case(rng):
        words = configuration(rng)
        fast, slow = attack([*words, "--out", "fast"]), attack([*words, "--out", "slow", "--step-mode"])
        assert (fast.code, fast.err) == (slow.code, slow.err.replace("slow", "fast"))
        if fast.code == 0:
            one, other = content_of("fast"), content_of("slow")
            assert [name for name in {**one, **other} if one.get(name) != other.get(name)] == [], words
            check_books(Path("fast"))
        return fast

    found = tried("modes", cases(25), case)
    assert found["accepted"] > 0
