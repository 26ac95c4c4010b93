"""Making profiles from public tables: how gaps are bridged, and which rows are refused."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e .[test]")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "elsewhere"))
from fill import relaxed
from simpler import compared
from tables import GPUS, Sieve, Timed, disturbed_of, drawn

from kvsim.kernels.calibration.fit import Bounds, Measured
from kvsim.kernels.calibration.form import form_s
from kvsim.kernels.calibration.points import Point, features

pytestmark = pytest.mark.slow

sys.path.pop(0)

AXES = [{"name": "a", "values": [1, 2, 4]}, {"name": "b", "values": [10, 20, 40]}]


def test_a_gap_between_two_cells_gets_their_geometric_mean():
    known = {(a, b): 2.0 if a == 1 else 8.0 for a in (1, 4) for b in (10, 20, 40)}
    filled = relaxed([(2, b) for b in (10, 20, 40)], known, AXES)
    assert filled == pytest.approx({(2, 10): 4.0, (2, 20): 4.0, (2, 40): 4.0})


def test_a_corner_that_nothing_surrounds_gets_what_is_next_to_it():
    filled = relaxed(
        [(4, 40)], {(a, b): 3.0 for a in (1, 2, 4) for b in (10, 20, 40) if (a, b) != (4, 40)}, AXES
    )
    assert filled == pytest.approx({(4, 40): 3.0})


def timed(seconds, read, flops=0.0, replayed=None):
    replayed = read if replayed is None else replayed
    return Timed({}, {"cell": 1}, seconds, read, replayed, flops, held_out=False, new_shape=False)


def test_what_is_faster_than_the_gpu_or_was_read_from_its_cache_is_refused():
    h100 = next(gpu for gpu in GPUS if gpu.name == "h100")
    sieve = Sieve(h100)
    slow = [timed(1e-3, 2.5e9)] * 50  # 2.5 TB/s of 3.35, far beyond the cache
    rows = [*slow, timed(1e-5, 3.0e7), timed(1e-5, 2.0e7), timed(1e-5, 4.0e7), timed(1e-3, 1e6, flops=1e15)]
    assert len(sieve.kept("decode", iter(rows), 989)) == 51
    assert sieve.refused["decode"] == {
        "read from the L2 cache: more than any larger row reaches": 1,
        "more than the bandwidth of the datasheet": 1,
        "more than the peak": 1,
    }


def products(*rows, matrix=(8192, 8192)):
    """(tokens, microseconds) of a matrix."""
    where = dict(zip(("inputs", "outputs"), matrix, strict=True))
    return [
        Timed({"tokens": n, **where}, None, 1e-6 * us, 0.0, 0.0, 0.0, held_out=False, new_shape=False)
        for n, us in rows
    ]


def test_a_product_slower_than_with_fewer_and_with_more_tokens_was_disturbed():
    """As the rows of a B200. The first row has none with fewer: more are enough, as it may be padded."""
    rows = products(
        (1, 33.4), (2, 38.4), (4, 18.7), (14, 38.5), (15, 18.6), (16, 38.1), (17, 18.5), (129, 24.0)
    )
    assert disturbed_of(rows) == {0, 3, 5}
    assert disturbed_of(products((4, 10), (8, 20), (16, 40), (17, 80), (32, 90))) == set()
    assert disturbed_of(products((1, 10), (64, 38), (128, 12))) == {1}  # nobody near has fewer tokens
    assert disturbed_of(products((1, 13), (2, 9), (4, 10))) == set()  # another kernel may be a little better
    assert disturbed_of(products((1, 9), (2, 25), (4, 26))) == set()  # and a larger one slower from here on
    assert disturbed_of([*products((8, 10), (16, 30)), *products((32, 10), matrix=(1024, 8192))]) == set()


def test_what_is_disturbed_is_refused_and_counted():
    sieve = Sieve(next(gpu for gpu in GPUS if gpu.name == "b200"))
    rows = products((8, 18.6), (14, 38.5), (16, 18.6), (32, 19.0))
    assert len(sieve.kept("product", iter(rows), 4500)) == 3
    assert list(sieve.refused["product"].values()) == [1]


def test_what_is_held_out_is_the_same_every_time_and_about_as_much_as_said():
    chosen = [drawn("bfloat16", number) for number in range(2000)]
    assert chosen == [drawn("bfloat16", number) for number in range(2000)]
    assert 0.12 < sum(chosen) / 2000 < 0.18


def test_of_products_of_third_norm_only_a_fit_without_it_is_worse():
    """Between the cells of a coarse table what is left of a wrong form shows."""
    tiles = {"token_tile": 64, "output_tile": 128}
    known = {"t0_s": 3e-6, "bandwidth_bytes_per_s": 4e12, "work_per_s": 7e14, "p": 3}
    measured = []
    for tokens in (1, 64, 128, 200, 256, 300, 512, 900, 4096):
        for inputs, outputs in ((1024, 1024), (8192, 1024), (1024, 16_384), (8192, 16_384)):
            x = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
            role = "held_out" if tokens in {200, 300, 900} else "grid"
            point = Point("product", x | {"new_shape": False}, role, cell=x)
            seconds = form_s(known, *features(point, tiles)[:2])
            measured.append(Measured(point, seconds, seconds, seconds, 1))
    told = {line[:24].strip(): line[24:] for line in compared([("product", measured, tiles, Bounds())])}
    larger = {name: int(said.split(" of ")[0]) for name, said in told.items()}
    assert larger == {
        "one start": 0, "norms 1, 3": 0, "norms 1, 1.5": 1, "norms 1, max": 1, "norms 1, 1.5, 3, max": 0,
        "norms 1, 1.5, 2, 3": 0,
    }  # fmt: skip
