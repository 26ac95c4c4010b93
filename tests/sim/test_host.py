"""The host's time in a step: what it adds, and what is hidden."""

import numpy as np
import pytest
from support.settings import deployed, server_with

from kvsim.sim.build import resolve
from kvsim.sim.cost.host import USUAL, Host, host_of
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.run import prepare
from kvsim.sim.schedulers import SCHEDULERS
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.workload import Workload

MS, US = 1_000_000_000, 1_000_000
DECODE = StepShape(decode_seqs=20, context_tokens=20 * 500)
MIXED = StepShape(300, 300 * 301 // 2, 2, 20, 20 * 500)


def scenario(cost="roofline", async_scheduling=False, **facts):
    engine = EngineConfig(async_scheduling=async_scheduling)
    gpu, cost, profile = gpu_and_cost("h100", cost)
    return deployed(
        model=model_named("llama-3.1-8b"), gpu=gpu, engine=engine, cost=cost, profile=profile, **facts
    )


def step_ps(where, shape):
    return cost_named(where.cost, where).step_ps(shape)


@pytest.mark.parametrize("cost", ["roofline", "measured-elsewhere"])
def test_a_synchronous_host_is_added_to_every_step(cost):
    bare, hosted = (scenario(cost, host_time=text) for text in ("none", "2+50"))
    assert step_ps(hosted, DECODE) - step_ps(bare, DECODE) == pytest.approx(2 * MS + 20 * 50 * US, abs=2)
    assert step_ps(hosted, MIXED) - step_ps(bare, MIXED) == pytest.approx(2 * MS + 22 * 50 * US, abs=2)


@pytest.mark.parametrize("cost", ["roofline", "measured-elsewhere"])
def test_an_overlapped_host_hides_behind_the_gpu_until_it_is_longer(cost):
    def overlapped(text):
        return scenario(cost, async_scheduling=True, host_time=text)

    for shape, sequences in ((DECODE, 20), (MIXED, 22)):
        bare = step_ps(overlapped("none"), shape)
        assert step_ps(overlapped("2+50"), shape) == bare
        assert step_ps(overlapped("80+500"), shape) == 80 * MS + sequences * 500 * US


@pytest.mark.slow
@pytest.mark.parametrize("cost", ["roofline", "measured-elsewhere"])
@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("text", ["0.8+41", "7.1+0", "9+900"])
def test_the_steps_of_a_span_have_the_host_of_single_steps(cost, overlapped, text):
    where = scenario(cost, async_scheduling=overlapped, host_time=text)
    model = cost_named(where.cost, where)
    spans = list(model.span_ps(20, 20 * 500, 128))
    assert spans[0] == model.step_ps(DECODE)
    assert spans[64] == model.step_ps(DECODE._replace(context_tokens=20 * 564))


def test_a_host_belongs_to_measured_gpu_times_unless_it_is_asked_for():
    assert host_of(scenario("roofline")) is None
    usual = host_of(scenario("measured-elsewhere"))
    assert usual.base_s > 0 and usual.per_sequence_s > 0 and not usual.overlapped
    assert host_of(scenario("measured-elsewhere", async_scheduling=True)).overlapped
    assert host_of(scenario(host_time="1.5")) == Host(1.5e-3, 0)


class Own(Scheduler):
    """Whole prompts, one after the other; its host's time is unknown."""

    def schedule(self, server):
        server.grow_due()
        while server.waiting and server.admit_head(server.waiting[0].known_tokens):
            pass


class Waits(Own):
    hides_host = False


OWN = {"own": f"{__name__}:Own", "waits": f"{__name__}:Waits"}
WAIT = ("vllm-v1@0.11.0", "vllm-v0", "nano-vllm", "vtc-artifact", "waits")
HIDE = ("vllm-v1@0.33.0", *sorted({*SCHEDULERS} - {"vllm-v1", "vllm-v0", "nano-vllm", "vtc-artifact"}), "own")


def served_alone(scheduler, **facts):
    """One request of 600 + 50 tokens on a server with default settings."""
    allocator = {"sglang": "sglang"}.get(scheduler, "paged")
    where = {"model": "llama-3.1-8b", "gpu": "h100", "scheduler": OWN.get(scheduler, scheduler)}
    if scheduler == "sarathi":
        where["max_num_batched_tokens"] = 8192  # else it computes the prompt in two pieces
    scenario = server_with(allocator=allocator, **where | facts).deployed()
    work = Workload("one", *(np.array([number]) for number in (0, 600, 50)))
    return prepare(scenario, work, {}).outcome()


def test_without_asynchronous_scheduling_every_engine_waits_for_its_host():
    vllm = served_alone("vllm-v1@0.11.0").requests
    for scheduler in HIDE:
        found = served_alone(scheduler, async_scheduling=False).requests
        for name in ("ttft_s", "e2e_s"):
            assert found[name] == pytest.approx(vllm[name], abs=1e-9), scheduler


def test_all_engines_have_one_clock_whose_host_hides_unless_the_engine_waits():
    vllm = served_alone("vllm-v1@0.33.0").requests
    for scheduler in HIDE:
        found = served_alone(scheduler).requests
        for name in ("ttft_s", "e2e_s"):
            assert found[name] == pytest.approx(vllm[name], abs=1e-9), scheduler
    each_s = USUAL.seconds(1)
    for scheduler in WAIT:
        found = served_alone(scheduler).requests
        assert found["e2e_s"] - vllm["e2e_s"] == pytest.approx(50 * each_s, abs=1e-6), scheduler


def test_an_engine_whose_host_is_not_known_says_whose_stands_in():
    own, other = (served_alone(name).summary["cost"]["source"] for name in ("vllm-v1", "orca"))
    assert "as " not in own.partition("host")[2] and "host 1.15 ms + 48 us per sequence, hidden" in own
    assert "48 us per sequence (vllm-v1's, as orca's is not known), hidden behind the GPU" in other
    assert other.count("vllm-v1's, as orca's is not known") == 2
    asked = served_alone("orca", host_time="1+2", frontend_latency=0.1).summary["cost"]["source"]
    assert "not known" not in asked
    assert "host" not in served_alone("orca", cost="roofline").summary["cost"]["source"]


@pytest.mark.parametrize("text", ["", "fast", "1+", "1+x", "-1", "nan", "1+2+3"])
def test_a_host_time_that_is_none_is_refused(text):
    if text == "1+":
        assert host_of(scenario(host_time=text)) == Host(1e-3, 0)
        return
    with pytest.raises(
        KvsimError, match=r"host_time must be auto, none, or ms and us per sequence as in 0.8"
    ):
        host_of(scenario(host_time=text))


def test_a_constant_cost_has_no_place_for_a_host():
    belongs = "it belongs to cost roofline, calibrated, measured-elsewhere"
    with pytest.raises(KvsimError, match=f"host_time must be left out for cost constant:0.03: {belongs}"):
        resolve(scenario("constant:0.03", host_time="1+1"))


def test_without_options_the_papers_server_has_none():
    default = Deployment(model=model_named("opt-13b"), gpu=gpu_named("a100-40gb"), engine=EngineConfig())
    assert host_of(default) is None
    assert cost_named("roofline", default).step_ps(DECODE) == 26_288_245_930
    assert cost_named("roofline", default).step_ps(MIXED) == 42_906_866_266
