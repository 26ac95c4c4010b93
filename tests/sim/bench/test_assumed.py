"""How measured servers were served: by release and by script."""

import pytest

from kvsim.sim.bench.assumed import OLD_EXPERTS, asynchronous, cache_of, fused, of_release, precision_of
from kvsim.sim.cost.calibrated.step import StepParts
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


def experts_ps(point, tokens, version):
    where = deployment_of(point)
    parts = of_release(where.profile, version)["parts"]
    return StepParts(where, parts)._products[-1].priced(tokens).ps


def test_older_releases_read_experts_more_slowly_and_compute_as_fast():
    point = next(each for each in points() if each.gpu == "b200_sxm" and each.version.startswith("0.19"))
    new, old, nightly = (experts_ps(point, 16, version) for version in ("0.19.0", "0.17.0", "nightly-5b"))
    assert OLD_EXPERTS - 0.05 < old / new < OLD_EXPERTS and nightly == new
    assert experts_ps(point, 65536, "0.17.0") < 1.1 * experts_ps(point, 65536, "0.19.0")
    assert deployment_of(point).profile["parts"].keys() >= {"experts_fp8_block"}


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
