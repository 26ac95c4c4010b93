"""Published measurements of servers beside simulations; nothing is fitted to bursts and awq.

    bursts    gpt-oss on an A100-80GB, vLLM 0.11.0 with its defaults, by GPUStack's lab: random prompts, all
              at once; total seconds
    awq       one client of a model with 4-bit weights, releases not stated; ms per token
    paced     four older models on H100s, one request every 1 / rate seconds for ten minutes, by
              inference-sim/training at ed5c1d2: 100 prompts that repeat, so that the prefix cache hits; mean
              and median ms to the first token, and mean seconds to the last

    python benchmarks/published.py [bursts awq paced]

No time is measured.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import kvsim

TEMPLATE = 8
"""Tokens of the chat template around a random prompt, which no cache holds."""
BURSTS = (
    ("gpt-oss-20b", 1000, 128, 4, 5.44),
    ("gpt-oss-20b", 500, 2000, 94, 58.06),
    ("gpt-oss-20b", 500, 4000, 107, 128.79),
    ("gpt-oss-20b", 100, 32_000, 95, 440.85),
    ("gpt-oss-120b", 1000, 128, 4, 14.09),
    ("gpt-oss-120b", 500, 2000, 98, 123.94),
    ("gpt-oss-120b", 500, 4000, 135, 269.39),
)
"""(model, requests, tokens of a prompt, mean tokens of an answer, seconds)."""
AWQ = (
    ("llama-3.1-70b", "a100-80gb", 25),
    ("llama-3.1-8b", "a100-80gb", 6),
    ("llama-3.1-8b", "rtx-4090", 7),
    ("llama-3.1-8b", "l40s", 8),
)
"""(model, GPU, approximate ms per token)."""

PACED = (
    ("llama-2-7b", 5, 592, 247, 25.0, 24.3, 1.81),
    ("llama-2-7b", 6, 786, 251, 27.1, 26.8, 2.071),
    ("llama-2-7b", 8, 575, 248, 27.1, 26.8, 2.058),
    ("llama-2-7b", 10, 592, 247, 29.5, 28.9, 2.216),
    ("llama-2-7b", 20, 575, 248, 51.9, 51.1, 4.158),
    ("codellama-34b", 5, 592, 247, 44.5, 43.7, 3.61),
    ("codellama-34b", 6, 786, 251, 45.7, 44.8, 3.67),
    ("codellama-34b", 8, 575, 248, 46.0, 45.3, 3.694),
    ("codellama-34b", 10, 592, 247, 46.1, 46.2, 3.779),
    ("codellama-34b", 20, 575, 248, 53.8, 53.5, 4.252),
    ("mixtral-8x7b", 5, 592, 247, 63.0, 53.0, 4.519),
    ("mixtral-8x7b", 6, 786, 251, 60.5, 55.5, 4.685),
    ("mixtral-8x7b", 8, 575, 248, 63.9, 55.8, 4.796),
    ("mixtral-8x7b", 10, 592, 247, 56.8, 56.8, 4.754),
    ("mixtral-8x7b", 20, 575, 248, 71.0, 63.7, 5.136),
    ("llama-2-70b", 5, 592, 247, 53.4, 51.2, 4.333),
    ("llama-2-70b", 6, 786, 251, 54.8, 53.5, 4.562),
    ("llama-2-70b", 8, 575, 248, 57.4, 55.2, 4.678),
    ("llama-2-70b", 10, 592, 247, 56.7, 56.6, 4.742),
    ("llama-2-70b", 20, 575, 248, 121.3, 68.3, 5.577),
)
"""(model, requests per second, tokens of a prompt, of an answer, mean and median ms to the first token, mean
seconds)."""
PACED_GPUS = {"llama-2-7b": 1, "codellama-34b": 2, "mixtral-8x7b": 2, "llama-2-70b": 4}
CODELLAMA = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 22_016,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
    "max_position_embeddings": 16_384,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
"""The configuration of CodeLlama-34B, which is not built in."""
PROMPTS, SECONDS = 100, 600


def bursts() -> Iterator[str]:
    """All requests arrive at once."""
    for model, requests, prompt, answer, published_s in BURSTS:
        found = kvsim.simulate(
            model=model, gpu="a100-80gb", scheduler="vllm-v1@0.11.0", max_model_len=32_768,
            trace="synthetic", input_len=str(prompt + TEMPLATE), output_len=str(answer),
            num_prompts=requests, request_rate=float("inf"),
        )  # fmt: skip
        seconds = found.summary["duration_s"]
        off = 100 * (seconds / published_s - 1)
        yield f"{model}, {requests} x {prompt}: {seconds:.1f} s, published {published_s} ({off:+.0f} %)"


def awq() -> Iterator[str]:
    """One client at a time."""
    for model, gpu, published_ms in AWQ:
        own = {"model": model, "gpu": gpu, "quantization": "awq", "clients": 1, "num_prompts": 6}
        both = [kvsim.simulate(**own, scheduler=f"vllm-v1@{each}") for each in ("0.33.0", "0.11.0")]
        hidden, waits = (1e3 * each.summary["latency"]["tpot_s"]["mean"] for each in both)
        yield f"{model}, {gpu}: {hidden:.1f} ms, {waits:.1f} with a host that waits; about {published_ms}"


def paced() -> Iterator[str]:
    """Evenly spaced arrivals, with vLLM 0.33.0's asynchronous scheduling."""
    with TemporaryDirectory() as folder:
        trace, config = Path(folder) / "paced.jsonl", Path(folder) / "config.json"
        config.write_text(json.dumps(CODELLAMA))
        for model, rate, prompt, answer, mean_ms, median_ms, e2e_s in PACED:
            rows = (
                {
                    "timestamp": round(1000 * number / rate),
                    "input_length": prompt,
                    "output_length": answer,
                    "hash_ids": [2 * (number % PROMPTS), 2 * (number % PROMPTS) + 1],
                }
                for number in range(SECONDS * rate)
            )
            trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
            found = kvsim.simulate(
                model=str(config) if model == "codellama-34b" else model, gpu="h100",
                tensor_parallel_size=PACED_GPUS[model], scheduler="vllm-v1@0.33.0", trace=str(trace),
                max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=4096, num_prompts=SECONDS * rate,
            )  # fmt: skip
            latency = found.summary["latency"]
            mean, median = (1e3 * latency["ttft_s"][each] for each in ("mean", "p50"))
            yield (
                f"{model}, {rate}/s, {prompt} + {answer}: TTFT {mean:.1f} ms, measured {mean_ms} "
                f"({100 * (mean / mean_ms - 1):+.0f} %); median {median:.1f}, {median_ms} "
                f"({100 * (median / median_ms - 1):+.0f} %); "
                f"E2E {100 * (latency['e2e_s']['mean'] / e2e_s - 1):+.1f} %"
            )


def main() -> None:
    """Print the requested tables."""
    tables = {"bursts": bursts, "awq": awq, "paced": paced}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[*tables, []], default=[])
    for name in parser.parse_args().tables or tables:
        for line in tables[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
