"""vLLM as the PagedAttention paper ran it (`vllm-v0@0.1.0`): prompts join the step of the decodes."""

import pytest
from test_forks_and_swaps import Story, workload

from sim.errors import KvsimError


def paper(blocks, rows, version="0.1.0", **settings):
    return Story(
        f"vllm-v0@{version}",
        blocks,
        workload(rows),
        **{"watermark": 0.0, "enable_chunked_prefill": False, **settings},
    )


def both(story):
    """Prompt tokens and decodes of each step."""
    return list(zip(story.steps("prefill_tokens"), story.steps("decode_tokens"), strict=True))


ROWS = [(0, 4, 4), (1, 4, 2)]


def test_a_prompt_joins_the_step_of_the_decodes():
    assert both(paper(99, ROWS)) == [(4, 0), (4, 1), (0, 2), (0, 1)]


def test_in_release_0_1_7_it_has_a_step_of_its_own():
    assert both(paper(99, ROWS, "0.1.7")) == [(4, 0), (4, 0), (0, 2), (0, 1), (0, 1)]


def test_a_prompt_that_exceeds_what_the_decodes_leave_of_the_budget_waits_and_is_not_cut():
    # a budget of 8: beside one decode 7 are left for a prompt of 8, which waits until nobody decodes
    story = paper(99, [(0, 4, 3), (1, 8, 1)], max_num_batched_tokens=8)
    assert both(story) == [(4, 0), (0, 1), (0, 1), (8, 0)]


def swapped_when_the_third_enters(version, **settings):
    """How many sequences are on the host when the third request, of one prompt token, is computed."""
    story = paper(6, [(0, 4, [9, 9]), (0, 4, [9, 9]), (3, 1, [1])], version, **settings)
    assert story.result.swap_outs > 0
    (step,) = (step for step, tokens in enumerate(story.steps("prefill_tokens")) if tokens == 1)
    return story.steps("swapped")[step]


def test_nobody_enters_while_anybody_is_swapped_out():
    # 6 blocks of 4 are too few for two times two sequences of 12: the later request goes to the host
    assert swapped_when_the_third_enters("0.1.0") == 0
    assert swapped_when_the_third_enters("0.4.2", enable_chunked_prefill=True) == 2


@pytest.mark.parametrize("name", ["enable_chunked_prefill", "enable_prefix_caching"])
def test_it_has_neither_chunked_prefill_nor_a_prefix_cache(name):
    with pytest.raises(KvsimError, match=r"must be off for scheduler vllm-v0@0\.1\.0"):
        paper(99, ROWS, **{name: True})
