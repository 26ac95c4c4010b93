"""The heat map of goals met, from rows as a sweep over policies writes them."""

from kvsim.reports.figures.style import SCREEN
from kvsim.reports.figures.swept.goals import goals
from kvsim.reports.sweeps.systems import systems


def rows(met, **more):
    """Rows of policies -> shares met, at two loads, with two seeds each."""
    usual = {"status": "finished", "throughput.requests_per_s": 1.0, "case": "chat"}
    return [
        {
            **usual,
            "policy": policy,
            "request_rate": rate,
            "seed": seed,
            "service.attained_share": share,
            **more,
        }
        for policy, share in met.items()
        for rate in (4, 8)
        for seed in (0, 1)
    ]


def drawn(found, names=("case", "policy", "request_rate")):
    return goals(systems(found, names), "request_rate", None, SCREEN)


def test_a_cell_is_the_share_of_requests_within_their_goals():
    figure = drawn(rows({"fcfs": 0.5, "srpt": 0.9, "vtc": 0.61}))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["50", "50", "90", "90", "61", "61"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["chat 4", "chat 8"]


def test_it_needs_three_policies_and_nothing_else_that_varies():
    assert drawn(rows({"fcfs": 0.5, "srpt": 0.9})) is None
    three = {"fcfs": 0.5, "srpt": 0.9, "vtc": 0.6}
    both = rows(three, predictor="oracle") + rows(three, predictor="none")
    assert drawn(both, ("case", "policy", "predictor", "request_rate")) is None
    assert drawn([{**row, "service.attained_share": None} for row in rows(three)]) is None
