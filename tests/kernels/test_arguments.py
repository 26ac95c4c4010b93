# ruff: noqa: E501 - a table, one case a row
"""What a wrapper refuses names the argument, the value and what is allowed."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from kvsim.kernels import checks
from kvsim.kernels.copy import copy_blocks
from kvsim.kernels.decode import decode_attention, plan_decode
from kvsim.kernels.launch import Gpu
from kvsim.kernels.prefill import prefill_attention
from kvsim.kernels.swap import gather_blocks
from kvsim.kernels.write import write_kv

pytestmark = pytest.mark.slow

AMPERE = Gpu((8, 0), 108)


def meta(*shape, dtype=torch.float16):
    """Shapes are enough to be refused."""
    return torch.empty(shape, dtype=dtype, device="meta")


def numbers(*shape):
    return meta(*shape, dtype=torch.int32)


POOL = meta(10, 16, 2, 64)
DECODE = {"query": meta(3, 8, 64), "keys": POOL, "values": POOL, "lengths": numbers(3), "longest": 32}
DECODE |= {"block_table": numbers(3, 2)}
PREFILL = {"query": meta(9, 8, 64), "keys": POOL, "values": POOL, "lengths": numbers(3)}
PREFILL |= {"first_queries": numbers(4), "most_queries": 5, "block_table": numbers(3, 2)}
WRITE = {"key": meta(5, 2, 64), "value": meta(5, 2, 64), "keys": POOL, "values": POOL, "slots": numbers(5)}
COPY = {"keys": POOL, "values": POOL, "pairs": numbers(4, 2)}
GATHER = {"keys": POOL, "values": POOL, "blocks": numbers(4), "staging": meta(2, 4, 16, 2, 64)}

REFUSED = [
    (decode_attention, DECODE, {"query": [1]}, "query must be a tensor, got list"),
    (decode_attention, DECODE, {"query": meta(3, 8, 64, dtype=torch.float32)}, "query must be float16 or bfloat16, got float32"),
    (decode_attention, DECODE, {"query": meta(3, 512)}, r"query must have shape \[batch, heads, head_dim\], got \[3, 512\]"),
    (decode_attention, DECODE, {"query": meta(3, 7, 64)}, "query: heads must be a multiple of kv_heads = 2, got 7"),
    (decode_attention, DECODE, {"query": meta(3, 8, 128)}, "keys: head_dim must be 128, as the query's, got 64"),
    (decode_attention, DECODE, {"keys": meta(10, 16, 2, 64, dtype=torch.bfloat16)}, "keys must be float16 or float8_e4m3fn or"),
    (decode_attention, DECODE, {"values": meta(11, 16, 2, 64)}, r"values must have shape \[10, 16, 2, 64\], got \[11"),
    (decode_attention, DECODE, {"keys": POOL.transpose(1, 2).contiguous().transpose(1, 2)}, "keys must be contiguous, got strides"),
    (decode_attention, DECODE, {"keys": torch.empty(10, 16, 2, 64, dtype=torch.float16)}, "keys must be on meta, as the first argument is, got cpu"),
    (decode_attention, DECODE, {"lengths": numbers(4)}, r"lengths must have shape \[3\], got \[4\]"),
    (decode_attention, DECODE, {"lengths": meta(3)}, "lengths must be int32 or int64, got float16"),
    (decode_attention, DECODE, {"longest": 33}, "longest must be 0 to 32, got 33"),
    (decode_attention, DECODE, {"block_table": None}, "block_table or starts must be given, one of them"),
    (decode_attention, DECODE, {"starts": numbers(3)}, "block_table or starts must be given, one of them"),
    (decode_attention, DECODE, {"block_table": numbers(2, 3)}, r"block_table must have shape \[3, most blocks\]"),
    (decode_attention, DECODE, {"query": meta(3, 512, 64)}, "query: heads for each KV head must be 0 to 128, got 256"),
    (decode_attention, DECODE, {"softcap": 0.0}, "softcap must be above 0, got 0.0"),
    (decode_attention, DECODE, {"sinks": meta(7)}, r"sinks must have shape \[8\], got \[7\]"),
    (decode_attention, DECODE, {"sinks": numbers(8)}, "sinks must be float16 or bfloat16 or float32, got int32"),
    (decode_attention, DECODE, {"window": 0}, "window must be 1 to 2147483647, got 0"),
    (decode_attention, DECODE, {"splits": 0}, "splits must be 1 to 65535, got 0"),
    (decode_attention, DECODE, {"out": meta(3, 8, 64, dtype=torch.bfloat16)}, "out must be float16, got bfloat16"),
    (decode_attention, DECODE, {"keys": meta(10, 257, 2, 64), "values": meta(10, 257, 2, 64)}, "keys: block_size must be 1 to 256, got 257"),
    (prefill_attention, PREFILL, {"first_queries": numbers(3)}, r"first_queries must have shape \[4\], got \[3\]"),
    (prefill_attention, PREFILL, {"query": meta(9, 512, 64)}, "query: heads for each KV head must be 1 to 128, got 256"),
    (prefill_attention, PREFILL, {"most_queries": 10}, "most_queries must be 0 to 9, got 10"),
    (write_kv, WRITE, {"value": meta(4, 2, 64)}, r"value must have shape \[5, 2, 64\], got \[4, 2, 64\]"),
    (write_kv, WRITE, {"key": meta(5, 3, 64)}, r"key must have shape \[tokens, 2, 64\], got \[5, 3, 64\]"),
    (write_kv, WRITE, {"slots": numbers(6)}, r"slots must have shape \[5\], got \[6\]"),
    (write_kv, WRITE, {"key_scale": 0.5}, "key_scale must be 1 for keys of torch.float16, got 0.5"),
    (copy_blocks, COPY, {"pairs": numbers(4, 3)}, r"pairs must have shape \[pairs, 2\], got \[4, 3\]"),
    (copy_blocks, COPY, {"keys": meta(10, 16, 2, 72)}, "keys: head_dim must be a multiple of 16, 32 to 256, got 72"),
    (gather_blocks, GATHER, {"staging": meta(2, 5, 16, 2, 64)}, r"staging must have shape \[2, 4, 16, 2, 64\]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "right", "wrong", "says"), REFUSED, ids=[row[3][:48] for row in REFUSED]
)
def test_refused(function, right, wrong, says):
    if "keys" in wrong and function is copy_blocks:
        wrong = wrong | {"values": wrong["keys"]}
    with pytest.raises((TypeError, ValueError), match=says):
        function(**right | wrong)


def test_e4m3_needs_a_newer_gpu_than_ampere():
    pool = meta(10, 16, 2, 64, dtype=torch.float8_e4m3fn)
    with pytest.raises(TypeError, match=r"keys must be float16 or float8_e5m2, got float8_e4m3fn"):
        plan_decode(**DECODE | {"keys": pool, "values": pool}, out=DECODE["query"], gpu=AMPERE)


def test_a_cpu_tensor_without_the_interpreter():
    with pytest.raises(ValueError, match=r"tensors must be on a GPU; .*TRITON_INTERPRET=1"):
        checks.expect_runnable(torch.empty(1), interpreted=False)
