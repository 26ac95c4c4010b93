"""Decisions that no recording shows, by rules that the recordings' READMEs state.

Each case is of a recording's form; its steps are those of a replayer written from the rules alone, which
reproduces all recordings of its family. Found by random cases, and shrunk:

    spec              one request that nearly fills the memory, preempted by its own drafts
    offload_loop      offers refused twice, chunks waited for twice, stores of an answer before an idle gap,
                      an abort that leaves nothing
    simple_offload    the lazy pool when its last store ends and nobody is there, an abort beside a last token
    vllm_priority     the order of finishing in a step; blocks of a victim that this step had served
    pd                prompts dropped in flight, aborts beside a last token, the order of finishing
"""

import gzip
import json
from pathlib import Path

import pytest
from support import disaggregated, offloaded, scheduled, second_pool, speculated

CASES = json.loads(
    gzip.decompress(Path(__file__).parents[1].joinpath("data/by_the_rules.json.gz").read_bytes())
)
DIFFERENCES = {
    "spec": lambda case: speculated.differences(case, speculated.records(case)),
    "offload_loop": lambda case: offloaded.differences(case, offloaded.Noted(case).run()),
    "simple_offload": lambda case: second_pool.differences(case, second_pool.NotedSecond(case).run()),
    "vllm_priority": lambda case: scheduled.differences(case, scheduled.records(case)),
    "pd": lambda case: disaggregated.differences(case, disaggregated.run(case)),
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family in CASES for name in CASES[family]])
def test_every_decision_follows_the_rules(family, name):
    assert list(DIFFERENCES[family](CASES[family][name]))[:3] == []
