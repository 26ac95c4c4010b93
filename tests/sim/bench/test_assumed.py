"""How measured servers were served: by release and by script."""

from dataclasses import replace

import pytest

from kvsim.sim.bench.assumed import asynchronous, cache_of, fused, precision_of
from kvsim.sim.cost.calibrated.layer import Experts
from kvsim.sim.cost.calibrated.padded_experts import PaddedExperts
from kvsim.sim.cost.calibrated.parts import Part
from kvsim.sim.cost.calibrated.step import StepParts
from kvsim.sim.cost.older_experts import CUTLASS_READS, TRITON_READS, TRITON_ROWS, _in_blocks, of_release
from kvsim.sim.models.catalog import gpu_named
from kvsim.sim.validate import deployment_of, points

LLAMA, OSS = "meta-llama/Llama-3.1-70B", "openai/gpt-oss-120b"
MINIMAX = "MiniMaxAI/MiniMax-M2.5"


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.12.0", False), ("0.14.1", True), ("1.0", True), ("", True), ("nightly-5b", True)],
)
def test_releases_from_0_14_on_schedule_asynchronously(version, expected):
    assert asynchronous(version) is expected


def test_scripts_tell_of_caches_and_all_reduces():
    assert cache_of(LLAMA, "h200_sxm", "") == "fp8" and cache_of(LLAMA, "h100_sxm", "") == "auto"
    assert cache_of(OSS, "b200_sxm", "0.15.1") == "fp8" and cache_of(OSS, "b200_sxm", "") == "auto"
    assert fused(LLAMA, "b200_sxm", "") and not fused(LLAMA, "h200_sxm", "")


def first(gpu, version):
    return next(each for each in points() if each.gpu == gpu and each.version.startswith(version))


def experts_of(point, version, gpus=None, gpu=None):
    where = deployment_of(replace(point, version="nightly"))  # as in the tables
    profile = of_release(where.profile, version, gpu or where.gpu, gpus or point.tp)
    return StepParts(where, profile["parts"]).body.products[-1]


def test_before_0_18_a_b200_had_tritons_experts_which_are_slower_most_of_all_with_many_tokens():
    point = first("b200_sxm", "0.19")
    new, old, nightly = (experts_of(point, version) for version in ("0.19.0", "0.17.0", "nightly-5b"))
    assert 1.2 < old.priced(16).ps / new.priced(16).ps < TRITON_READS + 0.05
    assert 1.7 < old.priced(8192).ps / new.priced(8192).ps < 1.01 * TRITON_ROWS
    assert nightly.priced(16) == new.priced(16)


def test_on_hopper_experts_of_0_12_are_in_blocks_and_of_0_16_read_more_slowly_but_not_on_eight_gpus():
    point = first("h200_sxm", "0.16")
    new, old, blocks = (experts_of(point, version) for version in ("0.24.0", "0.16.0", "0.12.0"))
    assert 1.4 < old.priced(16).ps / new.priced(16).ps < CUTLASS_READS
    assert old.priced(65536).ps < 1.1 * new.priced(65536).ps
    assert isinstance(blocks, PaddedExperts)
    for version in ("0.12.0", "0.16.0"):
        assert experts_of(point, version, gpus=8).priced(16) == new.priced(16)
    assert experts_of(point, "0.10.2").priced(16) == new.priced(16)  # Triton's, as in the tables
    assert experts_of(point, "0.12.0", gpu=gpu_named("l40s")).priced(16) == new.priced(16)


def test_a_block_more_of_one_more_expert_takes_what_it_took_on_an_h200():
    """The table that the two rates are taken from: experts of DeepSeek-V3, 44 MB each, 32 to 64 of them."""
    part = _in_blocks({"form": {"t0_s": 0.0}, "constants": {"weight_bytes": 1.0}}, 4.8e12)
    layer = Experts(7168, 2048, 1, 64, 64)
    experts = PaddedExperts(Part("experts", part), layer)
    every = experts.priced(1 << 13).ps / 1e6  # all chosen, 128 rows each and a block of padding
    one = experts._first_ps / 1e6
    assert 14.5 < one < 15.3 and 8.6 < experts._other_ps / 1e6 < 9.6
    assert every == pytest.approx(64 * (one + experts._other_ps / 1e6), rel=0.01)
    assert experts.priced(1).ps / 1e6 == pytest.approx(one + 63 * experts._other_ps / 1e6)


def test_scripts_tell_of_products_in_32_bits_and_of_ranks():
    assert precision_of(MINIMAX, "b300_sxm", "0.19.0") == "high"
    assert (
        precision_of(MINIMAX, "b200_sxm", "0.17.0")
        == precision_of(MINIMAX, "h100_sxm", "0.18.0")
        == "highest"
    )
    ranks = {
        gpu: {deployment_of(each).data_parallel_size for each in points() if each.gpu == gpu and each.dp > 1}
        for gpu in ("h100_sxm", "b300_sxm")
    }
    assert ranks == {"h100_sxm": {1}, "b300_sxm": {2}}
