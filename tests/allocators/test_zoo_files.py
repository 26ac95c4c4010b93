"""No recording of the zoo is left out: each file is read by the test of its kind, however many there are."""

import gzip
import json
from pathlib import Path

import pytest
from support.shared_data import goldens
from support.zoo import alike, merged, recording

KINDS = {
    "kvcached": ("small", "medium", "elastic_pool"),
    "lightllm": ("admission", "mem_manager", "radix"),
    "llama": ("cells",),
    "mooncake": (
        *("small_mooncake", "small_upstream", "medium_mooncake", "medium_upstream"),
        *("bins", "normalized", "utilisation"),
    ),
    "pytorch": ("small", "large"),
    "sglang": ("allocators", "swa_dual_pool", "radix", "unified_pool", "scheduler"),
    "tgi": ("blocks",),
    "vattention": ("kvblocks", "block_space_manager"),
}
"""What the files of each engine begin with."""


@pytest.mark.golden
def test_every_file_is_of_a_kind_that_is_replayed():
    folder = goldens("zoo/README.md").parent
    files = [file for file in folder.rglob("*.json*") if file.is_file()]
    assert files
    strange = [file for file in files if not file.name.startswith(KINDS.get(file.parent.name, ("?",)))]
    assert strange == []


def test_files_of_one_kind_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "zoo" / "tgi"
    folder.mkdir(parents=True)
    for name, sequences in {"blocks": ["a", "b"], "blocks_more": ["b", "c"], "other": ["d"]}.items():
        told = {each: {"config": {"from": name}, "ops": [name]} for each in sequences}
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(told).encode()))
    monkeypatch.setenv("KVSIM_GOLDENS", str(tmp_path))
    found = recording("tgi/blocks.json.gz")
    assert {name: case["ops"] for name, case in found.items()} == {
        "a": ["blocks"],
        "b": ["blocks"],
        "b@blocks_more.json.gz": ["blocks_more"],
        "c": ["blocks_more"],
    }
    found_files = alike(folder / "blocks.json.gz")
    assert [file.name for file in found_files] == ["blocks.json.gz", "blocks_more.json.gz"]


def test_containers_are_merged_and_sequences_are_not():
    one = {"workloads": {"w": [1]}, "runs": {"r": {"config": 1, "rows": [1]}}, "states": [{"n": 1}]}
    two = {"workloads": {"v": [2]}, "runs": {"r": {"config": 2, "rows": [2]}}, "states": [{"n": 2}]}
    assert merged(one, two, "f") == {
        "workloads": {"w": [1], "v": [2]},
        "runs": {"r": {"config": 1, "rows": [1]}, "r@f": {"config": 2, "rows": [2]}},
        "states": [{"n": 1}, {"n": 2}],
    }
