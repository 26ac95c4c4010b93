"""`kvsim.fit`: where a GPU's memory goes, how layers are grouped, and how many requests fit."""

from kvsim.sim.fit.answer import Fit
from kvsim.sim.fit.answer import fit as answered
from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.option import checked
from kvsim.workloads.quantiles import lengths_of


@checked
def fit(model: str | ModelSpec, gpu: str | GpuSpec = "h100", **options: object) -> Fit:
    """Where the memory of a GPU goes when it serves a model, and how many requests fit.

    Parameters
    ----------
    model : str or ModelSpec
        A built-in name, a config.json or its folder, or a spec.
    gpu : str or GpuSpec
    **options
        The options of `sim fit`: `tensor_parallel_size`, `kv_cache_dtype`, `kv_memory` in GiB, which gives
        the cache's memory instead of the formula; `lengths`, as `"1000+200"` or `"trace:sharegpt"`; others.

    Returns
    -------
    Fit

    Raises
    ------
    KvsimError
        If vLLM would refuse the settings. A cache too small for one request of the longest length is not
        an error: `capacity.refusal` says by how much, and what would help.
    """
    lengths = options.get("lengths")
    if isinstance(lengths, str):
        options["lengths"] = lengths_of(lengths)
    return answered(model, gpu, **options)
