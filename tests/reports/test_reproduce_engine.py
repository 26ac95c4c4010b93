"""vLLM and Orca as the PagedAttention paper ran them: `vllm-v0@0.1.0` and `orca@sosp23`."""

from random import Random

import pytest
from support.stories import Story, workload

from kvsim.sim.errors import KvsimError

pytestmark = pytest.mark.slow


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


# -- Orca as the paper ran it (`orca@sosp23`): the answers to a prompt enter together -------------------


def orca(rows, version="sosp23", **settings):
    """Seven reservations of 16 tokens."""
    settings = {"allocator": "contiguous", "reserve": "max", "max_model_len": 16, **settings}
    return Story(f"orca@{version}", 28, workload(rows), **settings)


def test_answers_to_a_prompt_enter_together_and_leave_memory_unused():
    rows = [(0, 4, [2] * 4), (0, 4, [2] * 4)]
    assert orca(rows).steps("prefill_tokens") == [4 * 4, 0, 4 * 4, 0]
    assert orca(rows, "osdi22").steps("prefill_tokens") == [7 * 4, 0, 4, 0]
    assert orca(rows, max_num_seqs=3).steps("prefill_tokens")[0] == 4


def test_more_answers_than_fit_at_all_begin_with_one_alone():
    assert orca([(0, 4, [2] * 9)]).steps("prefill_tokens") == [4, 0, 4, 0, 7 * 4, 0]


def test_whoever_came_alone_fills_what_a_group_leaves():
    assert orca([(0, 4, [2] * 6), (0, 4, 2)]).steps("prefill_tokens") == [7 * 4, 0]
    assert orca([(0, 4, 2), (0, 4, [2] * 7), (0, 4, 2)]).steps("prefill_tokens") == [4, 0, 7 * 4, 0, 4, 0]


@pytest.mark.parametrize("seed", range(12))
def test_buddies_are_left_as_they_were_when_a_group_does_not_fit(seed):
    """`Story` compares step by step, with the memory recounted, and fast-forward."""
    rng = Random(seed)
    rows = [
        (rng.randint(0, 12), rng.randint(1, 9), [rng.randint(1, 30)] * rng.choice([1, 2, 4, 6]))
        for _ in range(12)
    ]
    reserve = rng.choice(["pow2", "oracle"])
    story = orca(sorted(rows), allocator="buddy", reserve=reserve, max_model_len=64, max_num_seqs=99)
    assert story.result.finished.all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"policy": "sjf"}, "policy"), ({"allocator": "paged", "reserve": None}, "allocator must reserve")],
)
def test_answers_enter_together_only_in_order_and_with_reservations(settings, said):
    with pytest.raises(KvsimError, match=said):
        orca([(0, 4, 2)], **settings)
