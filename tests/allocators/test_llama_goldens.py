"""The cells hold what the genuine llama.cpp put there: every batch, slot, move and state."""

import gzip
import json
from functools import cache

import pytest
from support.shared_data import goldens

from kvsim.allocators.llama import CellCache, Window, WindowPair
from kvsim.allocators.llama.batches import Token
from kvsim.allocators.llama.defrag import most_moves, moves_of, worth_moving

pytestmark = pytest.mark.golden

READ_AT_LEAST = 256
"""cells, since the code of 2026 pads what attention reads to this at least"""


@cache
def sequences():
    """Name -> recording, of every file there; those of July 2025 are marked."""
    found = {}
    for file in sorted(goldens("zoo/llama").glob("*.json.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as opened:
            for name, recording in json.load(opened).items():
                found[name] = recording | {"july": "2025_07" in file.name}
    return found


def names():
    try:
        return sorted(sequences())
    except pytest.skip.Exception:
        return []


def test_there_are_recordings():
    assert sequences()


@pytest.mark.parametrize("name", names())
def test_every_call_ends_as_recorded(name):
    recording = sequences()[name]
    player = made(recording)
    for number, call in enumerate(recording["ops"]):
        where = f"{name}, call {number}: {call['op']} {str(call['args'])[:200]}"
        returned = getattr(player, call["op"])(*call["args"])
        assert returned == call["ret"], where
        if "state" in call:
            assert player.state() == call["state"], where


def made(recording):
    config = recording["config"]
    if recording["july"]:
        return Contiguous(config)
    return Pair(config) if config.get("iswa") else Scattered(config)


def window_of(config):
    kind = config.get("swa_type", 0)
    return Window(config["n_swa"], chunked=kind == 2) if kind else None


def tokens_of(batch):
    return [Token(position, tuple(seqs)) for position, seqs in batch]


def slot_of(slot):
    return {"streams": list(slot.streams), "idxs": [list(cells) for cells in slot.cells]}


def state_of(cache):
    return {
        "heads": cache.heads,
        "streams": [
            {
                "used": cells.used,
                "used_max_p1": cells.top,
                "has_shift": cells.shifted,
                "cells": [
                    [cell, cells.position[cell], sorted(cells.owners[cell])]
                    for cell in range(cells.size)
                    if not cells.is_empty(cell)
                ],
                "pos_min_max": [[seq, known.low, known.high] for seq, known in cells.sequences().items()],
            }
            for cells in cache.arrays
        ],
    }


class Player:
    """Plays the calls that all recordings have."""

    def seq_rm(self, seq, first, end):
        self.cache.remove(seq, first, end)
        return True

    def seq_cp(self, source, to, first, end):
        self.cache.copy(source, to, first, end)

    def seq_keep(self, seq):
        self.cache.keep(seq)

    def seq_add(self, seq, first, end, by):
        self.cache.shift(seq, first, end, by)

    def shift_done(self):
        self.cache.rotated()

    def state(self):
        return state_of(self.cache)


class Scattered(Player):
    """The cache of 2026."""

    def __init__(self, config):
        streams = 1 if config["unified"] else config["n_seq"]
        padding = max(config["pad"], READ_AT_LEAST)
        self.cache = CellCache(
            config["size"],
            streams=streams,
            padding=padding,
            most=config["n_ubatch"],
            window=window_of(config),
        )

    def decode(self, batch):
        placed = self.cache.decode(tokens_of(batch))
        if placed is None:
            return {"status": "no_slot"}
        ubatches = [
            {
                "n_tokens": len(one.ubatch.places),
                "n_seqs": one.ubatch.rows,
                "batch_idxs": list(one.ubatch.places),
                "n_kv": one.read_cells,
                "slot": slot_of(one.slot),
            }
            for one in placed
        ]
        return {"status": "ok", "ubatches": ubatches}

    def find_slot_contiguous(self, seq, count):
        slot = self.cache.find([(self.cache.stream(seq), count)], contiguous=True)
        return None if slot is None else slot_of(slot)


class Pair(Player):
    """The two caches of a model with windows in some layers.

    The recordings have the window's length (`n_swa`), which sizes the smaller cache, but no cell of it was
    written anew while its sequence lived, as with llama.cpp's default type of window, which hides nothing.
    """

    def __init__(self, config):
        self.cache = WindowPair(
            config["size"],
            config["n_seq"],
            config["n_swa"],
            None,
            padding=max(config["pad"], READ_AT_LEAST),
            most=config["n_ubatch"],
            unified=config["unified"],
        )

    def decode(self, batch):
        placed = self.cache.decode(tokens_of(batch))
        if placed is None:
            return {"status": "no_slot"}
        ubatches = [
            {
                "n_tokens": len(one.base.ubatch.places),
                "n_seqs": one.base.ubatch.rows,
                "batch_idxs": list(one.base.ubatch.places),
                "n_kv_base": one.base.read_cells,
                "n_kv_swa": one.window.read_cells,
                "slot_base": slot_of(one.base.slot),
                "slot_swa": slot_of(one.window.slot),
            }
            for one in placed
        ]
        return {"status": "ok", "ubatches": ubatches}

    def state(self):
        return {"base": state_of(self.cache.base), "swa": state_of(self.cache.window)}


class Contiguous(Player):
    """The cache of July 2025, with defragmentation."""

    def __init__(self, config):
        self.config = config
        self.most_moves = most_moves(config["max_nodes"], config["layers"])
        self.cache = CellCache(
            config["size"],
            padding=config["pad"],
            most=config["n_ubatch"],
            window=window_of(config),
            contiguous=not config.get("set_rows"),
        )

    def update(self, forced):
        (cells,) = self.cache.arrays
        shifted, moves = cells.shifted, []
        if forced or worth_moving(cells.used, cells.top, self.config["thold"], self.config["pad"]):
            moves = moves_of(cells.empty, cells.used, self.most_moves)
        if shifted:
            self.cache.rotated()
        if moves:
            self.cache.moved(0, moves)
        each = [[move.source + at, move.to + at] for move in moves for at in range(move.length)]
        return {"shift": shifted, "moves": sorted(each)}

    def decode(self, batch):
        placed = self.cache.decode(tokens_of(batch))
        if placed is None:
            return {"status": "no_slot"}
        ubatches = [
            {"n_tokens": len(one.ubatch.places), "n_kv": one.read_cells, "idxs": list(one.slot.cells[0])}
            for one in placed
        ]
        return {"status": "ok", "ubatches": ubatches}
