"""The Triton kernels that a serving engine's step spends its memory traffic in, each with a plain reference.

    decode.py     attention of one new token per sequence over paged (or contiguous) keys and values
    latent.py     the same over latents (MLA), which are key and value of all query heads
    attend.py     the kernels of these two; pieces.py shares contexts out among their programs
    prefill.py    attention of a chunk of new tokens over what is cached, itself included
    write.py      keys and values of new tokens into their slots
    copy.py       whole blocks within the pool: copy-on-write
    swap.py       whole blocks between the pool and a staging buffer: swapping, transfers
    reference.py  each of them in a few lines of plain torch, in float64
    launch.py     tile sizes, warps, stages; how a context is split; running or only planning a launch
    tiles.py      what the two attention kernels have in common
    checks.py     errors that name the argument; faults.py those that only the GPU sees

The layout of a pool is `[num_blocks, block_size, kv_heads, head_dim]`, one for keys, one for values:
token i of a sequence lies in slot `table[i // block_size] * block_size + i % block_size`, as in
allocators/paged.py, and a slot is one unbroken row of `kv_heads * head_dim` elements, which a write and a
block copy move whole and of which attention reads `head_dim` elements (256 bytes in bf16 at 128) a head.

Imports torch and triton, and nothing of kvsim: the kernels can be taken elsewhere.
"""
