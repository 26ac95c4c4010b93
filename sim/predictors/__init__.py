"""Predictors: answer lengths, predicted beforehand. One file each, one line in `PREDICTORS`."""

PREDICTORS: dict[str, str] = {
    "oracle": "kvsim.sim.predictors.oracle:Oracle",
    "none": "kvsim.sim.predictors.none:Nothing",
    "told": "kvsim.sim.predictors.told:Told",
    "constant": "kvsim.sim.predictors.constant:Constant",
    "lognormal": "kvsim.sim.predictors.lognormal:Lognormal",
    "buckets": "kvsim.sim.predictors.buckets:Buckets",
    "ranks": "kvsim.sim.predictors.ranks:Ranks",
    "histogram": "kvsim.sim.predictors.histogram:Histogram",
}
"""Name on the command line -> location of the class; `name:ARGUMENT` passes an argument."""
