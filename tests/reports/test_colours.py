"""The colour of a system: by its allocator, scheduler or GPU, unlike the ledger's, safe for all eyes."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from kvsim.allocators import ALLOCATORS
from kvsim.reports.colours import FAMILIES, HUES, Place, colours_of, place_of, places
from kvsim.reports.figures import hand_over
from kvsim.reports.figures.style import SCREEN, STYLES
from kvsim.reports.palette import KINDS, ROLES
from kvsim.reports.zoo import families
from kvsim.sim.models.catalog import gpu_names
from kvsim.sim.schedulers import SCHEDULERS

DEUTERANOPIA = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
"""Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB."""
EVERY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
TO_XYZ = [[0.434, 0.376, 0.190], [0.213, 0.715, 0.072], [0.018, 0.109, 0.873]]  # by white


def lab(colour, eyes=EVERY):
    """CIE L*a*b* as such eyes see it."""
    seen = np.clip(np.array(eyes) @ np.array(to_rgb(colour)) ** 2.2, 0, 1)
    x, y, z = np.cbrt(np.array(TO_XYZ) @ seen)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one, other, eyes=EVERY):
    return np.linalg.norm(lab(one, eyes) - lab(other, eyes))


def test_families_of_allocators_are_those_of_the_registry():
    own = {frozenset(names) for names in families().values()}
    assert {frozenset(family) for family in FAMILIES["allocator"]} == own


@pytest.mark.parametrize(
    ("part", "names"), [("allocator", ALLOCATORS), ("scheduler", SCHEDULERS), ("gpu", gpu_names())]
)
def test_every_name_has_a_place_of_its_own(part, names):
    found = [place_of(part, name) for name in names]
    assert len(set(found)) == len(found)
    assert all(place.shade < 8 for place in found), "named, not by its letters"


def test_a_name_has_the_same_colour_in_whatever_company():
    few = [{"allocator": name, "scheduler": "vllm-v1"} for name in ("paged", "radix")]
    many = [{"allocator": name, "scheduler": "vllm-v1"} for name in ("contiguous", "radix", "slab", "paged")]
    assert colours_of(few) == [colours_of(many)[3], colours_of(many)[1]]
    assert places([{"allocator": "radix", "gpu": "h100"}]) == [place_of("allocator", "radix")]


def test_the_first_part_that_differs_gives_the_colour():
    servers = [{"allocator": "paged", "scheduler": "vllm-v1", "gpu": gpu} for gpu in ("h100", "a100-80gb")]
    assert places(servers) == [place_of("gpu", "h100"), place_of("gpu", "a100-80gb")]
    assert place_of("gpu", "h100-pcie-vllm") == place_of("gpu", "h100-pcie")
    assert place_of("scheduler", "vllm-v1@0.11.0") == place_of("scheduler", "vllm-v1")


def test_systems_of_one_name_share_its_hue_and_are_told_apart():
    one, other, third = places([{"allocator": name} for name in ("buddy", "buddy", "paged")])
    assert one.hue == other.hue != third.hue and one != other
    alike = places([{"allocator": "paged"}] * 10)
    assert alike[:9] == [*(Place(hue, 0) for hue in range(HUES)), Place(0, 1)]


@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
def test_hues_are_apart_under_deuteranopia(style):
    pairs = itertools.combinations(style.colours, 2)
    assert min(distance(*pair, DEUTERANOPIA) for pair in pairs) > 18


@pytest.mark.parametrize("part", FAMILIES)
@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
def test_all_looks_of_a_part_differ_under_deuteranopia_or_in_dashes_and_marker(style, part):
    looks = [style.look_at(place_of(part, name)) for family in FAMILIES[part] for name in family]
    for one, other in itertools.combinations(looks, 2):
        seen = distance(one.colour, other.colour, DEUTERANOPIA) > 8
        assert seen or (one.dash, one.marker) != (other.dash, other.marker)


def test_no_hue_of_a_system_is_one_of_the_ledger():
    kinds = [kind.colour for name, kind in KINDS.items() if name != "free"]
    for colour, kind in itertools.product(SCREEN.colours, kinds):
        assert distance(colour, kind) > 20, (colour, kind)


@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
def test_no_role_has_the_hue_of_a_system_or_of_the_ledger(style):
    kinds = [kind.colour for name, kind in style.kinds.items() if name != "free"]
    for role, taken in itertools.product(ROLES, (*style.colours, *kinds)):
        assert distance(style.role(role).colour, taken) > 18, (role, taken)
    assert min(distance(*pair, DEUTERANOPIA) for pair in itertools.combinations(style.plain, 2)) > 18


TOGETHER = (
    {"prompt", "answer"},
    {"simulated", "measured"},
    {"mean", "p99"},
    {"found in the GPU's memory", "found in the tier"},
    {"wait for room to answer", *(role for *_, role in (*hand_over._HELD, *hand_over._FIRST))},
    {"requests_per_s", "replicas", "attained_share"},
    {"break even", "accepted"},
)
"""Roles that one figure shows."""


@pytest.mark.parametrize("roles", TOGETHER, ids=["-".join(sorted(each)) for each in TOGETHER])
def test_roles_of_one_figure_have_different_colours(roles):
    assert len({ROLES[role] for role in roles}) == len(roles)
