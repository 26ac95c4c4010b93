"""Times of all-reduces; an all-gather plus a reduce-scatter moves as much.

    node      the GPUs joined by links (8 on most boards, 72 of a GB200), or sharing a host over PCIe:
              least + 2 (n - 1) / n * size / (share of the link), a ring of all n GPUs
    host      over PCIe without peer access: every hop is two copies, to host memory and from it
              least 8.4 us + 2 (n - 1) * 5.7 us, and half the PCIe rate
    network   between nodes: each of the g GPUs in a node sends a part of the sum to the other nodes
              start   6.8 us + 2 * ((g - 1) * 0.6 us + ceil(log2 nodes) * 5 us)
              bytes   2 (nodes - 1) / nodes * size / g, over the network's rate
              Pieces are forwarded as they arrive: the slower of node and network sets the rate.

The network's times are NCCL's own estimates, by which it chooses algorithms (src/graph/tuning.cc, a tree with
the LL protocol: base, NVLink, network): at least 25 us on two nodes of eight. None of this was measured or
fitted.
"""

from typing import NamedTuple

from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.models.spec import GpuSpec

LINK_ALL_REDUCE_S, PCIE_ALL_REDUCE_S = 5e-6, 6e-6
"""Least time of an all-reduce in a CUDA graph, over NVLink, and of two GPUs over PCIe. Public tables (vLLM's
own kernel, 256 bytes): 4.2 to 5.3 us on A100, H100, H200 with 2 to 8 GPUs; 5.4 on two L40S, 25 on eight."""
LINK_SHARE, PCIE_SHARE = 0.65, 0.55
"""Share of a link that a ring reaches. The same tables at 16 MB: 0.46 (two H100) to 0.71 (eight); 0.59 on two
L40S. Over PCIe each doubling of the GPUs halves it: they share the path through the host."""
HOST_START_S, HOST_HOP_S = 8.4e-6, 5.7e-6
"""For a ring through host memory, once and per hop: NCCL's own estimates for PCIe with the Simple protocol.
vLLM's custom all-reduce needs peer access and is off without it."""
NCCL_START_S, NCCL_NODE_S, NCCL_NETWORK_S = 6.8e-6, 0.6e-6, 5e-6
"""A tree between nodes: time once, per GPU on the way through a node, and per level between nodes."""


WITH_NETWORK = ("roofline", "calibrated", "measured-elsewhere")
"""Costs that model the network."""


class Group(NamedTuple):
    """GPUs that reduce together: `gpus` in each of `nodes` nodes."""

    gpus: int
    nodes: int = 1


def group_of(gpu: GpuSpec, count: int, stride: int = 1) -> Group:
    """`count` GPUs, each `stride` GPUs from the next; GPUs are numbered node by node."""
    here = min(max(gpu.node_gpus // stride, 1), count)
    return Group(here, -(-count // here))


def all_reduce_s(gpu: GpuSpec, group: Group) -> tuple[float, float]:
    """Least seconds of an all-reduce, and seconds per byte of each GPU's input."""
    here, nodes = group
    least_s = each_s = 0.0
    ring = 2 * (1 - 1 / (here * nodes))
    if here > 1 and gpu.link_bytes_per_s:
        least_s, each_s = LINK_ALL_REDUCE_S, ring / (LINK_SHARE * gpu.link_bytes_per_s)
    elif here > 1 and not gpu.peer_access:
        least_s = HOST_START_S + 2 * (here - 1) * HOST_HOP_S
        each_s = 2 * ring / (PCIE_SHARE * 2 / here * gpu.pcie_bytes_per_s)
    elif here > 1:
        least_s, each_s = PCIE_ALL_REDUCE_S * here / 2, ring / (PCIE_SHARE * 2 / here * gpu.pcie_bytes_per_s)
    if nodes == 1:
        return least_s, each_s
    start_s, sent_s = between_nodes_s(gpu, group)
    return max(least_s, start_s), max(each_s, sent_s)


def between_nodes_s(gpu: GpuSpec, group: Group) -> tuple[float, float]:
    """The network's part of an all-reduce: least seconds, and seconds per byte of each GPU's input."""
    here, nodes = group
    levels = (nodes - 1).bit_length()
    start_s = NCCL_START_S + 2 * ((here - 1) * NCCL_NODE_S + levels * NCCL_NETWORK_S)
    return start_s, 2 * (nodes - 1) / nodes / here / gpu.network_bytes_per_s


def network_note(deployment: Deployment) -> str | None:
    """Notes that GPUs of several nodes communicate over the network; None if one node holds them all."""
    gpu, gpus = deployment.gpu, deployment.gpus
    if gpus <= gpu.node_gpus or deployment.cost not in WITH_NETWORK:
        return None
    return (
        f"{gpus:,} GPUs on nodes of {gpu.node_gpus}: between nodes they communicate over a network of "
        f"{gpu.network_bytes_per_s / 1e9:g} GB/s per GPU, which was not measured."
    )
