"""Code that the attention kernels share: a token's slot, and adding a tile to the softmax.

    addresses   PAGED        slot(i) = table[i // block_size] * block_size + i % block_size
                contiguous   slot(i) = start + i
    softmax     with scores s in base 2: m' = max(m, max(s)), a = 2^(m - m'), p = 2^(s - m'),
                l' = a l + sum(p), acc' = a acc + p V; at the end out = acc / l

A tile is TILE consecutive tokens; its size is independent of the block size. For tokens outside `inside`
nothing is read, neither the table entry nor the slot, which may belong to another sequence.
"""

import triton
import triton.language as tl


@triton.jit
def slots_of(home, token, inside, BLOCK_SIZE: tl.constexpr, PAGED: tl.constexpr):
    """Slots (int64) of some tokens; `home` points to a block table, or is the slot of token 0."""
    if PAGED:
        block = tl.load(home + token // BLOCK_SIZE, mask=inside, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + token % BLOCK_SIZE
    else:
        slot = home + token
    return slot


@triton.jit
def load_rows(pool, slot, row, column, inside, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr):
    """[TILE, HEAD_PAD] elements of the pool; zeros outside."""
    pointers = pool + slot[:, None] * row + column[None, :]
    mask = inside[:, None]
    if HEAD_DIM != HEAD_PAD:
        mask &= (tl.arange(0, HEAD_PAD) < HEAD_DIM)[None, :]
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def unit_of(most):
    """The largest power of two up to each of some positive numbers; 1 where there is none."""
    bits = most.to(tl.int32, bitcast=True) & 0x7F800000
    return tl.where(bits == 0, 1.0, bits.to(tl.float32, bitcast=True))


@triton.jit
def in_half(query, most):
    """(the query as float16, what to multiply its scores by, per row), for rows with numbers up to `most`.

    For 8-bit keys: a GPU widens two of them to float16 in one instruction; bfloat16 takes a slow one more for
    each. In units of a power of two no number of a row is beyond 2, so float16 loses none that counts.
    """
    unit = unit_of(most)[:, None]
    return (query.to(tl.float32) / unit).to(tl.float16), unit


@triton.jit
def scores_of(q, key, scale_log2, UPCAST: tl.constexpr):
    """Scores in base 2, [rows, TILE]; 8-bit keys are widened to the type of the queries without loss.

    `scale_log2` is one number, or [rows, 1].
    """
    if UPCAST:
        score = tl.dot(q.to(tl.float32), tl.trans(key.to(tl.float32)))
    else:
        score = tl.dot(q, tl.trans(key.to(q.dtype)))
    return score * scale_log2


@triton.jit
def capped(score, softcap):
    """softcap * tanh(score / softcap), for scores in base 2; if exp2 is infinite, the result is the cap."""
    log2_e: tl.constexpr = 1.4426950408889634
    return softcap * log2_e * (1 - 2 / (tl.exp2(score * (2 / softcap)) + 1))


@triton.jit
def weight_of(sink, m):
    """Weight of a sink logit, given scores with maximum m in base 2; infinite if there are no scores."""
    log2_e: tl.constexpr = 1.4426950408889634
    return tl.exp2(sink.to(tl.float32) * log2_e - m)


@triton.jit
def fold(score, value, m, denominator, acc, kind: tl.constexpr, EMPTY: tl.constexpr, UPCAST: tl.constexpr):
    """Add one tile to the softmax; EMPTY: a row may not have seen any token yet (all its scores are -inf)."""
    m_new = tl.maximum(m, tl.max(score, 1))
    shift = m_new
    if EMPTY:
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)
    fade = tl.exp2(m - shift)
    p = tl.exp2(score - shift[:, None])
    denominator = denominator * fade + tl.sum(p, 1)
    if UPCAST:
        acc = acc * fade[:, None] + tl.dot(p, value.to(tl.float32))
    else:
        acc = tl.dot(p.to(kind), value.to(kind), acc * fade[:, None])
    return m_new, denominator, acc
