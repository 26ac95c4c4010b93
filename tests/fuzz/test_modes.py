"""Random configurations of every registered part, in fast-forward and in step mode: every file is equal.

A part or an option of a part is tried from the day it is registered: the cases follow the registries.
"""

import json
from pathlib import Path
from random import Random

import pytest
from pyarrow import parquet
from support.attack import attack, tried
from support.drawn import (
    BESIDE,
    PARTS,
    common_options,
    option_words,
    part_words,
    parts_around,
    plain_words,
    run_of,
)

from kvsim.sim.parts import KINDS as PART_KINDS
from kvsim.sim.parts import declared_everywhere

pytestmark = pytest.mark.slow

KINDS = ("token", "held", "reserved", "internal", "cached", "external", "idle", "free")


def content_of(directory):
    """The files of a run by their path; of summaries, all but how long it took."""
    found = {}
    for path in sorted(Path(directory).rglob("*")):
        if path.is_file():
            name = str(path.relative_to(directory))
            found[name] = path.read_bytes()
            if path.name == "summary.json":
                found[name] = json.loads(found[name])
                found[name].pop("simulation", None)
    return found


def check_books(run):
    """No kind of slot is negative or missing at any instant; what is counted twice is counted alike."""
    timeline = parquet.read_table(run / "timeline.parquet").to_pydict()
    kinds = [timeline[name] for name in KINDS if name in timeline]
    assert min(map(min, kinds)) >= 0
    if "replica" not in timeline:
        assert len(set(map(sum, zip(*kinds, strict=True)))) == 1
    engine = json.loads((run / "summary.json").read_text())["engine"]
    requests = parquet.read_table(run / "requests.parquet").to_pydict()
    preempted = engine["preemptions_recompute"] + engine["preemptions_swap"]
    of_requests = sum(requests["num_preemptions"])  # those sent again count only what came after
    assert of_requests == preempted or (any(requests.get("resent", ())) and of_requests < preempted)


def in_both_modes(words):
    """What a run says, the same in both modes; its files are equal, and its books balance."""
    fast, slow = attack([*words, "--out", "fast"]), attack([*words, "--out", "slow", "--step-mode"])
    assert (fast.code, fast.err) == (slow.code, slow.err.replace("slow", "fast")), words
    if fast.code == 0:
        one, other = content_of("fast"), content_of("slow")
        assert [name for name in {**one, **other} if one.get(name) != other.get(name)] == [], words
        check_books(Path("fast"))
    return fast


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_every_registered_part_writes_the_same_files_in_both_modes(cases, kind, name):
    alone = plain_words(kind, name)
    assert in_both_modes(run_of(alone, Random(name), 0)).code == 0

    def case(rng):
        return in_both_modes(run_of(parts_around(rng, kind, name), rng, 4))

    tried(f"{kind} {name} in both modes", cases(1), case)


@pytest.mark.parametrize("name", declared_everywhere())
def test_every_option_of_a_part_writes_the_same_files_in_both_modes(cases, name):
    declared = declared_everywhere()[name]

    def case(rng):
        part = [f"--{declared.kind}", rng.choice(declared.parts), *option_words(rng, declared.named)]
        return in_both_modes(run_of(part, rng, 0))

    assert tried(f"{name} in both modes", cases(2), case)["accepted"]


@pytest.mark.parametrize("name", common_options())
def test_every_option_of_all_parts_writes_the_same_files_in_both_modes(cases, name):
    named = common_options()[name]
    if name in BESIDE:
        assert in_both_modes(run_of(BESIDE[name].split(), Random(name), 0)).code == 0

    def case(rng):
        words = option_words(rng, named) if name not in BESIDE else BESIDE[name].split()
        return in_both_modes(run_of(words, rng, 2))

    found = tried(f"{name} in both modes", cases(2), case)
    assert found["accepted"] or name in BESIDE


FLEETS = (
    *("--replicas 2", "--replicas 3", "--replicas 4"),
    *("--pool prefill:2 --pool decode:2", "--pool prefill:1 --pool decode:1 --mixed-pool 100"),
    *("--pool both:1:gpu=h100 --pool both:1:gpu=l40s", "--replicas 3 --migrate llumnix:source=48,target=96"),
    *("--replicas 2 --fail replica=0:at=1:for=2", "--replicas 3 --scale schedule:0=1,2=3"),
)
CLOSED = ("--clients 2", "--clients 3", "--clients 5", "--clients 9", "--clients 5 --think-time 0.3")


def test_answers_that_bring_requests_to_replicas_in_step(cases):
    """On a constant clock, steps of several replicas end at the same instants, and answers bring requests."""

    def case(rng):
        words = [
            "--model",
            "llama-3.1-8b",
            "--cost",
            "constant:0.03",
            "--num-prompts",
            rng.choice(["20", "60"]),
        ]
        words += [*rng.choice(FLEETS).split(), *rng.choice(CLOSED).split()]
        words += ["--kv-tokens", rng.choice(["1500", "4000", "20000"])]
        for kind in ("router", "scheduler", "policy", "allocator"):
            if rng.random() < 0.3:
                words += part_words(rng, kind, rng.choice(list(PART_KINDS[kind][0])))
        return in_both_modes(["run", "--no-plots", "--quiet", "--force", "--gpu", "h200", *words])

    assert tried("closed fleets in step", cases(20), case)["accepted"]
