"""Experts in fp8, with scales by block, as vLLM releases before the tables' (0.24) computed them.

    Hopper, 0.11 to 0.14   DeepGEMM: each expert in whole blocks of rows (calibrated/padded_experts.py)
    Hopper, 0.15 to 0.17   FlashInfer's CUTLASS, which reads longer
    B200 and kin, to 0.17  Triton, slower than TensorRT-LLM's kernels
    eight Hopper GPUs      Triton, as in the tables

vllm-project/vllm, pulls 26197 and 29346: with 8-bit scales DeepGEMM is used however few the tokens; pull
34260 says that CUTLASS followed. A B200 of 0.17 had Triton, by its script. Apart from `CUTLASS_READS`, no
server decides any of this (docs/truth.md).
"""

from collections.abc import Mapping
from typing import Any

from kvsim.sim.cost.lent_parts import LENT
from kvsim.sim.deployment.vllm_defaults import FAMILY, release_number
from kvsim.sim.models.spec import GpuSpec

PART = "experts_fp8_block"
PADDED_SINCE, CUTLASS_SINCE, NEW_EXPERTS_SINCE = (0, 11), (0, 15), (0, 18)
HOPPER, TRITON_GPUS, BLACKWELL = ("h100", "h200"), 8, ("b200", "b300", "gb200")
BLOCK_ROWS, BLOCK_BANDWIDTH, BLOCK_WORK_PER_S = 128, 0.7, 1.23e15
"""DeepGEMM's blocks: weights and rows at this share of the bandwidth, further blocks computed at this rate.
Derived from SGLang's rows of DeepSeek-V3's experts on an H200 (ai-dynamo/aiconfigurator at 095f58a, h200_sxm/
moe/sglang/0.5.6.post2/wideep_context_moe_perf): one more block of one more expert of 44 MB took 14.9 us, one
more block of the same experts 8.6 to 9.6 us. On an H100 the share is 0.69."""
CUTLASS_READS = 1.6
"""How much longer FlashInfer's CUTLASS reads than Triton: fitted to five servers of MiniMax-M2.5 on an H200,
release 0.16, the only ones; the tables have it only for experts distributed over GPUs."""
TRITON_READS, TRITON_ROWS = 1.27, 1.9
"""How much longer Triton took on a B200 than TensorRT-LLM's kernels, with up to 64 tokens, and with more.
Medians over the rows of MiniMax-M2.5's experts, distributed over two and four GPUs, in 0.19 (b200_sxm/moe/
vllm/0.19.0 of the same collection), relative to 0.24. An H200's in 0.14, also Triton's, take 1.03 times as
long as in 0.24."""


def of_release(
    profile: Mapping[str, Any] | None, release: str, gpu: GpuSpec, gpus: int
) -> Mapping[str, Any] | None:
    """A profile with the experts of a release on `gpus` GPUs, if they were measured elsewhere."""
    number, part = release_number(release), profile["parts"].get(PART) if profile else None
    if profile is None or number is None or part is None:
        return profile
    if profile["kind"] != "elsewhere" and LENT not in part:
        return profile
    if gpu.name in BLACKWELL and number < NEW_EXPERTS_SINCE:
        part = _slower(part, TRITON_READS, TRITON_ROWS)
    elif gpu.name in HOPPER and gpus != TRITON_GPUS and PADDED_SINCE <= number < CUTLASS_SINCE:
        part = _in_blocks(part, gpu.bandwidth_bytes_per_s)
    elif gpu.name in HOPPER and gpus != TRITON_GPUS and CUTLASS_SINCE <= number < NEW_EXPERTS_SINCE:
        part = _slower(part, CUTLASS_READS, 1.0)
    else:
        return profile
    return {**profile, "parts": {**profile["parts"], PART: {**part, "release": release}}}


def release_of(profile: Mapping[str, Any]) -> str:
    """The release whose experts a profile was given; "" if they are the tables'."""
    return str(profile["parts"].get(PART, {}).get("release", ""))


def of_scheduler(
    profile: Mapping[str, Any] | None, scheduler: str | None, gpu: GpuSpec, gpus: int
) -> Mapping[str, Any] | None:
    """The same for a server whose scheduler is named: `vllm-v1@0.12.0`."""
    name, _, release = (scheduler or "").partition("@")
    return of_release(profile, release, gpu, gpus) if name == FAMILY else profile


def _in_blocks(part: Mapping[str, Any], bytes_per_s: float) -> Mapping[str, Any]:
    """DeepGEMM's experts (sim/cost/calibrated/padded_experts.py), with as many launches."""
    form = {
        "t0_s": part["form"]["t0_s"],
        "bandwidth_bytes_per_s": BLOCK_BANDWIDTH * bytes_per_s,
        "work_per_s": BLOCK_WORK_PER_S,
        "p": 1,
    }
    constants = {"block_rows": BLOCK_ROWS, "weight_bytes": part["constants"]["weight_bytes"]}
    lent = {LENT: part[LENT]} if LENT in part else {}
    return {"form": form, "constants": constants, "range": {}, "tables": [], **lent}


def _slower(part: Mapping[str, Any], reads: float, rows: float) -> Mapping[str, Any]:
    """Experts that take `reads` times as long to read weights, `rows` times to handle rows."""
    form, constants = dict(part["form"]), dict(part["constants"])
    form["t0_s"] *= reads
    form["bandwidth_bytes_per_s"] /= rows
    form["work_per_s"] /= rows
    constants["weight_bytes"] *= reads / rows
    return {**part, "form": form, "constants": constants}
