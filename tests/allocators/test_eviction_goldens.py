"""Eviction policies equal genuine code and second implementations of the papers, hit by hit."""

import gzip
import hashlib
import json
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from pyarrow import parquet
from support.shared_data import golden_names, goldens, shared
from support.streams import stream_hits

from kvsim.sim.eviction import eviction_named

pytestmark = pytest.mark.golden

OURS = {
    "s3fifo_libcachesim": "libcachesim-s3-fifo",
    "lirs_libcachesim": "libcachesim-lirs",
    "aibrix_s3fifo": "aibrix-s3-fifo",
    **{f"aibrix_{name}": f"aibrix-{name}" for name in ("fifo", "lru")},
    **{f"lmcache_{name}": name for name in ("fifo", "lru", "lfu", "mru")},
}
"""Name of a recording -> ours, where they differ."""
SECOND = ("lirs", "gdsf")
"""Policies of the papers that are held against a second implementation, for want of genuine code."""


@cache
def recordings(file):
    return json.loads(gzip.decompress(goldens(f"eviction/{file}").read_bytes()))


@cache
def stream_named(name, file="hits.json.gz"):
    """The blocks of a stream, as its recording says that they are made."""
    about = recordings(file)[name]
    if isinstance(about["spec"], str):
        rows = parquet.read_table(shared("data/traces/mooncake_conversation.parquet"))["hash_ids"].to_pylist()
        stream = [block for row in rows for block in row]
    else:
        spec = spec_from_file_location("eviction_streams", goldens("eviction/streams.py"))
        streams = module_from_spec(spec)
        spec.loader.exec_module(streams)
        kind, *arguments = about["spec"]
        stream = getattr(streams, kind)(*arguments)
    assert hashlib.sha256(",".join(map(str, stream)).encode()).hexdigest() == about["sha256"]
    return stream


def cases(kind):
    """Each stream of each file of a kind: `hits` by size, `bits` of the first uses, `plain` second ones."""
    return [
        pytest.param(file, stream, id=f"{file}-{stream}")
        for file in golden_names("eviction")
        for stream, about in recordings(file).items()
        if kind == next((each for each in ("hits", "plain") if each in about), "bits")
    ]


def different(name, stream, sizes, expected):
    """Sentences on where a policy and its recording differ."""
    for size, hits in zip(sizes, expected, strict=True):
        got = sum(stream_hits(eviction_named(name).cache(size), stream))
        if got != hits:
            yield f"{name} of {size} blocks hits {got:,}, recorded {hits:,}"


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), cases("hits"))
def test_every_policy_hits_what_was_recorded(file, name):
    about, stream = recordings(file)[name], stream_named(name, file)
    rows = [(about["sizes"], about["hits"]), (about.get("kv_sizes", ()), about.get("kv_hits", {}))]
    wrong = [
        line
        for sizes, hits in rows
        for theirs, expected in hits.items()
        for line in different(OURS.get(theirs, theirs), stream, sizes, expected)
    ]
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), cases("plain"))
def test_lirs_and_gdsf_hit_what_second_implementations_do(file, name):
    about, stream = recordings(file)[name], stream_named(name)
    wrong = [
        line for ours in SECOND for line in different(ours, stream, about["sizes"], about["plain"][ours])
    ]
    assert not wrong


@pytest.mark.parametrize(("file", "name"), cases("bits"))
def test_every_policy_hits_the_very_blocks_that_were_recorded(file, name):
    for told, digits in recordings(file)[name].items():
        theirs, _, size = told.partition("@")
        bits = bin(int(digits, 16))[2:].zfill(3000)
        expected = [bit == "1" for bit in bits]
        policy = eviction_named(OURS.get(theirs, theirs)).cache(int(size))
        got = stream_hits(policy, stream_named(name)[: len(expected)])
        first = next(
            (at for at, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]), None
        )
        assert got == expected, f"{told}: use {first} is the first that differs"
