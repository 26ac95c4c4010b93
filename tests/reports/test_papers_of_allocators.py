"""The papers on allocators alone: their closed forms, and that every published number is met."""

import pytest

from kvsim.allocators.size_classes.bins import class_size, class_up
from kvsim.reports.papers.cells import Bench
from kvsim.reports.papers.checks import AGREES, judged
from kvsim.reports.papers.declared import read_paper
from kvsim.reports.papers.mechanisms import full_store, kvblock
from kvsim.reports.papers.running import Findings
from kvsim.reports.papers.series import all_series, find


def results(name, quick):
    paper = read_paper(name)
    found = {}
    for figure in paper.figures.values():
        for series in all_series(paper, figure, quick=quick):
            key = series.figure, series.panel, series.system, series.choice
            found[key] = find(series, Bench(None, None))
    findings = Findings(found, len(found), 0.0, 0.0, 0.0)
    return {number: judged(paper, figure, findings) for number, figure in paper.figures.items()}


def test_the_table_of_vattention_is_met_exactly():
    (table,) = results("vattention", quick=False).values()
    assert table.verdict == AGREES
    assert len(table.rows) == 48
    assert all(row.simulated == row.published for row in table.rows)


@pytest.mark.parametrize("kib", [64, 128, 256, 2048])
@pytest.mark.parametrize(("layers", "heads"), [(32, 4), (32, 8), (60, 8)])
def test_a_page_has_the_closed_form_of_the_paper(layers, heads, kib):
    name = {64: "vattention", 2048: "vattention-2m"}.get(kib, f"vattention-{kib}k")
    for parallel in (1, 2):
        numbers = kvblock(
            allocator=name,
            layers=layers,
            kv_heads=heads,
            head_dim=128,
            dtype_bytes=2,
            tensor_parallel=parallel,
        )
        assert numbers["tokens"] == (kib << 10) // (heads // parallel * 128 * 2)
        assert numbers["waste"] == 2 * layers * kib * parallel / 1024


@pytest.mark.slow
def test_mooncakes_utilisations_are_met():
    short = results("offset-allocator", quick=True)
    assert [judged.verdict for judged in short.values()] == [AGREES, AGREES]


@pytest.mark.parametrize("size", [2_097_169, 2_306_867, 1_887_436, 131_072, 144_179, 3_274_752])
def test_in_the_steady_state_of_one_size_the_store_is_as_full_as_the_class(size):
    """Minus what the last part of the memory leaves, which is less than one class."""
    pool, lent = 1 << 28, class_size(class_up(size, 3), 3)
    utilisation = full_store(pool=pool, rounds=True, count=500, store={"size": size})["utilisation"]
    assert utilisation == pytest.approx(100 * (pool // lent) * size / pool)
    assert 0 <= 100 * size / lent - utilisation <= 100 * size / pool
