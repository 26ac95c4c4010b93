"""The sizes in the grids: full (about 5 minutes on an H200), quick (about 1), and toys for a CPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvsim.kernels.calibration.points import SKEW

Numbers = Sequence[int]
ExpertAxes = tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]], Sequence[float]]


@dataclass(frozen=True)
class Sizes:
    """The values of every axis, and the points besides the grids.

    Attributes
    ----------
    kv_heads, group, head_dim : int
        The geometry of the main tables of attention.
    decode_programs, decode_contexts : sequence of int
        Sequences x KV heads, and the tokens of each sequence.
    decode_skewed : sequence
        (sequences x KV heads, mean context, skew).
    decode_skewed_heads : sequence
        (sequences x KV heads, mean context) of batches with one long sequence, at every head size.
    decode_factors : Mapping
        Axis -> values of its own table, measured at `decode_factor_bases`.
    decode_held_out : sequence
        (sequences x KV heads, mean context, skew, what differs from the base).
    latent : tuple of three axes
        For decode attention over latents: query heads, sequences, tokens of each.
    latent_size : tuple of int
        Numbers in a row that are also its value, and numbers for the position.
    latent_skewed, latent_held_out : sequence
        (query heads, sequences, mean context, skew).
    latent_factors, latent_factor_bases
        As for decode; the bases are (query heads, sequences, mean context).
    prefill_chunks, prefill_held_out : sequence
        (sequences, chunk, prefix).
    product, product_fp8, lm_head : sequence of three axes
        Tokens, inputs, outputs; `_held_out`: points.
    experts, experts_fp8 : tuple of three axes
        (Experts, those that a token takes); (hidden, inner); rows per expert.
    expert_bases, expert_held_out : sequence
        (tokens, hidden, inner, experts, those that a token takes, experts on this GPU): where experts that
        are spread over GPUs are measured; after their skew, points.
    sampling : tuple
        Rows of the grid and held out, vocabulary of the grid and held out.
    elementwise : sequence of int
        Tokens; rows have `hidden` (norm), twice that (rotary) or `width` (activation: the same bytes)
        elements.
    kv_write, block_copy, host_copy, all_reduce : tuple
        Values of the grid, and held out: tokens, blocks, bytes, bytes.
    geometries, batches, heads, vocabulary
        For the composed steps; heads: (hidden, rows).
    """

    kv_heads: int
    group: int
    head_dim: int
    decode_programs: Numbers
    decode_contexts: Numbers
    decode_skewed: Sequence[tuple[int, int, str]]
    decode_skewed_heads: Sequence[tuple[int, int]]
    decode_factors: Mapping[str, Numbers]
    decode_factor_bases: Sequence[tuple[int, int]]
    decode_held_out: Sequence[tuple[int, int, str, Mapping[str, int]]]
    latent: tuple[Numbers, Numbers, Numbers]
    latent_size: tuple[int, int]
    latent_skewed: Sequence[tuple[int, int, int, str]]
    latent_factors: Mapping[str, Numbers]
    latent_factor_bases: Sequence[tuple[int, int, int]]
    latent_held_out: Sequence[tuple[int, int, int, str]]
    prefill_tokens: Numbers
    prefill_prefixes: Numbers
    prefill_chunks: Sequence[tuple[int, int, int]]
    prefill_factors: Mapping[str, Numbers]
    prefill_factor_base: tuple[int, int]
    prefill_held_out: Sequence[tuple[int, int, int]]
    product: tuple[Numbers, Numbers, Numbers]
    product_held_out: Sequence[tuple[int, int, int]]
    product_fp8: tuple[Numbers, Numbers, Numbers]
    product_fp8_held_out: Sequence[tuple[int, int, int]]
    lm_head: tuple[Numbers, Numbers, Numbers]
    lm_head_held_out: Sequence[tuple[int, int, int]]
    experts: ExpertAxes
    experts_fp8: ExpertAxes
    expert_bases: Sequence[Numbers]
    expert_held_out: Sequence[Sequence[float]]
    sampling: tuple[Numbers, Numbers, int, int]
    hidden: int
    width: int
    elementwise: Numbers
    elementwise_held_out: Sequence[tuple[str, int, int]]
    kv_write: tuple[Numbers, Numbers]
    block_copy: tuple[Numbers, Numbers]
    host_copy: tuple[Numbers, Numbers]
    all_reduce: tuple[Numbers, Numbers]
    geometries: Sequence[Mapping[str, int]]
    batches: Sequence[Mapping[str, int | str]]
    heads: Sequence[tuple[int, int]]
    vocabulary: int


def _geometry(
    hidden: int, intermediate: int, heads: int, kv_heads: int, head_dim: int, *, weight_bytes: int = 2,
    **experts: int,
) -> Mapping[str, int]:  # fmt: skip
    """`experts`: their number as `experts`, and `top_k`."""
    return {
        "hidden": hidden, "intermediate": intermediate, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim, "block_size": 16, "weight_bytes": weight_bytes, **experts,
    }  # fmt: skip


def _batch(
    batch: int, context: int, skew: str = "even", chunks: tuple[int, int, int] = (0, 0, 0)
) -> Mapping[str, int | str]:
    """`chunks`: (sequences, chunk, prefix)."""
    sequences, chunk, prefix = chunks
    return {
        "batch": batch, "context": context, "skew": skew, "sequences": sequences, "chunk": chunk,
        "prefix": prefix,
    }  # fmt: skip


FULL = Sizes(
    kv_heads=8,
    group=4,
    head_dim=128,
    decode_programs=(1, 8, 32, 128, 256, 384, 512, 544, 576, 768, 1024, 2048, 8192, 32_768),
    decode_contexts=(1, 32, 96, 224, 511, 512, 992, 2016, 4064, 8160, 16352, 32736, 65504, 131_040),
    decode_skewed=(
        (512, 2016, "lognormal"), (512, 2016, "one_long"), (512, 2016, "bimodal"), (64, 4064, "one_long"),
        (128, 8160, "lognormal"), (2048, 992, "one_long"), (2048, 992, "bimodal"), (256, 992, "lognormal"),
        (384, 2016, "one_long"), (1024, 480, "lognormal"),
    ),
    decode_skewed_heads=((512, 1000), (1024, 700)),
    decode_factors={
        "block_size": (1, 8, 16, 64, 256),
        "group": (1, 4, 8, 16),
        "head_dim": (64, 128, 256),
        "element_bytes": (1, 2),
    },
    decode_factor_bases=((512, 992), (512, 4064)),
    decode_held_out=(
        (256, 4000, "lognormal", {}), (1024, 1500, "bimodal", {}), (768, 1000, "one_long", {}),
        (256, 3000, "even", {"block_size": 32}), (128, 3000, "even", {"kv_heads": 2, "group": 8}),
        (512, 700, "lognormal", {"head_dim": 64}), (2048, 800, "even", {"kv_heads": 32, "group": 1}),
    ),
    latent=((16, 32, 64, 128), (1, 16, 64, 256), (1, 511, 512, 4064, 32_736, 131_040)),
    latent_size=(512, 64),  # DeepSeek, Kimi
    latent_skewed=(
        (16, 64, 2016, "lognormal"), (16, 64, 2016, "one_long"), (128, 48, 3000, "bimodal"),
        (128, 20, 4064, "one_long"),
    ),
    latent_factors={"block_size": (16, 64), "element_bytes": (1, 2)},
    latent_factor_bases=((16, 64, 992), (16, 64, 8160)),
    latent_held_out=(
        (64, 40, 3000, "even"), (64, 128, 1500, "lognormal"), (16, 100, 2500, "even"), (128, 30, 700, "even"),
        (128, 64, 6000, "lognormal"), (32, 200, 1000, "bimodal"), (16, 4, 20_000, "even"),
    ),
    prefill_tokens=(1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384),
    prefill_prefixes=(0, 512, 2048, 8192, 32_768, 131_072),
    prefill_chunks=((4, 512, 3584), (16, 128, 3968), (8, 256, 0), (32, 64, 1000)),
    prefill_factors={"block_size": (16, 256), "group": (1, 4, 8), "head_dim": (64, 128, 256)},
    prefill_factor_base=(2048, 2048),
    prefill_held_out=((6, 300, 700), (3, 1000, 0), (12, 170, 2500)),
    product=(
        (1, 16, 64, 65, 128, 129, 256, 512, 1024, 2048, 8192, 16_384),
        (256, 2048, 5120, 12_288, 49_152),
        (512, 2048, 5120, 12_288, 28_672, 65_536),
    ),
    product_held_out=(
        (24, 4096, 6144), (48, 14_336, 4096), (96, 5120, 13_824), (160, 4096, 6144), (192, 8192, 10_240),
        (384, 14_336, 4096), (640, 3584, 4608), (768, 5120, 13_824), (1536, 8192, 10_240), (3072, 4096, 6144),
        (200, 2048, 16_384), (6, 4096, 28_672), (8, 7168, 8192), (90, 8192, 14_336), (450, 4096, 28_672),
        (6000, 5120, 13_824), (40, 20_480, 5120), (300, 5120, 20_480), (1000, 8192, 57_344),
    ),
    product_fp8=(
        (1, 16, 64, 65, 128, 129, 256, 512, 1024, 2048, 8192, 16_384),
        (1024, 4096, 8192, 28_672),
        (1024, 5120, 12_288, 57_344),
    ),
    product_fp8_held_out=(
        (24, 4096, 6144), (96, 5120, 13_824), (192, 8192, 10_240), (384, 14_336, 4096), (768, 5120, 13_824),
        (1536, 8192, 10_240), (3072, 4096, 6144), (6, 4096, 28_672), (90, 8192, 14_336), (300, 5120, 20_480),
        (1000, 8192, 57_344), (40, 2048, 2560),
    ),
    lm_head=(
        (1, 16, 64, 65, 128, 129, 256, 512, 1024),
        (512, 2048, 5120, 12_288),
        (4000, 32_768, 131_072, 262_208),
    ),
    lm_head_held_out=((32, 3584, 152_064), (96, 5120, 32_000), (200, 4096, 128_256), (512, 2048, 128_256)),
    experts=(
        ((8, 2), (32, 4), (128, 8), (384, 8)),
        ((2048, 192), (2048, 768), (4096, 1536), (7168, 2048), (4096, 14_336)),
        (1 / 16, 1 / 4, 1, 4, 16, 64, 256, 1024, 4096),
    ),
    experts_fp8=(
        ((8, 2), (32, 4), (128, 8), (384, 8)),
        ((2048, 192), (2048, 768), (4096, 1536), (7168, 2048)),
        (1 / 16, 1 / 4, 1, 4, 16, 64, 256, 1024, 4096),
    ),
    expert_bases=((8, 2048, 768, 32, 4, 32), (128, 2048, 768, 32, 4, 32), (2048, 2048, 768, 32, 4, 32)),
    expert_held_out=(
        (SKEW, 24, 2048, 768, 128, 8, 128), (SKEW, 300, 2048, 768, 128, 8, 128),
        (0, 3000, 2048, 768, 128, 8, 128), (SKEW, 100, 4096, 192, 128, 8, 128),
        (SKEW, 1500, 4096, 192, 128, 8, 128), (0, 50, 7168, 256, 256, 8, 256),
        (SKEW, 700, 7168, 256, 256, 8, 256), (SKEW, 60, 7168, 2048, 256, 8, 32),
        (SKEW, 1000, 7168, 2048, 256, 8, 32), (SKEW, 20, 4096, 7168, 8, 2, 8), (0, 500, 4096, 7168, 8, 2, 8),
        (SKEW, 40, 2880, 2880, 32, 4, 32), (0, 1200, 2880, 2880, 32, 4, 32),
        (SKEW, 6, 5120, 1536, 160, 8, 160), (SKEW, 12, 5120, 8192, 16, 1, 16),
    ),
    sampling=((1, 8, 64, 256, 2048), (4, 32, 128), 131_072, 152_064),
    hidden=4096,
    width=5456,
    elementwise=(1, 8, 64, 256, 1024, 8192, 65_536),
    elementwise_held_out=(
        ("norm", 24, 8192), ("rotary", 200, 5120), ("activation", 96, 14_336), ("norm", 2000, 2048),
        ("rotary", 3000, 5120), ("activation", 600, 28_672),
    ),
    kv_write=((1, 16, 64, 256, 1024, 8192, 131_072), (40, 600, 3000)),
    block_copy=((1, 4, 16, 64, 256, 1024, 4096), (6, 100)),
    host_copy=((2**12, 2**15, 2**18, 2**21, 2**24, 2**27), (2**16, 6 * 2**20)),
    all_reduce=((2**13, 2**17, 2**21, 2**25, 2**28), (2**15, 2**23)),
    geometries=(
        _geometry(4096, 14_336, 32, 8, 128),
        _geometry(8192, 7168, 16, 2, 128),  # a 70B model on four GPUs
        _geometry(2048, 8192, 32, 8, 64),
        _geometry(8192, 14_336, 32, 4, 128, weight_bytes=1),  # a 70B model in 8 bits on two
        _geometry(2048, 768, 32, 4, 128, experts=128, top_k=8),  # a 30B model with experts
        _geometry(4096, 384, 16, 1, 128, weight_bytes=1, experts=128, top_k=8),  # one of 235B on four
    ),
    batches=(
        _batch(8, 3000, "lognormal"), _batch(64, 2000, "lognormal"), _batch(200, 700, "bimodal"),
        _batch(40, 1000, "lognormal", (1, 470, 1000)), _batch(0, 0, "even", (2, 900, 0)),
    ),
    heads=((4096, 64), (8192, 200), (2048, 8)),
    vocabulary=128_256,
)  # fmt: skip

QUICK = Sizes(
    kv_heads=8,
    group=8,
    head_dim=128,
    decode_programs=(1, 128, 512, 1024, 32_768),
    decode_contexts=(1, 96, 511, 512, 2016, 8160, 131_040),
    decode_skewed=((512, 2016, "lognormal"), (512, 2016, "one_long"), (1024, 992, "bimodal")),
    decode_skewed_heads=(),
    decode_factors={"block_size": (16, 256), "group": (1, 8)},
    decode_factor_bases=((512, 992),),
    decode_held_out=((256, 4000, "lognormal", {}), (1024, 1500, "bimodal", {})),
    latent=((), (), ()),  # few models have them
    latent_size=(512, 64),
    latent_skewed=(),
    latent_factors={},
    latent_factor_bases=(),
    latent_held_out=(),
    prefill_tokens=(1, 64, 512, 2048, 8192),
    prefill_prefixes=(0, 2048, 32_768),
    prefill_chunks=((16, 128, 3968),),
    prefill_factors={"group": (1, 8)},
    prefill_factor_base=(2048, 2048),
    prefill_held_out=((6, 300, 700),),
    product=((1, 64, 256, 1024, 8192), (256, 4096, 49_152), (512, 8192, 65_536)),
    product_held_out=((24, 4096, 6144), (192, 14_336, 4096), (768, 5120, 13_824), (3072, 4096, 6144)),
    product_fp8=((1, 64, 256, 1024, 8192), (1024, 28_672), (1024, 57_344)),
    product_fp8_held_out=((24, 4096, 6144), (768, 5120, 13_824)),
    lm_head=((1, 64, 256, 1024), (512, 12_288), (4000, 262_208)),
    lm_head_held_out=((200, 4096, 128_256),),
    experts=(((8, 2), (128, 8)), ((2048, 768), (4096, 3584)), (1 / 16, 4, 256)),
    experts_fp8=(((8, 2), (128, 8)), ((2048, 768), (4096, 3584)), (1 / 16, 4, 256)),
    expert_bases=(),
    expert_held_out=((SKEW, 100, 2048, 768, 128, 8, 128), (0, 500, 4096, 1536, 32, 4, 32)),
    sampling=((1, 64, 2048), (32,), 131_072, 152_064),
    hidden=4096,
    width=5456,
    elementwise=(1, 64, 1024, 65_536),
    elementwise_held_out=(("norm", 200, 8192),),
    kv_write=((1, 64, 1024, 131_072), (200,)),
    block_copy=((1, 64, 4096), (16,)),
    host_copy=((2**12, 2**17, 2**26), (2**15,)),
    all_reduce=((2**13, 2**18, 2**28), (2**21,)),
    geometries=(_geometry(8192, 7168, 16, 2, 128),),
    batches=(
        _batch(64, 2000, "lognormal"), _batch(200, 700, "bimodal"),
        _batch(40, 1000, "lognormal", (1, 470, 1000)),
    ),
    heads=((8192, 64),),
    vocabulary=128_256,
)  # fmt: skip

TOY = Sizes(
    kv_heads=2,
    group=2,
    head_dim=32,
    decode_programs=(2, 4),
    decode_contexts=(16, 64, 320),
    decode_skewed=((4, 40, "one_long"),),
    decode_skewed_heads=((4, 50),),
    decode_factors={"block_size": (16, 32), "head_dim": (32, 64)},
    decode_factor_bases=((2, 16),),
    decode_held_out=((4, 100, "lognormal", {}),),
    latent=((4,), (1, 2), (16, 320)),
    latent_size=(32, 16),
    latent_skewed=((4, 2, 100, "one_long"),),
    latent_factors={"block_size": (16, 64)},
    latent_factor_bases=((4, 2, 16),),
    latent_held_out=((4, 2, 60, "lognormal"),),
    prefill_tokens=(8, 48),
    prefill_prefixes=(0, 40),
    prefill_chunks=((2, 8, 20),),
    prefill_factors={"block_size": (16, 32)},
    prefill_factor_base=(8, 0),
    prefill_held_out=((1, 16, 16),),
    product=((1, 16, 17), (32, 64), (32, 64)),
    product_held_out=((8, 48, 48),),
    product_fp8=((1, 16), (32, 64), (32, 64)),
    product_fp8_held_out=((8, 48, 48),),
    lm_head=((1, 8), (32, 64), (128, 256)),
    lm_head_held_out=((4, 48, 192),),
    experts=(((4, 2), (8, 2)), ((32, 16), (32, 48)), (1 / 4, 2)),
    experts_fp8=(((4, 2),), ((32, 16), (32, 48)), (1, 2)),
    expert_bases=((4, 32, 16, 4, 2, 4),),
    expert_held_out=((SKEW, 3, 48, 32, 6, 2, 6),),
    sampling=((1, 8), (4,), 128, 192),
    hidden=64,
    width=80,
    elementwise=(1, 8),
    elementwise_held_out=(("norm", 4, 64),),
    kv_write=((1, 8), (4,)),
    block_copy=((1, 4), (2,)),
    host_copy=((2**12, 2**14), (2**13,)),
    all_reduce=((2**10, 2**12), (2**11,)),
    geometries=(_geometry(64, 96, 4, 2, 32), _geometry(64, 32, 4, 2, 32, experts=4, top_k=2)),
    batches=(_batch(2, 30, "lognormal"), _batch(1, 20, "even", (1, 12, 8))),
    heads=((64, 2),),
    vocabulary=256,
)  # fmt: skip
