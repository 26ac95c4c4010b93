"""streaming-llm: the first tokens of a text (its attention sinks) and a window of the last ones.

    |####|....|....|....|..##|####|##~~|       4 sinks, and the last tokens up to the budget
     sinks  freed blocks   window

Blocks between sinks and window are freed whole, so a sequence has holes only in one block at the edge of the
window and behind the sinks. Waste per sequence: less than three blocks.
"""

from kvsim.allocators.lossy.budget import Budgeted, Holding

SINKS = 4
"""tokens; the number that the paper found sufficient"""


class StreamingLLM(Budgeted):
    """Drops the oldest token that is not a sink; parameters as in `Budgeted`."""

    idea = "the first 4 tokens and a window of the last; the rest is dropped"
    wastes = "less than 3 blocks; quality is not modelled"
    used_by = "TensorRT-LLM, MLC-LLM (sinks)"
    source = "StreamingLLM, ICLR '24, arXiv 2309.17453"

    def victims(self, seq: int, held: Holding, tokens: int, count: int) -> list[int]:
        first = min(SINKS, held.budget - 1) + held.expired
        return list(range(first, min(first + count, held.capacity)))
