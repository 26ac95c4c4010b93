"""The numbers that pages give of the kernels on an H200 and an H100 are those of benchmarks/measured."""

import json
import re
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "benchmarks/GPU.md").read_text(encoding="utf-8")
_, MEASURED = PAGE.split("## Measured", 1)
SECTIONS = dict(zip(("h200", "h100"), MEASURED.split("### H100"), strict=True))
ROWS = {
    gpu: {
        (row["part"], row["name"]): row
        for row in json.loads((ROOT / f"benchmarks/measured/{gpu}-kernels.json").read_text("utf-8"))["rows"]
    }
    for gpu in SECTIONS
}
COLUMNS = (
    "contiguous", "paged 16, shuffled", "torch SDPA, KV in order", "torch SDPA, gathering counted",
    "flex_attention, KV in order",
)  # fmt: skip
SHAPES = [
    (gpu, *found)
    for gpu, section in SECTIONS.items()
    for found in re.findall(r"^\| ([\d]+ x [\d]+) \| (.*) \|$", section, re.MULTILINE)
]


def percent(share):
    return f"{share:.1%}".replace("%", " %")


@pytest.mark.parametrize(
    ("gpu", "shape", "cells"), SHAPES, ids=[f"{gpu} {shape}" for gpu, shape, _ in SHAPES]
)
def test_a_row_of_decode_is_what_was_measured(gpu, shape, cells):
    rows = ROWS[gpu]
    contiguous, paged, rate, *theirs = cells.split(" | ")
    for name, said in zip(COLUMNS, (contiguous, paged, *theirs), strict=True):
        at = "decode", f"{shape}: {name}"
        if said == "fails":
            assert at not in rows
        else:
            assert float(said.replace(",", "")) == pytest.approx(rows[at]["us"], abs=0.51)
    row = rows["decode", f"{shape}: paged 16, shuffled"]
    assert rate == f"{row['gb_per_s']:,.0f}, {percent(row['of_copy'])}"


def test_all_shapes_of_the_tables_are_compared():
    assert len(SHAPES) == 8 + 5


@pytest.mark.parametrize("gpu", SECTIONS)
def test_the_price_of_paging_is_what_was_measured(gpu):
    at = {
        name.removeprefix("64 x 4096: "): row["us"]
        for (part, name), row in ROWS[gpu].items()
        if part == "blocks"
    }
    over = {
        size: percent(at[f"paged {size}, shuffled"] / at["contiguous"] - 1) for size in (16, 32, 64, 128, 256)
    }
    in_order = percent(at["paged 16, in order"] / at["contiguous"] - 1)
    assert (
        f"Paging costs {in_order} in order and {over[16]} shuffled at blocks of 16, "
        f"{over[32]} at 32, {over[64]} at 64, {over[128]} at 128 and {over[256]} at 256"
    ) in SECTIONS[gpu]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    if gpu == "h200":
        assert f"costs our attention kernel [{over[16]}](benchmarks/GPU.md#measured) on an H200" in readme


def test_copies_are_what_was_measured():
    copies = json.loads((ROOT / "benchmarks/measured/h100-copies.json").read_text(encoding="utf-8"))
    for row in copies["rows"]:
        ways = [row["load"]["load"], row["store"]["store"], row["both"]["load"], row["both"]["store"]]
        load, store, *both = (f"{median(way):.1f}" for way in ways)
        size = row["bytes"] // 1024
        unit = f"{size} KiB" if size < 1024 else f"{size // 1024} MiB"
        if size in range(64, 16385):
            assert f"| {unit} | {load} | {store} | {', '.join(both)} |" in SECTIONS["h100"]
