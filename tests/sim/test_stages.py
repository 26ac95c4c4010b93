"""Where requests that miss a limit spent their time, in fleets with separate prefill servers."""

import numpy as np
import pytest

import kvsim
from kvsim.sim.record.slo import Slo
from kvsim.sim.record.stages import shares

TRAFFIC = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "trace": "synthetic",
    "input_len": "2000",
    "output_len": "50",
    "num_prompts": 60,
}
TIMES = ("arrival_s", "prompt_computed_s", "read_begin_s", "read_end_s", "first_token_s", "finish_s")


def asked(text, **settings):
    run = kvsim.simulate(**TRAFFIC, **settings)
    table = run.columns.requests
    return shares(table, Slo.parse(text).limits[0]), table


def test_a_request_goes_from_stage_to_stage_and_its_blocks_are_held_until_they_are_read():
    _, table = asked("ttft=1s", pool="prefill:1 decode:1", request_rate=10.0)
    times = np.array([table[name] for name in TIMES])
    assert (np.diff(times, axis=0) > 0).all()
    assert (table["held_until_s"] >= table["read_end_s"]).all()


def test_a_run_of_equal_servers_has_no_stages():
    found, table = asked("ttft=1s", replicas=2, request_rate=10.0)
    assert found == {}
    assert not {"prompt_computed_s", "held_until_s"} & table.keys()


@pytest.mark.parametrize(
    ("pool", "link", "rate", "limit", "side"),
    [
        ("prefill:1 decode:2", "400gb", 40.0, "ttft:p99=0.2s", "prefill"),
        ("prefill:2 decode:1", "1", 5.0, "ttft:p99=0.2s", "link"),
        ("prefill:2 decode:1:max_num_seqs=1", "400gb", 10.0, "ttft:p99=0.2s", "decode"),
        ("prefill:2 decode:1", "400gb", 10.0, "tpot:p99=1ms", "decode"),
        ("prefill:1 decode:2", "400gb", 40.0, "queueing:p99=0.1s", "prefill"),
    ],
)
def test_the_side_that_is_short_of_something_is_named(pool, link, rate, limit, side):
    found, _ = asked(limit, pool=pool, kv_transfer_link=link, request_rate=rate)
    assert max(found, key=found.get) == side
    assert sum(found.values()) == pytest.approx(1)
    assert found[side] > 0.6
