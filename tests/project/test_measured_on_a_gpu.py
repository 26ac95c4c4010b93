"""The numbers that pages give of the kernels on an H200 are those of benchmarks/measured."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "benchmarks/GPU.md").read_text(encoding="utf-8")
REPORT = json.loads((ROOT / "benchmarks/measured/h200-kernels.json").read_text(encoding="utf-8"))
ROWS = {(row["part"], row["name"]): row for row in REPORT["rows"]}
COLUMNS = (
    "contiguous", "paged 16, shuffled", "torch SDPA, KV in order", "torch SDPA, gathering counted",
    "flex_attention, KV in order",
)  # fmt: skip
SHAPES = re.findall(r"^\| ([\d]+ x [\d]+) \| (.*) \|$", PAGE, re.MULTILINE)


def us(part, name):
    return ROWS[part, name]["us"]


@pytest.mark.parametrize(("shape", "cells"), SHAPES, ids=[shape for shape, _ in SHAPES])
def test_a_row_of_decode_is_what_was_measured(shape, cells):
    contiguous, paged, rate, *theirs = cells.split(" | ")
    for name, said in zip(COLUMNS, (contiguous, paged, *theirs), strict=True):
        if said == "fails":
            assert ("decode", f"{shape}: {name}") not in ROWS
        else:
            assert float(said.replace(",", "")) == pytest.approx(us("decode", f"{shape}: {name}"), abs=0.51)
    row = ROWS["decode", f"{shape}: paged 16, shuffled"]
    assert rate == f"{row['gb_per_s']:,.0f}, {row['of_copy']:.1%}".replace("%", " %")


def test_all_shapes_of_the_table_are_compared():
    assert len(SHAPES) == 8


def test_the_price_of_paging_is_what_was_measured():
    contiguous = us("blocks", "64 x 4096: contiguous")
    over = {
        size: f"{us('blocks', f'64 x 4096: paged {size}, shuffled') / contiguous - 1:.1%}".replace("%", " %")
        for size in (16, 32, 64, 128, 256)
    }
    in_order = us("blocks", "64 x 4096: paged 16, in order") / contiguous - 1
    assert (
        f"Paging costs {in_order:.1%}".replace("%", " %")
        + f" in order and {over[16]} shuffled at blocks of 16, "
        f"{over[32]} at 32, {over[64]} at 64, {over[128]} at 128 and {over[256]} at 256"
    ) in PAGE
    assert f"costs our attention kernel [{over[16]}](benchmarks/GPU.md#measured) on an H200" in " ".join(
        (ROOT / "README.md").read_text(encoding="utf-8").split()
    )
