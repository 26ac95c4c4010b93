"""Routed experts against the reference: few and many rows, other GPUs' experts, 8 bits, wrong arguments."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.paged_case import DEVICE, TOLERANCE, guarded, random, relative_error

from kvsim.kernels import reference
from kvsim.kernels.experts import plan_experts, routed_experts, tile_of

pytestmark = pytest.mark.slow

HALVES = pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16], ids=lambda dtype: str(dtype).removeprefix("torch.")
)


def case(tokens, top_k, experts, hidden, inner, dtype=torch.float16, most=None):
    """Arguments but `out`; `most`: experts are drawn from so many, of which this GPU has the first."""
    generator = torch.Generator().manual_seed(tokens)
    chosen = torch.stack(
        [torch.randperm(most or experts, generator=generator)[:top_k] for _ in range(tokens)]
    )
    factors = torch.rand(tokens, top_k, generator=generator)
    shapes = (tokens, hidden), (experts, 2 * inner, hidden), (experts, hidden, inner)
    x, gate_up, down = (random(generator, *shape) / shape[-1] ** 0.5 for shape in shapes)
    return [x.to(dtype), chosen.int(), factors, gate_up.to(dtype), down.to(dtype)]


def check(arguments, scale=1.0, expected=None, tolerance=None):
    """Run, and compare with the reference; nothing else is written. Numbers are rounded three times."""
    x, *others = (each.to(DEVICE) for each in arguments)
    half = x if x.dtype.itemsize == 2 else x.half()
    with guarded(half) as out:
        routed_experts(x, *others, out=out, scale=scale)
    if expected is None:
        expected = reference.routed_experts(*arguments)
    assert relative_error(out, expected) < (tolerance or 2 * TOLERANCE[out.dtype])


@HALVES
@pytest.mark.parametrize("tokens", [1, 3, 40, 150])
def test_as_the_reference(tokens, dtype):
    check(case(tokens, 2, 4, 64, 48, dtype))


@pytest.mark.parametrize(
    ("top_k", "experts", "hidden", "inner"),
    [(1, 1, 64, 64), (8, 8, 16, 16), (3, 40, 208, 80), (1, 3, 1040, 16), (2, 5, 32, 272)],
    ids=["one expert", "all of them", "most unused", "wide", "deep"],
)
def test_shapes(top_k, experts, hidden, inner):
    check(case(17, top_k, experts, hidden, inner))


def test_every_size_of_a_tile():
    assert [tile_of(rows, 2) for rows in (1, 32, 33, 66, 130, 10_000)] == [16, 16, 32, 64, 128, 128]
    for tokens in (16, 33, 65, 129):
        check(case(tokens, 1, 2, 32, 32))


def test_experts_of_other_gpus_add_nothing():
    arguments = case(30, 3, 4, 64, 48, most=12)
    assert (arguments[1] >= 4).any(1).any() and (arguments[1] >= 4).all(1).any()
    check(arguments)
    arguments[1] -= 6  # and below 0
    check(arguments)


def test_where_one_expert_has_all_rows():
    arguments = case(60, 1, 8, 32, 32)
    arguments[1].fill_(5)
    check(arguments)


def test_without_tokens_nothing_runs():
    x, chosen, factors, gate_up, down = (each.to(DEVICE) for each in case(1, 2, 4, 32, 32))
    launches = plan_experts(x[:0], chosen[:0], factors[:0], gate_up, down, out=x[:0])
    assert all(0 in launch.grid for launch in launches)


def test_in_8_bits():
    """What the activation stores has 4 bits, which the interpreter truncates: up to 12 % in one number."""
    x, chosen, factors, gate_up, down = case(20, 2, 4, 64, 48)
    scale, narrow = 16.0, torch.float8_e4m3fn
    stored = [(x * scale).to(narrow), chosen, factors, (gate_up * 8).to(narrow), (down * 8).to(narrow)]
    meant = [stored[0].float() / scale, chosen, factors, stored[3].float(), stored[4].float()]
    check(stored, scale, expected=reference.routed_experts(*meant), tolerance=0.07)


def test_equal_runs_write_equal_bytes():
    arguments = [each.to(DEVICE) for each in case(100, 2, 6, 64, 48)]
    outs = [torch.empty_like(arguments[0]) for _ in "ab"]
    for out in outs:
        routed_experts(*arguments, out=out)
    assert torch.equal(*outs)


@pytest.mark.parametrize(
    ("index", "wrong", "said"),
    [
        (0, lambda x: x.float(), "x must be float16 or bfloat16 or float8_e4m3fn, got float32"),
        (1, lambda chosen: chosen.long(), "chosen must be int32, got int64"),
        (2, lambda factors: factors[:, :1].contiguous(), r"factors must have shape \[5, 2\], got \[5, 1\]"),
        (3, lambda gate_up: gate_up[:, :96].contiguous(), r"gate_up must have shape \[4, 128, 32\]"),
        (4, lambda down: down.bfloat16(), "down must be float16, got bfloat16"),
        (4, lambda down: down.transpose(1, 2), r"down must have shape \[experts, 32, inner\]"),
    ],
)
def test_wrong_arguments_are_named(index, wrong, said):
    arguments = [each.to(DEVICE) for each in case(5, 2, 4, 32, 64)]
    out = torch.empty_like(arguments[0])
    arguments[index] = wrong(arguments[index])
    with pytest.raises((TypeError, ValueError), match=said):
        plan_experts(*arguments, out=out)


def test_odd_sizes_and_needless_scales_are_refused():
    arguments = [each.to(DEVICE) for each in case(5, 2, 4, 32, 24)]
    with pytest.raises(ValueError, match="down: inner must be a multiple of 16, got 24"):
        routed_experts(*arguments, out=torch.empty_like(arguments[0]))
    arguments = [each.to(DEVICE) for each in case(5, 2, 4, 32, 32)]
    with pytest.raises(ValueError, match=r"scale must be 1 for torch.float16, got 2"):
        routed_experts(*arguments, out=torch.empty_like(arguments[0]), scale=2.0)
