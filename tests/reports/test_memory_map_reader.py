"""The reader of map.parquet says at every instant what a slot-by-slot replay says."""

import time

import numpy as np
import pytest

from kvsim import cli
from kvsim.reports.memory_map import MemoryMap, owners_of
from kvsim.reports.rundir.formats import write_columns
from kvsim.sim.errors import KvsimError

pytestmark = pytest.mark.slow

COLUMNS = ("time_s", "start", "size", "owners", "filled", "cached")


def write(path, rows):
    """Rows as in the file; returns its path."""
    file = path / "map.parquet"
    columns = zip(*rows, strict=True) if rows else [[] for _ in COLUMNS]
    arrays = (
        np.array(column, dtype=object if name == "owners" else None)
        for name, column in zip(COLUMNS, columns, strict=True)
    )
    write_columns(dict(zip(COLUMNS, arrays, strict=True)), file)
    return file


def random_rows(rng, slots=60, instants=12):
    """An arena that is partly recut at each instant; every cut covers whole ranges."""
    arena = [(0, slots, "", 0, 0)]
    rows = [(0.0, *arena[0])]
    for instant in range(1, instants):
        first = int(rng.integers(len(arena)))
        last = int(rng.integers(first, min(first + 4, len(arena))))
        low, high = arena[first][0], arena[last][0] + arena[last][1]
        cuts = np.unique(np.concatenate([[low, high], rng.integers(low, high, 3)]))
        fresh = []
        for start, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            owners = " ".join(map(str, sorted(rng.integers(0, 9, int(rng.integers(3))))))
            filled = int(rng.integers(end - start + 1)) if owners else 0
            fresh.append((start, end - start, owners, filled, 0 if owners else int(rng.integers(2))))
        arena[first : last + 1] = fresh
        rows += [(float(instant), *row) for row in fresh]
    return rows


def replayed(rows, at_s):
    """Slot -> what the newest row so far says about it, and that row's place."""
    slots = [None] * rows[0][2]
    for time_s, start, size, *what in rows:
        if time_s <= at_s:
            slots[start : start + size] = [(start, size, *what)] * size
    return slots


@pytest.mark.parametrize("seed", range(8))
def test_the_arena_at_every_instant_is_that_of_a_slot_by_slot_replay(tmp_path, seed):
    rows = random_rows(np.random.default_rng(seed))
    found = MemoryMap.read(write(tmp_path, rows))
    assert found.instants.tolist() == sorted({row[0] for row in rows})
    for at_s in (0, 0.5, 3, 7.9, 8, 11, 99):
        arena = found.at(at_s)
        slots = [
            (start, size, arena.owners[owner], filled, int(cached))
            for start, size, owner, filled, cached in zip(
                *(column.tolist() for column in arena[:5]), strict=True
            )
            for _ in range(size)
        ]
        assert slots == replayed(rows, at_s)
    held = [sum(slot[2] != "" for slot in replayed(rows, at_s)) for at_s in found.instants]
    assert found.allocated_slots().tolist() == held


def ranges(arena):
    """(start, size, owners, filled, cached, idle) of each range."""
    columns = (column.tolist() for column in arena[:6])
    return [
        (start, size, owners_of(arena.owners[owner]), *rest)
        for start, size, owner, *rest in zip(*columns, strict=True)
    ]


def test_ranges_name_requests_and_samples(tmp_path):
    rows = [(0.5, 0, 16, "17 4.2", 16, 0), (0.5, 16, 16, "", 0, 1), (0.5, 32, 8, "3", 5, 0)]
    found = MemoryMap.read(write(tmp_path, rows))
    assert ranges(found.at(1)) == [
        (0, 16, ((17, 0), (4, 2)), 16, False, False),
        (16, 16, (), 0, True, False),
        (32, 8, ((3, 0),), 5, False, False),
    ]
    assert found.slots == 40
    assert ranges(found.at(0.4)) == [(0, 40, (), 0, False, False)]
    assert owners_of("") == ()


def test_an_empty_map_has_no_instants_and_no_ranges(tmp_path):
    found = MemoryMap.read(write(tmp_path, []))
    assert (found.slots, found.instants.tolist(), ranges(found.at(1))) == (0, [], [])
    assert found.allocated_slots().tolist() == []


def test_the_map_of_a_run_holds_the_tokens_that_the_run_ends_with(tmp_path):
    out = tmp_path / "run"
    small = ["--num-prompts", "30", "--request-rate", "inf", "--cost", "constant:0.03", "--no-plots", "-q"]
    assert cli.main(["run", "--record-map", "40", "--out", str(out), *small]) == 0
    found = MemoryMap.read(out / "map.parquet")
    for at_s, held in zip(found.instants, found.allocated_slots(), strict=True):
        arena = found.at(at_s)
        assert arena.size.sum() == found.slots == 15_744
        assert arena.size[arena.allocated].sum() == held
        assert arena.start[1:].tolist() == (arena.start + arena.size)[:-1].tolist()
    assert found.allocated_slots()[-1] == 0


def test_what_kinds_of_layers_hold_is_told_at_each_instant_and_on_average(tmp_path):
    """Two pools of 10 slots, at 0, 1 and 3 s; the last instant has no duration."""
    rows = [
        *((0.0, 0, 10, "", "full"), (0.0, 10, 10, "", "window")),
        *((1.0, 0, 5, "1", "full"), (1.0, 10, 8, "1", "window")),
        *((3.0, 0, 5, "", "full"), (3.0, 10, 8, "", "window")),
    ]
    time_s, start, size, owners, layers = map(np.array, zip(*rows, strict=True))
    no = np.zeros(len(rows), bool)
    columns = (time_s, start, size, owners.astype(object), no.astype(int), no, layers.astype(object))
    where = tmp_path / "map.parquet"
    write_columns(dict(zip((*COLUMNS, "layers"), columns, strict=True)), where)
    recorded = MemoryMap.read(where)
    held = recorded.allocated_by_layers()
    assert {name: shares.tolist() for name, shares in held.items()} == {
        "full": [0, 50, 0],
        "window": [0, 80, 0],
    }
    assert recorded.mean(held["full"]) == pytest.approx(50 * 2 / 3)


def test_a_map_of_25_000_blocks_and_240_instants_is_read_in_seconds(tmp_path):
    rng = np.random.default_rng(0)
    blocks, instants = 25_000, 240
    time_s, start = [np.zeros(blocks)], [np.arange(blocks)]
    for instant in range(1, instants):
        start.append(np.sort(rng.choice(blocks, 4_000, replace=False)))
        time_s.append(np.full(4_000, float(instant)))
    columns = {"time_s": np.concatenate(time_s), "start": np.concatenate(start) * 16}
    rows = len(columns["start"])
    columns |= {
        "size": np.full(rows, 16),
        "owners": np.array([str(each) for each in rng.integers(0, 999, rows)]),
    }
    columns |= {"filled": np.full(rows, 16), "cached": np.zeros(rows, np.int64)}
    write_columns(columns, tmp_path / "map.parquet")
    begun = time.process_time()
    found = MemoryMap.read(tmp_path / "map.parquet")
    arenas = [found.at(at_s) for at_s in found.instants]
    assert time.process_time() - begun < 10  # 2 on a slow core
    newest = {}
    for row, block in enumerate((columns["start"] // 16).tolist()):
        newest[block] = columns["owners"][row]
    assert [arenas[-1].owners[code] for code in arenas[-1].owner] == [
        newest[block] for block in range(blocks)
    ]


DAMAGES = {
    "times must not fall": [(1.0, 0, 8, "", 0, 0), (0.0, 0, 8, "1", 0, 0)],
    "ranges must have a size": [(0.0, 0, 8, "", 0, 0), (1.0, 4, 0, "1", 0, 0)],
    "ranges must lie in the arena": [(0.0, 0, 8, "", 0, 0), (1.0, 4, 8, "1", 0, 0)],
    "more tokens than slots": [(0.0, 0, 8, "1", 9, 0)],
    "must hold the whole arena": [(0.0, 0, 8, "", 0, 0), (0.0, 9, 8, "", 0, 0)],
    "invalid literal": [(0.0, 0, 8, "somebody", 0, 0)],
}


@pytest.mark.parametrize("rule", DAMAGES)
def test_a_damaged_map_says_what_is_wrong(tmp_path, rule):
    with pytest.raises(KvsimError, match=rule):
        MemoryMap.read(write(tmp_path, DAMAGES[rule]))


def test_a_missing_or_foreign_file_says_so(tmp_path):
    with pytest.raises(KvsimError, match=r"map.parquet is missing: record it with --record-map"):
        MemoryMap.read(tmp_path / "map.parquet")
    (tmp_path / "map.parquet").write_bytes(b"PAR1")
    with pytest.raises(KvsimError, match=r"map.parquet is damaged"):
        MemoryMap.read(tmp_path / "map.parquet")
    write_columns({"time_s": np.zeros(1)}, tmp_path / "map.parquet")
    with pytest.raises(KvsimError, match=r"map.parquet is damaged"):
        MemoryMap.read(tmp_path / "map.parquet")
