"""Compares the engine's run of a workload with the naive reference's (kvsim/reference.py), every integer."""

from itertools import pairwise

from kvsim.reference import Request
from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.record.metrics import kinds


class Uneven(CostModel):
    """Every part of a step counts, with odd numbers, so that no two mistakes cancel."""

    source = "test"
    WEIGHTS = (
        *(1_000_003, 1_009, 7_001_111, 2_000_029, 30_011),
        *(50_021, 70_001, 90_001, 110_017, 130_021),
    )

    def step_ps(self, shape: StepShape) -> int:
        assert shape.spread is None  # it was not requested
        work = sum(weight * part for weight, part in zip(self.WEIGHTS, shape[:10], strict=True))
        return 900_000_001 + work + 5_000_011 * shape.draft_tokens + 700_001 * bool(shape.draft_passes)


def requests_of(work):
    """The requests of a workload in the reference's form."""
    columns = (work.arrival_ps, work.prompt_tokens, work.output_tokens)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Request(number, *row) for number, row in enumerate(rows)]


def assert_as_told(result, requests, told, slots):
    """Finished requests, counts, gaps between tokens and the ledger equal those of the reference."""
    columns = {name: column[result.finished].tolist() for name, column in result.requests.items()}
    assert columns["finish_ps"] == [each.token_ps[-1] for each in requests]
    assert columns["first_token_ps"] == [each.token_ps[0] for each in requests]
    assert columns["first_scheduled_step"] == [each.first_step for each in requests]
    assert columns["num_preemptions"] == [each.preemptions for each in requests]
    counts = result.step_count, result.peak_used_tokens, result.max_running
    assert counts == (told.steps, told.peak, told.max_running)
    gaps = [later - ps for each in requests for ps, later in pairwise(each.token_ps)]
    assert (result.token_gaps.total, result.token_gaps.count) == (sum(gaps), len(gaps))
    for saturated, sums in ((True, result.saturated), (False, result.unsaturated)):
        counted = kinds(sums, slots)
        assert counted == {kind: told.held[saturated][kind] for kind in counted}
