"""Changed trace files in every format, read, shown and converted: a trace, or one line."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from support.attack import attack, tried
from support.mutations import (
    mutated_bytes,
    mutated_folder,
    mutated_json,
    mutated_table,
    mutated_words,
    write_table,
)
from support.trace_files import TABLES, TEXTS

from kvsim.allocators.eviction import EVICTION
from kvsim.workloads.formats import FORMATS

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


FOLDERS = {
    "clients": {
        "chunk-3-trace.csv": "0,2.0,1.0,Gamma,1.0,0.5\n600,0,0,,0,0\n1200,4.0,0.5,Weibull,2.1,0.28\n",
        "chunk-3-dataset.json": json.dumps(
            {"0": dict.fromkeys(("input_tokens", "output_tokens"), "{9: 1.0}")}
        ),
    },
    "sessions": {f"{name}.json": TEXTS["Weka"].splitlines()[0] for name in "ab"},
}
"""A directory of each format that is one -> its files."""


def test_every_format_has_a_file_here():
    assert FORMATS.keys() <= TEXTS.keys() | TABLES.keys(), "add one to support/trace_files.py"


def test_mutated_directories_of_traces(cases):
    def case(rng):
        for file, text in FOLDERS[(name := rng.choice(list(FOLDERS)))].items():
            path = Path(name, file)
            path.parent.mkdir(exist_ok=True)
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            path.write_text(text)
        if rng.random() < 0.7 and (path := rng.choice(sorted(Path(name).glob("*.csv")) or [None])):
            path.write_text(mutated_words(rng, path.read_text()))
        else:
            mutated_folder(rng, Path(name))
        command = rng.choice([f"run {SMALL} --trace", "traces show --miss-ratio", "traces show"])
        return attack([*command.split(), name])

    found = tried("directories of traces", cases(40), case)
    assert min(found["accepted"], found["refused"]) > 0


@pytest.mark.parametrize("name", EVICTION)
def test_every_eviction_policy_keeps_its_rules_and_takes_any_trace(cases, name):
    def case(rng):
        if rng.random() < 0.5:
            requests, seed = rng.choice([1, 9, 60]), rng.randrange(10**6)
            return attack(["check-eviction", name, "--requests", f"{requests}", "--seed", f"{seed}"])
        hashed = [name for name, text in TEXTS.items() if "hash_ids" in text]
        Path("trace").write_bytes(mutated_lines(rng, TEXTS[rng.choice(hashed)]))
        return attack(["traces", "show", "trace", "--miss-ratio", "--eviction", name])

    assert tried(f"eviction {name}", cases(4), case)["accepted"]


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
