"""How many requests of given lengths fit in a pool at once.

Every group takes whole blocks, so even a short request takes at least one block of each:

    full attention, latent    ceil(tokens / block)
    window                    the blocks that contain its last `window` tokens
    chunk                     the blocks of its current chunk
    cross attention           the blocks of the encoder's tokens
    recurrent                 one state; with kept prefixes also the last one, and a prompt's checkpoints

when the request is at its longest, computing its last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.pages import Group, Page


@dataclass(frozen=True)
class LengthFit:
    """Requests of one size: their final blocks, how many fit at once, and the share in use.

    Attributes
    ----------
    prompt, output : int
    blocks : int
        Per request, over all groups.
    requests : int
        Requests that fit at once, beside the null block.
    pool_percent : float
        Share of the pool that one request takes.
    used_percent : float
        Share of its blocks' bytes that holds tokens or states.
    """

    prompt: int
    output: int
    blocks: int
    requests: int
    pool_percent: float
    used_percent: float


def parse_lengths(text: str) -> tuple[tuple[int, int], ...]:
    """`1000+200,8000+1000` -> ((1000, 200), (8000, 1000))."""
    found = []
    for part in text.split(","):
        prompt, plus, output = part.strip().partition("+")
        if not plus or not prompt.isdecimal() or not output.isdecimal() or not int(prompt) or not int(output):
            raise KvsimError(
                f"lengths must be PROMPT+OUTPUT,... in tokens, as in 1000+200, or trace:NAME, got {part!r}"
            )
        found.append((int(prompt), int(output)))
    return tuple(found)


def length_fits(
    groups: Sequence[Group], num_blocks: int, bytes_per_block: int, lengths: Sequence[tuple[int, int]]
) -> tuple[LengthFit, ...]:
    """How many requests of each length fit."""
    found = []
    for prompt, output in lengths:
        tokens = max(1, prompt + output - 1)  # the last token's key and value are never stored
        counts = [held_blocks(group.page, tokens) for group in groups]
        blocks, used = sum(counts), sum(_held_bytes(group, tokens) for group in groups)
        usable = max(0, num_blocks - 1)
        found.append(
            LengthFit(
                prompt,
                output,
                blocks,
                usable // blocks,
                100 * blocks / usable if usable else 100.0,
                100 * used / (blocks * bytes_per_block),
            )
        )
    return tuple(found)


def held_blocks(page: Page, tokens: int) -> int:
    """Blocks of a group held by a decoding request with `tokens` stored tokens."""
    taken = -(-tokens // page.block_size)
    if page.kind == "mamba" and not page.every_block:
        return min(2 + page.checkpoints, taken) if page.aligned else 1
    if page.kind == "sliding_window" and page.window is not None:
        return taken - max(0, tokens - page.window) // page.block_size
    if page.kind == "chunked_local_attention" and page.chunk is not None:
        return taken - (tokens - 1) // page.chunk * page.chunk // page.block_size
    return taken


def _held_bytes(group: Group, tokens: int) -> int:
    """Bytes that a layer will read again."""
    total = 0
    for page in group.pages:
        if page.kind == "mamba":
            total += page.bytes_each * (held_blocks(page, tokens) if page.every_block else 1)
        elif page.kind == "sliding_window" and page.window is not None:
            total += min(tokens, page.window) * page.bytes_each
        elif page.kind == "chunked_local_attention" and page.chunk is not None:
            total += ((tokens - 1) % page.chunk + 1) * page.bytes_each
        else:
            total += tokens * page.bytes_each
    return total


def uniform_waste(model_layers: Sequence[tuple[Page, int]], tokens: int, encoder_tokens: int = 0) -> float:
    """The unread share of a uniform allocation, in which every layer holds every token.

    Parameters
    ----------
    model_layers : sequence of (Page, int)
        Kinds of layers, and the number of each; all have the same bytes per token.
    tokens, encoder_tokens : int
        Text tokens, and tokens that cross attention sees (images).
    """
    everything = tokens + encoder_tokens
    seen = 0
    for page, count in model_layers:
        if page.kind == "cross_attention":
            seen += encoder_tokens * count
        elif page.window is not None:
            seen += min(tokens, page.window) * count
        else:
            seen += tokens * count
    return 1 - seen / (everything * sum(count for _, count in model_layers))
