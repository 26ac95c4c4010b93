"""The roofline against public tables of measured kernels: its errors are as stated and do not grow."""

import importlib.util
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.shared_data import shared

ROOT = Path(__file__).resolve().parents[2]

MEDIAN = {
    ("decode", "context >= 1,024"): 4.3,
    ("decode", "  batch x context < 16k"): 6.6,
    ("decode", "  16k to 64k"): 2.4,
    ("decode", "  64k and more"): 4.1,
    ("decode", "context < 1,024"): 13.8,
    ("prefill", "prompts >= 4,096"): 5.2,
    ("prefill", "  1,024 to 4,095"): 38.5,
    ("linear", "all"): 13.0,
    ("linear", "  65 to 512"): 28.2,
}
"""(table, region) -> the largest allowed median absolute error, in per cent."""


def _loaded():
    spec = importlib.util.spec_from_file_location("roofline", ROOT / "benchmarks" / "roofline.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


roofline = _loaded()


@cache
def errors(name):
    """Region -> errors of one table."""
    return dict(roofline.regions(name, roofline.errors(name, shared("data/gpu_tables"))))


@pytest.mark.parametrize(("table", "region"), MEDIAN)
def test_the_median_error_gets_no_worse(table, region):
    found = errors(table)[region]
    assert len(found) >= 10
    assert 100 * np.median(np.abs(found)) <= MEDIAN[table, region]


def test_where_it_is_far_off_it_is_too_fast():
    """Short prompts, many short contexts, small products: the docs say so."""
    for table, region in (("prefill", "  below 1,024"), ("decode", "  batch 512 and more")):
        assert np.median(errors(table)[region]) < -0.5
    assert np.quantile(errors("linear")["all"], 0.9) < 0


def test_the_page_states_the_errors_of_the_tables():
    text = " ".join((ROOT / "docs" / "cost.md").read_text(encoding="utf-8").split())
    for name in roofline.FILES:
        for region, error in errors(name).items():
            size = 100 * np.abs(error)
            cells = [f"{np.median(size):.1f} %", f"{np.quantile(size, 0.9):.1f} %"]
            row = f"{region.strip()} | {len(error)} | {' | '.join(cells)} | {100 * np.median(error):+.1f} %"
            assert re.sub(r"\s+", " ", row) in text, row
