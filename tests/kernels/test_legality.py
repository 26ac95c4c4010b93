"""What the compiler makes of every variant, for GPUs that are not there: no spills, wide loads, it fits."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from kvsim.kernels.launch import REGISTERS, Gpu, decode_tiling, latent_tiling

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2
SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024}
SHARED_OF_SMALL_GPUS = 99 * 1024
"""sm_86, sm_89 and sm_120 run what is compiled for sm_80 with less of it."""


def compiled(folder, path, *chips):
    """What every kernel of every variant looks like, compiled in processes without the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, str(ROOT / "tests/support/ahead_of_time.py"), str(PROCESSES), *chips]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    names, *found = map(json.loads, done.stdout.splitlines())
    assert {report["variant"] for report in found} == set(names)
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """By the Triton that is installed, for all chips."""
    return compiled(tmp_path_factory.mktemp("triton"), [ROOT])


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """By Triton 3.6, which GPU machines with torch 2.11 have, for A100 and H200. `.ci/run` installs it."""
    folder = os.environ.get("KVSIM_TRITON_3_6")
    if folder is None:
        pytest.skip(
            "KVSIM_TRITON_3_6 does not name a folder: pip install --no-deps --target FOLDER triton==3.6.0"
        )
    return compiled(tmp_path_factory.mktemp("triton36"), [folder, ROOT], "sm_80", "sm_90")


def where(reports, wrong):
    """The kernels for which something is wrong, and what they look like."""
    return [report for report in reports if wrong(report)]


def widths(report, *starts):
    """How often each kind of load or store occurs."""
    return {name: count for name, count in report["instructions"].items() if name.startswith(starts)}


def is_attention(report):
    return report["kernel"] in {"decode_kernel", "prefill_kernel"}


def of_latents_on_hopper(report):
    """All but 16 heads in 16 bits: the accumulator of 64 x 512 takes half of all registers, for one."""
    return re.match("sm_90 latent(?! of 16 heads)", report["variant"]) and is_attention(report)


def most_spilled(reports):
    """The largest stack of the kernels for latents on Hopper: in 16 bits, and in 8."""
    stacks = {False: 0, True: 0}
    for report in filter(of_latents_on_hopper, reports):
        narrow = " fp8 " in report["variant"]
        stacks[narrow] = max(stacks[narrow], report["stack"])
    return stacks[False], stacks[True]


def spills(report):
    return report["stack"] or widths(report, "LDL", "STL")


def test_nothing_is_spilled_but_by_latents_on_hopper(reports):
    """Which are up to four times as fast as tilings that spill nothing (benchmarks/GPU.md)."""
    spilled = where(reports, spills)
    assert all(map(of_latents_on_hopper, spilled))
    assert {report["kernel"] for report in spilled} == {"decode_kernel"}
    wide, narrow = most_spilled(spilled)
    assert wide <= 528 and narrow <= 688


def test_by_triton_3_6_one_other_spills_40_bytes(older):
    """On an A100, of 8-bit keys of 256 numbers. Half the rows spill none, but read all keys twice."""
    found = where(older, spills)
    wide, narrow = most_spilled(found)
    assert wide <= 272 and narrow <= 456
    others = [report for report in found if not of_latents_on_hopper(report)]
    assert {report["variant"]: report["stack"] for report in others} == {"sm_80 prefill fp8 head 256": 40}
    assert sum(widths(others[0], "LDL", "STL").values()) == 20
    assert_as_many_programs_as_started(older)


def test_as_many_programs_fit_as_decode_attention_starts(reports):
    assert_as_many_programs_as_started(reports)


def assert_as_many_programs_as_started(reports):
    """Registers and shared memory of a multiprocessor leave room for them: or there would be a last wave."""
    decoding = [report for report in reports if report["kernel"] == "decode_kernel"]
    assert decoding
    for report in decoding:
        assert report["reg"] <= report["registers"], report
        programs = REGISTERS // (report["registers"] // 8 * 8 * 32 * report["warps"])
        room = SHARED_BYTES[report["variant"].partition(" ")[0]] + 1024
        assert programs * (report["shared"] + 1024) <= room, report
        head, size = re.search(r"head (\d+)", report["variant"]), 1 if " fp8 " in report["variant"] else 2
        tiling = decode_tiling(int(head[1]) if head else 128, size)
        if " latent" in report["variant"]:
            gpu = Gpu((9 if report["variant"].startswith("sm_90") else 8, 0), 132)
            heads = re.search(r"of (\d+) heads", report["variant"])
            tiling = latent_tiling(size, int(heads[1]) if heads else 128, gpu)
        if "one" not in report["variant"] and "multi-query" not in report["variant"]:
            assert programs == tiling.programs, report
            assert report["shared"] <= 1024 * tiling.shared_kib, report


def test_shared_memory_fits(reports):
    for gpu, limit in SHARED_BYTES.items():
        of_gpu = [report for report in reports if report["variant"].startswith(gpu + " ")]
        assert of_gpu
        assert not where(of_gpu, lambda report, limit=limit: report["shared"] > limit)
    small = [report for report in reports if report["variant"].startswith("sm_80 ")]
    assert not where(small, lambda report: report["shared"] > SHARED_OF_SMALL_GPUS)


def test_nothing_is_loaded_or_stored_in_pieces_of_8_or_16_bits(reports):
    narrow = [f"{move}.E.{kind}" for move in ("LDG", "STG") for kind in ("U8", "S8", "U16", "S16")]
    merging = "reduce_kernel"  # of a head of 32 each thread has one element
    others = where(
        reports, lambda report: (report["kernel"], "head 32" in report["variant"]) != (merging, True)
    )
    assert not where(others, lambda report: widths(report, *narrow))


def test_keys_and_values_come_16_bytes_at_a_time(reports):
    """Asynchronously, past the first cache; 8-bit ones 8 bytes at a time at least."""
    for report in filter(is_attention, reports):
        copies = widths(report, "LDGSTS")
        if " fp8 " in report["variant"]:
            assert copies, report
            assert not [name for name in copies if not name.endswith((".64", ".128"))], report
        else:
            assert copies, report
            assert not [name for name in copies if not name.endswith(".BYPASS.128")], report


def test_experts_read_16_bytes_at_a_time_and_multiply_as_the_chip_does(reports):
    """Tiles of 64 rows and more in warpgroups, or in tensor memory."""
    kinds = {"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA"}
    experts = where(reports, lambda report: report["kernel"] == "expert_kernel")
    assert len(experts) == 2 * (4 + 8 + 8)
    for report in experts:
        copies = widths(report, "LDGSTS")
        assert copies and not [name for name in copies if not name.endswith(".BYPASS.128")], report
        gpu, tokens = report["variant"].split()[0], int(report["variant"].split()[-2])
        if " fp8 " not in report["variant"]:
            assert widths(report, kinds[gpu] if tokens >= 1024 else "HMMA"), report


def test_moves_are_16_bytes_at_a_time(reports):
    moving = where(reports, lambda report: report["kernel"] == "move_kernel")
    assert moving
    for report in moving:
        assert widths(report, "LDG.E.128"), report
        assert widths(report, "STG.E.128"), report
    writing = where(reports, lambda report: report["kernel"] == "write_kernel")
    assert writing
    assert not where(writing, lambda report: not widths(report, "LDG.E.128"))


def test_matrix_instructions_are_those_of_the_chip(reports):
    """Products of 64 rows, as in prefill or with 64 heads on one: in warpgroups, or in tensor memory."""
    kinds = {"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA"}
    for report in filter(is_attention, reports):
        gpu, what = report["variant"].split(" ", 1)
        of_64_rows = report["kernel"] == "prefill_kernel" or what.endswith("heads on one")
        of_64_rows |= bool(of_latents_on_hopper(report)) and not re.search("of (16|32) heads", what)
        assert widths(report, kinds[gpu] if of_64_rows else "HMMA"), report


def test_paging_costs_no_stage_of_the_pipeline(reports):
    """The contiguous twin has as much shared memory, and as many asynchronous copies in its loop."""
    by_variant = {(report["variant"], report["kernel"]): report for report in reports}
    for gpu in SHARED_BYTES:
        for kind in ("decode", "prefill", "latent"):
            kernel = "prefill_kernel" if kind == "prefill" else "decode_kernel"
            paged, linear = (by_variant[f"{gpu} {kind}{what}", kernel] for what in ("", " contiguous"))
            assert abs(paged["shared"] - linear["shared"]) <= 1024
            assert widths(paged, "LDGSTS") == widths(linear, "LDGSTS")
