"""Admission by future peak, against LightLLM's own in every recorded state and worked by hand."""

import pytest
from support.zoo_lightllm import recorded

from kvsim.sim.schedulers.future_peak import Expected, Peak, expected, longest_answer


def chunk_waits(missing: int, chunk: int, wait: int) -> int:
    """Steps until `missing` tokens are computed: for each chunk, others decode `wait` steps."""
    return -(-missing // chunk) * (wait + 1)


def as_seen(request: dict, config: dict, busy: bool) -> Expected:
    """A recorded request as the rule sees it."""
    most, out = request["max_new"], request["out"]
    if not (busy or request["ignore_eos"]):
        most = longest_answer(most, out, config["router_max_new_token_len"])
    waits = 0
    if config["kind"] == "chunked":
        missing = request["input"] + out - request["kv"]
        waits = chunk_waits(missing, request["chunk"], config["router_max_wait_tokens"])
    return expected(request["input"], out, request["kv"], most + waits)


@pytest.mark.golden
def test_every_recorded_state_of_lightllm_is_decided_alike():
    states = recorded("lightllm/admission")["states"]
    assert len(states) >= 100
    for number, state in enumerate(states):
        config, running, waiting = state["config"], state["running"], state["waiting"]
        total, frozen = config["max_total_token_num"], config["frozen_tokens"]
        busy = (state["used_tokens"] + frozen) / total >= config["router_token_ratio"]
        seen = [as_seen(request, config, busy) for request in running + waiting]
        peak = Peak(seen[: len(running)])
        told = {
            "is_busy": busy,
            "ab": [list(each) for each in seen],
            "running_peak": peak.tokens(),
            "running_load": (peak.tokens() + frozen) / total,
        }
        chunked = config["kind"] == "chunked"
        spent = sum(state["decode_need_tokens"]) if chunked else 0
        admitted, estimated = [], None
        for index, request in enumerate(waiting if len(running) < config["running_max_req_size"] else ()):
            first = request["input"] + request["out"] - request["kv"]
            spent += min(first, request["chunk"]) if chunked else first
            need = peak.add(seen[len(running) + index])
            if need >= total - frozen or len(peak) > config["running_max_req_size"]:
                break
            if spent > config["batch_max_tokens"]:
                break
            admitted.append(index)
            estimated = need
        told |= {"admitted": admitted, "estimated_peak_after": estimated}
        told["left_waiting"] = len(waiting) - len(admitted)
        if estimated is not None:
            told["dynamic_max_load_after"] = (estimated + frozen) / total
        assert {name: state[name] for name in told} == told, number


def test_the_peak_is_at_the_end_of_some_request():
    """10 held and 5 to come, 4 held and 2 to come: at the second's end 10 + 2 + 4 + 2, at the first's 15."""
    assert Peak([Expected(10, 5), Expected(4, 2)]).tokens() == 18
    assert Peak([Expected(10, 9), Expected(4, 2)]).tokens() == 19
    assert Peak().tokens() == 0


def test_the_peak_is_what_running_them_step_by_step_needs():
    requests = [Expected(7, 3), Expected(2, 11), Expected(30, 1), Expected(5, 3), Expected(1, 8)]
    held = [sum(each.held + step for each in requests if step <= each.to_come) for step in range(12)]
    assert Peak(requests).tokens() == max(held)


def test_an_answer_is_expected_to_be_usual_or_a_tenth_longer_than_it_is():
    assert [longest_answer(500, out, 64) for out in (0, 60, 100, 490)] == [64, 66, 110, 500]
    assert expected(20, 8, 27, 53) == Expected(29, 50)
    assert expected(20, 53, 72, 53) == Expected(74, 6)
    assert chunk_waits(300, 256, 6) == 14
    assert expected(300, 0, 0, 1 + 14) == Expected(301, 20)
