"""Routers: which replica of a fleet a request goes to. One file each, one line in `ROUTERS`."""

ROUTERS: dict[str, str] = {
    "round-robin": "kvsim.sim.routers.round_robin:RoundRobin",
    "random": "kvsim.sim.routers.random:Random",
    "least-requests": "kvsim.sim.routers.least_requests:LeastRequests",
    "least-kv": "kvsim.sim.routers.least_kv:LeastKv",
    "prefix": "kvsim.sim.routers.prefix:LongestPrefix",
    "power-of-two": "kvsim.sim.routers.power_of_two:PowerOfTwo",
    "consistent-hash": "kvsim.sim.routers.consistent_hash:ConsistentHash",
    "cache-aware": "kvsim.sim.routers.cache_aware:CacheAware",
    "dynamo": "kvsim.sim.routers.dynamo:Dynamo",
    "d2lpm": "kvsim.sim.routers.d2lpm:D2lpm",
    "llm-d": "kvsim.sim.routers.llm_d:LlmD",
    "llumnix": "kvsim.sim.routers.llumnix:Llumnix",
    "conductor": "kvsim.sim.routers.conductor:Conductor",
    "preble": "kvsim.sim.routers.preble:Preble",
}
"""Name on the command line -> location of the class; `name:OPTION` passes an option."""
