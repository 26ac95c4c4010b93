"""One of each file that a command reads, valid and small; fuzzers change them, or the words next to them."""

import json
import shutil
from pathlib import Path

from kvsim import cli
from support.bench_files import AIPERF, GUIDELLM, INFERENCE_PERF, VLLM, bench_serve, step_lines

SMALL = "--cost constant:0.03 --num-prompts 5 --kv-tokens 5000"
SOUGHT = """\
slo = "ttft:p99=1s"
allocator = ["paged", "buddy"]
cost = "constant:0.03"
num_prompts = 5
kv_tokens = 5000

[[case]]
name = "chat"
output_len = "20"
"""
SWEEP = 'request_rate = "2:4:2"\n' + SOUGHT
PRICES = 'currency = "USD"\ndate = "2026-01-01"\n[a100-40gb]\nper_hour = 1.3\n[h100]\nper_hour = 3.9\n'
POINTS = """\
name,model,gpu,precision,version,tp,dp,ep,input_tokens,output_tokens,clients,ttft_s,tpot_s
mine,meta-llama/Llama-3.1-8B,h100,bf16,0.19.0,1,1,1,512,16,4,0.03,0.0085
other,meta-llama/Llama-3.1-8B,h100,bf16,0.19.0,1,1,1,99,9,1,0.02,0.0075
"""
LOG = """\
INFO 01-01 non-default args: {'model': 'm', 'max_num_seqs': 128}
INFO core.py:99] Initializing a V1 LLM engine (v0.19.0) with config: model='m', tensor_parallel_size=1, \
enable_prefix_caching=True
INFO Chunked prefill is enabled with max_num_batched_tokens=2048.
INFO Model loading took 14.99 GiB memory and 3.1 seconds
INFO GPU KV cache size: 41,408 tokens
"""
TOKENIZER = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
    "pre_tokenizer": {"type": "Whitespace"},
}
TEXTS = [
    {"id": str(k), "conversations": [{"from": who, "value": "a b " * (9 + k)} for who in ("human", "gpt")]}
    for k in range(4)
]


def write_command_files() -> None:
    """Write the files into the current directory.

    `swept` and `seeds` are directories of runs, `sought` is that of a search for capacity, `replayed` of a
    replay, `stopped` that of an unfinished sweep.
    """
    Path("sweep.toml").write_text(SWEEP)
    Path("capacity.toml").write_text(SOUGHT)
    Path("prices.toml").write_text(PRICES)
    Path("points.csv").write_text(POINTS)
    Path("server.log").write_text(LOG)
    Path("steps.log").write_text(LOG + step_lines())
    Path("tokenizer.json").write_text(json.dumps(TOKENIZER))
    Path("texts.json").write_text(json.dumps(TEXTS))
    for name, path in (("vllm", VLLM), ("guidellm", GUIDELLM), ("inference-perf", INFERENCE_PERF)):
        shutil.copy(path, f"{name}.json")
    shutil.copytree(AIPERF, "aiperf")
    bench_serve(Path("mine.json"), [(k / 4, 100 + k, 5, 0.05, [0.02] * 4) for k in range(6)])
    for words in (
        "sweep sweep.toml --jobs 1 --no-plots --quiet --out swept",
        "capacity capacity.toml --jobs 1 --seeds 1 --no-plots --quiet --out sought",
        f"run --seeds 2 --jobs 1 {SMALL} --no-plots --quiet --out seeds",
        "validate points.csv --cost roofline --table errors.csv",
        "calibrate log steps.log --out steps.toml",
        "replay mine.json --model llama-3.1-8b --gpu l4 --cost roofline --out replayed",
    ):
        assert cli.main(words.split()) == 0
    shutil.copytree("swept", "stopped")
    Path("stopped/table.parquet").unlink()
