"""Compiles launches for absent GPUs, and reads facts from the machine code.

A program, not a test: `python ahead_of_time.py PROCESSES [CHIP]` prints the names of all variants (of a chip)
as a line of JSON, then one line per kernel. TRITON_INTERPRET, read when a kernel is defined, must not be
set.
"""

import json
import multiprocessing
import re
import struct
import subprocess
import sys
import tempfile
from bisect import bisect_right
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvsim.kernels.calibration import layer
from kvsim.kernels.copy import plan_copy
from kvsim.kernels.decode import plan_decode
from kvsim.kernels.experts import plan_experts
from kvsim.kernels.latent import blocks_of, plan_latent
from kvsim.kernels.launch import Gpu, Launch, decode_tiling, latent_tiling
from kvsim.kernels.pieces import plan_cut
from kvsim.kernels.prefill import plan_prefill
from kvsim.kernels.swap import plan_gather, plan_scatter
from kvsim.kernels.write import plan_write

TYPES = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
INSTRUCTION = re.compile(r"^ */\*([0-9a-f]+)\*/ +(?:@!?U?P\w+ +)?([A-Z][.A-Z0-9_]*)", re.MULTILINE)
COUNTED = re.compile(r"(?:LDG|LDGSTS|STG|UBLKCP|HMMA|HGMMA|UTCHMMA|LDL|STL)(?:[.]|$)")


def meta(*shape, dtype=torch.bfloat16):
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def sources(launch: Launch) -> ASTSource:
    """What Triton would compile for these arguments: by its rules, 1 and multiples of 16 are specialized."""
    signature, constants, attributes = {}, {}, {}
    for parameter in launch.kernel.params:
        value, place = launch.arguments[parameter.name], (parameter.num,)
        if parameter.is_constexpr:
            signature[parameter.name], constants[place] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
            if value.data_ptr() % 16 == 0:
                attributes[place] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            signature[parameter.name], constants[place] = "constexpr", 1
        else:
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[place] = [["tt.divisibility", 16]]
    return ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


def decode(gpu, dtype=torch.bfloat16, kv=None, heads=32, kv_heads=8, head_dim=128, block_size=16, **more):
    """Launches of a decode in pieces over a big pool; `paged=False` for the contiguous twin."""
    paged, given, splits, batch = (
        more.pop("paged", True),
        more.pop("given", True),
        more.pop("splits", None),
        64,
    )
    pool = meta(16384, block_size, kv_heads, head_dim, dtype=kv or dtype)
    query, lengths = meta(batch, heads, head_dim, dtype=dtype), meta(batch, dtype=torch.int32)
    where = {"block_table": meta(batch, 8192, dtype=torch.int32)} if paged else {"starts": lengths}
    cutting = []
    if given:
        tiling = decode_tiling(head_dim, pool.element_size(), heads // kv_heads)
        where["pieces"], cutting = plan_cut(
            lengths, longest=8192, kv_heads=kv_heads, tokens=None, window=more.get("window"), splits=splits,
            tiling=tiling, gpu=gpu,
        )  # fmt: skip
    return cutting + plan_decode(query, pool, pool, lengths, query, longest=8192, gpu=gpu, **where, **more)


def latent(gpu, kv=torch.bfloat16, heads=128, paged=True, block_size=64, given=True):
    """Launches of a decode over DeepSeek's latents, in pieces."""
    batch = 64
    cache, query, lengths = (
        meta(16384, block_size, 576, dtype=kv),
        meta(batch, heads, 576),
        meta(batch, dtype=torch.int32),
    )
    where = {"block_table": meta(batch, 2048, dtype=torch.int32)} if paged else {"starts": lengths}
    if given:
        tiling = latent_tiling(cache.element_size(), heads, gpu)
        where["pieces"], _ = plan_cut(
            lengths, longest=8192, kv_heads=blocks_of(heads, tiling), tokens=None, window=None, splits=None,
            tiling=tiling, gpu=gpu,
        )  # fmt: skip
    return plan_latent(
        query, cache, lengths, meta(batch, heads, 512), latent=512, scale=0.07, longest=8192, gpu=gpu, **where
    )


def text_of(cubin: bytes) -> bytes:
    """The instructions in an ELF file: its sections `.text.*`."""
    (sections,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<3H", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQ", cubin, sections + size * number) for number in range(count)]
    found = b""
    for name, _, _, _, start, length in heads:
        if cubin.startswith(b".text.", heads[names][4] + name):
            found += cubin[start : start + length]
    return found


def tool(name, *arguments, of):
    """The output of one of CUDA's tools about some bytes."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(of)
        file.flush()
        command = [TOOLS / name, *arguments, file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def usage(cubin: bytes) -> dict:
    """Registers and stack."""
    said = tool("cuobjdump", "-res-usage", of=cubin)
    return {name.lower(): int(re.search(rf"{name}:(\d+)", said)[1]) for name in ("REG", "STACK")}


def instructions(texts: list[bytes], capability: int) -> list[dict]:
    """How often each load, store and product occurs in each text.

    They are disassembled as one and told apart by address, as the disassembler takes longer to start than for
    a kernel, and without data-flow analysis (`-ndf`).
    """
    chip = f"SM{capability}" + "a" * (capability >= 90)
    said = tool("nvdisasm", "-ndf", "-b", chip, of=b"".join(texts))
    ends = list(accumulate(map(len, texts)))
    found = [{} for _ in texts]
    last = -1
    for address, name in INSTRUCTION.findall(said):
        last = int(address, 16)
        if COUNTED.match(name):
            counts = found[bisect_right(ends, last)]
            counts[name] = counts.get(name, 0) + 1
    assert last == ends[-1] - 16, "instructions are missing"
    return found


def compiled(launch: Launch, capability: int) -> tuple[dict, bytes]:
    """Registers, stack and shared memory of a kernel, and its instructions."""
    target = GPUTarget("cuda", capability, 32)
    made = triton.compile(sources(launch), target=target, options=dict(launch.options))
    cubin = made.asm["cubin"]
    return usage(cubin) | {"shared": made.metadata.shared}, text_of(cubin)


def prefill(gpu, dtype=torch.bfloat16, kv=None, heads=32, kv_heads=8, head_dim=128, block_size=16, **more):
    """The launch of a prefill over a big pool; `paged=False` for the contiguous twin."""
    paged, batch = more.pop("paged", True), 4
    pool = meta(16384, block_size, kv_heads, head_dim, dtype=kv or dtype)
    query, numbers = meta(2048, heads, head_dim, dtype=dtype), meta(batch, dtype=torch.int32)
    where = {"block_table": meta(batch, 8192, dtype=torch.int32)} if paged else {"starts": numbers}
    firsts = meta(batch + 1, dtype=torch.int32)
    return [
        plan_prefill(query, pool, pool, numbers, firsts, query, most_queries=2048, gpu=gpu, **where, **more)
    ]


def moves(gpu, kv=torch.bfloat16, block_size=16, head_dim=128):
    """The launches of a write, a copy, a gather and a scatter, for keys only."""
    pool, key = meta(1024, block_size, 8, head_dim, dtype=kv), meta(100, 8, head_dim)
    blocks, staging = meta(10, dtype=torch.int32), meta(2, 10, block_size, 8, head_dim, dtype=kv)
    return [
        plan_write(key, key, pool, pool, meta(100, dtype=torch.int64), gpu=gpu),
        *(plan(pool, pool, blocks, staging)[0] for plan in (plan_gather, plan_scatter)),
        plan_copy(pool, pool, meta(10, 2, dtype=torch.int32))[0],
    ]


def experts(gpu, tokens, kind=torch.bfloat16):
    """The launches of a layer's 128 experts, 8 for each token."""
    shapes = (tokens, 2048), (128, 1536, 2048), (128, 2048, 768)
    x, gate_up, down = (meta(*shape, dtype=kind) for shape in shapes)
    chosen, factors = meta(tokens, 8, dtype=torch.int32), meta(tokens, 8, dtype=torch.float32)
    return plan_experts(x, chosen, factors, gate_up, down, out=meta(tokens, 2048), gpu=gpu)


def layers():
    """The small kernels of a layer."""
    wide, numbers = meta(100, 8192), meta(100, 64, dtype=torch.float32)
    return [
        layer.norm(wide, wide, meta(8192), wide),
        layer.rotary(wide, meta(100, 40, 128), numbers, numbers),
        layer.activation(meta(100, 2 * 5456), meta(100, 5456)),
        layer.read(meta(2**20, dtype=torch.float32), meta(128, dtype=torch.float32)),
        layer.empty(wide),
    ]


GPUS = {"sm_80": Gpu((8, 0), 108), "sm_90": Gpu((9, 0), 132), "sm_100": Gpu((10, 0), 148)}


def variants(gpu):
    """Name -> maker of the launches, each one argument away from bf16, head size 128, blocks of 16."""
    fp8 = torch.float8_e4m3fn if gpu.has_fp8 else torch.float8_e5m2
    found = {"moves": lambda: moves(gpu), "moves fp8": lambda: moves(gpu, kv=fp8), "layers": layers}
    for tokens in (64, 512, 1024, 2048):  # tiles of 16 to 128 rows
        found[f"experts of {tokens} tokens"] = partial(experts, gpu, tokens)
        if gpu.has_fp8:
            found[f"experts fp8 of {tokens} tokens"] = partial(experts, gpu, tokens, fp8)
    for kind, make in (("decode", decode), ("prefill", prefill)):
        for what, more in {
            "": {},
            " contiguous": {"paged": False},
            " fp16": {"dtype": torch.float16},
            " window": {"window": 1024},
            " group 7": {"heads": 56},
            " blocks of 1": {"block_size": 1},
            " blocks of 24": {"block_size": 24},
            **{f" head {size}": {"head_dim": size} for size in (32, 64, 80, 96, 256)},
            **{f" fp8 head {size}": {"head_dim": size, "kv": fp8} for size in (32, 64, 128, 256)},
        }.items():
            found[kind + what] = partial(make, gpu, **more)
    for heads, size, kind in (
        (64, 128, None),
        (128, 128, None),
        (128, 128, fp8),
        (128, 256, None),
        (128, 256, fp8),
    ):
        name = f"prefill{' fp8' if kind else ''} head {size} with {heads} heads on one"
        found[name] = partial(prefill, gpu, heads=heads, kv_heads=1, head_dim=size, kv=kind)
    found["decode multi-query"] = partial(decode, gpu, heads=32, kv_heads=1)
    found["decode 64 heads on one"] = partial(decode, gpu, heads=64, kv_heads=1)
    found["decode 128 heads on one"] = partial(decode, gpu, heads=128, kv_heads=1)
    found["decode capped"] = partial(decode, gpu, softcap=50.0)
    found["decode capped head 256"] = partial(decode, gpu, softcap=50.0, head_dim=256, heads=16, window=4096)
    sinks = meta(64, dtype=torch.float32)
    found["decode sinks head 64"] = partial(decode, gpu, sinks=sinks, heads=64, head_dim=64)
    found["decode sinks head 64 window"] = partial(
        decode, gpu, sinks=sinks, heads=64, head_dim=64, window=128
    )
    for what, more in {
        "": {},
        " contiguous": {"paged": False},
        " of 16 heads": {"heads": 16},
        " blocks of 16": {"block_size": 16},
        " fp8 of 128 heads": {"kv": fp8},
        " fp8 of 32 heads": {"kv": fp8, "heads": 32},
        " fp8 of 16 heads": {"kv": fp8, "heads": 16},
    }.items():
        found["latent" + what] = partial(latent, gpu, **more)
    found["decode split"] = partial(decode, gpu, splits=8)
    found["decode a sequence each"] = partial(decode, gpu, splits=1)
    found["decode cut by itself"] = partial(decode, gpu, given=False)
    found["latent cut by itself"] = partial(latent, gpu, given=False)
    return found


VARIANTS = {
    f"{name} {what}": (gpu, make) for name, gpu in GPUS.items() for what, make in variants(gpu).items()
}


def kernels_of(name) -> list[tuple[dict, bytes]]:
    """Facts about each kernel of a variant, and its instructions."""
    gpu, make = VARIANTS[name]
    found = []
    for launch in make():
        what, text = compiled(launch, number_of(gpu))
        about = {"variant": name, "kernel": launch.kernel.__name__, "warps": launch.warps}
        found.append((about | {"registers": launch.registers} | what, text))
    return found


def number_of(gpu) -> int:
    """90 for a capability of (9, 0)."""
    major, minor = gpu.capability
    return 10 * major + minor


def main(processes, chips):
    """Compile all variants of some chips, in processes that share the imports."""
    names = [name for name in VARIANTS if name.partition(" ")[0] in chips]
    print(json.dumps(names))
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        kernels = [kernel for some in pool.imap(kernels_of, names) for kernel in some]
    for chip, gpu in ((chip, GPUS[chip]) for chip in chips):
        of_chip = [kernel for kernel in kernels if kernel[0]["variant"].startswith(f"{chip} ")]
        whats, texts = zip(*of_chip, strict=True)
        for what, counts in zip(whats, instructions(texts, number_of(gpu)), strict=True):
            print(json.dumps(what | {"instructions": counts}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or list(GPUS))
