"""Every module of the product that opens a file, and the fuzzer that damages what it reads.

A module that comes to read a file fails the first test until it says here where its files are damaged.
"""

import ast
from pathlib import Path

import kvsim

HERE = Path(__file__).parent
ROOT = Path(kvsim.__file__).resolve().parents[1]
CALLS = {
    *("open", "read_text", "read_bytes", "ParquetFile", "open_csv", "foreign_text"),
    *("content_of", "text_of", "read_json", "read_object", "plain_bytes", "read_table", "opened_table"),
}
"""How a file is opened, by Python, by pyarrow and by sim/files."""
NO_FILES = {
    *("allocators/lightllm.py", "allocators/sglang/cached.py", "allocators/sglang/windowed.py"),
    *("allocators/tgi.py", "sim/schedulers/sglang_order.py", "kernels/calibration/profile.py"),
    *("sim/serving/deaths.py", "sim/serving/hicache.py", "sim/serving/hicache_storage.py"),
    *("sim/serving/scaler.py", "sim/serving/gates.py"),
}
"""They make a text, ask contents for one, or open a replica, by a function that has the name of a reader."""
SHIPPED = {
    *("kernels/calibration/plan.py", "reports/html/page.py", "reports/papers/declared.py"),
    *(
        "sim/cost/dgx.py",
        "sim/cost/engines.py",
        "sim/cost/published.py",
        "sim/models/catalog.py",
        "sim/deployment/speculation.py",
        "sim/sources.py",
        "workloads/histogram.py",
    ),
    *(
        "workloads/sharegpt.py",
        "reports/pages.py",
    ),
}
"""They read what is part of the package or of the documents."""
MADE = {
    "kernels/calibration/all_reduce.py": "what its own processes wrote, in a folder that it made",
    "reports/html/report.py": "the first bytes of a page that is there",
    "reports/html/plain.py": "the figures that it draws",
    "reports/papers/cells.py": "its cache, where damage means: compute it again",
    "reports/papers/running.py": "the diary of its own processes",
    "reports/rundir/claims.py": "a lock, of which nothing is read",
    "reports/worker.py": "no input",
    "sim/complaints.py": "the null device",
    "sim/files/stopping.py": "a pipe to its own process",
    "sim/files/whole_file.py": "an empty file to fill",
    "workloads/listing.py": "its cache, where damage means: compute it again",
    "reports/timeline/events.py": "the file that it writes",
    "workloads/convert.py": "the file that it writes",
    "kvsim/commands/calibrate_log.py": "the first line of the file that it may replace",
}
"""They open what kvsim makes itself."""
DAMAGED = {
    "test_files.py": """
        reports/sweeps/journal.py reports/sweeps/plan.py reports/sweeps/table.py kvsim/commands/table.py
        reports/sweeps/stored.py reports/replays.py
        sim/bench/read.py sim/bench/whole.py sim/cost/logged.py sim/cost/trust.py sim/fit/log.py
        sim/fit/running.py sim/options/goals.py sim/validate.py workloads/tokenized.py
    """,
    "test_journals.py": """
        kernels/calibration/earlier.py kernels/calibration/foreign.py kernels/calibration/journal.py
    """,
    "test_models.py": "sim/models/huggingface.py",
    "test_profiles.py": """
        reports/calibration/profile.py sim/cost/profile_files.py
        sim/models/own_gpu.py
    """,
    "test_run_directories.py": """
        kvsim/commands/run.py reports/html/tables.py reports/memory_map.py reports/rundir/formats.py
        reports/rundir/run.py reports/rundir/writing.py reports/timeline/steps.py sim/files/marker.py
        sim/files/reading.py sim/files/tables.py
    """,
    "test_traces.py": """
        workloads/azure.py workloads/catalogue.py workloads/compact.py workloads/csv_rows.py
        workloads/delimited.py workloads/formats.py workloads/hashed.py workloads/mooncake.py
        workloads/otel.py workloads/rows.py workloads/servegen.py workloads/sharegpt_json.py
        workloads/weka.py
    """,
}
"""Fuzzer -> the modules whose files it changes."""


def readers() -> set[str]:
    """The modules that open a file."""
    found = set()
    for package in ("allocators", "kernels", "kvsim", "reports", "sim", "workloads"):
        for path in (ROOT / package).rglob("*.py"):
            if not path.is_symlink() and CALLS & _called(ast.parse(path.read_text("utf-8"))):
                found.add(path.relative_to(ROOT).as_posix())
    return found


def _called(tree: ast.Module) -> set[str]:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {getattr(call, "id", getattr(call, "attr", "")) for call in calls}


def test_every_module_that_opens_a_file_says_where_it_is_damaged():
    known = [NO_FILES, SHIPPED, set(MADE), *(set(text.split()) for text in DAMAGED.values())]
    assert sum(map(len, known)) == len(set.union(*known)), "each stands in one place"
    assert readers() - set.union(*known) == set(), "say in DAMAGED which fuzzer changes its files"
    assert set.union(*known) - readers() == set(), "they open none"


def test_every_fuzzer_named_is_there():
    assert all((HERE / name).is_file() for name in DAMAGED)
