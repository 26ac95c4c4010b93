"""How measured servers were served, where their points do not say it: by their scripts, or assumed.

flags      seats, tokens of a step, share of the memory, experts: of the script that launched the server
cache      fp8 where that script says so
schedule   asynchronous from a release on
experts    of older releases, slower than those of the tables
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kvsim.sim.models.spec import GpuSpec

ASSUMED = (
    "lengths are drawn evenly from 0.8 to 1 of the nominal ones; ten requests a client, of Qwen six",
    "measured TTFT and TPOT are means",
    "the server has 1,024 seats, 8,192 tokens a step, no prefix cache, 0.9 of the memory, but as its script "
    "says: as many seats as clients (Llama-70B, gpt-oss on H100 and H200), 512 (gpt-oss on B200) or 256 "
    "(MiniMax on H100); twice the prompt a step (MiniMax of 0.19 on B200 and B300); 0.95 of the memory and "
    "experts shared out (MiniMax of 0.17 on B200)",
    "releases from 0.14 on, and those that are not told, schedule asynchronously",
    "with data-parallel attention, tp counts all GPUs of the server",
    "the cache is 16-bit, but fp8 where the launching script says so (Llama-70B on B200 and H200, gpt-oss on "
    "B200, MiniMax of 0.19 on B200 and B300); of fp8 and fp4 models all layers are quantised",
    "all-reduces are fused with norms where the launching script says so (Llama-70B and gpt-oss on B200)",
    "MiniMax's routers compute in 32 bits, but as TF32 where the launching script says so (0.19 on B200 and "
    "B300); its attention on an H100 is tensor-parallel, as its script knows no ranks",
    "experts in fp8 are those of the release: on Hopper DeepGEMM's in padded blocks until 0.14, read 1.6 "
    "times as long until 0.17, both but on eight GPUs; on a B200 Triton's until 0.17",
)
ASYNCHRONOUS_SINCE = (0, 14)
SEQS, TOKENS = 1024, 8192


class Flags(NamedTuple):
    """Of `vllm serve`, as far as they matter; None: as many seats as clients, twice the prompt a step."""

    max_num_seqs: int | None = SEQS
    max_num_batched_tokens: int | None = TOKENS
    gpu_memory_utilization: float = 0.9
    enable_expert_parallel: bool = False
    data_parallel: bool = True
    """False: attention is tensor-parallel, whatever the column `dp` says"""


SCRIPTS = (
    (("meta-llama/Llama-3.1-70B", "", ""), Flags(max_num_seqs=None)),
    (("openai/gpt-oss-120b", "b200_sxm", ""), Flags(max_num_seqs=512)),
    (("openai/gpt-oss-120b", "h", ""), Flags(max_num_seqs=None)),
    (("MiniMaxAI/MiniMax-M2.5", "h100_sxm", ""), Flags(max_num_seqs=256, data_parallel=False)),
    (
        ("MiniMaxAI/MiniMax-M2.5", "b200_sxm", "0.17"),
        Flags(gpu_memory_utilization=0.95, enable_expert_parallel=True),
    ),
    (("MiniMaxAI/MiniMax-M2.5", "b", ""), Flags(max_num_batched_tokens=None)),
)
"""((model, how the GPU and the version begin), flags), the first that fits, by InferenceMAX's scripts:
70b_fp8_h100_slurm.sh, 70b_fp8_h200_slurm.sh and the README of 2025, whose command for a B200 says the same;
gptoss_fp4_{b200,h100,h200}.sh; minimaxm2.5_fp8_h100.sh; minimaxm2.5_fp8_b200.sh, whose version for 0.17 asks
for experts shared out where `EP_SIZE` is 1 too, and whose later ones, and those of fp4 and of a B300, for
twice the prompt. The fp4 one of Llama-70B is taken to be as the fp8 one."""
EIGHT_BIT_CACHES = (
    ("meta-llama/Llama-3.1-70B", "b200_sxm", ""),
    ("meta-llama/Llama-3.1-70B", "h200_sxm", ""),
    ("openai/gpt-oss-120b", "b200_sxm", "0."),
    ("MiniMaxAI/MiniMax-M2.5", "b200_sxm", "0.19"),
    ("MiniMaxAI/MiniMax-M2.5", "b300_sxm", ""),
)
"""(model, GPU, how the version begins) of servers with `--kv-cache-dtype fp8`, by the scripts of InferenceMAX
that launched them (70b_fp8_b200_slurm.sh, 70b_fp4_b200_slurm.sh, 70b_fp8_h200_slurm.sh, October 2025;
gptoss_fp4_b200.sh, since 0.11.2; minimaxm2.5_fp8_b300.sh and minimaxm2.5_fp4_b300.sh, April 2026, which are
those of a B200 as they are). The script of an H100 says so too, but its servers waited as with 16 bits: 31 s
for 64 clients on two GPUs, where 30 are simulated, and 0.4 with 8 bits."""
FUSED = (
    ("meta-llama/Llama-3.1-70B", "b200_sxm", ""),
    ("openai/gpt-oss-120b", "b200_sxm", "0."),
)
"""The same of servers with `fuse_allreduce_rms`, or its older name, by the same scripts."""
TF32 = (("MiniMaxAI/MiniMax-M2.5", "b200_sxm", "0.19"), ("MiniMaxAI/MiniMax-M2.5", "b300_sxm", "0.19"))
"""The same of servers with VLLM_FLOAT32_MATMUL_PRECISION=high, by minimaxm2.5_{fp8,fp4}_{b200,b300}.sh."""
PADDED_SINCE, CUTLASS_SINCE, NEW_EXPERTS_SINCE = (0, 11), (0, 15), (0, 18)
HOPPER, TRITON_GPUS = ("h100", "h200"), 8
"""Releases in which experts in fp8, with scales by block, have other kernels than those of the tables (0.24).

Hopper, but not on eight GPUs: DeepGEMM, each expert in whole blocks (vllm-project/vllm, pulls 26197, 29346:
with scales of 8 bits it is taken however few the tokens); then FlashInfer's CUTLASS (pull 34260 says so), and
at last Triton, which the tables have. A B200 of 0.17 had Triton, by its script."""
BLOCK_ROWS, BLOCK_BANDWIDTH, BLOCK_WORK_PER_S = 128, 0.7, 1.23e15
"""DeepGEMM's blocks: weights and rows at this share of the bandwidth, further blocks computed at this rate.

Read off SGLang's rows of DeepSeek-V3's experts on an H200 (ai-dynamo/aiconfigurator at 095f58a, h200_sxm/moe/
sglang/0.5.6.post2/wideep_context_moe_perf): one more block of one more expert of 44 MB took 14.9 us, one more
block of the same experts 8.6 to 9.6 us. On an H100 the share is 0.69."""
CUTLASS_READS = 1.6
"""How much longer FlashInfer's CUTLASS reads than Triton: fitted to five servers of MiniMax-M2.5 on an H200,
release 0.16, the only ones; the tables have it for experts shared out alone."""
TRITON_READS, TRITON_ROWS = 1.27, 1.9
"""How much longer Triton took on a B200 than TensorRT-LLM's kernels, with up to 64 tokens, and with more.

Medians over the rows of MiniMax-M2.5's experts, shared out to two and four GPUs, in 0.19 (b200_sxm/moe/vllm/
0.19.0 of the same collection), of what they take in 0.24. An H200's in 0.14, Triton's too, take 1.03 times as
long as in 0.24."""


def flags_of(model: str, gpu: str, version: str) -> Flags:
    """What the server was launched with, as far as it is known."""
    for (name, where, begun), flags in SCRIPTS:
        if model == name and gpu.startswith(where) and version.startswith(begun):
            return flags
    return Flags()


def cache_of(model: str, gpu: str, version: str) -> str:
    """Type of the cached numbers."""
    return "fp8" if _among(EIGHT_BIT_CACHES, model, gpu, version) else "auto"


def fused(model: str, gpu: str, version: str) -> bool:
    """Whether all-reduces are fused with norms."""
    return _among(FUSED, model, gpu, version)


def precision_of(model: str, gpu: str, version: str) -> str:
    """How 32-bit products are computed."""
    return "high" if _among(TF32, model, gpu, version) else "highest"


def _among(servers: Iterable[tuple[str, str, str]], model: str, gpu: str, version: str) -> bool:
    return any((model, gpu) == (name, where) and version.startswith(begun) for name, where, begun in servers)


def asynchronous(version: str) -> bool:
    """Whether a release schedules asynchronously by itself."""
    release = _release(version)
    return release is None or release >= ASYNCHRONOUS_SINCE


def of_release(
    profile: Mapping[str, Any] | None, version: str, gpu: GpuSpec, gpus: int
) -> Mapping[str, Any] | None:
    """A profile, with the experts of an older release on so many GPUs."""
    release, name = _release(version), "experts_fp8_block"
    if profile is None or release is None or release >= NEW_EXPERTS_SINCE or name not in profile["parts"]:
        return profile
    part = profile["parts"][name]
    if gpu.name not in HOPPER:
        part = _slower(part, TRITON_READS, TRITON_ROWS)
    elif gpus != TRITON_GPUS and PADDED_SINCE <= release < CUTLASS_SINCE:
        part = _in_blocks(part, gpu.bandwidth_bytes_per_s)
    elif gpus != TRITON_GPUS:
        part = _slower(part, CUTLASS_READS, 1.0)
    return {**profile, "parts": {**profile["parts"], name: part}}


def _in_blocks(part: Mapping[str, Any], bytes_per_s: float) -> Mapping[str, Any]:
    """Experts of DeepGEMM (sim/cost/calibrated/padded_experts.py), with as many launches."""
    form = {
        "t0_s": part["form"]["t0_s"],
        "bandwidth_bytes_per_s": BLOCK_BANDWIDTH * bytes_per_s,
        "work_per_s": BLOCK_WORK_PER_S,
        "p": 1,
    }
    constants = {"block_rows": BLOCK_ROWS, "weight_bytes": part["constants"]["weight_bytes"]}
    return {"form": form, "constants": constants, "range": {}, "tables": []}


def _slower(part: Mapping[str, Any], reads: float, rows: float) -> Mapping[str, Any]:
    """Experts that read their weights, and handle their rows, so many times as long."""
    form, constants = dict(part["form"]), dict(part["constants"])
    form["t0_s"] *= reads
    form["bandwidth_bytes_per_s"] /= rows
    form["work_per_s"] /= rows
    constants["weight_bytes"] *= reads / rows
    return {**part, "form": form, "constants": constants}


def _release(version: str) -> tuple[int, ...] | None:
    """The first two numbers of a version; None where it is not told."""
    numbers = version.split(".")[:2]
    known = len(numbers) == 2 and all(each.isdecimal() for each in numbers)
    return tuple(map(int, numbers)) if known else None
