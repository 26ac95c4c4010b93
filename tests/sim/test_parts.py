"""A cost or a router with its own option, in one file: the option is available wherever options are."""

import inspect
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest

import kvsim
from kvsim import cli
from kvsim.reports.options import option_rows
from kvsim.sim import build, classes, parts
from kvsim.sim.build import hybrid_groups
from kvsim.sim.cost import COSTS, named
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.deployment import registry
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.option import option, taken
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.routers import ROUTERS
from kvsim.sim.routers.base import Router
from kvsim.sim.serving import fleet

FEW = ["--num-prompts", "8", "--request-rate", "20", "--no-plots", "--quiet"]
ALONE = ["--jobs", "1", "--out", "swept"]


@dataclass(frozen=True, kw_only=True)
class PacedOptions:
    pace_ms: float = option("Milliseconds of a step.", default=30.0, value="MS", above=0)


class Paced(CostModel):
    """Paced: every step takes so long."""

    declares: ClassVar[type] = PacedOptions

    def __init__(self, pace_ms):
        self.source = f"paced {pace_ms:g} ms"
        self._ps = round(pace_ms * 1e9)

    @classmethod
    def of(cls, deployment, argument):
        return cls(taken(PacedOptions, deployment.options).pace_ms)

    def step_ps(self, shape):
        return self._ps


@dataclass(frozen=True, kw_only=True)
class ByOneOptions:
    favourite: int = option("The replica that all requests go to.", default=0, value="N", least=0)


class ByOne(Router):
    declares: ClassVar[type] = ByOneOptions

    def choose(self, request, replicas):
        return self.own(ByOneOptions).favourite


PARTS = (PacedOptions, Paced, ByOneOptions, ByOne)
MINE = "\n".join([Path(__file__).read_text().partition("FEW =")[0], *map(inspect.getsource, PARTS)])


@pytest.fixture
def registered(monkeypatch):
    """Both in their registries: one line each."""
    monkeypatch.setitem(COSTS, "paced", f"{__name__}:Paced")
    monkeypatch.setitem(ROUTERS, "by-one", f"{__name__}:ByOne")
    parts.declared_everywhere.cache_clear()
    yield
    parts.declared_everywhere.cache_clear()


CHOSEN = [
    (["--cost", "paced"], "pace_ms", 20.0, 30.0, "cost paced"),
    (["--router", "by-one", "--replicas", "2"], "favourite", 1, 0, "router by-one"),
]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("words", "name", "value", "usual", "owner"), CHOSEN)
def test_an_option_of_a_cost_or_a_router_is_wherever_options_are(
    tmp_path, monkeypatch, capsys, words, name, value, usual, owner
):
    flag = [f"--{name.replace('_', '-')}", str(value)]
    chosen, again, plain = (tmp_path / each for each in ("chosen", "again", "plain"))
    assert cli.main(["run", *FEW, *words, *flag, "--out", str(chosen)]) == 0
    config = json.loads((chosen / "config.json").read_text())
    assert config["scenario"]["engine"]["options"][name] == value
    assert cli.main(["run", "--config", str(chosen / "config.json"), *FEW[-2:], "--out", str(again)]) == 0
    assert (again / "config.json").read_bytes() == (chosen / "config.json").read_bytes()
    assert cli.main(["run", *FEW, *words, "--out", str(plain)]) == 0
    assert json.loads((plain / "config.json").read_text())["scenario"]["engine"]["options"][name] == usual

    named, whole = (
        owner.partition(" ")[2],
        {"cost paced": "ownparts:Paced", "router by-one": "ownparts:ByOne"}[owner],
    )
    (tmp_path / "ownparts.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)  # a sweep's processes import it from here
    own = [whole if word == named else word for word in words]
    assert cli.main(["sweep", *FEW[:4], *own, flag[0], f"{value},{usual}", *ALONE]) == 0
    rows = Path("swept", "table.csv").read_text().splitlines()
    assert name in rows[0].split(",") and len(rows) == 3

    capsys.readouterr()
    assert cli.main(["run", *FEW, *flag]) == 2
    told = capsys.readouterr().err
    kind = owner.partition(" ")[0]
    assert told.startswith(f"error: {name} must be left out for {kind} ") and f"it belongs to {owner}" in told
    assert cli.main(["run", *FEW, *words, flag[0], "-1"]) == 2
    assert f"{name} must be " in capsys.readouterr().err
    assert cli.main([f"{kind}s", owner.partition(" ")[2]]) == 0
    assert flag[0] in capsys.readouterr().out
    assert any(row.startswith(f"| `{flag[0]} ") for row in option_rows("Parts"))


@pytest.mark.usefixtures("registered")
def test_an_option_of_a_cost_changes_what_it_should():
    slow, fast = (kvsim.simulate(cost="paced", pace_ms=pace, num_prompts=5) for pace in (40.0, 10.0))
    assert slow.summary.latency["tpot_s"]["mean"] == pytest.approx(0.04)
    assert fast.summary.latency["tpot_s"]["mean"] == pytest.approx(0.01)


def test_a_class_of_ones_own_is_a_cost_by_its_name_or_itself():
    for cost in (f"{__name__}:Paced", Paced):
        run = kvsim.simulate(cost=cost, pace_ms=25.0, num_prompts=5)
        assert run.summary.cost["source"] == "paced 25 ms"
        assert run.config["scenario"]["cost"] == run.summary.cost["clock"] == f"{__name__}:Paced"


def test_what_a_cost_does_not_know_is_refused():
    with pytest.raises(KvsimError, match=r"must be 1 for cost .*Paced, got 1 and 2"):
        kvsim.simulate(cost=Paced, pipeline_parallel_size=2, num_prompts=5)
    with pytest.raises(KvsimError, match=r"enforce_eager must be left out for cost .*Paced, which knows no"):
        kvsim.simulate(cost=Paced, enforce_eager=True, num_prompts=5)
    with pytest.raises(KvsimError, match=r"cost 'builtins:dict' must be a subclass of .*CostModel"):
        kvsim.simulate(cost="builtins:dict", num_prompts=5)
    with pytest.raises(KvsimError, match="cost roofline takes nothing behind its name, got 'fast'"):
        kvsim.simulate(cost="roofline:fast", num_prompts=5)


def test_earlier_runs_held_these_options_beside_the_others(tmp_path):
    new, old = tmp_path / "new", tmp_path / "old.json"
    words = ["--cost", "roofline", "--host-time", "0.8+41", "--expert-skew", "0.5"]
    assert cli.main(["run", *FEW, *words, "--out", str(new)]) == 0
    config = json.loads((new / "config.json").read_text())
    options = config["scenario"]["engine"].pop("options")
    config["scenario"] |= {name: options.pop(name) for name in ("host_time", "expert_skew")}
    config["scenario"] |= {"fuse_allreduce_rms": False}  # said nothing, and belongs to another cost
    config["scenario"]["engine"]["options"] = options
    old.write_text(json.dumps(config))
    assert cli.main(["run", "--config", str(old), *FEW[-2:], "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "config.json").read_bytes() == (new / "config.json").read_bytes()


@pytest.mark.parametrize(
    "server",
    [{"model": "llama-3.1-8b"}, {"model": "gemma-3-27b", "tensor_parallel_size": 2}, {"replicas": 2}],
)
def test_one_run_looks_up_each_name_once(monkeypatch, server):
    looked_up, asked = [], []

    def counted(field, name, *table):
        looked_up.append((field, name))
        return classes.class_named(field, name, *table)

    def groups(*server):
        asked.append(server)
        return hybrid_groups(*server)

    for module in (build, registry, fleet, named):
        monkeypatch.setattr(module, "class_named", counted)
    monkeypatch.setattr(build, "hybrid_groups", groups)
    run = kvsim.simulate(gpu="h100", num_prompts=10, **server)
    assert run.summary.requests["finished"] == 10
    names = {"allocator": "paged", "scheduler": "vllm-v1", "router": "round-robin"}
    cost = run.config["scenario"]["cost"]
    assert sorted(looked_up) == sorted({**names, "cost": cost}.items())
    assert len(asked) == 1


def test_a_setting_of_all_parts_is_declared_once():
    """What a run has besides its user's choices is narrower, or not for the user to choose."""
    beside = {each.name for kind in (EngineConfig, Deployment) for each in fields(kind)} - {"options"}
    assert not set(Scenario.__annotations__) & beside
    for kind in (EngineConfig, Deployment):
        (choices,) = kind.__bases__
        narrowed = kind.__annotations__.keys() & choices.__annotations__.keys()
        assert all(kind.__annotations__[name] != choices.__annotations__[name] for name in narrowed)
