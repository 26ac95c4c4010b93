"""What a calibration makes of seconds: forms, tables, held-out points. No GPU and no interpreter in it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.synthetic_gpu import GPU, H200, SyntheticGpu, programs_of, true_s

from kvsim.kernels.calibration import form
from kvsim.kernels.calibration.assemble import most_tflops, refused
from kvsim.kernels.calibration.calibrate import calibrate
from kvsim.kernels.calibration.drift import drift_of
from kvsim.kernels.calibration.fit import Bounds, Measured, error_of, fit_form, fit_part
from kvsim.kernels.calibration.grid import points
from kvsim.kernels.calibration.journal import Journal
from kvsim.kernels.calibration.least_squares import residuals
from kvsim.kernels.calibration.plan import Plan
from kvsim.kernels.calibration.points import (
    SENTINEL,
    Point,
    Sample,
    features,
    launches_of,
    lengths_of,
    pairs_of,
)
from kvsim.kernels.calibration.profile import text_of, write_profile
from kvsim.kernels.calibration.timing import (
    DATASHEETS,
    Datasheet,
    datasheet_of,
    interleaved,
    launches_wanted,
    refusal,
    spread,
)
from kvsim.kernels.launch import DECODE, latent_tiling
from kvsim.sim.models.catalog import gpu_named

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

EXAMPLE = Path(__file__).parents[1] / "data/calibrated-example.json"
TILES = {"token_tile": 64, "output_tile": 128}
"""Of products, without waves."""


@pytest.fixture(scope="module")
def plan():
    return Plan(H200, False, tuple(points(H200, False)))


@pytest.fixture(scope="module")
def profile(plan):
    return calibrate(plan, stopwatch=SyntheticGpu(), read_clocks=dict)


def measured(point, seconds):
    return Measured(point, seconds, seconds, seconds, 16)


def products(seconds_of, noise=lambda i: 0.0):
    """Products of many sizes, of which `seconds_of` says what they take."""
    sizes = [(m, k, n) for m in (1, 64, 128, 512, 4096) for k in (1024, 8192) for n in (1024, 16_384)]
    found = []
    for i, (tokens, inputs, outputs) in enumerate(sizes):
        x = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
        point = Point("product", x, cell=x)
        found.append(measured(point, seconds_of(*features(point, TILES)[:2]) * (1 + noise(i))))
    return found


@pytest.mark.parametrize("p", form.NORMS)
def test_a_known_form_is_found_in_noisy_points(p):
    known = {"t0_s": 3e-6, "bandwidth_bytes_per_s": 4e12, "work_per_s": 7e14, "p": p}
    some = products(lambda moved, work: form.form_s(known, moved, work), lambda i: 0.01 * math.sin(7 * i))
    found, _ = fit_form(some, TILES, Bounds())
    assert found["p"] == p
    for name in ("t0_s", "bandwidth_bytes_per_s", "work_per_s"):
        assert found[name] == pytest.approx(known[name], rel=0.05)


@pytest.mark.parametrize("merged", [(), (1.0, 0.0, 1.0)])
@pytest.mark.parametrize("p", [*form.NORMS, "max"])
def test_slopes_are_those_of_the_residuals(p, merged):
    numbers = np.array([[1e6, 3e7, 2e9], [4e10, 2e9, 7e9], [1e-6, 2e-5, 6e-4], [1.0, 0.5, 2.0]])
    unknown = [3e-6, 1 / 4e12, 1 / 7e13, *([2e-6] if merged else [])]
    logs, data = np.log(unknown), (*numbers, *([np.array(merged)] if merged else []))
    found, slope = residuals(p, data, logs)
    for i, shift in enumerate(1e-6 * np.eye(len(logs))):
        moved = (residuals(p, data, logs + shift)[0] - found) / 1e-6
        assert slope[:, i] == pytest.approx(moved, rel=1e-3, abs=1e-8)


def test_rates_stay_within_the_datasheet():
    known = {"t0_s": 3e-6, "bandwidth_bytes_per_s": 5e12, "work_per_s": 9e14, "p": 4}
    some = products(lambda moved, work: form.form_s(known, moved, work))
    found, _ = fit_form(some, TILES, Bounds(4.8e12, 8e14))
    assert found["bandwidth_bytes_per_s"] <= 4.8e12 * (1 + 1e-9)
    assert found["work_per_s"] <= 8e14 * (1 + 1e-9)


def test_norms():
    known = {1: 7, 1.5: (3**1.5 + 8) ** (2 / 3), 2: 5, 3: 91 ** (1 / 3), 4: 337**0.25, "max": 4}
    assert set(form.NORMS) < set(known)  # earlier profiles have others
    for p, five in known.items():
        assert form.pnorm(p, 3.0, 4.0) == form.pnorm(p, 4.0, 3.0) == pytest.approx(five, rel=1e-12)
        assert form.pnorm(p, 0.0, 4.0) == 4


def test_ratios_are_exact_on_the_grid_linear_in_the_logarithm_between_and_held_outside():
    table = {
        "axes": [
            {"name": "a", "offset": 0, "values": [1, 4, 64]},
            {"name": "b", "offset": 256, "values": [0, 256]},
        ],
        "ratio": [[1.0, 2.0], [3.0, 5.0], [4.0, 8.0]],
    }

    def at(a, b):
        return form.interpolate(table, {"a": a, "b": b})

    assert [at(a, b) for a in (1, 4, 64) for b in (0, 256)] == [1, 2, 3, 5, 4, 8]
    assert at(2, 0) == 2.0  # half way from 1 to 4
    assert at(16, 256) == 6.5
    assert at(1, 106) == pytest.approx(1 + math.log2(362 / 256))
    assert at(2, 106) == pytest.approx(2 + (3.5 - 2) * math.log2(362 / 256))
    assert (at(0.1, -3), at(1000, 9999)) == (1, 8)


def decode_work(constants, lengths):
    """(work, merged) of contexts in 8 heads of 128 numbers."""
    rounded = sum(-(-length // 64) * 64 for length in lengths)
    moved, *found = form.decode_features(
        constants, sequences=len(lengths), total=sum(lengths), longest=max(lengths), rounded=rounded,
        kv_heads=8, head_dim=128, element_bytes=2,
    )  # fmt: skip
    assert moved == 2 * sum(lengths) * 8 * 128 * 2
    return tuple(found)


def test_decode_in_shares_by_hand():
    """264 programs, 33 for each of 8 heads, as kernels/launch.py shares them out; none below 256 tokens."""
    constants = {"shares": {"128": 264}, "least_piece_tokens": 256, "tile_tokens": {"128": 64}}
    assert decode_work(constants, [4096] * 64) == (125, 1)  # 64 * 64 / 33, rounded up
    assert decode_work(constants, [1024] * 2) == (32 / 8, 1)
    assert decode_work(constants, [448] * 2) == (7, 0)
    assert decode_work(constants, [449] * 33) == (8, 0)
    assert decode_work(constants, [511] * 50) == (13, 1)  # 50 * 8 / 33
    assert decode_work(constants, [512]) == (8 / 2, 1)
    assert decode_work(constants, [513]) == (9 / 3, 1)
    assert decode_work(constants, [1] * 100) == (4, 1)
    assert decode_work(constants, [40_000] + [400] * 63) == (33, 1)  # (625 + 63 * 7) / 33
    tiling = DECODE[128, 2]
    for lengths in ([4096] * 64, [1023] * 2, [511] * 50, [100_000] + [2127] * 47, [700] * 33 + [9000], [9]):
        programs, merged = programs_of(lengths, 8, tiling)
        work, also_merged = decode_work(constants, lengths)
        assert merged == also_merged
        assert max(programs) == work


def test_decode_of_kernels_that_cut_each_context_alone_by_hand():
    """64 sequences of 8 heads on 528 programs: one piece each; 2 sequences: 33 pieces, but none below 256."""
    constants = {"programs": 528, "least_piece_tokens": 256, "tile_tokens": {"128": 64}}
    shape = {"kv_heads": 8, "head_dim": 128, "element_bytes": 2}

    def work(sequences, longest, rounded, **more):
        *found, merged = form.decode_features(
            constants | more, sequences=sequences, total=rounded, longest=longest, rounded=rounded, **shape
        )
        assert not merged
        return tuple(found)

    assert work(64, 4096, 64 * 4096) == (2**30, 64)
    assert work(2, 1024, 2048)[1] == 256 / 64
    assert work(2, 1023, 2046)[1] == 1023 / 3 / 64  # a kernel has whole pieces
    assert work(2, 500, 1000)[1] == 500 / 64
    assert work(128, 4096, 128 * 4096, at_once=396)[1] == 128 * 4096 * 8 / 396 / 64
    assert work(2, 66 * 256, 2 * 66 * 256)[1] == 66 * 256 / 33 / 64
    assert work(128, 4096, 128 * 4096)[1] == 128 * 4096 * 8 / 528 / 64
    assert work(48, 100_000, 200_000)[1] == 100_000 / 64  # 528 / 384 rounds to one piece


def test_latents_by_hand():
    """132 programs: of 128 query heads, two blocks of 64, 66 for each; of 8-bit latents eight of 16."""
    constants = {
        "rows": {"1": 16, "2": 64}, "shares": {"1": 132, "2": 132}, "tile_tokens": {"1": 32, "2": 64},
        "least_piece_tokens": 256,
    }  # fmt: skip

    def work(heads, lengths, element_bytes=2):
        tile = constants["tile_tokens"][str(element_bytes)]
        rounded = sum(-(-length // tile) * tile for length in lengths)
        spread = (len(lengths), sum(lengths), max(lengths), rounded)
        moved, *found = form.latent_features(
            constants, spread=spread, heads=heads, width=576, element_bytes=element_bytes
        )
        assert moved == sum(lengths) * 576 * element_bytes
        return tuple(found)

    assert work(16, [4096] * 64) == (32, 1)  # 64 * 64 / 132, rounded up
    assert work(128, [4096] * 64) == (63, 1)  # of 66
    assert work(128, [4096] * 64, 1) == (512, 1)  # of 16
    assert work(128, [500] * 66) == (8, 0)
    assert work(128, [500] * 67) == (9, 1)
    assert work(16, [1024]) == (4, 1)
    for heads, lengths in ((16, [4096] * 64), (128, [511] * 50), (64, [9000, 3, 700]), (32, [40])):
        tiling = latent_tiling(2, heads, GPU)
        programs, merged = programs_of(lengths, -(-heads // tiling.rows), tiling)
        assert (max(programs), merged) == work(heads, lengths)


def test_products_by_hand():
    """132 tiles are one wave, 133 two: of what the second leaves idle, 131 tiles, 0.4 counts."""
    constants = {"token_tile": 128, "output_tile": 128, "whole_waves": 0.4, "multiprocessors": 132}

    def tiles(tokens, outputs):
        moved, work = form.product_features(constants, tokens=tokens, inputs=512, outputs=outputs)
        assert moved == 2 * (512 * outputs + 512 * tokens + tokens * outputs)
        return work / (2 * 512 * 128 * 128)

    assert (tiles(1, 128), tiles(128, 129), tiles(129, 129)) == (1, 2, 4)
    assert (tiles(128, 132 * 128), tiles(128, 264 * 128)) == (132, 264)
    assert tiles(128, 133 * 128) == pytest.approx(133 + 0.4 * 131)
    constants["least_wave"] = 0.25
    assert (tiles(1, 128), tiles(128, 33 * 128), tiles(128, 34 * 128)) == (33, 33, 34)


def test_prefill_by_hand():
    constants = {"multiprocessors": 132, "rows": {"128": 128}, "key_tile": {"128": 64}}
    shape = {"kv_heads": 8, "group": 4, "head_dim": 128, "element_bytes": 2}
    pairs = pairs_of(2048, 4096)
    assert pairs == sum(4096 + i + 1 for i in range(2048))
    moved, work = form.prefill_features(constants, sequences=1, tokens=2048, pairs=pairs, **shape)
    assert moved == 2 * 2048 * 32 * 128 * 2 + 2 * 6144 * 8 * 128 * 2
    assert work == 4 * 32 * 128 * (pairs + 2048 * (32 + 64) / 2)
    _, few = form.prefill_features(constants, sequences=1, tokens=33, pairs=pairs_of(33, 0), **shape)
    assert few == pytest.approx(4 * 32 * 128 * (33 * 17 * 64 / 33 + 33 * 48) * 132 / 16)
    waves = form.prefill_features(
        constants | {"whole_waves": 0.5}, sequences=1, tokens=2048, pairs=pairs, **shape
    )
    assert waves == (moved, pytest.approx(work * (1 + 0.5 * 16 / 512)))  # 512 programs, four waves of 132


def test_skewed_batches_hold_as_many_tokens_as_even_ones():
    for skew in ("lognormal", "bimodal", "one_long"):
        lengths = lengths_of({"batch": 64, "context": 2016, "skew": skew})
        assert len(lengths) == 64
        assert sum(lengths) == pytest.approx(64 * 2016, rel=0.001)
        assert max(lengths) > 2 * 2016


def test_impossible_points_are_refused():
    sheet = Datasheet("H200", "h200", 4800, 989)
    assert refusal(sheet, 1e-3, moved=4.7e9, flops=980e9) is None
    assert "4900 GB/s" in refusal(sheet, 1e-3, moved=4.9e9)
    assert "1000 TFLOP/s" in refusal(sheet, 1e-3, flops=1e12)
    assert refusal(sheet, 1e-3, flops=900e9, most_tflops=800) is not None
    assert refusal(None, 1e-9, 1e12, 1e18) is None


def test_a_layer_that_computes_more_than_the_card_is_refused():
    """On an H200 whose weights were partly NaN: 749 TFLOP/s where products of random numbers reach 669."""
    planned, journal = Plan(H200, False, tuple(points(H200, False))), Journal(None, {})
    assert most_tflops(planned, journal) is None
    ceiling = next(point for point in planned.points if point.x.get("what") == "product")
    journal.samples[ceiling.key] = Sample((ceiling.x["flops"] / 669e12,), 16)
    most = most_tflops(planned, journal)
    assert most == pytest.approx(1.1 * 669)
    layers = [point for point in planned.points if point.part == "composed" and point.x.get("chunk") == 900]
    found = [refused(planned, point, Sample((1.0655e-3,), 16), most) for point in layers]
    assert found == ["749 TFLOP/s, more than the device's 736", None, None, None, None, None]
    assert refused(planned, layers[0], Sample((1.0655e-3,), 16), None) is None


def test_turns_count_after_the_warm_up_and_end_once_there_are_enough(monkeypatch):
    now, rests = [0.0], []

    def replay():
        now[0] += 0.03
        return 0.03

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.sleep", rests.append)
    found = interleaved({"one": (replay, 3)}, 9, warm_up_s=0.08, enough_s=0.05, rest_s=0.5)
    assert found == {"one": [0.01] * 3}  # three of 30 ms were enough, after three that warmed up
    assert (now[0], rests) == (pytest.approx(0.18), [0.5] * 6)
    assert interleaved({"one": (replay, 3), "two": (replay, 1)}, 2) == {"one": [0.01] * 2, "two": [0.03] * 2}


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA GH200 480GB", None), ("NVIDIA A100-SXM4-40GB", "a100-40gb"), ("NVIDIA A10G", "a10g"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA L40S", "l40s"), ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA B200", "b200"), ("NVIDIA A10", "a10"),
        ("NVIDIA H20", "h20"), ("NVIDIA H100 NVL", "h100-nvl"), ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"), ("NVIDIA GB300", None), ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None),
    ],
)  # fmt: skip
def test_datasheets_by_the_name_of_the_device(device, gpu):
    assert datasheet_of(device).gpu == gpu


def test_a_slice_of_a_gpu_is_not_the_gpu_and_has_its_bounds():
    slice_, whole = datasheet_of("NVIDIA H200 MIG 3g.71gb"), datasheet_of("NVIDIA H200")
    assert slice_.gpu is None
    assert (slice_.gb_per_s, slice_.tflops) == (whole.gb_per_s, whole.tflops)


def test_datasheets_agree_with_the_built_in_gpus():
    known = [sheet for sheet in DATASHEETS if sheet.gpu]
    assert len(known) >= 10
    for sheet in known:
        gpu = gpu_named(sheet.gpu)
        assert (sheet.gb_per_s * 1e9, sheet.tflops * 1e12) == (gpu.bandwidth_bytes_per_s, gpu.flops_per_s)


def test_a_graph_has_16_to_64_launches_and_reads_a_gibibyte():
    assert [launches_wanted(size) for size in (0, 2**20, 2**25, 2**26, 2**40)] == [64, 64, 32, 16, 16]
    flops = [0, 2**38, 2**40, 2**41, 2**50]  # long launches are fewer
    assert [launches_of(2**20, each) for each in flops] == [64, 64, 16, 8, 4]


def test_median_and_percentiles():
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]) == (6.0, 2.0, 10.0)
    assert spread([2.0]) == (2.0, 2.0, 2.0)


def test_points_of_a_plan_are_all_different_and_some_are_held_out(plan):
    assert len({point.key for point in plan.points}) == len(plan.points)
    for part in set(plan.parts) - {"ceilings", "launch"}:
        roles = {point.role for point in plan.points if point.part == part}
        assert "held_out" in roles, part
    assert plan.points == tuple(points(H200, False))  # by rule, not by chance
    assert 60 < plan.estimated_s() < 330
    quick = Plan(H200, True, tuple(points(H200, True)))
    assert 10 < quick.estimated_s() < 60
    assert quick.digest != plan.digest


def test_the_largest_contexts_fill_the_memory(plan):
    tokens = max(p.x["batch"] * p.x["context"] for p in plan.points if p.part == "decode")
    assert 0.75 < tokens * 32 * 1024 / H200.memory_bytes <= 1


def test_all_reduce_only_between_gpus():
    assert "all_reduce" not in {point.part for point in points(H200, False)}
    four = [point.x["gpus"] for point in points(replace(H200, count=4), False) if point.part == "all_reduce"]
    assert set(four) == {2, 4}


def test_a_synthetic_gpu_is_found(profile):
    """The dress rehearsal: formulas other than ours, with noise; whole layers within 5 %."""
    assert profile["kind"] == "calibrated"
    assert profile["gpu"] == profile["name"] == "h200"
    assert profile["refused"] == []
    assert profile["composed"]["error"]["points"] == 33
    assert profile["composed"]["error"]["mean"] < 0.015
    assert profile["composed"]["error"]["worst"] < 0.04
    for name, part in profile["parts"].items():
        most = {"prefill": 0.03, "experts": 0.03, "experts_fp8": 0.035}.get(name, 0.025)
        assert part["error"]["held_out"]["mean"] < most, name
    assert profile["ceilings"]["matrix_flops_per_s"] == pytest.approx(7.6e14, rel=0.01)
    assert profile["launch"] == pytest.approx(
        {"eager_s": 5e-6, "graph_s": 1.4e-6, "replay_s": 1.3e-5, "cut_s": 8e-6}, rel=0.01
    )
    assert profile["parts"]["decode"]["form"]["bandwidth_bytes_per_s"] == pytest.approx(4.2e12, rel=0.07)
    skewed = [point for point in profile["parts"]["decode"]["points"] if point["x"]["skew"] != "even"]
    assert len(skewed) > 12
    assert all(abs(point["predicted_s"] / point["median_s"] - 1) < 0.03 for point in skewed)


def synthetic_decode(quick, noise):
    some = Plan(H200, quick, tuple(points(H200, quick)))
    return calibrate(some, stopwatch=SyntheticGpu(noise=noise), read_clocks=dict)["parts"]["decode"]


def standard_errors(decode, noise):
    """Of the logarithms of t0, bandwidth, work's rate and merging: what noise of every turn makes of them.

    A median of 9 turns has 0.408 of a turn's noise. The fit is linear in it to first order: with J its slopes
    and W its weights, the unknowns move by (J'WJ)^-1 J'W times the noise of the logarithms.
    """
    base = decode["base"] | {"block_size": 16}
    rows = [one for one in decode["points"] if one["role"] != "held_out"]
    rows = [one for one in rows if base.items() <= one["place"].items()]
    columns = ([one[key] for one in rows] for key in ("bytes", "work", "median_s"))
    moved, work, seconds = (np.array(column, dtype=float) for column in columns)
    shapes = np.array([one["role"] == "shape" for one in rows])
    weights = np.sqrt(np.where(shapes, max(0.5 * np.sum(~shapes) / max(np.sum(shapes), 1), 1), 1))
    merged = np.array([one["place"]["merged"] for one in rows], dtype=float)
    found = decode["form"]
    logs = [found["t0_s"], 1 / found["bandwidth_bytes_per_s"], 1 / found["work_per_s"], found["merge_s"]]
    _, slope = residuals(found["p"], (moved, work, seconds, weights, merged), np.log(logs))
    moving = np.linalg.solve(slope.T @ slope, slope.T * weights)
    return 0.408 * noise * np.sqrt((moving**2).sum(1))


@pytest.mark.parametrize("quick", [False, True])
def test_what_decode_on_a_synthetic_gpu_is_made_of_is_found(quick):
    """Its norm, the merging of parts, and its bandwidth with blocks of 16; its programs at once are known.

    Without noise what is left is where the form simplifies: 2 % of the merging, 0.04 us, is the last tile of
    a few programs, which the norm counts as hidden behind the others' reads, and with nothing to read beside
    it is not. Noise adds three standard errors at most: of 1 % in every turn, 0.5, 0.2 and 1.2 %.
    """
    decode, noisy = synthetic_decode(quick, 0.0), synthetic_decode(quick, 0.01)
    true = {"t0_s": 3e-6, "bandwidth_bytes_per_s": 4.2e12 / (1 + 0.35 / 16**0.7), "merge_s": 2.1e-6}
    found = decode["form"]
    assert decode["constants"]["shares"] == {"32": 396, "64": 528, "128": 264, "256": 264}
    assert found["p"] == noisy["form"]["p"] == 3
    for name, limit in (("t0_s", 0.005), ("bandwidth_bytes_per_s", 0.005), ("merge_s", 0.02)):
        assert found[name] == pytest.approx(true[name], rel=limit)
    t0, bandwidth, _, merging = standard_errors(decode, 0.01)
    assert max(t0, bandwidth, merging) < (0.01 if quick else 0.005)
    for name, error in (("t0_s", t0), ("bandwidth_bytes_per_s", bandwidth), ("merge_s", merging)):
        assert noisy["form"][name] == pytest.approx(found[name], rel=3 * error)


@pytest.mark.parametrize("quick", [False, True])
def test_held_out_decode_is_within_3_percent_but_where_few_programs_run_a_second_tile(quick):
    """Where the longest program has two tiles and most have one, the second runs after the others' reads.

    The norm hides it behind them, up to a tile's time; of which the neighbouring cells mend half.
    """
    decode = synthetic_decode(quick, 0.01)
    apart = [one for one in decode["points"] if one["role"] == "held_out"]
    tile_s = 1 / decode["form"]["work_per_s"]
    assert decode["error"]["held_out"]["mean"] < 0.01
    for one in apart:
        limit_s = 0.03 * one["median_s"] + (tile_s / 2 if 1 < one["work"] <= 2 else 0)
        assert abs(one["predicted_s"] - one["median_s"]) < limit_s, one


@pytest.mark.parametrize("batch", [24, 34, 67, 72, 136, 200])
@pytest.mark.parametrize("context", [900, 4096, 20_000])
def test_batches_on_both_sides_of_a_wave_are_predicted(profile, batch, context):
    """Of other sizes than the grid's: the synthetic GPU runs every program on one of its slots."""
    x = {"batch": batch, "context": context, "skew": "even", "kv_heads": 8, "group": 4, "head_dim": 128}
    point, part = Point("decode", x | {"element_bytes": 2, "block_size": 16}), profile["parts"]["decode"]
    assert form.predict_s(part, *features(point, part["constants"])) == pytest.approx(true_s(point), rel=0.03)


def test_the_grid_has_programs_on_both_sides_of_a_wave(plan):
    """Of 528, four a multiprocessor of 132: 512 and 544; and half way to the next of its values."""
    programs = {
        point.cell["sequence_heads"] for point in plan.points if point.cell.keys() >= {"sequence_heads"}
    }
    assert programs >= {384, 512, 544, 576, 768}


def test_all_reduces_of_any_number_of_gpus_are_found_over_a_shared_bridge():
    """Four GPUs start three times as slowly as two, and each has a fifth of their rate."""
    start, rate = {2: 5e-6, 4: 15e-6}, {2: 2e10, 4: 4e9}

    def seconds(gpus, size):
        return start[gpus] + 2 * (gpus - 1) / gpus * size / rate[gpus]

    def at(gpus, size, role="grid"):
        x = {"gpus": gpus, "bytes": size}
        return measured(Point("all_reduce", x, role, cell=x), seconds(gpus, size))

    rows = [at(gpus, 4**power) for gpus in (2, 4) for power in range(5, 14)]
    apart = [at(gpus, 2 * 4**power, "held_out") for gpus in (2, 4) for power in range(5, 13)]
    found = fit_part([one.point for one in (*rows, *apart)], [*rows, *apart], {})
    assert found["constants"]["starts"] == pytest.approx({"2": 1, "4": 3}, rel=0.01)
    assert found["constants"]["shares"] == pytest.approx({"2": 1, "4": 5}, rel=0.01)
    assert found["error"]["held_out"]["worst"] < 0.01
    assert form.all_reduce_features(found["constants"], gpus=8, size=100)[0] == pytest.approx(2 * 7 / 8 * 500)
    assert form.all_reduce_features({}, gpus=8, size=100) == (2 * 7 / 8 * 100, 0)


def test_a_synthetic_gpu_is_found_quickly():
    quick = Plan(H200, True, tuple(points(H200, True)))
    found = calibrate(quick, stopwatch=SyntheticGpu(), read_clocks=dict)
    assert found["composed"]["error"]["mean"] < 0.03
    assert found["measured"]["quick"]


def test_the_errors_of_calibrations_are_those_of_the_documents(profile):
    """On an H200 and an H100, and on a synthetic GPU in full and quick."""
    quick = Plan(H200, True, tuple(points(H200, True)))
    files = (ROOT / f"sim/profiles/{gpu}-triton.json" for gpu in ("h200", "h100"))
    real = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    short = calibrate(quick, stopwatch=SyntheticGpu(), read_clocks=dict)
    page = (ROOT / "docs/cost.md").read_text(encoding="utf-8")
    for row in zip(*map(errors_of, (*real, profile, short)), strict=True):
        cells = [row[0][0], *(errors for _, errors in row)]
        assert f"| {' | '.join(cells)} |" in page, cells


def errors_of(profile):
    """(row of the page, "mean, worst") of what entered no fit."""
    apart = {
        name: [point for point in part["points"] if point["role"] == "held_out"]
        for name, part in profile["parts"].items()
    }
    computing = {"decode", "latent", "prefill", "product", "product_fp8", "lm_head", "experts", "experts_fp8"}
    moving = set(apart) - computing
    rows = {
        "whole layers and heads": profile["composed"]["points"],
        "decode attention": apart["decode"],
        "of it, skewed batches": [point for point in apart["decode"] if point["x"]["skew"] != "even"],
        "decode over latents": apart.get("latent"),
        "prefill attention": apart["prefill"],
        "matrix products": apart["product"],
        "the same in 8 bits": apart.get("product_fp8"),
        "experts": apart.get("experts"),
        "experts in 8 bits": apart.get("experts_fp8"),
        "output matrix": apart["lm_head"],
        "all that only moves bytes": [point for name in sorted(moving) for point in apart[name]],
    }
    for name, some in rows.items():
        error = some and error_of(some)
        said = f"{error['mean']:.1%}, {error['worst']:.1%}" if error else "not measured"
        yield name, said.replace("%", " %")


def test_cells_of_the_tables_are_predicted_exactly(profile):
    products = "product", "product_fp8", "lm_head", "experts", "experts_fp8"
    for name in (*products, "sampling", "kv_write", "block_copy", "to_host"):
        part = profile["parts"][name]
        for point in part["points"]:
            if point["role"] == "grid" and part["base"].items() <= point["place"].items():
                assert point["predicted_s"] == pytest.approx(point["median_s"], rel=1e-9)


def test_a_predicted_point_follows_from_the_file_alone(profile):
    """What a reader computes from the JSON is what the calibration predicted."""
    read = json.loads(text_of(profile))
    for part in read["parts"].values():
        for point in part["points"]:
            found = form.predict_s(part, point["bytes"], point["work"], point["place"])
            assert found == pytest.approx(point["predicted_s"], rel=1e-4)


def test_held_out_points_enter_no_fit_and_no_table(plan, profile):
    """Ten times as slow, they change their own errors and nothing else."""

    class Slower(SyntheticGpu):
        def sample(self, point):
            found = super().sample(point)
            if point.role != "held_out":
                return found
            return replace(found, seconds=tuple(10 * each for each in found.seconds))

    slower = calibrate(plan, stopwatch=Slower(), read_clocks=dict)
    for name, part in profile["parts"].items():
        other = slower["parts"][name]
        for what in ("form", "constants", "base", "tables", "range", "unmeasured"):
            assert part[what] == other[what], (name, what)
        assert other["error"]["held_out"]["mean"] > 0.8
        assert part["error"]["fitted"] == other["error"]["fitted"]


def test_refused_points_are_listed_and_never_fitted(plan):
    wanted = [point for point in plan.points if point.part == "decode" and point.x["batch"] == 64]
    wanted = [point for point in wanted if point.role == "grid" and point.x["context"] > 4000][:2]
    found = calibrate(plan, stopwatch=SyntheticGpu(impossible=[p.key for p in wanted]), read_clocks=dict)
    assert [one["x"] for one in found["refused"]] == [dict(point.x) for point in wanted]
    assert all("more than the device's 4800" in one["reason"] for one in found["refused"])
    decode = found["parts"]["decode"]
    fitted = [point["x"] for point in decode["points"]]
    assert not [point for point in wanted if dict(point.x) in fitted]
    assert wanted[0].cell in decode["unmeasured"]
    assert decode["error"]["held_out"]["mean"] < 0.05


def test_a_time_of_zero_is_refused_and_divides_nothing(plan):
    """Of a point, and of a sentinel: a clock that is too coarse once."""
    wanted = next(point for point in plan.points if point.part == "decode" and point.role == "grid")

    class Still(SyntheticGpu):
        def sample(self, point):
            found = super().sample(point)
            still = point.key == wanted.key or (point.role == SENTINEL and self.readings < 3)
            return replace(found, seconds=(0.0,) * len(found.seconds)) if still else found

    found = calibrate(plan, stopwatch=Still(), read_clocks=dict)
    (refused,) = found["refused"]
    assert refused["x"] == dict(wanted.x) and refused["reason"].startswith("no time at all")
    assert 0 < found["measured"]["drift"]["decode"] < 0.03
    assert drift_of([{"decode": [0.0]}]) == {}


def test_a_cell_that_was_not_measured_has_its_neighbours_ratio(profile):
    decode = profile["parts"]["decode"]
    heads, contexts = (axis["values"] for axis in decode["tables"][0]["axes"])
    row, cell = decode["tables"][0]["ratio"][heads.index(8192)], {"sequence_heads": 8192}
    there = [i for i, c in enumerate(contexts) if cell | {"context_tokens": c} not in decode["unmeasured"]]
    assert there[-1] < len(contexts) - 1
    assert set(row[there[-1] :]) == {row[there[-1]]}
    assert decode["range"]["context_tokens"] == [1, 131_040]


def test_extrapolation_is_told_by_the_range(profile):
    decode = profile["parts"]["decode"]
    place = {"sequence_heads": 512, "context_tokens": 4000} | decode["base"]
    assert form.inside(decode, place)
    assert not form.inside(decode, place | {"context_tokens": 200_000})
    assert not form.inside(decode, place | {"group": 32})


def test_a_part_of_which_nothing_was_measured_is_absent():
    point = Point("kv_write", {"tokens": 1, "kv_heads": 8, "head_dim": 128, "element_bytes": 2}, "held_out")
    assert fit_part([point], [measured(point, 1e-6)], {}) is None


def test_written_whole_and_read_back(tmp_path, profile):
    path, journal = tmp_path / "deep/er/h200.json", tmp_path / "journal"
    journal.write_text("...")
    write_profile(profile, path, journal)
    assert not journal.exists()
    assert list(path.parent.iterdir()) == [path]
    text = path.read_text(encoding="utf-8")
    read = json.loads(text)
    assert text_of(read) + "\n" == text
    assert read.keys() == profile.keys()
    assert read["parts"]["decode"]["tables"][0]["ratio"][3][4] == pytest.approx(
        profile["parts"]["decode"]["tables"][0]["ratio"][3][4], rel=1e-5
    )


def test_the_example_has_the_fields_of_a_real_profile(profile):
    """What other tests read has the same shape as what a calibration writes."""
    example = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    assert example.keys() == profile.keys()
    for name in ("device", "measured", "limits", "ceilings", "launch", "composed"):
        assert example[name].keys() == profile[name].keys(), name
    assert set(example["parts"]) == {*profile["parts"], "all_reduce"}
    for name, part in profile["parts"].items():
        assert example["parts"][name].keys() == part.keys(), name
        assert set(part["constants"]) == set(example["parts"][name]["constants"]), name
        axes = [[[axis["name"] for axis in table["axes"]] for table in one["tables"]]
                for one in (part, example["parts"][name])]  # fmt: skip
        assert axes[0] == axes[1], name
        assert part["points"][0].keys() == example["parts"][name]["points"][0].keys(), name


def test_the_example_is_what_is_fitted_today(profile):
    """Its forms and tables; all-reduces need more GPUs. `python -m support.synthetic_gpu` writes them."""
    example = json.loads(EXAMPLE.read_text(encoding="utf-8"))["parts"]
    assert {part["form"]["p"] for part in example.values()} <= set(form.NORMS)
    for name, part in profile["parts"].items():
        one, other = (
            {key: each or 0 for key, each in some["form"].items()} for some in (part, example[name])
        )
        assert one == pytest.approx(other, rel=1e-4), name
        for fitted, there in zip(part["tables"], example[name]["tables"], strict=True):
            assert fitted["axes"] == there["axes"], name
            assert np.array(fitted["ratio"]) == pytest.approx(np.array(there["ratio"]), rel=1e-4), name
        for what in ("constants", "base", "range", "unmeasured"):
            assert part[what] == example[name][what], (name, what)


def test_composed_steps_have_all_parts_of_a_layer(profile):
    layer = profile["composed"]["points"][3]
    assert set(layer["consists_of"]) == {"elementwise", "product", "kv_write", "decode", "prefill"}
    assert sum(layer["consists_of"].values()) == pytest.approx(layer["predicted_s"])
    point = Point("composed", layer["x"])
    assert layer["median_s"] == pytest.approx(true_s(point), rel=0.02)
