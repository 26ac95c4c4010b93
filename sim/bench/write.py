"""A simulated run in the formats of benchmark tools: file names and contents.

vllm        vllm-bench.json
aiperf      profile_export.jsonl, profile_export_aiperf.json
guidellm    benchmarks.json
"""

import json
from collections.abc import Mapping
from typing import Any

from kvsim.sim.bench.served import served
from kvsim.sim.bench.write_aiperf import aiperf_lines, aiperf_summary
from kvsim.sim.bench.write_guidellm import guidellm_report
from kvsim.sim.bench.write_vllm import vllm_result
from kvsim.sim.options.outputs import RESULT_FORMATS
from kvsim.sim.run import Outcome

__all__ = ["RESULT_FORMATS", "result_files"]


def result_files(outcome: Outcome, form: str) -> dict[str, str]:
    """Name -> text of each file.

    Raises
    ------
    KvsimError
        The run's token times are unknown.
    """
    run = served(outcome)
    if form == "aiperf":
        return {
            "profile_export.jsonl": aiperf_lines(run),
            "profile_export_aiperf.json": _text(aiperf_summary(run), 2),
        }
    if form == "guidellm":
        return {"benchmarks.json": _text(guidellm_report(run), None)}
    return {"vllm-bench.json": _text(vllm_result(run), None)}


def _text(value: Mapping[str, Any], indent: int | None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
