"""Where a piece of a prompt ends, so that the state of recurrent layers can be kept there.

    a prompt of 57 tokens, blocks of 16, a budget of 40     |0 ... 16 ... 32|  ends at 32, not at 40
    the rest                                                |32 ... 48| |48 ... 57|

A state exists only where a piece ended, or where the kernel leaves one inside a piece (a checkpoint).
"""

from kvsim.allocators.hybrid.tables import Text


def last_boundary(tokens: int, block_size: int) -> int:
    """The last block end that leaves a token to compute."""
    return max((tokens - 1) // block_size * block_size, 0)


def checkpoint_inside(  # noqa: PLR0917 - three places, three sizes
    start: int, end: int, place: int, hash_size: int, block_size: int, grid: int
) -> bool:
    """Whether a kernel can leave a state at `place` while it computes the tokens from start to end."""
    return (
        start % hash_size == 0
        and -(-end // block_size) - 2 > (start - 1) // block_size
        and start + hash_size <= place
        and start < place < end
        and (place - start) % grid == 0
    )


def aligned_piece(
    text: Text,
    start: int,
    tokens: int,
    *,
    block_size: int,
    hash_size: int,
    grid: int | None,
    most_tokens: int,
) -> int:
    """How many tokens of a piece of a prompt to compute, so that it ends where a state can be kept.

    Parameters
    ----------
    text : Text
    start, tokens : int
        Where the piece would begin, and how many tokens the budget allows.
    block_size, hash_size : int
        The second is smaller where hits may end inside a block.
    grid : int or None
        Where a kernel can leave states inside a piece; None: nowhere.
    most_tokens : int
        The token budget of a whole step.
    """
    prompt_end = max(text.prompt_tokens, text.tokens - 1)
    if start >= prompt_end:
        return tokens
    end, stop = start + tokens, last_boundary(text.tokens, block_size)
    inside = (
        grid is not None
        and end >= prompt_end
        and checkpoint_inside(start, end, last_boundary(prompt_end, hash_size), hash_size, block_size, grid)
    )
    if inside:
        stop = 0
    if end < prompt_end:
        aligned = end // block_size * block_size
        if aligned > start or block_size <= most_tokens:
            end = aligned
    stops = [stop]
    if start % block_size and not inside:
        stops.append((start // block_size + 1) * block_size)
    tail = last_boundary(text.prompt_tokens, hash_size) if hash_size < block_size and not inside else 0
    if stop < tail < text.prompt_tokens:
        stops.append(tail)
    if start < text.junction < end:
        stops.append(start + (text.junction - start) // block_size * block_size)
    return max(min((each for each in stops if start < each < end), default=end) - start, 0)
