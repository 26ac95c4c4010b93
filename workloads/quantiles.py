"""A trace's quantiles as lengths for `sim fit`: `trace:sharegpt` means its p50, p90 and p99."""

import numpy as np

from kvsim.workloads import load

PERCENT = (50, 90, 99)


def lengths_of(text: str | None) -> str | None:
    """`trace:NAME` as PROMPT+OUTPUT,... from its quantiles of prompts and answers; other texts unchanged."""
    if text is None or not text.startswith("trace:"):
        return text
    lengths = load(text.removeprefix("trace:"))
    prompts, outputs = (
        np.percentile(column, PERCENT, method="higher").astype(int)
        for column in (lengths.prompt_tokens, lengths.output_tokens)
    )
    return ",".join(
        f"{max(1, prompt)}+{max(1, output)}" for prompt, output in zip(prompts, outputs, strict=True)
    )
