"""Writing, copying, gathering and scattering: byte for byte."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.paged_case import DEVICE, poison, random

from kvsim.kernels import reference
from kvsim.kernels.copy import POOL_DTYPES, copy_blocks
from kvsim.kernels.swap import gather_blocks, scatter_blocks
from kvsim.kernels.write import write_kv

pytestmark = pytest.mark.slow

ALL = pytest.mark.parametrize("dtype", POOL_DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
SHAPES = pytest.mark.parametrize(
    "shape", [(7, 16, 2, 64), (9, 1, 1, 80), (5, 3, 3, 96), (4, 64, 1, 256)], ids=str
)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def same_bytes(tensor, expected):
    return torch.equal(tensor.cpu().view(torch.uint8), expected.cpu().view(torch.uint8))


@ALL
@SHAPES
def test_copies(generator, shape, dtype):
    keys, values = (random(generator, *shape, dtype=dtype).to(DEVICE) for _ in "kv")
    pairs = [(3, 0), (3, 2)]
    expected = [reference.copy_blocks(pool, pairs) for pool in (keys, values)]
    copy_blocks(keys, values, torch.tensor(pairs, device=DEVICE))
    assert same_bytes(keys, expected[0])
    assert same_bytes(values, expected[1])


@ALL
@SHAPES
def test_gathered_and_scattered_elsewhere(generator, shape, dtype):
    keys, values = (random(generator, *shape, dtype=dtype).to(DEVICE) for _ in "kv")
    blocks = torch.tensor([3, 0, 2], dtype=torch.int32, device=DEVICE)
    staging = poison(torch.empty((2, 3, *shape[1:]), dtype=dtype, device=DEVICE))
    assert gather_blocks(keys, values, blocks, staging) is staging
    assert same_bytes(staging[0], reference.gather_blocks(keys, [3, 0, 2]))
    assert same_bytes(staging[1], reference.gather_blocks(values, [3, 0, 2]))
    new_keys, new_values = poison(torch.empty_like(keys)), poison(torch.empty_like(values))
    scatter_blocks(new_keys, new_values, blocks, staging)
    for new, old in ((new_keys, keys), (new_values, values)):
        expected = poison(torch.empty_like(old))
        expected.view(torch.uint8)[[3, 0, 2]] = old.view(torch.uint8)[[3, 0, 2]]
        assert same_bytes(new, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize(
    "pool_dtype", [None, torch.float8_e4m3fn, torch.float8_e5m2], ids=["same", "e4m3", "e5m2"]
)
@SHAPES
def test_writes(generator, shape, dtype, pool_dtype):
    """Every other slot stays as it was; a token without a slot goes nowhere; too large is largest.

    Interpreted, new numbers need no rounding: Triton's interpreter loses the carry when it rounds to 8 bits.
    """
    _, _, kv_heads, head_dim = shape
    kind, scales = pool_dtype or dtype, (0.5, 2.0) if pool_dtype else (1.0, 1.0)
    keys, values = (random(generator, *shape, dtype=kind).to(DEVICE) for _ in "kv")
    exact = kind if DEVICE.type == "cpu" else dtype
    key, value = (
        (random(generator, 4, kv_heads, head_dim, dtype=exact).to(dtype) * scale).to(DEVICE)
        for scale in scales
    )
    key[0, 0, :2] = torch.tensor([60_000.0, -60_000.0])
    slots = torch.tensor([5, -1, 0, 8], device=DEVICE)
    expected = [
        reference.write_kv(new, pool, slots, scale)
        for new, pool, scale in zip((key, value), (keys, values), scales, strict=True)
    ]
    write_kv(key, value, keys, values, slots, key_scale=scales[0], value_scale=scales[1])
    assert same_bytes(keys, expected[0])
    assert same_bytes(values, expected[1])


def test_nothing_to_do_is_done(generator):
    keys = random(generator, 3, 4, 1, 32).to(DEVICE)
    before = keys.clone()
    none = torch.empty(0, dtype=torch.int64, device=DEVICE)
    copy_blocks(keys, keys, none.view(0, 2))
    assert gather_blocks(keys, keys, none).shape == (2, 0, 4, 1, 32)
    write_kv(keys[0, :0], keys[0, :0], keys, keys, none)
    assert same_bytes(keys, before)
