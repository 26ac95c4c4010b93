"""Goals: how limits are written, and what attainment and goodput count."""

import numpy as np
import pytest

from kvsim.sim.errors import KvsimError
from kvsim.sim.options.goals import Goals
from kvsim.sim.record.attainment import attained
from kvsim.sim.record.slo import Limit, Slo

THROUGHPUT = {"requests_per_s": 0.5, "output_tokens_per_s": 100.0, "total_tokens_per_s": 400.0}


def table(ttft, tpot, rejected=0):
    """Requests with these latencies, and some that were rejected."""
    nothing = [np.nan] * rejected
    return {
        "ttft_s": np.array([*ttft, *nothing]),
        "tpot_s": np.array([*tpot, *nothing]),
        "status": np.array(["finished"] * len(ttft) + ["rejected"] * rejected),
    }


def judged(slo, rows, duration_s=10.0, gpus=1, **goals):
    """The sections of a summary."""
    asked = Goals(slo=slo, **goals)
    return attained(asked.limits, asked.price_of("h100"), rows, THROUGHPUT, duration_s, gpus)


def test_limits_are_read_with_their_quantiles_and_units():
    slo = Slo.parse("ttft:p99=0.5s, tpot:p99.9=50ms,e2el=1e1s,queueing:p50=300us")
    assert slo.limits == (
        Limit("ttft", 0.99, 0.5),
        Limit("tpot", 0.999, 0.05),
        Limit("e2e", None, 10.0),
        Limit("queueing", 0.5, 0.0003),
    )
    assert str(slo) == "ttft:p99=0.5s,tpot:p99.9=50ms,e2e=10s,queueing:p50=0.3ms"
    assert Slo.parse(str(slo)) == slo


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ttft:p99=0.5", "in s, ms or us"),
        ("ttft:p99", "must be like"),
        ("", "must be like"),
        ("ttfs=1s", "did you mean 'ttft'"),
        ("ttft:p100=1s", "below p100"),
        ("ttft:mean=1s", "as in p99"),
        ("ttft=0s", "above 0"),
        ("ttft=1.2.3s", "above 0"),
        ("ttft=1s,ttft=2s", "each limit once"),
    ],
)
def test_what_is_no_limit_is_told(text, complaint):
    with pytest.raises(KvsimError, match=complaint):
        Goals(slo=text)


def test_goodput_counts_requests_within_every_limit_of_each():
    rows = table([0.1, 0.2, 0.9, 0.3], [0.01, 0.09, 0.01, 0.02])
    found = judged("ttft=0.5s,tpot=50ms", rows, gpus=2)
    assert found["slo"]["attained_share"] == 0.5
    assert found["slo"]["goodput_requests_per_s"] == 0.2
    assert found["slo"]["goodput_requests_per_s_per_gpu"] == 0.1
    assert not found["slo"]["met"]
    assert found["slo"]["by_limit"]["ttft"] == {
        "limit_s": 0.5, "measured_s": 0.9, "within_share": 0.75, "met": False
    }  # fmt: skip


def test_limits_of_each_alone_decide_goodput_beside_quantiles():
    rows = table([0.1, 0.2, 0.9, 0.3], [0.01, 0.09, 0.01, 0.02])
    found = judged("ttft:p50=0.25s,tpot=50ms", rows)["slo"]
    assert found["attained_share"] == 0.75
    assert found["by_limit"]["ttft:p50"]["met"] and not found["met"]


def test_where_all_limits_are_quantiles_each_request_is_held_against_them():
    rows = table([0.1, 0.2, 0.9, 0.3], [0.01, 0.01, 0.01, 0.02])
    found = judged("ttft:p75=0.5s,tpot:p99=50ms", rows)["slo"]
    assert found["attained_share"] == 0.75
    assert found["by_limit"]["ttft:p75"]["measured_s"] == np.quantile([0.1, 0.2, 0.9, 0.3], 0.75)
    assert found["met"]


def test_rejected_requests_are_within_no_limit():
    found = judged("ttft:p50=1s,tpot=1s", table([0.1] * 6, [0.01] * 6, rejected=4))["slo"]
    assert found["attained_share"] == 0.6
    assert found["by_limit"]["ttft:p50"]["met"], "half of all requests are within"
    assert not found["by_limit"]["tpot"]["met"], "not each of them is"
    found = judged("ttft:p90=1s", table([0.1] * 6, [0.01] * 6, rejected=4))["slo"]
    assert found["by_limit"]["ttft:p90"] == {
        "limit_s": 1.0, "measured_s": pytest.approx(0.1), "within_share": 0.6, "met": False
    }  # fmt: skip


def test_where_nothing_finished_nothing_is_met():
    found = judged("ttft:p50=1s", table([], [], rejected=2), duration_s=0.0)["slo"]
    assert found["attained_share"] == 0 and not found["met"]
    assert found["goodput_requests_per_s"] is None
    assert found["by_limit"]["ttft:p50"]["measured_s"] is None


def test_tokens_cost_what_all_gpus_cost():
    found = attained(None, 3.6, table([], []), THROUGHPUT, 1.0, 4)
    assert found["price"] == {
        "per_gpu_hour": 3.6,
        "per_hour": 14.4,
        "per_million_output_tokens": pytest.approx(14.4 / 3600 / 100 * 1e6),
        "per_million_tokens": pytest.approx(14.4 / 3600 / 400 * 1e6),
    }
    assert found["per_gpu"] == {"gpus": 4} | {name: value / 4 for name, value in THROUGHPUT.items()}
    assert "slo" not in found


def test_prices_may_be_by_gpu():
    assert Goals(gpu_price="h100=2.5,l40s=0.8").price_of("l40s") == 0.8
    assert Goals(gpu_price="2").price_of("l40s") == 2
    assert Goals().price_of("l40s") is None
    with pytest.raises(KvsimError, match="must name b200 too"):
        Goals(gpu_price="h100=2.5").price_of("b200")
    for wrong in ("-1", "h100=x", "nan", ""):
        with pytest.raises(KvsimError, match="gpu_price must be a number"):
            Goals(gpu_price=wrong)
