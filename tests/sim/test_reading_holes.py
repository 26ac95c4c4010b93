"""llama.cpp's attention reads all cells up to the last one in use: decode steps are priced by that."""

import pytest
from support.serving import everything, serve, workload

from kvsim import workloads
from kvsim.allocators.llama.contiguous import LlamaContiguous
from kvsim.allocators.llama.scattered import LlamaScattered
from kvsim.allocators.paged import Paged
from kvsim.sim.build import build_engine
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.options.scenario import Scenario


class Told(CostModel):
    """One second per step; records what it is told about decode steps."""

    source = "test"
    context_tile = 16

    def __init__(self):
        self.contexts, self.spreads = [], []

    def step_ps(self, shape):
        if shape.decode_seqs:
            self.contexts.append(shape.context_tokens)
            self.spreads.append(shape.spread)
        return 10**12


def told(allocator):
    """What the cost model is told in a run of a long prompt that leaves, and a short one that continues."""
    cost, rows = Told(), [(0.0, 600, 3), (0.0, 100, 6)]
    serve(workload(rows), allocator, "orca", max_model_len=1_024, cost=cost, max_span=1)
    return cost


@pytest.mark.parametrize(("make", "padding"), [(LlamaScattered, 256), (LlamaContiguous, 32)])
def test_holes_and_padding_are_read(make, padding):
    cells = [702, 704, 704, 704, 704]  # the last one in use; what comes later goes into the hole
    found = told(make(2_000))
    assert found.contexts == [-(-top // padding) * padding for top in cells]
    assert found.spreads == [None] * 5  # all sequences read the same


def test_no_more_than_there_are():
    assert told(LlamaScattered(710)).contexts == [710] * 5


def test_others_read_their_contexts():
    assert told(Paged(2_000, 1)).contexts == [601 + 101, 602 + 102, 103, 104, 105]


def run_of(allocator, max_span):
    work = workloads.build(
        "sharegpt", num_prompts=60, request_rate=8.0, burstiness=1.0, seed=0, n=1, beam_width=1
    )
    return build_engine(Scenario(allocator=allocator).deployed(), work, max_span=max_span, check=True).run()


@pytest.mark.parametrize("allocator", ["llama-scattered", "llama-contiguous"])
def test_spans_end_as_single_steps(allocator):
    assert everything(run_of(allocator, 1 << 20)) == everything(run_of(allocator, 1))


def test_a_run_takes_longer_than_where_holes_are_not_read():
    """The requests that fit are (nearly) the same: only the reading differs."""
    scattered, paged = (run_of(name, 1 << 20).end_ps for name in ("llama-scattered", "paged"))
    assert scattered > paged
