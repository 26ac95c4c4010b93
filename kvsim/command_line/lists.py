"""Lists of choices: `sim models`, `gpus`, ...; and checks of your own parts against the rules."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsim.command_line.common import Front, show
from kvsim.command_line.help import Plain

lists_app = typer.Typer(cls=Front)
OneOf = Annotated[
    str | None, typer.Argument(metavar="NAME", help="One of them, with its options.", show_default="all")
]


@lists_app.command(cls=Plain)
def models() -> None:
    """List the built-in models."""
    from kvsim.reports.listing import models_table

    show(
        models_table(),
        "Layers: w see a window, c a chunk, r are recurrent; MLA caches one latent for all heads.\n"
        "Names of the Hugging Face hub find them too: meta-llama/Llama-3.1-8B-Instruct.\n"
        "Any other: --model path/to/config.json, as Hugging Face writes it.",
    )


@lists_app.command(short_help="List the GPUs, and measured profiles.", cls=Plain)
def gpus() -> None:
    """List the GPUs: datasheets of those built in, and measured profiles."""
    from kvsim.reports.listing import show_gpus

    show_gpus()


@lists_app.command(cls=Plain)
def allocators(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of them, drawn.", show_default="all")
    ] = None,
) -> None:
    """List the KV-cache allocators, or draw the memory of one."""
    from kvsim.reports.zoo import FamilyTree, card

    if name is None:
        show(FamilyTree(), "One of them: sim allocators NAME. Your own: --allocator package.module:Class")
    else:
        print(card(name))


@lists_app.command("check-allocator", short_help="Test an allocator with random calls.", cls=Plain)
def try_allocator(
    allocator: Annotated[
        str, typer.Argument(metavar="NAME", help="Your own package.module:Class, or one of: sim allocators.")
    ],
    calls: Annotated[int, typer.Option(help="Random calls on each arena, of four sizes.")] = 300,
    seed: Annotated[int, typer.Option(help="The same seed makes the same calls.")] = 0,
) -> None:
    """Test an allocator with random calls: does it keep every rule of the contract?"""
    from kvsim.allocators import contract
    from kvsim.api import check_allocator
    from kvsim.reports.listing import rules_table

    check_allocator(allocator, calls=calls, seed=seed)
    rules = [*contract.RULES, contract.same_calls_give_same_addresses]
    sizes = ", ".join(f"{slots:,}" for slots in contract.ARENAS)
    show(rules_table(rules), f"All of them hold: {calls:,} random calls on each arena of {sizes} slots.")


@lists_app.command("check-scheduler", short_help="Test a scheduler with random work.", cls=Plain)
def try_scheduler(
    scheduler: Annotated[
        str, typer.Argument(metavar="NAME", help="Your own package.module:Class, or one of: sim schedulers.")
    ],
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="The order of its queue, or your own; see: sim policies.")
    ] = "fcfs",
    workloads: Annotated[int, typer.Option(help="Random workloads, each served twice.")] = 40,
    seed: Annotated[int, typer.Option(help="The same seed draws the same workloads.")] = 0,
) -> None:
    """Test a scheduler with random work: does it keep every rule of the contract?"""
    from kvsim.api import check_scheduler
    from kvsim.reports.listing import table_of
    from kvsim.sim.contract import RULES

    check_scheduler(scheduler, workloads=workloads, seed=seed, policy=policy)
    rules = [(rule.replace("_", " "), text) for rule, text in RULES.items()]
    remark = f"All of them hold: {workloads:,} random workloads, each served in spans and step by step."
    show(table_of(("rule", "what it says"), rules), remark)


@lists_app.command(short_help="List the schedulers, or show one.", cls=Plain)
def schedulers(name: OneOf = None) -> None:
    """List the schedulers and policies by families, or show one: its options, its rule, six requests."""
    from kvsim.reports.listing import releases
    from kvsim.reports.schedulers import IDEAS, FamilyTree, policy_card, scheduler_card
    from kvsim.sim.policies import POLICIES

    if name is not None:
        print(policy_card(name) if name in POLICIES or name in IDEAS else scheduler_card(name))
        return
    show(FamilyTree(), f"One of them: sim schedulers NAME. Releases: {', '.join(releases())}")


@lists_app.command(short_help="List the costs of a step, or show one.", cls=Plain)
def costs(name: OneOf = None) -> None:
    """List the sources of step times, or show one: its options, its rule."""
    _parts("cost", name)


@lists_app.command(short_help="List the routers of a fleet, or show one.", cls=Plain)
def routers(name: OneOf = None) -> None:
    """List the routers that spread requests over replicas, or show one: its options, its rule."""
    _parts("router", name)


@lists_app.command(short_help="List the policies that order the queue, or show one.", cls=Plain)
def policies(name: OneOf = None) -> None:
    """List the policies that order the queue, or show one: its options, what it needs, its source."""
    from kvsim.reports.policies import policies_tree
    from kvsim.reports.schedulers import policy_card

    if name is None:
        show(policies_tree(), "One of them: sim policies NAME. Your own: --policy package.module:Class")
    else:
        print(policy_card(name))


@lists_app.command(short_help="List the predictors of answers' lengths, or show one.", cls=Plain)
def predictors(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of them.", show_default="all")
    ] = None,
) -> None:
    """List the predictors of answers' lengths, or show one: its form, its error."""
    from kvsim.reports.listing import names_table
    from kvsim.reports.policies import predictor_card
    from kvsim.sim.predictors import PREDICTORS

    if name is None:
        show(names_table(PREDICTORS), "One of them: sim predictors NAME. Your own: --predictor mine:Mine")
    else:
        print(predictor_card(name))


def _parts(kind: str, name: str | None) -> None:
    """Show the list of a registry, or one entry."""
    from kvsim.reports.listing import names_table, part_card
    from kvsim.sim.parts import KINDS

    if name is None:
        known = names_table(KINDS[kind][0])
        show(known, f"One of them: sim {kind}s NAME. Your own: --{kind} package.module:Class")
    else:
        print(part_card(kind, name))


@lists_app.command(short_help="List the eviction policies, or show one.", cls=Plain)
def eviction(name: OneOf = None) -> None:
    """List the eviction policies of a full cache, or show one: its options, its rule."""
    from kvsim.reports.eviction import card, policies_table

    if name is None:
        show(policies_table(), "One of them: sim eviction NAME. Your own: --eviction package.module:Class")
    else:
        print(card(name))


@lists_app.command("check-eviction", short_help="Test an eviction policy with random requests.", cls=Plain)
def try_eviction(
    eviction: Annotated[
        str, typer.Argument(metavar="NAME", help="Your own package.module:Class, or one of: sim eviction.")
    ],
    requests: Annotated[int, typer.Option(help="Random requests, for caches of seven sizes.")] = 300,
    seed: Annotated[int, typer.Option(help="The same seed draws the same requests.")] = 0,
) -> None:
    """Test an eviction policy with random requests: does it keep every rule of the contract?"""
    from kvsim.allocators.eviction.contract import RULES
    from kvsim.reports.listing import table_of
    from kvsim.sim.eviction import check_named

    check_named(eviction, requests, seed)
    rules = [(rule.replace("_", " "), text) for rule, text in RULES.items()]
    show(
        table_of(("rule", "what it says"), rules),
        f"All of them hold: {requests:,} random requests, four times.",
    )
