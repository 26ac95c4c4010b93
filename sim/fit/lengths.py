"""How many requests of given lengths a pool holds at once.

Every group takes whole blocks of its own, so a short request takes at least one block of each:

    full attention, latent    ceil(tokens / block)
    window                    the blocks that its last `window` tokens lie in
    chunk                     the blocks of its current chunk
    cross attention           the blocks of the encoder's tokens
    recurrent                 one state; with prefixes kept the last one too, and the checkpoints of a prompt

while the request is at its longest, its last token being computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.pages import Group, Page


@dataclass(frozen=True)
class LengthFit:
    """Requests of one size: their blocks at the end, how many fit at once, and what of it holds a token.

    Attributes
    ----------
    prompt, output : int
    blocks : int
        Of one request, over all groups.
    requests : int
        That fit at once, the null block aside.
    pool_percent : float
        What one of them takes of the pool.
    used_percent : float
        How much of its blocks' bytes holds a token or a state.
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
    """Blocks of a group that a request with so many stored tokens holds while it decodes."""
    taken = -(-tokens // page.block_size)
    if page.kind == "mamba" and not page.every_block:
        return min(2 + page.checkpoints, taken) if page.aligned else 1
    if page.kind == "sliding_window" and page.window is not None:
        return taken - max(0, tokens - page.window) // page.block_size
    if page.kind == "chunked_local_attention" and page.chunk is not None:
        return taken - (tokens - 1) // page.chunk * page.chunk // page.block_size
    return taken


def _held_bytes(group: Group, tokens: int) -> int:
    """Bytes that hold something a layer will read again."""
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
    """The share of a uniform allocation that no layer reads: every layer holding every token.

    Parameters
    ----------
    model_layers : sequence of (Page, int)
        Kinds of layers and how many there are of each; all with the same bytes per token.
    tokens, encoder_tokens : int
        Of the text, and of what cross attention sees (pictures).
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
