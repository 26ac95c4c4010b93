"""Changed trace files in every format, read, shown and converted: a trace, or one line."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from support.attack import attack, tried
from support.mutations import mutated_bytes, mutated_json, mutated_table, write_table
from support.trace_files import TABLES, TEXTS

pytestmark = pytest.mark.slow

SMALL = "--cost constant:0.001 --num-prompts 4 --no-plots --quiet --out out --force --kv-tokens 40000"


def mutated_lines(rng, text):
    """A text with one of its lines changed as JSON, or some bytes anywhere."""
    lines = text.splitlines()
    place = rng.randrange(len(lines))
    try:
        json.loads(lines[place])
    except ValueError:
        return mutated_bytes(rng, text.encode())
    changed = mutated_json(rng, lines[place])
    return b"\n".join(line.encode() if at != place else changed for at, line in enumerate(lines))


def test_mutated_traces(cases):
    def case(rng):
        path = Path("trace")
        if rng.random() < 0.4:
            lengths = {"prompt_tokens": [700, 9], "output_tokens": [4, 5]}
            table = pa.table(lengths | rng.choice(list(TABLES.values())))
            write_table(mutated_table(rng, table), path)
            if rng.random() < 0.1:
                path.write_bytes(mutated_bytes(rng, path.read_bytes()))
        else:
            path.write_bytes(mutated_lines(rng, rng.choice(list(TEXTS.values()))))
        what = rng.random()
        if what < 0.6:
            return attack(["run", "--trace", "trace", *SMALL.split()])
        if what < 0.8:
            return attack(["traces", "show", "trace", "--turns", rng.choice(["first", "all"])])
        out = rng.choice(["converted.jsonl", "converted.parquet"])
        return attack(["traces", "convert", "trace", out, "--force"])

    found = tried("traces", cases(250), case)
    assert min(found["accepted"], found["refused"]) > 0
    assert not list(Path().glob("*.part"))
