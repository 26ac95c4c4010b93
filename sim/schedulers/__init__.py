"""Schedulers: which requests enter, compute, are evicted. One file per engine, one line in `SCHEDULERS`."""

SCHEDULERS: dict[str, str] = {
    "vllm-v1": "kvsim.sim.schedulers.vllm_v1:VllmV1",
    "vllm-v0": "kvsim.sim.schedulers.vllm_v0:VllmV0",
    "sglang": "kvsim.sim.schedulers.sglang:Sglang",
    "nano-vllm": "kvsim.sim.schedulers.nano_vllm:NanoVllm",
    "lightllm": "kvsim.sim.schedulers.lightllm:LightLLM",
    "past-future": "kvsim.sim.schedulers.past_future:PastFuture",
    "tensorrt-llm": "kvsim.sim.schedulers.tensorrt_llm:TensorRTLLM",
    "orca": "kvsim.sim.schedulers.orca:Orca",
    "s3": "kvsim.sim.schedulers.s3:S3",
    "sarathi": "kvsim.sim.schedulers.sarathi:Sarathi",
    "splitfuse": "kvsim.sim.schedulers.splitfuse:SplitFuse",
    "vtc-artifact": "kvsim.sim.schedulers.vtc_artifact:VtcArtifact",
    "static": "kvsim.sim.schedulers.static:Static",
}
"""Name on the command line -> location of the class; `name@release` selects one of its `VERSIONS`."""

FAMILIES: dict[str, str] = {
    "pieces": "prompts and decodes in one step; prompts are split",
    "whole prompts": "prompts and decodes in one step; prompts are not split",
    "by turns": "prompts or decodes: decoding requests pause while prompts are computed",
    "batches": "a batch is served to its end before the next one begins",
}
"""What a step computes, in the order in which listings explain it."""
