"""The typed summary says what summary.json says, under the same names."""

import json
import pickle

import pytest
from support.pages import Mapped

import kvsim
from kvsim.sim.record.summary import Part, Summary, _hints

GOALS = ("slo.", "per_gpu.", "price.")
"""What a run has where goals were set, see test_goals.py."""


@pytest.fixture(scope="module")
def run():
    return kvsim.simulate(num_prompts=60, request_rate=float("inf"))


def typed_names(part, prefix=""):
    """Every name that is declared, down to the last part."""
    for name, kind in _hints(part).items():
        inner = list(typed_names(kind, f"{prefix}{name}.")) if kind is not Part else []
        yield from inner or [f"{prefix}{name}"]


TORCH = "memory_stats."
SELDOM = (
    "upkeep.",
    "tier.",
    "speculation.",
    "service.",
    "hand_over.",
    "migration.",
    TORCH,
    "cost.validated.",
    "memory.average.idle",
    "memory.saturated.idle",
    "memory.groups",
    *GOALS,
)
"""Of few allocators or fleets, with goals, drafts, a tier or clients, and where the clock was validated."""


def declared():
    return {name for name in typed_names(Summary) if not name.startswith(SELDOM)} | {"cost.validated"}


def test_every_number_of_the_file_is_declared_and_no_other(run):
    one_server = {
        name
        for name in declared()
        if not name.startswith(("fleet.", "pools", "faults", "scaling", "replicas"))
    }
    assert one_server == run.summary.flat().keys() | {"requests.rejected_reasons"}


def test_so_is_every_number_of_a_fleet():
    fleet = kvsim.simulate(num_prompts=120, request_rate=float("inf"), replicas=2)
    assert {
        name for name in declared() if not name.startswith(("pools", "faults", "scaling"))
    } == fleet.summary.flat().keys() | {"requests.rejected_reasons"}
    assert fleet.summary.fleet.replicas == len(fleet.summary.replicas) == len(fleet.replicas) == 2


def test_what_few_allocators_have_is_declared_too():
    run = kvsim.simulate(allocator=Mapped, num_prompts=40, request_rate=float("inf"))
    seldom = {name for name in typed_names(Summary) if not name.startswith(GOALS)} - declared()
    tensors = kvsim.simulate(allocator="static-cache", num_prompts=5)
    validated = kvsim.simulate(model="llama-3.1-8b", gpu="rtx-4090", cost="measured-elsewhere", num_prompts=5)
    said = '{"method": "ngram", "num_speculative_tokens": 2, "synthetic_acceptance_length": 2}'
    drafts = kvsim.simulate(model="llama-3.1-8b", gpu="h100", speculative_config=said, num_prompts=5)
    tiered = kvsim.simulate(kv_offloading_size="1GiB", secondary_tiers="ssd:2GiB:nvme", num_prompts=5)
    mixed = kvsim.simulate(clients_mix="A:1:ttft=1", num_prompts=5)
    apart = kvsim.simulate(model="llama-3.1-8b", gpu="h100", pool=["prefill:1", "decode:1"], num_prompts=5)
    moved = kvsim.simulate(model="llama-3.1-8b", replicas=2, migrate="llumnix", num_prompts=5)
    hybrid = kvsim.simulate(model="gemma-3-27b", gpu="h100", num_prompts=3)
    by_name = ("service.clients", "memory.groups", "tier.links")
    found = {
        next((part for part in by_name if name.startswith(f"{part}.")), name)
        for each in (run, tensors, validated, drafts, tiered, mixed, apart, moved, hybrid)
        for name in each.summary.flat()
        if name.startswith(SELDOM)
    }
    assert seldom == found | {"migration.given_up"}  # by reason: none here
    stats = tensors.summary.memory_stats
    assert 0 < stats.requested_peak_bytes <= stats.allocated_peak_bytes <= stats.reserved_peak_bytes
    assert run.summary.upkeep.maps > 0


def test_attributes_subscripts_and_flat_names_are_the_same_numbers(run):
    summary = run.summary
    p99 = summary.latency.ttft_s.p99
    assert p99 == summary["latency"]["ttft_s"]["p99"] == summary.flat()["latency.ttft_s.p99"]
    assert summary.memory.average.token == summary["memory"]["average"]["token"]
    assert json.loads(json.dumps(summary.as_json())) == summary


def test_the_six_kinds_sum_to_the_whole_memory(run):
    assert sum(run.summary.memory.average.values()) == pytest.approx(100)


def test_a_name_that_is_not_there_suggests_one_that_is(run):
    with pytest.raises(AttributeError, match="Latency has no 'tftt_s'; did you mean 'ttft_s'"):
        run.summary.latency.tftt_s  # noqa: B018


def test_a_shell_shows_a_line_for_each_group_of_numbers(run):
    lines = repr(run.summary).splitlines()
    p99 = run.summary.latency.ttft_s.p99
    (ttft,) = [line for line in lines if line.startswith("  latency.ttft_s: ")]
    assert f"p99={p99:.4g}" in ttft


def test_an_editor_is_offered_the_names(run):
    assert {"ttft_s", "itl_s"} <= set(dir(run.summary.latency))


def test_it_can_be_sent_to_another_process(run):
    assert pickle.loads(pickle.dumps(run.summary)) == run.summary


def test_a_replica_of_a_fleet_has_its_own_rows(tmp_path):
    fleet = kvsim.simulate(num_prompts=30, request_rate=5.0, replicas=3, record_map=20)
    fleet.save(tmp_path / "run")
    for run in (fleet, kvsim.load(tmp_path / "run")):
        for place, one in enumerate(run.replicas):
            assert len(one.requests) == one.summary.requests.submitted == 10
            assert (one.requests["replica"] == place).all()
            assert len(one.timeline) == len(one.columns.timeline["time_s"]) < len(run.timeline)
            assert set(one.events["request"]) <= set(one.requests["request"])
            assert (one.map["replica"] == place).all()
