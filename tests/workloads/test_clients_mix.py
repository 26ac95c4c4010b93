"""Clients by shares."""

import numpy as np
import pytest

from kvsim.sim.errors import KvsimError
from kvsim.workloads import build


def mixed(text, **more):
    options = {"num_prompts": 4000, "request_rate": 10.0, "burstiness": None, "seed": 1}
    return build("sharegpt", clients_mix=text, **{**options, **more})


def test_shares_are_of_requests_and_goals_follow_the_client():
    found = mixed("A:3:ttft=1:priority=2,B:1:deadline=30")
    owner = found.labels["client"]
    assert np.mean(owner == "A") == pytest.approx(0.75, abs=0.02)
    assert np.unique(found.labels["slo_ttft_s"][owner == "A"]) == [1.0]
    assert np.isnan(found.labels["slo_ttft_s"][owner == "B"]).all()
    assert np.unique(found.labels["deadline_s"][owner == "B"]) == [30.0]
    assert np.unique(found.priority[owner == "A"]) == [2]
    assert "slo_tpot_s" not in found.labels


def test_a_burst_is_so_many_requests_in_a_row():
    owner = mixed("A:0.5,B:0.5:burst=20").labels["client"]
    edges = np.flatnonzero(owner[1:] != owner[:-1]) + 1
    runs = [part for part in np.split(owner, edges)[:-1] if part[0] == "B"]
    assert {len(part) % 20 for part in runs} == {0}
    assert np.mean(owner == "B") == pytest.approx(0.5, abs=0.08)


def test_nothing_else_is_drawn_otherwise():
    one, other = mixed("A:1,B:1"), mixed(None)
    assert one.arrival_ps.tolist() == other.arrival_ps.tolist()
    assert one.prompt_tokens.tolist() == other.prompt_tokens.tolist()


def test_a_client_with_a_rate_comes_at_its_own():
    """A's 2,000 requests take 500 s, the others come as they would have: 2,000 of 4,000 at 10/s."""
    found, plain = mixed("A:1:rate=4,B:1"), mixed("A:1,B:1")
    owner, arrival_s = found.labels["client"], found.arrival_ps / 1e12
    assert (np.diff(found.arrival_ps) >= 0).all()
    gaps = np.diff(arrival_s[owner == "A"])
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 4, rel=0.08)
    others = plain.labels["client"] == "B"
    assert found.arrival_ps[owner == "B"].tolist() == plain.arrival_ps[others].tolist()
    assert found.prompt_tokens[owner == "B"].tolist() == plain.prompt_tokens[others].tolist()


@pytest.mark.parametrize(
    "text",
    [
        "A:1:rate=0",
        "A:1:rate=x",
        "",
        "A",
        "A:x",
        "A:0",
        "A:1:ttft=0",
        "A:1:speed=2",
        "A:1:burst=0",
        "A:1,A:2",
        "A:1:ttft",
    ],
)
def test_another_form_is_refused(text):
    with pytest.raises(KvsimError, match="clients_mix must"):
        mixed(text)
