"""Every file that a command reads, changed: used, or refused in one line.

READ says of each parameter of each command that takes a file what is tried of it; a new one that is neither
there nor known to be written fails `test_every_file_that_a_command_reads_is_tried`.
"""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from support.attack import attack, tried, workers_here
from support.command_files import SMALL
from support.commands import reads_or_writes_files
from support.mutations import mutated_file, mutated_folder, mutated_words

pytestmark = pytest.mark.slow

SERVER = "--model llama-3.1-8b --gpu l4 --cost roofline"
RUN = "--no-plots --quiet --out out --force"

READ = {
    "sweep file": [("sweep.toml", f"sweep {{}} --jobs 1 {RUN}"), ("sweep.toml", "sweep {} --dry-run")],
    "capacity file": [("capacity.toml", f"capacity {{}} --jobs 1 --seeds 1 {RUN}")],
    "table directories": [("swept", "table {}"), ("seeds", "table {} --out table.csv --force")],
    "fit log": [("server.log", "fit llama-3.1-8b --gpu l4 --log {}")],
    "replay result": [
        (name, f"replay {{}} {SERVER}")
        for name in ("vllm.json", "guidellm.json", "aiperf", "inference-perf.json", "mine.json")
    ],
    "replay log": [
        ("server.log", f"replay mine.json {SERVER} --log {{}}"),
        ("steps.log", "replay mine.json --model llama-3.1-8b --gpu l4 --log {}"),
    ],
    "validate source": [("points.csv", "validate {}"), ("mine.json", f"validate {{}} {SERVER}")],
    "validate table": [("errors.csv", "validate points.csv --table {}")],
    "calibrate log log": [("steps.log", "calibrate log {} --out fitted.toml --force")],
}
READ |= {
    f"{command} tokenizer": [("tokenizer.json", f"{words} --tokenizer {{}}")]
    for command, words in {
        "run": f"run --trace texts.json {SMALL} {RUN}",
        "compare": f"compare --trace texts.json {SMALL} {RUN} --allocator paged,buddy",
        "sweep": f"sweep --trace texts.json {SMALL} {RUN} --request-rate 2,4 --jobs 1",
        "capacity": f"capacity --trace texts.json {SMALL} {RUN} --slo ttft:p99=1s --seeds 1 --jobs 1",
        "traces show": "traces show texts.json",
        "traces convert": "traces convert texts.json converted.jsonl --force",
    }.items()
}

READ |= {
    "prices": [("prices.toml", f"run {SMALL} {RUN} --gpu-price prices.toml")],
    "step times": [("steps.toml", f"run --num-prompts 5 {RUN} --cost steps.toml")],
    "a sweep or a replay to draw": [
        (name, f"{words} --force")
        for name in ("swept", "sought", "replayed")
        for words in ("plot {} --out drawn", "report {} --out page.html")
    ],
    "a sweep that was stopped": [("stopped", "sweep sweep.toml --jobs 1 --quiet --no-plots --out stopped")],
}
"""Files that an option takes where a name or a number may stand, or that lie where a command writes."""

OWN_FUZZERS = {
    "model": "test_models.py",
    "models": "test_models.py",
    "gpu": "test_profiles.py",
    "profile": "test_profiles.py",
    "trace": "test_traces.py",
    "config": "test_run_directories.py",
    "run": "test_run_directories.py",
    "directories": "test_run_directories.py",
}
"""Parameters that read a file by the same reader in every command -> where it is tried."""
WRITTEN = {"out"}


def test_every_file_that_a_command_reads_is_tried():
    unknown = {
        name
        for name in reads_or_writes_files() - READ.keys()
        if name.split()[-1] not in {*OWN_FUZZERS, *WRITTEN}
    }
    assert unknown == set(), "add it to READ, or say in OWN_FUZZERS where it is tried"
    assert all((Path(__file__).parent / name).is_file() for name in OWN_FUZZERS.values())


def damaged(rng, path):
    """Change a file, or some of the files of a directory, in its place."""
    if path.is_dir():
        mutated_folder(rng, path)
    elif path.suffix != ".json" and rng.random() < 0.7:
        path.write_text(mutated_words(rng, path.read_text()))
    else:
        mutated_file(rng, path)


@pytest.mark.parametrize("name", READ)
def test_changed_files(cases, files, name):
    for path, words in READ[name]:
        told = attack(words.format(path).split())
        assert told.code == 0, f"{words}: the whole file: {told.err}"

    def case(rng):
        path, words = rng.choice(READ[name])
        whole = Path("whole", path)
        if not whole.exists():
            whole.parent.mkdir(exist_ok=True)
            Path(path).rename(whole)
        _put(whole, Path(path))
        damaged(rng, Path(path))
        apart = words.startswith("capacity") or rng.random() < 0.1  # its searches may take long; a start does
        with nullcontext() if apart else workers_here():
            return attack(words.format(path).split())

    tried(f"files of {name}", cases(6), case)


def _put(whole, path):
    """A copy in the place of what stands there, whatever it has become."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    (shutil.copytree if whole.is_dir() else shutil.copy)(whole, path)


@pytest.mark.parametrize(
    ("words", "file", "before", "after", "said"),
    [
        (f"validate mine.json {SERVER}", "mine.json", "1.25]", "1e308]", "the clock ends at"),
        ("calibrate log steps.log --out f.toml", "steps.log", "INFO 11-23", "INFO 00-23", "month must be in"),
    ],
)
def test_a_time_that_no_clock_tells_is_told(files, words, file, before, after, said):
    Path(file).write_text(Path(file).read_text().replace(before, after))
    told = attack(words.split())
    assert told.code == 2 and said in told.err


def test_a_number_of_gpus_that_is_none_is_told(files):
    for folder, name, said in (
        ("sought", "gpus", "column gpus must hold a whole number"),
        ("swept", "gpus", "gpus"),
    ):
        path = Path(folder, "table.parquet")
        table = pq.read_table(path)
        place = table.column_names.index(name)
        pq.write_table(table.set_column(place, name, pa.array([-1e308] * table.num_rows)), path)
        told = attack(["plot", folder, "--out", "drawn", "--force"])
        assert told.code == 2 and said in told.err


def test_a_degree_of_parallelism_that_is_a_text_is_told(files):
    for config in Path("seeds").glob("seed-*/config.json"):
        said = json.loads(config.read_text())
        said["scenario"]["pipeline_parallel_size"] = "two"
        config.write_text(json.dumps(said))
    told = attack(["table", "seeds"])
    assert (
        told.code == 2
        and "pipeline_parallel_size must be a whole number of at least 1, got 'two'" in told.err
    )


def test_when_a_request_began_need_not_be_known(files):
    told = json.loads(Path("mine.json").read_text())
    told["start_times"][1] = None
    Path("mine.json").write_text(json.dumps(told))
    for command in ("validate", "replay"):
        assert attack([command, "mine.json", *SERVER.split()]).code == 0


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("took 14.99 GiB", "took 14.9914.99 GiB", "weights_gib"),
        ("41,408 tokens", ", tokens", "kv_tokens"),
        ("41,408 tokens", f"{'9' * 5000} tokens", "kv_tokens"),
    ],
)
def test_a_number_of_a_log_that_is_none_is_told(files, before, after, name):
    log = Path("server.log")
    log.write_text(log.read_text().replace(before, after))
    told = attack(["fit", "llama-3.1-8b", "--gpu", "l4", "--log", "server.log"])
    assert told.code == 2 and f"{name} must be a number, got" in told.err


@pytest.mark.parametrize("command", ["plot sought --out drawn", "report sought --out page.html"])
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("gpus", "x", "column gpus must hold a whole number, nothing, got 'x'"),
        ("gpus", [3], "column gpus must hold a whole number, nothing, got [3]"),
        ("gpus", 0, "column gpus must be at least 1, got 0"),
        ("at_least", None, "column at_least must hold yes or no, got None"),
        ("status", None, "column status must hold a text, got None"),
        ("limited_by", b"x", "column limited_by must hold a text, nothing, got b'x'"),
        (
            "requests_per_s_per_gpu",
            float("nan"),
            "column requests_per_s_per_gpu must be at most 9.0072e+15, got nan",
        ),
        (
            "tolerance",
            [0.1],
            "column tolerance must hold yes or no, a whole number, a number, a text, nothing, got [0.1]",
        ),
        (
            "fleet_price_per_hour",
            "x",
            "column fleet_price_per_hour must hold a number, a whole number, nothing, got 'x'",
        ),
        ("rough", 1, "column rough must hold yes or no, got 1"),
    ],
)
def test_a_column_of_another_type_is_told(files, command, name, value, said):
    table = pq.read_table("sought/table.parquet")
    if name in table.column_names:
        table = table.drop_columns(name)  # those of priced fleets are not in every search
    table = table.append_column(name, pa.array([value] * len(table)))
    pq.write_table(table, "sought/table.parquet")
    told = attack([*command.split(), "--force"])
    assert told.code == 2 and told.err.strip().endswith(f"is damaged: {said}")


def test_a_load_without_an_interval_or_a_number_of_gpus_is_drawn(files):
    table = pq.read_table("sought/table.parquet")
    for name in ("requests_per_s_low", "requests_per_s_high", "gpus"):
        place = table.column_names.index(name)
        kind = table.schema.field(name).type
        table = table.set_column(place, name, pa.array([None] * len(table), kind))
    pq.write_table(table, "sought/table.parquet")
    assert attack(["plot", "sought", "--out", "drawn", "--force"]).code == 0
