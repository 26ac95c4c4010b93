"""Service by client: a few requests worked by hand."""

import numpy as np
import pytest

from kvsim.sim.record.service import attained, jain, names_of, served_by, service


def table(**columns):
    rows = {"arrival_s": [0, 0, 0], "first_scheduled_s": [0, 4, 8], "first_token_s": [1, 5, 9]}
    rows |= {"finish_s": [4, 8, 10], "prompt_tokens": [10, 20, 30], "output_tokens": [30, 30, 10]}
    found = {name: np.array(values, dtype=np.float64) for name, values in rows.items()}
    found["queueing_s"] = found["first_scheduled_s"] - found["arrival_s"]
    found["ttft_s"] = found["first_token_s"] - found["arrival_s"]
    found["e2e_s"] = found["finish_s"] - found["arrival_s"]
    found["tpot_s"] = np.array([0.1, 0.2, 0.3])
    return found | {name: np.array(values) for name, values in columns.items()}


def test_a_run_without_clients_and_goals_has_no_service():
    assert service(table()) is None


def test_service_is_prompts_and_twice_the_answers():
    found = service(table(client=np.array(["a", "b", "a"], dtype=object)))
    assert {name: each["service"] for name, each in found["clients"].items()} == {"a": 120.0, "b": 80.0}
    assert found["clients"]["a"]["longest_wait_s"] == 8.0
    assert found["jain_index"] == pytest.approx(200**2 / (2 * (120**2 + 80**2)))


def test_the_difference_counts_only_while_both_wait():
    """Both wait for 4 s, in which a gets 10 + 2 x 30; what b gets later, no longer waiting, does not."""
    found = service(table(client=np.array(["a", "b", "a"], dtype=object)))
    assert found["largest_difference"] == pytest.approx(70.0, rel=0.01)


def test_a_goal_is_met_or_missed_or_there_is_none():
    goals = table(slo_ttft_s=[2.0, 2.0, np.nan], deadline_s=[np.nan, np.nan, np.nan])
    met = attained(goals)
    assert met[:2].tolist() == [1.0, 0.0]
    assert np.isnan(met[2])
    assert service(goals)["attained_share"] == 0.5


def test_service_over_time_ends_at_what_each_got():
    found = table(client=np.array(["a", "b", "a"], dtype=object))
    instants = np.linspace(0, 10, 101)
    a = served_by(found, names_of(found) == "a", instants)
    assert [a[0], a[10], a[25], a[-1]] == pytest.approx([0, 10, 10 + 60 * 0.5, 120], abs=1e-6)
    assert (np.diff(a) >= -1e-9).all()
    assert service(found, 17)["wasted_tokens"] == 17


def test_jains_index_is_one_for_equals_and_one_in_n_for_one_alone():
    assert jain(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert jain(np.array([9.0, 0.0, 0.0])) == pytest.approx(1 / 3)
    assert jain(np.zeros(2)) is None
