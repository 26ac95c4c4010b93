"""The tree of schedulers and policies, and six requests under each."""

from pathlib import Path

import pytest

from kvsim import cli
from kvsim.reports.schedulers import IDEAS, STORY, drawn, with_pictures
from kvsim.sim.deployment.engine import POLICIES as ENGINES
from kvsim.sim.policies import POLICIES
from kvsim.sim.schedulers import FAMILIES, SCHEDULERS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "settings", [{"scheduler": name} for name in SCHEDULERS] + [{"policy": p} for p in [*IDEAS, *POLICIES]]
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
    for name in [*SCHEDULERS, *POLICIES, *IDEAS, *FAMILIES]:
        assert printed.count(f"─ {name} ") == 1, name


def test_a_card_has_a_picture(capsys):
    for name in ("sarathi", "vllm-v1@0.11.0", "vtc", "fcfs"):
        assert cli.main(["schedulers", name]) == 0
        assert "\nA a  5+9  Pdddddddd\n" in capsys.readouterr().out
    for name in IDEAS:
        assert cli.main(["schedulers", name]) == 0
        assert "\nA a  5+9  Pddd" in capsys.readouterr().out
    assert set(IDEAS) == set(ENGINES)


def test_the_pictures_of_the_documents_are_drawn_by_the_program():
    shown = set()
    for name in ("policies.md", "schedulers.md"):
        page = (DOCS / name).read_text(encoding="utf-8")
        assert with_pictures(page) == page
        shown |= {part.partition(" ")[0] for part in page.split("<!-- six: ")[1:]}
    assert shown >= {*SCHEDULERS, *POLICIES, *IDEAS} - {"sjf"}  # sjf is ssjf with an oracle
