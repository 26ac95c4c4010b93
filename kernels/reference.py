"""Each kernel in a few lines of plain torch, in float64: slow but obvious, the reference for tests.

Results stay in float64, on the CPU. Pools are [num_blocks, block_size, kv_heads, head_dim]; arguments are the
kernels'.
"""

from collections.abc import Sequence

import torch

Table = Sequence[int]


def paged_slots(table: Table, tokens: int, block_size: int) -> torch.Tensor:
    """The slots of a sequence's first tokens, from its block table."""
    return torch.tensor([table[i // block_size] * block_size + i % block_size for i in range(tokens)]).long()


def contiguous_slots(start: int, tokens: int) -> torch.Tensor:
    """The slots of a sequence's first tokens, from its first slot."""
    return torch.arange(start, start + tokens)


def attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of one sequence's last tokens, [queries, heads, head_dim], over all its slots.

    Values may have another size than keys, as for latents.
    """
    queries, heads, head_dim = query.shape
    if window is not None:
        slots = slots[max(0, len(slots) - queries - window + 1) :]
    kv_heads, tokens = keys.shape[2], len(slots)
    if tokens == 0:
        return torch.zeros((*query.shape[:2], values.shape[-1]), dtype=torch.float64)
    chosen = [
        pool.cpu().flatten(0, 1)[slots].double().repeat_interleave(heads // kv_heads, dim=1)
        for pool in (keys, values)
    ]
    key, value = chosen[0] * key_scale, chosen[1] * value_scale
    scores = torch.einsum("qhd,thd->hqt", query.cpu().double(), key)
    scores *= head_dim**-0.5 if scale is None else scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(tokens - queries, tokens)[:, None]
    token = torch.arange(tokens)[None, :]
    seen = token <= position
    if window is not None:
        seen &= token > position - window
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:  # a column whose value is zero
        beside = sinks.cpu().double()[:, None, None].expand(-1, queries, 1)
        scores = torch.cat([scores, beside], -1)
    weights = scores.softmax(-1)[..., :tokens]
    return torch.einsum("hqt,thd->qhd", weights, value)


def write_kv(key: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """A pool, on the CPU and in its own type, after new rows are written into it."""
    written = pool.cpu().clone()
    rows, kept = written.flatten(0, 1), slots.cpu() >= 0
    largest = torch.finfo(pool.dtype).max
    new = (key.cpu().double() / scale).clamp(-largest, largest).float().to(pool.dtype)
    rows.view(torch.uint8)[slots.cpu()[kept]] = new.view(torch.uint8)[kept]
    return written


def copy_blocks(pool: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
    """A pool, on the CPU, after blocks are copied within it."""
    before, after = pool.cpu(), pool.cpu().clone()
    for source, target in pairs:
        after[target] = before[source]
    return after


def gather_blocks(pool: torch.Tensor, blocks: Sequence[int]) -> torch.Tensor:
    """Some blocks of a pool, on the CPU, in this order."""
    return torch.stack([pool.cpu()[block] for block in blocks])


def routed_experts(
    x: torch.Tensor, chosen: torch.Tensor, factors: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """The experts' output, [tokens, hidden]: token by token, expert by expert."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, row in enumerate(x.cpu().double()):
        for expert, factor in zip(chosen[token].tolist(), factors[token].tolist(), strict=True):
            if 0 <= expert < len(down):
                gate, up = (gate_up[expert].cpu().double() @ row).chunk(2)
                out[token] += factor * down[expert].cpu().double() @ (gate * gate.sigmoid() * up)
    return out
