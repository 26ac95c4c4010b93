"""The settings of measured servers whose data points omit them: from their launch scripts, or assumed.

flags      seats, tokens per step, share of the memory, experts: from the script that launched the server
cache      fp8 if that script says so
schedule   asynchronous from a certain release on
"""

from collections.abc import Iterable
from typing import NamedTuple

from kvsim.sim.deployment.vllm_defaults import release_number

ASSUMED = (
    "lengths are drawn uniformly from 0.8 to 1 of the nominal ones; ten requests per client, of Qwen six",
    "measured TTFT and TPOT are means",
    "the server has 1,024 seats, 8,192 tokens per step, no prefix cache, 0.9 of the memory, unless its "
    "script says otherwise: as many seats as clients (Llama-70B, gpt-oss on H100 and H200), 512 (gpt-oss on "
    "B200) or 256 (MiniMax on H100); twice the prompt per step (MiniMax of 0.19 on B200 and B300); 0.95 of "
    "the memory and experts distributed (MiniMax of 0.17 on B200)",
    "releases from 0.14 on, and unknown ones, schedule asynchronously",
    "with data-parallel attention, tp counts all GPUs of the server",
    "the cache is 16-bit, but fp8 if the launching script says so (Llama-70B on B200 and H200, gpt-oss on "
    "B200, MiniMax of 0.19 on B200 and B300); in fp8 and fp4 models all layers are quantised",
    "all-reduces are fused with norms if the launching script says so (Llama-70B and gpt-oss on B200)",
    "MiniMax's routers compute in 32 bits, but as TF32 if the launching script says so (0.19 on B200 and "
    "B300); its attention on an H100 is tensor-parallel, because its script has no ranks",
    "experts in fp8 are those of the release: on Hopper DeepGEMM's in padded blocks until 0.14, read 1.6 "
    "times as long until 0.17, both but on eight GPUs; on a B200 Triton's until 0.17",
)
ASYNCHRONOUS_SINCE = (0, 14)
SEQS, TOKENS = 1024, 8192


class Flags(NamedTuple):
    """Relevant flags of `vllm serve`; None: as many seats as clients, and twice the prompt per step."""

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
"""((model, GPU and version prefixes), flags) from InferenceMAX's scripts; the first match applies:
70b_fp8_h100_slurm.sh, 70b_fp8_h200_slurm.sh and the README of 2025, whose command for a B200 says the same;
gptoss_fp4_{b200,h100,h200}.sh; minimaxm2.5_fp8_h100.sh; minimaxm2.5_fp8_b200.sh, whose version for 0.17 asks
for distributed experts even if `EP_SIZE` is 1, and whose later ones, like those of fp4 and of a B300, ask for
twice the prompt. Llama-70B's fp4 script is assumed to be like the fp8 one."""
EIGHT_BIT_CACHES = (
    ("meta-llama/Llama-3.1-70B", "b200_sxm", ""),
    ("meta-llama/Llama-3.1-70B", "h200_sxm", ""),
    ("openai/gpt-oss-120b", "b200_sxm", "0."),
    ("MiniMaxAI/MiniMax-M2.5", "b200_sxm", "0.19"),
    ("MiniMaxAI/MiniMax-M2.5", "b300_sxm", ""),
)
"""(model, GPU, version prefix) of servers with `--kv-cache-dtype fp8`, from the InferenceMAX scripts that
launched them (70b_fp8_b200_slurm.sh, 70b_fp4_b200_slurm.sh, 70b_fp8_h200_slurm.sh, October 2025;
gptoss_fp4_b200.sh, since 0.11.2; minimaxm2.5_fp8_b300.sh and minimaxm2.5_fp4_b300.sh, April 2026, which are
identical to those of a B200). The H100's script says so too, but its requests waited as long as with 16 bits:
31 s for 64 clients on two GPUs; the simulation gives 30 s, and 0.4 s with 8 bits."""
FUSED = (
    ("meta-llama/Llama-3.1-70B", "b200_sxm", ""),
    ("openai/gpt-oss-120b", "b200_sxm", "0."),
)
"""Servers with `fuse_allreduce_rms`, or its older name, from the same scripts."""
TF32 = (("MiniMaxAI/MiniMax-M2.5", "b200_sxm", "0.19"), ("MiniMaxAI/MiniMax-M2.5", "b300_sxm", "0.19"))
"""Servers with VLLM_FLOAT32_MATMUL_PRECISION=high, from minimaxm2.5_{fp8,fp4}_{b200,b300}.sh."""


def flags_of(model: str, gpu: str, version: str) -> Flags:
    """The launch flags of a server, where known."""
    for (name, where, begun), flags in SCRIPTS:
        if model == name and gpu.startswith(where) and version.startswith(begun):
            return flags
    return Flags()


def cache_of(model: str, gpu: str, version: str) -> str:
    """The data type of the KV cache."""
    return "fp8" if _among(EIGHT_BIT_CACHES, model, gpu, version) else "auto"


def fused(model: str, gpu: str, version: str) -> bool:
    """Whether all-reduces are fused with norms."""
    return _among(FUSED, model, gpu, version)


def precision_of(model: str, gpu: str, version: str) -> str:
    """The precision of 32-bit products."""
    return "high" if _among(TF32, model, gpu, version) else "highest"


def _among(servers: Iterable[tuple[str, str, str]], model: str, gpu: str, version: str) -> bool:
    return any((model, gpu) == (name, where) and version.startswith(begun) for name, where, begun in servers)


def asynchronous(version: str) -> bool:
    """Whether a release schedules asynchronously by default."""
    release = release_number(version)
    return release is None or release >= ASYNCHRONOUS_SINCE
