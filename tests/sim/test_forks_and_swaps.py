"""Stories of forks, copies, swaps, caches and queues, worked out by hand.

A step takes one second and blocks hold 4 tokens. "A5" is the number of tokens that A holds in a step; if a
prompt is computed in step k, the first token is there at k + 1. Every story is told twice, step by step with
the memory recounted and in fast-forward, and must end the same.
"""

import pytest
from support.stories import Story, workload

from kvsim.allocators.paged import Paged
from kvsim.sim.content import TextBuilder
from kvsim.sim.schedulers import vllm_v0
from kvsim.sim.serving.beam import pairs_of
from kvsim.sim.workload import PS_PER_S, Beam


def v0(blocks, rows, *, beam=None, prepare=lambda engine: None, priority=None, **settings):
    settings = {"watermark": 0.0, "enable_chunked_prefill": False, **settings}
    return Story("vllm-v0", blocks, workload(rows, beam=beam, priority=priority), prepare, **settings)


# -- forks and copies ---------------------------------------------------------------------------------


def test_of_two_samples_one_copies_the_last_block_and_the_other_writes_in_place():
    # the paper's Figure 8: 7 prompt tokens lie in 2 blocks, which both samples share
    # 0: prompt, 2 blocks      1: the parent copies block 1 (3 tokens) and writes, the child writes in place
    # 2: token 9 of each begins a block of its own
    writers = []

    def spy(engine):
        allocator, grow = engine.replica.server.allocator, engine.replica.server.allocator.grow
        writers.clear()

        def grow_and_tell(seq, tokens):
            outcome = grow(seq, tokens)
            if tokens == 8:
                writers.append((seq, allocator.block_table(0), allocator.block_table(1)))
            return outcome

        allocator.grow = grow_and_tell

    story = v0(99, [(0, 7, [3, 3])], prepare=spy)
    assert story.steps("blocks_in_use") == [2, 3, 5]
    assert story.steps("logical_blocks") == [2, 4, 6]
    assert story.steps("shared_blocks") == [0, 1, 1]
    assert story.steps("cow_copies") == [0, 1, 0]
    assert story.steps("kv_tokens") == [7, 16, 18]
    assert (story.result.cow_copies, story.result.copied_slots) == (1, 3)
    assert writers == [(0, (0, 2), (0, 1))]  # the child (1) never asks: its block is its own by then


@pytest.mark.parametrize("lengths", [[4, 4, 4], [1, 4, 4], [4, 4, 1], [1, 1, 4]])
@pytest.mark.parametrize("prompt", [1, 5, 7, 8])
def test_a_group_copies_once_less_than_it_has_living_samples_if_the_prompt_ends_inside_a_block(
    prompt, lengths
):
    living = sum(length > 1 for length in lengths)
    story = v0(99, [(0, prompt, lengths)])
    assert story.result.cow_copies == (living - 1 if prompt % 4 else 0)
    assert story.result.copied_slots == story.result.cow_copies * (prompt % 4)


def test_what_samples_share_while_a_prompt_pauses_them_is_counted_once():
    # 0: A prefills 6 tokens in 2 blocks    1: B's prompt (2) pauses A and its sample, which share both:
    # of 8 slots 6 hold tokens and 2 are idle until one of the two owns their block alone; B leaves 2 empty
    story = v0(99, [(0, 6, [2, 2]), (1, 2, 1)])
    assert story.steps("blocks_in_use") == [2, 3, 3]
    timeline = story.result.timeline
    assert [timeline[name][1] for name in ("token", "reserved", "internal")] == [8, 0, 4]
    assert story.finish == [3, 2]


def test_a_sample_left_alone_with_a_last_block_reserves_what_it_will_write_there():
    # 0: A prefills 5 tokens; of its samples (3 and 1 tokens) the first lives on, with 8 slots for 7 tokens
    # 1: B pauses it: 5 + 1 tokens held, 2 to be written (7 - 5), 1 + 3 never
    story = v0(99, [(0, 5, [3, 1]), (1, 1, 1)])
    timeline = story.result.timeline
    assert [timeline[name][1] for name in ("token", "reserved", "internal")] == [6, 2, 4]


def test_a_dropped_beam_frees_exactly_the_blocks_it_shares_with_nobody(monkeypatch):
    # as in the paper's Figure 9: 4 candidates share the 2 blocks of the prompt
    # 1: each writes its 9th token into a block of its own: 2 + 4 blocks. Then candidates 0 and 2 live on
    #    twice, 1 and 3 are dropped with one block each: 2 + 2
    # 2: of each pair that shares a last block one copies it (1 token), one writes in place: 2 + 4
    # 3: all write in place
    survivors = [[0, 0, 2, 2], [0, 1, 2, 3]]

    class Script(vllm_v0.Survivors):
        def _draw(self):
            for parents in [*survivors, *[range(4)] * 9]:
                self._note(pairs_of(parents))

    monkeypatch.setattr(vllm_v0, "Survivors", Script)
    story = v0(99, [(0, 8, 4)], beam=Beam(4, "uniform", 0))
    assert story.steps("blocks_in_use") == [2, 6, 6, 6]
    assert story.steps("blocks_in_use_end") == [2, 4, 6, 0]
    assert story.steps("logical_blocks") == [2, 12, 12, 12]
    assert story.steps("cow_copies") == [0, 0, 2, 0]
    assert story.result.copied_slots == 2
    assert story.finish == [4]


def test_more_samples_than_seats_are_refused_and_the_rest_is_served():
    story = v0(99, [(0, 4, [2, 2, 2]), (0, 4, [2, 2])], max_num_seqs=2)
    assert story.result.finished.tolist() == [False, True]
    assert sum(story.result.rejected.values()) == 1
    assert story.finish == [2]


def test_a_fork_of_full_blocks_copies_nothing():
    allocator = Paged(64, 4)
    allocator.admit(0, 8, 8)
    allocator.fork(0, 1, 8)
    assert (allocator.used_slots, allocator.logical_slots(), allocator.shared_tokens) == (8, 16, 8)
    for seq in (0, 1):
        assert allocator.grow(seq, 9)
    assert (allocator.block_table(0), allocator.block_table(1)) == ((0, 1, 2), (0, 1, 3))
    assert (allocator.cow_copies, allocator.used_slots) == (0, 16)


# -- swapping -----------------------------------------------------------------------------------------

A_AND_TWO_B = [(0, 4, 8), (0, 4, [6, 6])]
# on 6 blocks:
# 0: A4 B4                        2 blocks
# 1: A5 B5 B5                     each begins a block: 2 + 3
# 2: A6; the two B need 2 free blocks, 1 is left: B, the latest arrival, goes to the host with its 3 blocks
# 3 to 7: A7 A8 A9 A10 A11        2 blocks, from A9 on 3; to come back B needs 3 + 2: not beside A
# 8: B6 B6                        back with 3 blocks
# 9 to 11: B7 B8 B9               at B9 2 blocks more


def test_a_group_goes_to_the_host_as_a_whole_and_comes_back_when_there_is_room_for_it_to_go_on():
    story = v0(6, A_AND_TWO_B)
    assert story.steps("blocks_in_use") == [2, 5, 2, 2, 2, 3, 3, 3, 3, 3, 3, 5]
    assert story.steps("swap_out_blocks") == [0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert story.steps("swap_in_blocks") == [0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]
    assert story.steps("cpu_blocks_in_use") == [0, 0, 3, 3, 3, 3, 3, 3, 0, 0, 0, 0]
    assert story.steps("swapped") == [0, 0, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0]
    assert story.steps("decode_tokens") == [0, 3, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]
    assert story.finish == [8, 12]
    assert story.requests("num_preemptions") == [0, 1]
    assert (story.result.preemptions, story.result.swap_outs) == (0, 1)
    assert story.longest_gap == 7  # B's second token was there at 2, the third at 9
    assert story.result.token_gaps.total // PS_PER_S == 7 * 1 + 2 * (12 - 1)


def test_after_a_swap_every_sample_still_has_its_whole_answer():
    # as above, but B's second sample goes on to 12 tokens, the last of them at 18
    story = v0(6, [(0, 4, 8), (0, 4, [6, 12])])
    assert (story.result.samples["finish_ps"] // PS_PER_S).tolist() == [8, 12, 18]
    assert story.result.token_gaps.count == 7 + 5 + 11


def test_who_comes_back_from_the_host_ends_by_its_new_clock_even_beside_one_that_ends_earlier():
    rows = [(1, 12, 13), (1, 17, 1), (1, 26, 12), (1, 3, 13), (2, 1, 2)]
    story = v0(20, rows, max_num_seqs=3, preemption="swap")
    assert story.result.finished.all()
    assert story.result.swap_outs > 0
    assert story.result.token_gaps.count == 12 + 0 + 11 + 12 + 1
    assert story.result.token_gaps.total == sum(
        story.result.requests["finish_ps"] - story.result.requests["first_token_ps"]
    )


def test_a_group_that_comes_back_before_anybody_decoded_ends_once():
    # 7 blocks, 6 tokens a step, A is urgent. 0: B4    1: B5 B5 and 4 tokens of A: 3 + 3 blocks
    # 2: A wants a free block, the one left; B wants two and goes; A computes its last 6 tokens and ends
    # 3 to 6: B6 B7 B8 B9, back at the same clock of decode steps, as nobody decoded in step 2
    rows = [(0, 4, [6, 6]), (1, 10, 1)]
    settings = {"max_num_batched_tokens": 6, "max_num_seqs": 6, "enable_chunked_prefill": True}
    story = v0(7, rows, priority=[1, 0], policy="priority", **settings)
    assert story.steps("swap_out_blocks") == [0, 0, 3, 0, 0, 0, 0]
    assert story.finish == [7, 3]
    assert (story.result.token_gaps.count, story.longest_gap) == (10, 2)


def test_to_come_back_a_group_must_leave_the_watermark_free():
    # int(0.34 * 6) = 2 blocks; B needs 5 of 6, even when nobody else runs
    story = v0(6, A_AND_TWO_B, watermark=0.34)
    assert story.result.rejected == {"does not fit an empty arena above the watermark": 1}
    assert story.finish == [8]
    # int(0.2 * 6) = 1
    assert v0(6, A_AND_TWO_B, watermark=0.2).finish == [8, 12]


def test_a_group_that_the_host_has_no_room_for_is_rejected_and_the_others_finish():
    story = v0(6, [*A_AND_TWO_B, (2, 4, 1)], num_cpu_blocks=2)
    # 2: C's prompt goes first, into the last free block    3: as in step 2 above, but B is dropped
    assert story.result.rejected == {"no room in the host pool of 8 slots": 1}
    assert story.result.finished.tolist() == [True, False, True]
    assert story.finish == [9, 3]
    assert story.result.swap_outs == 0


def test_a_recomputation_longer_than_a_step_is_dropped_and_reported():
    # on 5 blocks:
    # 0: A2 B6    3 blocks    1: A3 B7    2: A4 B8    3: A5 B9    5 blocks
    # 4: A6; A needs a free block: B goes. It knows 6 + 4 tokens, a step computes 8
    # 5: A7
    story = v0(5, [(0, 2, 6), (0, 6, 9)], max_num_batched_tokens=8)
    assert story.steps("blocks_in_use") == [3, 3, 3, 5, 2, 2]
    assert story.result.rejected == {"prompt or recomputation is longer than the 8 tokens of a step": 1}
    assert story.result.finished.tolist() == [True, False]
    assert (story.finish, story.result.preemptions) == ([6], 1)
    assert story.result.requests["num_preemptions"].tolist() == [0, 1]


def test_a_prompt_in_chunks_that_would_evict_itself_for_ever_is_refused():
    # A's 18 tokens need all 5 blocks; each step after the first chunk of 9 wants a free one besides
    def give_up(engine):
        calls, decide = iter(range(100)), engine.replica.decide

        def decide_and_count(server):
            assert next(calls, None) is not None, "100 steps and no end"
            return decide(server)

        engine.replica.decide = decide_and_count

    settings = {"max_num_batched_tokens": 9, "enable_chunked_prefill": True}
    story = v0(5, [(0, 18, 3), (0, 1, 1)], prepare=give_up, **settings)
    assert story.result.finished.tolist() == [False, True]
    assert sum(story.result.rejected.values()) == 1


# -- pauses and seats ---------------------------------------------------------------------------------


def test_a_prompt_pauses_the_decodes_so_that_their_next_token_is_late():
    # 0: A4      1: A5      2: B4, A stands still      3: A6      4: A7
    story = v0(99, [(0, 4, 4), (2, 4, 1)])
    assert story.steps("decode_tokens") == [0, 1, 0, 1, 1]
    assert story.finish == [5, 3]
    assert story.longest_gap == 2
    gaps = story.result.token_gaps
    assert (gaps.count, gaps.total // PS_PER_S) == (3, 4)


def test_nano_vllm_runs_more_than_max_num_seqs_but_decodes_only_so_many():
    # a batch has one seat. 0: A4    1: B4, prompts first    2, 3: A5 A6    4, 5: B5 B6
    work = workload([(0, 4, 3), (0, 4, 3)])
    story = Story("nano-vllm", 8, work, max_num_seqs=1, enable_prefix_caching=True)
    assert story.steps("running") == [1, 2, 2, 2, 1, 1]
    assert story.steps("decode_tokens") == [0, 0, 1, 1, 1, 1]
    assert story.finish == [4, 6]
    assert story.longest_gap == 3  # B's first token was there at 2, the second at 5


def test_with_asynchronous_scheduling_a_seat_comes_back_one_decision_later():
    # two seats; A ends at 2. At once: 2: B enters. Asynchronously: 2: C alone, 3: B enters
    rows = [(0, 4, 2), (0, 4, 4), (0, 4, 1)]
    at_once = Story("vllm-v1", 8, workload(rows), max_num_seqs=2)
    later = Story("vllm-v1", 8, workload(rows), max_num_seqs=2, async_scheduling=True)
    assert (at_once.finish, later.finish) == ([2, 4, 3], [2, 4, 4])
    assert at_once.steps("blocks_in_use") == [2, 4, 3, 2]
    assert later.steps("blocks_in_use") == [2, 4, 2, 3]


def test_with_asynchronous_scheduling_memory_comes_back_one_decision_later():
    # 6 blocks, of which B needs 4. 0: A8 C4, 3 free    1: A9 C5, 1 free
    # at once: 2: C6 B13, as A's 3 blocks are free      asynchronously: 2: C6    3: C7 B13
    rows = [(0, 8, 2), (0, 4, 4), (0, 13, 1)]
    at_once = Story("vllm-v1", 6, workload(rows))
    later = Story("vllm-v1", 6, workload(rows), async_scheduling=True)
    assert (at_once.finish, later.finish) == ([2, 4, 3], [2, 4, 4])
    assert at_once.steps("blocks_in_use") == [3, 5, 6, 2]
    assert later.steps("blocks_in_use") == [3, 5, 2, 6]


# -- queues -------------------------------------------------------------------------------------------


def test_by_priority_the_least_urgent_is_evicted_whoever_came_first():
    # 4 blocks. By priority: 0: B12 A4    1: B13; A goes    2: A5 again    3: A6
    # first come first served: 0: A4 B12    1: A5; B goes    2: A6    3: B13 again
    rows = [(0, 4, 3), (0, 12, 2)]
    urgent = Story("vllm-v1", 4, workload(rows, priority=[1, 0]), policy="priority")
    assert (urgent.requests("num_preemptions"), urgent.finish) == ([1, 0], [4, 2])
    fair = Story("vllm-v1", 4, workload(rows, priority=[1, 0]))
    assert (fair.requests("num_preemptions"), fair.finish) == ([0, 1], [3, 4])


def test_an_urgent_arrival_overtakes_those_who_wait_in_the_midst_of_a_span():
    # one seat, A has it until 10; B waits from 1, C from 5
    rows = [(0, 4, 10), (1, 4, 1), (5, 4, 1)]
    for policy, finish in (("priority", [10, 12, 11]), ("fcfs", [10, 11, 12])):
        assert (
            Story("vllm-v1", 8, workload(rows, priority=[0, 1, 0]), max_num_seqs=1, policy=policy).finish
            == finish
        )


def test_by_priority_a_victim_that_had_grown_in_the_same_step_is_gone():
    # Dynamic doubles: A, who may wait, and B are due in the same step; A grows first, then B needs its place
    work = workload([(0, 4, 6), (0, 4, 6)], priority=[1, 0])
    for scheduler in ("orca", "vllm-v1"):
        for slots in range(3, 9):
            story = Story(scheduler, slots, work, allocator="dynamic", policy="priority", max_model_len=16)
            assert story.result.finished.tolist() == [True, True]


def test_the_shortest_answer_goes_first():
    story = Story("vllm-v1", 8, workload([(0, 4, 5), (0, 4, 1), (0, 4, 3)]), max_num_seqs=1, policy="sjf")
    assert story.finish == [9, 1, 4]


# -- prefix caches ------------------------------------------------------------------------------------

CACHED = {"enable_prefix_caching": True}


@pytest.mark.parametrize("version", ["0.11.0", "0.33.0"])
@pytest.mark.parametrize(("prompt", "hits", "blocks"), [(10, 8, 5), (8, 4, 4), (4, 0, 3), (9, 8, 5)])
def test_of_n_samples_the_first_computes_the_prompt_and_the_others_hit_it_but_for_the_last_token(
    version, prompt, hits, blocks
):
    # (prompt - 1) // 4 blocks, in the same step; the rest each computes for itself
    story = Story(f"vllm-v1@{version}", 20, workload([(0, prompt, [1, 1, 1])]), **CACHED)
    assert story.steps("hit_tokens") == [2 * hits]
    assert story.steps("prefill_tokens") == [3 * prompt - 2 * hits]
    assert story.steps("blocks_in_use") == [blocks]
    assert story.finish == [1]


def turns(second_arrival, answer):
    """A prompt of 6 tokens and its answer; then both and 3 tokens more."""
    texts = TextBuilder()
    texts.add(6, answer, session="chat")
    texts.add(9 + answer, 1, segments=[("chat", 9 + answer)], session="chat")
    return workload([(0, 6, answer), (second_arrival, 9 + answer, 1)], texts=texts.texts())


def test_a_later_turn_hits_prompt_and_answer_of_the_one_before():
    # 6 + 4 - 1 tokens were stored: 2 full blocks of the 13 tokens
    story = Story("vllm-v1", 20, turns(10, 4), **CACHED)
    assert story.steps("hit_tokens") == [0, 0, 0, 0, 8]
    assert story.steps("prefill_tokens") == [6, 0, 0, 0, 5]


@pytest.mark.parametrize(("arrival", "hits"), [(0, 4), (1, 4), (2, 8), (3, 8), (5, 8), (6, 12)])
def test_a_later_turn_hits_what_the_one_before_has_generated_by_now(arrival, hits):
    # in the step at t the first turn holds 6 + t tokens: its second block is full at 2, its third at 6
    story = Story("vllm-v1", 20, turns(arrival, 8), **CACHED)
    assert story.result.hit_tokens == hits


@pytest.mark.parametrize(("arrival", "hits"), [(1, 4), (2, 4), (3, 8), (4, 8)])
def test_vllm_v0_finds_a_block_when_all_its_tokens_are_computed(arrival, hits):
    # at t the first turn has computed 5 + t tokens and stands still while the second is admitted
    story = Story("vllm-v0", 20, turns(arrival, 8), watermark=0.0, enable_chunked_prefill=False, **CACHED)
    assert story.result.hit_tokens == hits


@pytest.mark.parametrize(("answer", "hits", "finish"), [(5, 8, [5, 10]), (6, 4, [6, 11])])
def test_a_preempted_request_hits_what_is_left_of_it(answer, hits, finish):
    # 4 blocks. 0: A4 B8    1: A5 takes the last block, B9 finds none and goes; its 2 blocks stay findable
    # 2, 3, 4: A6 A7 A8    5: B9 again, all 8 tokens before it cached
    # with one token more, 5: A9 takes the later of B's blocks    6: B9 again, 4 tokens cached
    story = Story("vllm-v1", 4, workload([(0, 4, answer), (0, 8, 6)]), **CACHED)
    again = finish[0]
    assert story.steps("hit_tokens")[again] == hits
    assert story.steps("prefill_tokens")[again] == 9 - hits
    assert story.steps("recomputed_tokens")[again] == 8 - hits
    assert story.result.hit_tokens == hits
    assert story.finish == finish
    assert story.requests("num_preemptions") == [0, 1]


def test_a_chunk_that_found_no_room_leaves_nothing_findable_that_was_not_computed():
    # 4 blocks, 4 tokens a step. 4: A8 B3    5: A9 takes the last block, B finds none and goes: 3 tokens, no
    # full block    6: A10 B3    7: B7    8: B8
    texts = TextBuilder()
    texts.add(4, 7)
    for _ in range(2):
        texts.add(8, 1, segments=[("prompt", 8)])
    work = workload([(0, 4, 7), (4, 8, 1), (20, 8, 1)], texts=texts.texts())
    story = Story("vllm-v1@0.11.0", 4, work, max_num_batched_tokens=4, max_num_seqs=4, **CACHED)
    assert story.steps("prefill_tokens")[:9] == [4, 0, 0, 0, 3, 0, 3, 4, 1]
    assert story.steps("hit_tokens")[:9] == [0] * 9
    assert story.finish[:2] == [7, 9]
