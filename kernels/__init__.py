"""The Triton kernels behind a serving step's memory traffic, each with a plain reference implementation.

    decode.py     attention of one new token per sequence over paged (or contiguous) keys and values
    latent.py     decode attention over latents (MLA), shared by all query heads
    attend.py     the kernels for both; pieces.py distributes contexts over their programs
    prefill.py    attention of a chunk of new tokens over the cached context, the chunk included
    write.py      keys and values of new tokens into their slots
    copy.py       whole blocks within the pool: copy-on-write
    experts.py    the routed experts of a layer: rows by expert in tiles, two products, their weighted sum
    swap.py       whole blocks between the pool and a staging buffer: swapping, transfers
    reference.py  each kernel in a few lines of plain torch, in float64
    launch.py     tile sizes, warps, stages; how contexts are split; running or only planning a launch
    tiles.py      code shared by the two attention kernels
    checks.py     errors that name the argument; faults.py errors that only the GPU detects

The layout of a pool is `[num_blocks, block_size, kv_heads, head_dim]`, one for keys, one for values:
token i of a sequence lies in slot `table[i // block_size] * block_size + i % block_size`, as in
allocators/paged.py. A slot is one contiguous row of `kv_heads * head_dim` elements. Writes and block copies
move whole rows; attention reads `head_dim` elements per head (256 bytes in bf16 at 128).

The package imports torch and triton but nothing from kvsim, so it can be used elsewhere.
"""
