"""Small stories worked out by hand: what every step computes, which requests wait, what the memory holds.

A step takes one second. "3: A5 B12 | CD | 24" reads: at 3 s A computes up to its token 5 and B up to its
token 12, C and then D wait, and 24 slots are allocated. "(A)" is a finished member of a static batch.
"""

import pytest
from support.serving import everything, keeping_diary, serve, workload

from kvsim.allocators.buddy import Buddy
from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.dynamic import Dynamic
from kvsim.allocators.paged import Paged
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.record.instants import TIMELINE_COLUMNS
from kvsim.sim.workload import PS_PER_S


class Story:
    """A run, described step by step; in fast-forward it must end the same."""

    def __init__(self, make, scheduler, requests, **options):
        self.names = "".join(requests)
        work, self.diary = workload(requests.values()), []
        telling = keeping_diary(scheduler, self.names, self.diary)
        self.result = serve(work, make(), telling, step_log=True, check=True, **options)
        for rows in (4, 2048):  # with few samples there are long spans between them
            runs = [
                serve(work, make(), scheduler, timeline_rows=rows, max_span=span, **options)
                for span in (1, 1 << 20)
            ]
            assert everything(runs[0]) == everything(runs[1])
        assert everything(runs[0]) == everything(self.result)

    @property
    def text(self):
        return "\n".join(self.diary)

    @property
    def tokens(self):
        """Times of the first and the last token of each finished request, by name, in seconds."""
        first, last = (self.result.requests[name] / PS_PER_S for name in ("first_token_ps", "finish_ps"))
        rows = zip(self.names, first.tolist(), last.tolist(), self.result.finished, strict=True)
        return {name: (start, end) for name, start, end, done in rows if done}

    def steps(self, name):
        return self.result.steps[name].tolist()

    def preempted(self):
        counts = zip(self.names, self.result.requests["num_preemptions"].tolist(), strict=True)
        return {name: count for name, count in counts if count}

    def ledger(self, row):
        names = TIMELINE_COLUMNS[1:7]
        return {name: int(self.result.timeline[name][row]) for name in names}


def vllm(blocks, requests, **options):
    """vLLM V1 on blocks of 4."""
    return Story(lambda: Paged(4 * blocks, 4), "vllm-v1", requests, **options)


def told(text):
    return "\n".join(line.strip() for line in text.strip().splitlines())


# -- vLLM V1: budget and chunks -----------------------------------------------------------------------


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_and_the_rest_of_the_budget_is_shared():
    story = vllm(8, {"A": (0, 10, 3), "B": (0, 3, 2)}, budget=6, seats=4)
    assert story.text == told("""
        0: A6 | B | 8
        1: A10 B2 | - | 16
        2: A11 B3 | - | 16
        3: A12 B4 | - | 16
    """)
    assert story.tokens == {"A": (2, 4), "B": (3, 4)}
    assert story.steps("prefill_tokens") == [6, 6, 1, 0]
    assert story.steps("decode_tokens") == [0, 0, 1, 2]
    assert story.steps("kv_tokens") == [6, 12, 14, 16]
    assert story.steps("finished") == [0, 0, 0, 2]
    assert story.steps("blocks_in_use_end") == [2, 4, 4, 0]


def test_a_prompt_of_three_chunks_gets_its_first_token_in_the_third_step():
    story = vllm(8, {"A": (0, 20, 1), "B": (0, 3, 1)}, budget=8, seats=4)
    assert story.text == told("""
        0: A8 | B | 8
        1: A16 | B | 16
        2: A20 B3 | - | 24
    """)
    assert story.tokens == {"A": (3, 3), "B": (3, 3)}


def test_decodes_are_served_before_chunks():
    story = vllm(8, {"A": (0, 2, 5), "B": (0, 20, 1)}, budget=8, seats=4)
    assert story.text == told("""
        0: A2 B6 | - | 12
        1: A3 B13 | - | 20
        2: A4 B20 | - | 24
        3: A5 | - | 8
        4: A6 | - | 8
    """)
    assert story.tokens == {"A": (1, 5), "B": (3, 3)}


def test_without_chunked_prefill_a_prompt_waits_for_a_step_with_enough_budget():
    options = {"budget": 8, "seats": 4, "max_model_len": 8}
    requests = {"A": (0, 6, 2), "B": (0, 6, 1)}
    assert vllm(8, requests, chunked=False, **options).text == told("""
        0: A6 | B | 8
        1: A7 B6 | - | 16
    """)
    assert vllm(8, requests, chunked=True, **options).text == told("""
        0: A6 B2 | - | 12
        1: A7 B6 | - | 16
    """)


def test_one_token_of_output_is_there_after_the_prefill_and_is_never_stored():
    story = vllm(1, {"A": (0, 4, 1)})
    assert story.text == "0: A4 | - | 4"
    assert story.tokens == {"A": (1, 1)}
    assert story.result.token_gaps.count == 0


def test_no_more_than_max_num_seqs_run_at_once():
    story = vllm(8, {"A": (0, 1, 2), "B": (0, 1, 1), "C": (0, 1, 1), "D": (0, 1, 1)}, seats=2)
    assert story.text == told("""
        0: A1 B1 | CD | 8
        1: A2 C1 | D | 8
        2: D1 | - | 4
    """)
    assert story.result.max_running == 2


# -- vLLM V1: memory ----------------------------------------------------------------------------------


def test_the_first_that_does_not_fit_blocks_those_behind_it():
    story = vllm(4, {"A": (0, 4, 3), "B": (0, 13, 1), "C": (0, 1, 1)})
    assert story.text == told("""
        0: A4 | BC | 4
        1: A5 | BC | 8
        2: A6 | BC | 8
        3: B13 | C | 16
        4: C1 | - | 4
    """)
    assert story.tokens == {"A": (1, 3), "B": (4, 4), "C": (5, 5)}


def test_a_prompt_in_chunks_enters_only_when_the_whole_of_it_fits():
    story = vllm(4, {"A": (0, 4, 3), "B": (0, 16, 1)}, budget=8, seats=4)
    assert story.text == told("""
        0: A4 | B | 4
        1: A5 | B | 8
        2: A6 | B | 8
        3: B8 | - | 8
        4: B16 | - | 16
    """)


def test_several_victims_of_one_step_queue_in_their_original_order_and_compute_everything_again():
    story = vllm(4, {"A": (0, 4, 3), "B": (0, 4, 2), "C": (0, 2, 3), "D": (0, 2, 2), "E": (1, 1, 1)})
    assert story.text == told("""
        0: A4 B4 C2 D2 | - | 16
        1: A5 B5 | CDE | 16
        2: A6 C3 D3 | E | 16
        3: C4 E1 | - | 8
    """)
    assert story.preempted() == {"C": 1, "D": 1}
    assert story.steps("preemptions_cum") == [0, 2, 2, 2]
    assert story.steps("prefill_tokens") == [12, 0, 6, 1]
    assert story.steps("recomputed_tokens") == [0, 0, 4, 0]
    assert story.tokens == {"A": (1, 3), "B": (1, 2), "C": (1, 4), "D": (1, 3), "E": (4, 4)}
    assert story.result.token_gaps.bins()[-1][1] == 2  # C and D waited two seconds for their second token


def test_nobody_enters_in_a_step_that_evicted_and_the_victim_comes_before_the_queue():
    story = vllm(3, {"A": (0, 4, 3), "B": (0, 8, 2), "C": (1, 2, 1)})
    assert story.text == told("""
        0: A4 B8 | - | 12
        1: A5 | BC | 8
        2: A6 | BC | 8
        3: B9 | C | 12
        4: C2 | - | 4
    """)
    assert story.preempted() == {"B": 1}


def test_a_prompt_that_is_not_done_evicts_itself_and_starts_again():
    story = vllm(4, {"A": (0, 4, 7), "B": (4, 8, 1)}, budget=4, seats=4)
    assert story.text == told("""
        0: A4 | - | 4
        1: A5 | - | 8
        2: A6 | - | 8
        3: A7 | - | 8
        4: A8 B3 | - | 12
        5: A9 | B | 12
        6: A10 | B | 12
        7: B4 | - | 4
        8: B8 | - | 8
    """)
    assert story.preempted() == {"B": 1}
    assert story.steps("recomputed_tokens") == [0, 0, 0, 0, 0, 0, 0, 3, 0]
    assert story.tokens == {"A": (1, 7), "B": (9, 9)}


def test_what_can_never_fit_is_refused_and_counted_and_the_rest_is_served():
    story = vllm(
        4,
        {
            "A": (0, 17, 1),  # 17 tokens do not fit 16 slots
            "B": (0, 16, 1),  # 16 do
            "C": (0, 10, 8),  # would hold 17 at its end
            "D": (0, 64, 1),  # leaves no room within the model's maximum
            "E": (0, 1, 1),
        },
        max_model_len=64,
    )
    assert story.text == told("""
        0: B16 | E | 16
        1: E1 | - | 4
    """)
    assert story.result.rejected == {
        "does not fit an empty arena of 16 slots": 2,
        "prompt leaves no room for an answer within 64 tokens": 1,
    }
    assert story.result.finished.tolist() == [False, True, False, False, True]


def test_an_answer_is_cut_at_the_models_maximum():
    story = vllm(4, {"A": (0, 12, 100), "B": (0, 2, 1)}, max_model_len=15)
    assert story.text == told("""
        0: A12 B2 | - | 16
        1: A13 | - | 16
        2: A14 | - | 16
    """)
    assert story.tokens == {"A": (1, 3), "B": (1, 1)}
    assert (story.result.truncated, story.result.output_tokens.tolist()) == (1, [3, 1])


# -- arrivals -----------------------------------------------------------------------------------------


def test_an_arrival_at_a_step_boundary_is_seen_by_that_step_and_one_in_mid_step_waits():
    just_after = 3 + 1 / PS_PER_S
    story = vllm(
        8, {"A": (0, 2, 5), "B": (2, 2, 1), "C": (2.5, 2, 1), "D": (3, 2, 1), "E": (just_after, 2, 1)}
    )
    assert story.text == told("""
        0: A2 | - | 4
        1: A3 | - | 4
        2: A4 B2 | - | 8
        3: A5 C2 D2 | - | 16
        4: A6 E2 | - | 12
    """)
    assert story.tokens["E"] == (5, 5)


def test_an_idle_engine_starts_with_all_that_arrive_at_that_instant():
    story = vllm(8, {"A": (0, 1, 1), "B": (7.25, 1, 2), "C": (7.25, 1, 1), "D": (8, 1, 1)})
    assert story.text == told("""
        0: A1 | - | 4
        7.25: B1 C1 | - | 8
        8.25: B2 D1 | - | 8
    """)
    assert story.steps("waiting") == [0, 0, 0]


class SecondPerToken(CostModel):
    """A step takes a second per prompt token and per token that a decode attends to."""

    source = "test"

    def step_ps(self, shape):
        return (shape.prefill_tokens + shape.context_tokens) * PS_PER_S


def test_an_arrival_is_seen_at_the_next_boundary_though_every_step_is_longer_than_the_last():
    requests = {"A": (0, 1, 7), "B": (4, 1, 1), "C": (11, 1, 1), "D": (12, 1, 1)}
    story = vllm(8, requests, cost=SecondPerToken())
    assert story.text == told("""
        0: A1 | - | 4
        1: A2 | - | 4
        3: A3 | - | 4
        6: A4 B1 | - | 8
        11: A5 C1 | - | 12
        17: A6 D1 | - | 12
        24: A7 | - | 8
    """)
    assert story.tokens == {"A": (1, 31), "B": (11, 11), "C": (17, 17), "D": (24, 24)}


# -- Orca ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Contiguous, lambda slots: Contiguous(slots, "best"), Buddy])
def test_orca_lets_the_third_request_wait_until_a_reservation_is_free(make):
    requests = {"A": (0, 3, 2), "B": (0, 3, 3), "C": (0, 3, 1)}
    story = Story(lambda: make(20), "orca", requests, max_model_len=8)
    assert story.text == told("""
        0: A3 B3 | C | 16
        1: A4 B4 | C | 16
        2: B5 C3 | - | 16
    """)
    assert story.tokens == {"A": (1, 2), "B": (1, 3), "C": (3, 3)}
    kinds = ("token", "reserved", "internal", "cached", "external", "free")
    assert [tuple(story.ledger(row)[kind] for kind in kinds) for row in range(4)] == [
        (6, 3, 7, 0, 4, 0),
        (8, 1, 7, 0, 4, 0),
        (8, 0, 8, 0, 4, 0),  # nobody waits: 4 slots cannot hold a reservation of the mean size
        (0, 0, 0, 0, 4, 16) if make is Buddy else (0, 0, 0, 0, 0, 20),  # 20 = 16 + 4 never merge
    ]


def test_orca_with_pow2_reservations_waits_although_enough_is_free_in_pieces():
    requests = {"A": (0, 3, 1), "B": (0, 3, 3), "C": (0, 3, 2)}  # reserve 3 + 1, 3 + 4 and 3 + 2
    story = Story(lambda: Contiguous(15), "orca", requests, max_model_len=8, reserve="pow2")
    assert story.text == told("""
        0: A3 B3 | C | 11
        1: B4 | C | 7
        2: B5 | C | 7
        3: C3 | - | 5
        4: C4 | - | 5
    """)
    assert [story.ledger(row)["external"] for row in range(3)] == [4, 8, 8]
    assert story.result.fragmented_refusals == 1


def test_orca_with_an_oracle_reserves_what_is_needed():
    requests = {"A": (0, 3, 1), "B": (0, 3, 3), "C": (0, 3, 2)}  # reserve 3 + 1, 3 + 3 and 3 + 2
    story = Story(lambda: Contiguous(15), "orca", requests, max_model_len=8, reserve="oracle")
    assert story.text == told("""
        0: A3 B3 C3 | - | 15
        1: B4 C4 | - | 11
        2: B5 | - | 6
    """)


def test_orca_computes_a_whole_prompt_at_once_beside_the_decodes():
    story = Story(
        lambda: Contiguous(64), "orca", {"A": (0, 2, 3), "B": (1, 30, 1)}, max_model_len=32, budget=16
    )
    assert story.text == told("""
        0: A2 | - | 32
        1: A3 B30 | - | 64
        2: A4 | - | 32
    """)


@pytest.mark.parametrize("scheduler", ["orca", "vllm-v1"])
def test_on_an_allocator_that_moves_the_victim_waits_a_step_even_where_it_would_fit_at_once(scheduler):
    story = Story(lambda: Dynamic(8), scheduler, {"A": (0, 2, 6), "B": (0, 2, 3)}, max_model_len=8)
    assert story.text == told("""
        0: A2 B2 | - | 4
        1: A3 | B | 4
        2: A4 B3 | - | 8
        3: - | AB | 0
        4: A5 | B | 8
        5: A6 | B | 8
        6: A7 | B | 8
        7: B4 | - | 4
    """)
    # at 1 s A moves from [0, 2) to [4, 8), so B cannot double, but would fit into [0, 4);
    # at 3 s A cannot double, even alone, as it would have to move
    assert story.result.copied_slots == 2
    assert story.preempted() == {"A": 1, "B": 2}
    assert story.tokens == {"A": (1, 7), "B": (1, 8)}


# -- static -------------------------------------------------------------------------------------------


def test_static_members_keep_their_seats_until_the_longest_ends():
    requests = {"A": (0, 2, 1), "B": (0, 2, 3), "C": (0, 2, 2), "D": (0, 2, 1)}
    story = Story(lambda: Contiguous(24), "static", requests, max_model_len=8)
    assert story.text == told("""
        0: A2 B2 C2 | D | 24
        1: (A) B3 C3 | D | 24
        2: (A) B4 (C) | D | 24
        3: D2 | - | 8
    """)
    assert story.tokens == {"A": (1, 1), "B": (1, 3), "C": (1, 2), "D": (4, 4)}
    empty = {"cached": 0, "external": 0}
    assert [story.ledger(row) for row in range(4)] == [
        {"token": 6, "reserved": 3, "internal": 15, **empty, "free": 0},
        {"token": 6, "reserved": 1, "internal": 17, **empty, "free": 0},
        {"token": 4, "reserved": 0, "internal": 20, **empty, "free": 0},
        {"token": 2, "reserved": 0, "internal": 6, **empty, "free": 16},
    ]


def test_static_lets_nobody_in_between_even_into_free_seats():
    story = Story(
        lambda: Contiguous(24), "static", {"A": (0, 2, 3), "B": (1, 2, 1), "C": (1, 2, 1)}, max_model_len=8
    )
    assert story.text == told("""
        0: A2 | - | 8
        1: A3 | BC | 8
        2: A4 | BC | 8
        3: B2 C2 | - | 16
    """)


def test_static_takes_as_many_as_would_fit_at_the_longest_length_even_where_blocks_are_lent_late():
    requests = {name: (0, 2, 1) for name in "ABCD"}
    story = Story(lambda: Paged(24, 4), "static", requests, max_model_len=8)
    assert story.text == told("""
        0: A2 B2 C2 | D | 12
        1: D2 | - | 4
    """)
