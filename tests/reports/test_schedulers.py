"""The tree of schedulers and policies, and six requests under each."""

from pathlib import Path

import pytest

from kvsim import cli
from kvsim.reports.schedulers import ENGINES_IDEAS, STORY, drawn, with_pictures
from kvsim.sim.policies import POLICIES
from kvsim.sim.schedulers import FAMILIES, SCHEDULERS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "settings", [{"scheduler": name} for name in SCHEDULERS] + [{"policy": p} for p in POLICIES]
)
def test_every_request_ends_after_a_step_for_each_token(settings):
    rows = [line[10:] for line in drawn(**settings)[: len(STORY)]]
    for (_, _, answer, _, _), row in zip(STORY.values(), rows, strict=True):
        assert row.endswith("R") or row.count("d") >= answer - 1 - row.count("x")
        assert row[-1] in "dPR"


@pytest.mark.parametrize("policy", ["priority", "sjf", *POLICIES])
def test_six_requests_show_what_a_policy_does(policy):
    """No picture equals that of fcfs."""
    assert drawn(policy=policy) != drawn(policy="fcfs")


def test_all_stand_in_the_tree_once(capsys):
    assert cli.main(["schedulers"]) == 0
    printed = capsys.readouterr().out
    for name in [*SCHEDULERS, *POLICIES, *ENGINES_IDEAS, *FAMILIES]:
        assert printed.count(f"─ {name} ") == 1, name


def test_a_card_has_a_picture(capsys):
    for name in ("sarathi", "vllm-v1@0.11.0", "vtc"):
        assert cli.main(["schedulers", name]) == 0
        assert "\nA a  5+9  Pdddddddd\n" in capsys.readouterr().out


def test_the_pictures_of_the_documents_are_drawn_by_the_program():
    page = (DOCS / "policies.md").read_text(encoding="utf-8")
    assert with_pictures(page) == page
    assert page.count("<!-- six: ") > 4
