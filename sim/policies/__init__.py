"""Policies: the next request, by keys over continuous batching. One file each, one line in `POLICIES`."""

POLICIES: dict[str, str] = {
    "ssjf": "kvsim.sim.policies.ssjf:Ssjf",
    "srpt": "kvsim.sim.policies.srpt:Srpt",
    "pars": "kvsim.sim.policies.pars:Pars",
    "ltr": "kvsim.sim.policies.ltr:Ltr",
    "mlfq": "kvsim.sim.policies.mlfq:Mlfq",
    "vtc": "kvsim.sim.policies.vtc:Vtc",
    "dlpm": "kvsim.sim.policies.dlpm:Dlpm",
    "edf": "kvsim.sim.policies.edf:Edf",
    "least-slack": "kvsim.sim.policies.least_slack:LeastSlack",
    "qlm": "kvsim.sim.policies.qlm:Qlm",
    "slo-annealing": "kvsim.sim.policies.slo_annealing:SloAnnealing",
    "andes": "kvsim.sim.policies.andes:Andes",
    "early-rejection": "kvsim.sim.policies.early_rejection:EarlyRejection",
    "ewsjf": "kvsim.sim.policies.ewsjf:Ewsjf",
    "preflow": "kvsim.sim.policies.preflow:Preflow",
    "residual-sjf": "kvsim.sim.policies.residual_sjf:ResidualSjf",
}
"""Name on the command line -> location of the class; engines' own orders: sim/deployment/engine.py."""
