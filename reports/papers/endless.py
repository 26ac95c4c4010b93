"""What a prefix cache that forgets nothing finds in a trace, in percent of the prompts' tokens.

A block is found if the same tokens were in a prompt before, behind the same beginning: all whole blocks that
prompts have in common with others, less the first of each kind.
"""

from kvsim.allocators.base import Content
from kvsim.allocators.texts import Texts
from kvsim.sim.workload import Workload


def found_percent(work: Workload, block_tokens: int) -> float:
    """The share of the prompts' tokens, request by request, as if none were computed side by side."""
    texts, blocks = Texts(block_tokens), 0
    for content, tokens in zip(work.content or (), work.prompt_tokens.tolist(), strict=False):
        blocks += sum(count for _, count in texts.keys_once(_beginning(content, tokens)))
    return 100 * (blocks - texts.count) * block_tokens / int(work.prompt_tokens.sum())


def _beginning(content: Content, tokens: int) -> Content:
    """The first tokens of a text: without the answer."""
    found = []
    for stream, first, length in content:
        if tokens > 0:
            found.append((stream, first, min(length, tokens)))
        tokens -= length
    return tuple(found)
