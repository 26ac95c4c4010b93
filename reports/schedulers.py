"""The tree of schedulers and policies, and a card for one, with six requests served by the real code.

    what a step computes
    ├─ pieces            prompts and decodes in one step; prompts are split
    │  ├─ vllm-v1        decodes first, then the queue in pieces up to a token budget; the last is preempted
    who is served next (--policy, over vllm-v1)
    ├─ fair to clients
    │  ├─ vtc            the client with the least weighted service so far goes first

`python -m kvsim.reports.schedulers docs/policies.md docs/schedulers.md` regenerates the pictures in the docs.
"""

from collections.abc import Iterator
from textwrap import wrap

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from kvsim.reports.listing import card_of, part_card
from kvsim.reports.pages import rewrite, with_blocks
from kvsim.reports.policies import card, policies_by_family
from kvsim.sim.build import build_engine
from kvsim.sim.classes import class_named
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import POLICIES as ENGINES
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.policies import POLICIES
from kvsim.sim.policies.named import policy_class
from kvsim.sim.schedulers import FAMILIES, SCHEDULERS
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.observers import Observer
from kvsim.sim.serving.request import State
from kvsim.sim.serving.server import Server
from kvsim.sim.workload import PS_PER_S, Workload

STORY = {  # arrival, prompt, answer, client, and when its first token is due after the arrival
    "A": (0, 5, 9, "a", 30.0),
    "B": (0, 3, 4, "a", 30.0),
    "C": (1, 14, 3, "a", 12.5),
    "D": (1, 2, 7, "a", 11.9),
    "E": (2, 3, 2, "b", 4.0),
    "F": (3, 4, 1, "b", 9.2),
}
BEGIN_ALIKE = {"A": 5, "C": 5, "F": 3}
"""Tokens that their prompts share."""
URGENT = "F"
SETTINGS = {"max_num_seqs": 2, "max_num_batched_tokens": 8, "block_size": 1, "max_model_len": 64}
OPTIONS = {"mlfq_quantum": 2.0, "ewsjf_step": 4, "starvation": 5.0, "andes_interval": 1.0, "aging": 12.0}
"""Options for policies whose defaults suit longer runs."""
_NARROW, _BELOW = 28, 9
"""Columns that a text needs beside its name, and the indent if it goes below."""
WHOLE = {"enable_chunked_prefill": False, "max_num_batched_tokens": 64}
OWN: dict[str, dict[str, object]] = {
    "nano-vllm": {"enable_prefix_caching": True},
    "lightllm": WHOLE,
    "past-future": WHOLE,
    "vtc-artifact": {"max_num_batched_tokens": 64, "vtc_wait": 3},
    "orca": {"allocator": "contiguous"},
    "s3": {"allocator": "contiguous"},
    "static": {"allocator": "contiguous"},
}
"""Settings that schedulers require, or limit."""
LEGEND = (
    "client, prompt + answer; --max-num-seqs 2, steps of 8 tokens (more where prompts are not split), a\n"
    "column each: P computes a prompt, d decodes, x was displaced, . waits, R was refused. First tokens are\n"
    "due in step 6 (E), 12.2 (F), 12.9 (D), 13.5 (C); F is urgent; the prompts of C and F begin as A's"
)


class FamilyTree:
    """All schedulers and policies by family, as wide as the terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        start = max(map(len, [*SCHEDULERS, *POLICIES, *IDEAS])) + 8
        for head, families in (
            ("what a step computes (--scheduler)", schedulers_by_family()),
            ("who is served next (--policy, over vllm-v1)", all_policies()),
        ):
            yield Text(head, "bold")
            for family, members in families.items():
                last = family == [*families][-1]
                yield from _rows(
                    f"{'└─' if last else '├─'} {family}", FAMILIES.get(family, ""), start, options
                )
                stem = "   " if last else "│  "
                for name, idea in members.items():
                    yield from _rows(
                        f"{stem}{'└─' if name == [*members][-1] else '├─'} {name}", idea, start, options
                    )


def _rows(left: str, text: str, start: int, options: ConsoleOptions) -> Iterator[Text]:
    if options.max_width - start < _NARROW:  # the text goes below the name
        yield Text(left)
        for line in wrap(text, max(_NARROW, options.max_width - _BELOW)):
            yield Text(" " * _BELOW + line)
        return
    for place, line in enumerate(wrap(text, options.max_width - start) or [""]):
        yield Text.assemble((left.ljust(start) if not place else " " * start), line)


def schedulers_by_family() -> dict[str, dict[str, str]]:
    """Family -> name -> idea, for schedulers."""
    found: dict[str, dict[str, str]] = {family: {} for family in FAMILIES}
    for name in SCHEDULERS:
        kind = class_named("scheduler", name, SCHEDULERS, Scheduler)  # type: ignore[type-abstract]
        found[kind.family][name] = kind.idea
    return found


def all_policies() -> dict[str, dict[str, str]]:
    """Family -> name -> idea, for policies; the engines' own come first."""
    return {"engines": ENGINES_IDEAS, SGLANG: SGLANG_IDEAS, **policies_by_family()}


ENGINES_IDEAS = {
    "fcfs": "the earliest arrival",
    "priority": "the lowest number; when memory is short, the highest is preempted",
    "sjf": "the shortest answer, which only an oracle knows",
}
SGLANG = "of sglang"
SGLANG_IDEAS = {
    "lpm": "the longest cached prefix; of prompts that begin alike, one goes ahead",
    "dfs-weight": "along the radix tree, first where most requests wait",
    "shortest-prefill-first": "the fewest prompt tokens to compute",
    "hrrn": "the highest response ratio: prompt tokens since its arrival, over those that it needs",
    "lof": "the longest answer",
    "priority-lof": "the lowest number, then the longest answer",
    "routing-key": "the key (client) that most running requests have",
    "random": "any, drawn again in each step that may admit",
}
"""Orders that only SGLang's scheduler has."""
IDEAS = ENGINES_IDEAS | SGLANG_IDEAS


def scheduler_card(name: str) -> str:
    """A description of one scheduler, and six requests under it."""
    return "\n".join([part_card("scheduler", name), "", *drawn(scheduler=name)])


def policy_card(name: str) -> str:
    """A description of one policy, and six requests under it."""
    if name in IDEAS:
        needs = f"--scheduler {_scheduler_of(name)}" if name in SGLANG_IDEAS else ""
        return card_of(name, {"idea": IDEAS[name], "needs": needs}, "", *drawn(policy=name))
    return "\n".join([card(name), "", *drawn(policy=name)])


def _scheduler_of(policy: str) -> str:
    return "sglang" if policy in SGLANG_IDEAS else "vllm-v1"


# -- six requests -------------------------------------------------------------------------------


class Watched(Observer):
    """Records what each request does in each step, as a letter."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.most_steps = 1
        self._server = server
        self.rows = {name: "" for name in STORY}
        self._preempted = dict.fromkeys(STORY, 0)
        self._names = "".join(STORY)

    def decided(self, step: Decision) -> None:
        """Add a letter for each request."""
        column = max(map(len, self.rows.values()))
        server, found = self._server, dict[str, str]()
        for request in server.waiting:
            name = self._names[request.index]
            aside = request.state is State.ASIDE and self.rows[name][-1:] in ("d", "P")
            found[name] = "x" if aside or request.preemptions > self._preempted[name] else "."
            self._preempted[name] = request.preemptions
        chunks = [request.index for request in step.chunks]
        for request in server.running.values():
            name = self._names[request.index]
            if request.index in chunks:
                found[name] = "P"
            elif request.state is State.DECODE and not step.paused:
                found[name] = "d"
            elif request.state is not State.FINISHED:
                found[name] = "."
        for row, _, _ in step.refused.rejected if step.refused is not None else ():
            found[self._names[row]] = "R"
        for name in self.rows:
            self.rows[name] = self.rows[name].ljust(column) + found.get(name, " ")


def drawn(scheduler: str | None = None, policy: str = "fcfs") -> list[str]:
    """The six requests, a line each, with client and lengths; then the legend."""
    scheduler = scheduler or _scheduler_of(policy)
    options: dict[str, object] = {}
    if policy not in ENGINES:
        kind = policy_class(policy)
        declared = kind.declares.__dataclass_fields__
        options = {name: value for name, value in OPTIONS.items() if name in declared}
        options["enable_prefix_caching"] = "prefix" in kind.needs
    settings = {"scheduler": scheduler, "policy": policy, "allocator": "paged", **SETTINGS, **options}
    settings |= OWN.get(scheduler.partition("@")[0], {})
    if policy in SGLANG_IDEAS:
        settings |= {"allocator": "sglang", "enable_prefix_caching": True}
    where = Deployment(
        model=model_named("opt-13b"),
        gpu=gpu_named("h100"),
        engine=EngineConfig.of(settings),
        kv_tokens=200,
        cost="constant:1",
    )
    engine = build_engine(where, _story(), max_span=1)
    watched = Watched(engine.replica.server)
    engine.replica.observers.append(watched)
    engine.run()
    lines = []
    for name, (_, prompt, answer, client, _) in STORY.items():
        lines.append(f"{name} {client} {prompt:2}+{answer}  {watched.rows[name].rstrip()}")
    return [*lines, LEGEND]


def _story() -> Workload:
    comes, prompts, answers, clients, due = zip(*STORY.values(), strict=True)
    shared = [BEGIN_ALIKE.get(name) for name in STORY]
    return Workload(
        "six requests",
        np.array(comes, dtype=np.int64) * PS_PER_S,
        np.array(prompts, dtype=np.int64),
        np.array(answers, dtype=np.int64),
        content=[((1, 0, tokens),) if tokens else () for tokens in shared],
        priority=np.array([name != URGENT for name in STORY], dtype=np.int64),
        labels={"client": np.array(clients, dtype=object), "slo_ttft_s": np.array(due)},
    )


def with_pictures(text: str) -> str:
    """A page of the docs with the text block below each line `<!-- six: NAME -->` regenerated."""

    def six(name: str) -> list[str]:
        lines = drawn(scheduler=name) if name in SCHEDULERS else drawn(policy=name)
        return lines[: len(STORY)]

    return with_blocks(text, "six", six)


if __name__ == "__main__":
    rewrite(with_pictures)
