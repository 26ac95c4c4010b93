"""Cost models: how long a step takes. One file each, one line in `COSTS`."""

COSTS: dict[str, str] = {
    "roofline": "kvsim.sim.cost.roofline:Roofline",
    "calibrated": "kvsim.sim.cost.calibrated.model:Calibrated",
    "measured-elsewhere": "kvsim.sim.cost.calibrated.model:Calibrated",
    "constant": "kvsim.sim.cost.constant:Constant",
    "logged": "kvsim.sim.cost.logged:Logged",
    "a100-40gb-sosp23": "kvsim.sim.cost.published:AnalyticProfile",
    "a100-80gb-osdi24": "kvsim.sim.cost.engines:EngineProfile",
    "dgx-isca24": "kvsim.sim.cost.dgx:Machine",
}
"""Name on the command line -> where the class is; `name:ARGUMENT` passes the argument to it."""
