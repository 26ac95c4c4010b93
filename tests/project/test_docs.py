"""The documents say what the program does: every name, option, column and number, and every example runs.

Examples are the fenced `sh` blocks, in the how-tos also the `python` blocks with what they print, in the
`text` block below; in the lessons the `console` block below a command is what it prints. Each line that
starts with `sim ` is carried out, in the order of its file and in one directory per file, in which
`careful.py`, `prompts.py`, `mine.py`, `pages.py`, `chat.jsonl`, `steps.jsonl`, `my-gpu.toml`,
`requests.csv`, `log.csv`, `result.json`, `server.log` and `path/to/config.json` exist. `run` and `compare`
get `--no-plots` appended and, except beside `--config`, `steps.jsonl`, CSV and `--closed-sessions`, also
`--num-prompts 20`, which replaces their own. `sweep` and `capacity` get fewer too, and one process; a
search for a rate also few seats, so that few requests are a steady state.
"""

import importlib
import json
import re
import shlex
import struct
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from support.bench_files import GUIDELLM, INFERENCE_PERF, measured_on, step_lines

from kvsim import cli
from kvsim.allocators import ALLOCATORS, FAMILIES
from kvsim.allocators.contract import check_allocator
from kvsim.allocators.eviction import EVICTION
from kvsim.allocators.extents import FITS
from kvsim.reports.eviction import card, with_policies
from kvsim.reports.figures import FIGURES, USUAL
from kvsim.reports.options import with_tables
from kvsim.reports.zoo import with_pictures
from kvsim.sim import __version__
from kvsim.sim.deployment.engine import POLICIES, RESERVES
from kvsim.sim.eviction import eviction_named
from kvsim.sim.option import options_of
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.parts import declared_everywhere
from kvsim.sim.record import instants
from kvsim.sim.routers.base import Seen
from kvsim.sim.schedulers import SCHEDULERS
from kvsim.sim.serving.dispatcher import View
from kvsim.workloads import TRACES
from kvsim.workloads.catalogue import entries

pytestmark = pytest.mark.slow

ROOT = Path(cli.__file__).resolve().parent
README = ROOT / "README.md"
ZOO = sorted((ROOT / "docs/zoo").glob("*.md"))
PAGES = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *ZOO]
HOW_TOS = sorted((ROOT / "docs").glob("how-to-*.md"))
LESSONS = sorted((ROOT / "docs").glob("learn*.md"))
REPOSITORY = "https://github.com/kvsim/kvsim/blob/main/"
"""How pages of docs link to files outside docs, so that the links hold on the site, too."""
COMMANDS = typer.main.get_command(cli.app).commands
ALL_COMMANDS = {
    **COMMANDS,
    **{
        f"{name} {sub}": each
        for name in COMMANDS
        for sub, each in getattr(COMMANDS[name], "commands", {}).items()
    },
}
"""With the commands of a group, as `traces show`; they share the heading of the group."""
SHARED_OPTIONS = "Options of run and compare"
HF_CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def named(page):
    """A page of docs by its name without the ending."""
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def blocks(text, language):
    """The fenced blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def prose(text):
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def sections(text):
    """Each heading of the second level -> the text below it."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def cards():
    """Each allocator with a section on the page of allocators, or a card in the zoo -> its text."""
    pages = [named("allocators"), *(page.read_text(encoding="utf-8") for page in ZOO)]
    return {name: text for page in pages for name, text in sections(page).items()}


def scheduler(name):
    """The class behind a name."""
    module, _, attribute = SCHEDULERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def first_column(text):
    """What stands in backticks in the first column of the tables."""
    return [re.findall(r"`([^`]+)`", line.split(" | ")[0]) for line in text.splitlines() if line[:3] == "| `"]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty directory with the files that the examples name, 100 columns, no trace left in sys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    Path("mine.py").write_text(blocks(README.read_text(encoding="utf-8"), "python")[0], encoding="utf-8")
    Path("pages.py").write_text(blocks(named("allocators"), "python")[0], encoding="utf-8")
    for name, block in zip(("careful", "shortest"), blocks(named("own-scheduler"), "python"), strict=True):
        Path(f"{name}.py").write_text(block, encoding="utf-8")
    for name, block in zip(("longer", "prompts"), blocks(named("policies"), "python"), strict=True):
        Path(f"{name}.py").write_text(block, encoding="utf-8")
    Path("chat.jsonl").write_text(blocks(named("traces"), "json")[0], encoding="utf-8")
    Path("steps.jsonl").write_text(blocks(named("schedulers"), "json")[0], encoding="utf-8")
    Path("my-gpu.toml").write_text(blocks(named("cost"), "toml")[0], encoding="utf-8")
    for name, table in zip(("requests.csv", "log.csv"), blocks(named("traces"), "csv"), strict=True):
        Path(name).write_text(table, encoding="utf-8")
    Path("result.json").write_bytes(GUIDELLM.read_bytes())
    Path("server.log").write_text("INFO GPU KV cache size: 200,000 tokens\n", encoding="utf-8")
    Path("steps.log").write_text(step_lines(), encoding="utf-8")
    Path("path/to").mkdir(parents=True)
    Path("path/to/config.json").write_text(json.dumps(HF_CONFIG), encoding="utf-8")
    yield tmp_path
    for name in ("careful", "shortest", "longer", "prompts", "mine", "pages"):
        sys.modules.pop(name, None)


def carry_out(command, capsys):
    """What a `sim ...` line prints, blanks at the ends of lines left out; it must succeed."""
    assert cli.main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture(scope="module")
def carried_out():
    """What each command has printed that was carried out by `once`."""
    return {}


@pytest.fixture
def once(workplace, carried_out, capsys):
    """Carry out a command, but for one that another test has carried out: only what it prints is asked."""

    def once(command):
        if command not in carried_out:
            carried_out[command] = carry_out(command, capsys)
        return carried_out[command]

    return once


SHARING = ("run", "compare", "replay", "sweep", "capacity")
"""Commands that take the options of a run."""

# -- every name has help and a heading ------------------------------------------------------------


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_every_command_has_help_and_a_heading(command):
    assert ALL_COMMANDS[command].help
    assert f"sim {command}" in sections(named("commands"))[command.split()[0]]


def test_no_heading_names_a_command_that_is_not_there():
    assert sections(named("commands")).keys() == {*COMMANDS, SHARED_OPTIONS}


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_every_option_has_help_and_is_described_with_its_default(command):
    parts = sections(named("commands"))
    text = (parts[SHARED_OPTIONS] if command in SHARING else "") + (
        parts["sweep"] if command == "capacity" else ""
    )
    text += parts[command.split()[0]]
    text += re.search(r"<!-- options: Figures -->.*?<!-- end -->", parts[SHARED_OPTIONS], re.DOTALL)[0]
    described = {
        re.match(r"[-\w.]+", name)[0]: line
        for line, names in zip(
            [line for line in text.splitlines() if line[:3] == "| `"], first_column(text), strict=True
        )
        for name in names
    }
    for option in ALL_COMMANDS[command].params:
        if option.name == "help":
            continue
        assert option.help or option.hidden, option.name
        spellings = [*option.opts, *option.secondary_opts]
        for spelling in spellings if option.param_type_name == "option" else [option.metavar]:
            assert spelling in described or f"`{spelling} FILE`" in text, spelling
        line = described.get(option.opts[0], "")
        if isinstance(option.default, str | int | float) and not isinstance(option.default, bool):
            default = "paged" if command == "compare" and option.name == "allocator" else option.default
            assert re.search(rf"\| `?{re.escape(str(default))}`? \|", line), (option.name, line)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_where_a_scheduler_has_another_default_it_stands_beside_the_common_one(name):
    shared = sections(named("commands"))[SHARED_OPTIONS]
    lines = [line for line in shared.splitlines() if line.startswith("| `--")]
    for version in scheduler(name).VERSIONS or ("",):
        for key, value in scheduler(name).defaults(version, 2048).items():
            option = f"| `--{key.replace('_', '-')}"
            (described,) = (
                line.split(" | ")[1] for line in lines if line.startswith((f"{option}`", f"{option} "))
            )
            shown = ("off", "on")[value] if isinstance(value, bool) else value
            assert any(f"`{who}` {shown}" in described for who in (name, f"{name}@{version}")), option


def test_the_tables_of_options_are_made_from_their_descriptions():
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert with_tables(page) == page, "run python -m kvsim.reports.options docs/commands.md"


def test_no_option_is_described_that_is_not_there():
    there = {
        spelling
        for command in ALL_COMMANDS.values()
        for option in command.params
        for spelling in (*option.opts, *option.secondary_opts)
    }
    there |= {"--help", "--help-all", "-h", "--version", *(option.flag for option in options_of(Scenario))}
    there |= {f"--{off}{name.replace('_', '-')}" for name in declared_everywhere() for off in ("", "no-")}
    there |= {"--stream-interval", "--kv-transfer-config"}  # of vllm serve
    there |= {"--fuzz", "--pace-ms"}  # one of pytest's here; that of the example of one's own cost
    there |= {"--save-result", "--save-detailed", "--append-result"}  # those of vllm bench serve
    there |= {"--enable-prompt-tokens-details", "--enable-logging-iteration-details"}  # of vllm serve
    there |= {"--defrag-thold", "--strict", "--output-dir"}  # of llama.cpp; of zensical; of cibuildwheel
    for page in PAGES:
        text = re.sub(r"`?pip install[^\n]*|`python benchmarks[^`]*`", "", page.read_text(encoding="utf-8"))
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)) <= there, page.name


def test_the_default_of_compare_is_described():
    option = next(option for option in COMMANDS["compare"].params if option.name == "allocator")
    assert f"`{option.default}`" in sections(named("commands"))["compare"]


@pytest.mark.parametrize(
    ("page", "names", "others"),
    [
        ("schedulers", SCHEDULERS, {"Against a real engine"}),
        ("traces", TRACES, {"Arrivals", "Closed loops", "Shared system prompts", "Your own trace"}),
    ],
)
def test_every_scheduler_and_trace_has_a_heading_and_a_line_in_its_list(
    page, names, others, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    assert sections(named(page)).keys() == {*names, *others}
    listed = carry_out(f"sim {page}", capsys)
    for name in names:
        assert any(re.match(rf"(?:[│├└─ ]+ )?{re.escape(name)} +\w", line) for line in listed), name


def test_every_public_trace_is_in_the_table_with_its_licence():
    text = named("traces")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    for name, entry in entries().items():
        (row,) = (line for line in rows if f"`{name}`" in line.split(" | ")[0])
        assert row.endswith(f"| {entry.licence} |")


@pytest.mark.parametrize("page", [ROOT / "docs/zoo.md", *ZOO], ids=lambda page: page.stem)
def test_the_tables_and_pictures_of_the_zoo_are_made_by_the_program(page):
    text = page.read_text(encoding="utf-8")
    assert with_pictures(text) == text, "run python -m kvsim.reports.zoo docs/zoo.md docs/zoo/*.md"
    assert page.stem == "zoo" or page.stem in FAMILIES
    assert page.stem == "zoo" or f"(zoo/{page.stem}.md#" in named("zoo")


def test_every_allocator_has_one_card_and_a_line_in_its_list(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert cards().keys() - {"Predicted lengths", "Your own"} == set(ALLOCATORS)
    listed = carry_out("sim allocators", capsys)
    for name in ALLOCATORS:
        assert any(re.match(rf"[│├└─ ]*{re.escape(name)} +\w", line) for line in listed), name


@pytest.mark.parametrize("name", ALLOCATORS)
def test_the_card_of_each_allocator_shows_its_memory_and_what_it_wastes(name):
    text = cards()[name]
    assert re.search(r"\n    .*\|[#.~]", text) or "```text\n" in text
    assert "Waste of a sequence" in text


def test_every_reservation_and_fit_is_described():
    text = named("allocators")
    described = [name for names in first_column(text)[: len(RESERVES) + 1] for name in names]
    assert described == [*RESERVES, "predicted:MODEL"]
    assert all(f"--fit {fit}" in text for fit in FITS)


def test_every_policy_preemption_release_and_beam_process_is_described():
    text = named("schedulers")
    assert all(f"`{policy}`" in text for policy in POLICIES)
    assert all(f"`{each}`" in named("commands") for each in ("recompute", "swap"))
    assert all(f"`{name}@{version}`" in text for name in SCHEDULERS for version in scheduler(name).VERSIONS)
    processes = [name for (name,) in first_column(sections(named("engine"))["Several answers and beams"])]
    assert processes == ["replace:P", "uniform"]


# -- every column and key is described, and no other ----------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A run directory with all its files."""
    directory = tmp_path_factory.mktemp("docs") / "run"
    small = ["--num-prompts", "20", "--step-log", "--cost", "constant:0.03", "--request-rate", "inf", "-q"]
    small += ["--record-map", "5"]
    assert cli.main(["run", "--out", str(directory), "--n", "2", *small]) == 0
    return directory


def columns_of(path):
    """The names of a parquet file's columns."""
    from pyarrow import parquet

    return parquet.ParquetFile(path).schema_arrow.names


@pytest.fixture(scope="module")
def working(tmp_path_factory):
    """A run of an allocator that keeps idle memory, and works beside the steps."""
    directory = tmp_path_factory.mktemp("docs") / "run"
    small = ["--num-prompts", "20", "--cost", "constant:0.03", "-q", "--no-plots"]
    assert cli.main(["run", "--out", str(directory), "--allocator", "vattention", *small]) == 0
    return directory


@pytest.mark.parametrize("file", ["requests.parquet", "samples.parquet", "timeline.parquet", "steps.parquet"])
def test_every_column_is_described_in_order_with_its_unit(file, result, working):
    text = sections(named("output"))[file]
    described = [name for (name,) in first_column(text)]
    assert described == columns_of(result / file)
    if file == "timeline.parquet":
        assert [*described, "idle"] == columns_of(working / file) and "`idle`" in text
    units = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", text, flags=re.MULTILINE))
    assert all(units[name] == "s" for name in units if name.endswith("_s"))


def test_every_key_of_the_summary_is_described_in_order(result, working):
    summary = json.loads((result / "summary.json").read_text())
    upkeep = json.loads((working / "summary.json").read_text())["upkeep"]
    assert all(f"`{key}`" in named("output") for key in upkeep)
    keys = []
    for section, value in summary.items():
        keys += [f"{section}.{key}" for key in value] if isinstance(value, dict) else [section]
    described = [names[0] for names in first_column(sections(named("output"))["summary.json"])]
    assert sorted(described) == sorted(keys)
    assert [key.split(".")[0] for key in described] == [key.split(".")[0] for key in keys]


def test_every_statistic_and_kind_is_named(result):
    summary = json.loads((result / "summary.json").read_text())
    text = sections(named("output"))["summary.json"]
    for names in (summary["latency"]["ttft_s"], summary["memory"]["average"]):
        assert ", ".join(f"`{name}`" for name in names) in text


def test_every_file_and_figure_is_described(result):
    text = named("output")
    assert {path.name for path in result.iterdir()} == {
        name for names in first_column(text.split("## Words")[0]) for name in names
    }
    assert [name for (name,) in first_column(sections(text)["Figures"])] == list(FIGURES)
    assert {f"{name}.png" for name in USUAL} == {path.name for path in result.glob("*.png")}
    config = json.loads((result / "config.json").read_text())
    assert all(f"`{key}`" in text.split("## Words")[0] for key in config)
    assert f"{instants.TIMELINE_ROWS:,} rows" in text


# -- eviction ---------------------------------------------------------------------------------------


def test_the_table_of_eviction_policies_is_made_by_the_program(workplace, capsys):
    text = (ROOT / "docs/eviction.md").read_text(encoding="utf-8")
    assert with_policies(text) == text, "run python -m kvsim.reports.eviction docs/eviction.md"
    listed = carry_out("sim eviction", capsys)
    for name in EVICTION:
        assert any(re.match(rf"{re.escape(name)} +\w", line) for line in listed), name
        assert f"source   {eviction_named(name).policy.source}" in card(name)


def test_the_eviction_policy_of_the_page_keeps_the_contract(workplace, capsys):
    (source,) = blocks((ROOT / "docs/eviction.md").read_text(encoding="utf-8"), "python")
    Path("chance.py").write_text(source, encoding="utf-8")
    assert any("All of them hold" in line for line in carry_out("sim check-eviction chance:Anybody", capsys))


def test_what_policies_hit_is_what_the_program_prints(workplace, capsys):
    text = (ROOT / "docs/eviction.md").read_text(encoding="utf-8")
    (shown,) = blocks(text, "text")
    (command,) = examples(ROOT / "docs/eviction.md")
    printed = carry_out(command, capsys)
    assert printed[-len(shown.splitlines()) :] == shown.splitlines()


# -- every example runs ---------------------------------------------------------------------------


def examples(page):
    """The `sim` lines of a page, those that go on behind a backslash whole."""
    lines = "".join(blocks(page.read_text(encoding="utf-8"), "sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("sim ")]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if examples(page) and page not in (*HOW_TOS, *LESSONS)],
    ids=lambda page: page.name,
)
def test_every_example_runs(page, workplace, capsys):
    for command in examples(page):
        carry_out(shortened(command), capsys)


def shortened(command):
    """A command of a page with few requests and no figures."""
    short = " --no-plots" if re.match(r"sim (run|compare)", command) else ""
    whole = any(name in command for name in ("--config", "steps.jsonl", ".csv", "--closed-sessions"))
    if re.match(r"sim (sweep|capacity)", command):
        coarse = " --tolerance 0.4" if command.startswith("sim capacity") else ""
        few = " --max-num-seqs 8" if coarse and not re.search("--(find|more-kv)", command) else ""
        alone = "" if re.search("--(jobs|backend|address)", command) else " --jobs 1"
        few += " --tensor-parallel-size 1" if "--gpu all" in command else ""
        instead = f" --num-prompts 40 --seeds 1 --no-plots{coarse}{few}{alone}"
        for name in re.findall(r" --[a-z-]+", instead):  # given twice, a list of both would be tried
            command = re.sub(rf"{name}( [^-\s]\S*)?(?= |$)", "", command)
        return command + instead
    return command + short + (" --num-prompts 20" if short and not whole else "")


@pytest.mark.slow
@pytest.mark.parametrize("page", HOW_TOS, ids=lambda page: page.stem)
def test_a_how_to_works_from_top_to_bottom(page, workplace, capsys):
    """Commands and Python in one directory; a `text` block is what the Python above it printed.

    What a `console` block shows is computed below, and not here again.
    """
    shell, printed = {"__name__": "__main__"}, ""
    elsewhere = {capacity_shown(page.stem)} if page.stem in CAPACITIES else set()
    for language, block in re.findall(
        r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S
    ):
        if language == "sh":
            for command in block.splitlines():
                if command not in elsewhere:
                    carry_out(shortened(command), capsys)
        elif language == "python":
            exec(compile(block, page.name, "exec"), shell)
            printed = capsys.readouterr().out
        elif language == "text":
            assert [line.rstrip() for line in printed.splitlines()] == block.splitlines()


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.stem)
def test_a_lesson_shows_what_its_commands_print(page, workplace, capsys, monkeypatch):
    """In 80 columns, line by line; a command that shows nothing is carried out with few requests."""
    monkeypatch.setenv("COLUMNS", "80")
    lesson = page.read_text(encoding="utf-8")
    steps = re.findall(
        r"^```sh\n(.*?)^```$(?:\n\n```console\n(.*?)^```$)?", lesson, flags=re.MULTILINE | re.DOTALL
    )
    assert len(steps) >= 2
    for command, shown in steps:
        assert_in_order(shown, carry_out(command if shown else shortened(command.strip()), capsys))


def assert_in_order(shown, printed):
    """Each line of a block is among the printed ones, in their order; `...` stands for what is left out."""
    lines = iter(printed)
    for line in shown.splitlines():
        assert line == "..." or line in lines, line


def test_the_replay_in_the_how_to_is_what_the_program_prints(workplace, capsys, monkeypatch):
    """Of the server that really ran: its result, its log and its GPU in the place of the reader's."""
    monkeypatch.setenv("COLUMNS", "80")
    measured_on("rtx-4090", workplace)
    command = "sim replay result.json --log server.log --model llama-3.1-8b --gpu "
    text = named("how-to-compare-with-your-engine")
    assert f"{command}h100\n" in text
    (shown,) = blocks(text, "console")
    assert_in_order(shown, carry_out(f"{command}rtx-4090 --frontend-latency 0", capsys))


CAPACITIES = {"how-to-size-a-deployment": 2, "how-to-disaggregate": 0}
"""How-to -> the place of the command among its commands whose answer it shows."""


def capacity_shown(page):
    """The command whose answer that page shows."""
    (command,) = blocks(named(page), "sh")[CAPACITIES[page]].splitlines()
    assert command.startswith("sim capacity ")
    return command


@pytest.mark.parametrize("page", CAPACITIES)
def test_the_capacity_in_a_how_to_is_what_the_program_prints(page, workplace, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (shown,) = blocks(named(page), "console")
    assert_in_order(shown, carry_out(f"{capacity_shown(page)} --no-plots --out answer", capsys))


def texts_in(directory):
    """All that the JSON and CSV files of a directory say."""
    files = [path for path in directory.iterdir() if path.suffix in (".json", ".jsonl", ".csv")]
    return "".join(path.read_text(encoding="utf-8") for path in files if path.name != "config.json")


def test_the_commands_of_the_page_of_metrics_run_and_give_what_it_says(workplace, capsys):
    """kvsim's column by the command of its row, the tools' columns by the command of the last row."""
    table = [line for line in named("metrics-by-tool").splitlines() if line.startswith("| ")]
    rows = [[re.findall("`([^`]+)`", cell) for cell in line.split(" | ")] for line in table[1:]]
    *rows, written = rows
    said = {}
    few = "--trace synthetic --output-len uniform:2:40 --num-prompts 60 --no-plots -q"
    for command in sorted({row[6][0] for row in rows} | {cell[0] for cell in written[2:5]}):
        slo = "" if "--slo" in command else " --slo ttft=1s,tpot=50ms"
        carry_out(f"{command}{slo} {few} --out run{len(said)}", capsys)
        said[command] = texts_in(Path(f"run{len(said)}"))
    carry_out(written[6][0], capsys)
    for row in rows:
        for name in row[1]:
            assert f'{name}"' in said[row[6][0]] or f"{name}," in said[row[6][0]], name
        for column in (2, 3, 4):
            for name in row[column]:
                assert f'{name}"' in said[written[column][0]], name
        for name in row[5]:
            assert f'"{name}"' in INFERENCE_PERF.read_text(), name


@pytest.mark.parametrize("page", HOW_TOS, ids=lambda page: page.stem)
def test_a_how_to_begins_with_the_task_and_is_short(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert lines[2].startswith("You ")
    assert len(lines) < 130


def test_the_output_in_the_readme_is_what_the_program_prints(once):
    """Line by line and in order; `...` stands for what is left out."""
    text = README.read_text(encoding="utf-8")
    commands = ["sim run --allocator paged --trace sharegpt", examples(README)[0]]
    for command, shown in zip(commands, blocks(text, "text"), strict=True):
        assert command in text
        assert_in_order(shown, once(command))


def test_the_numbers_in_the_text_of_the_readme_are_those_of_the_runs(once):
    text = " ".join(README.read_text(encoding="utf-8").split())
    printed = " ".join(once(examples(README)[0]))
    best = re.search(r"holds ([\d.]+ times) .* finishes ([\d.]+ times) ", printed)
    assert f"it holds {best[1]} as many requests at once and finishes {best[2]} as many" in text
    own = once(f"{examples(README)[-1]} --no-plots")
    for kind in ("internal", "external"):
        row = next(line for line in own if line.startswith(f"  {kind} "))
        before, after = re.findall(r"([\d.]+) %", row)
        assert re.search(rf"{kind} waste \w+ from {before} to {after} %", text.lower()), row


def test_the_page_on_other_simulators_states_the_accuracy_of_the_readme():
    servers, error = re.search(
        r"\[(\d+) real servers\].+? is ([\d.]+) %", " ".join(README.read_text(encoding="utf-8").split())
    ).groups()
    peers = (ROOT / "docs/peers.md").read_text(encoding="utf-8")
    assert f"| TPOT: median [{error} %](truth.md) | {servers} servers;" in peers


def test_the_readmes_own_allocator_keeps_the_contract(workplace):
    check_allocator(importlib.import_module("mine").Rounded, arenas=(15_744, 4_096, 1_000), calls=100)


def test_the_allocator_from_nothing_keeps_the_contract(workplace):
    check_allocator(importlib.import_module("pages").Pages, arenas=(15_744, 4_096, 1_000), calls=100)


# -- the rest -------------------------------------------------------------------------------------


def anchors(text):
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def landing(page, file):
    """The file that a link of a page leads to."""
    if file.startswith(REPOSITORY):
        return ROOT / file.removeprefix(REPOSITORY)
    return (page.parent / file).resolve() if file else page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    inside = ROOT / "docs" if page.is_relative_to(ROOT / "docs") else ROOT
    for link in re.findall(r"\]\(([^)]+)\)", prose(page.read_text(encoding="utf-8"))):
        file, _, anchor = link.partition("#")
        if re.match(r"https?:", link) and not link.startswith(REPOSITORY):
            continue
        target = landing(page, file)
        assert target.is_file(), link
        assert link.startswith(REPOSITORY) or target.is_relative_to(inside), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def test_every_page_is_linked_from_the_index_and_the_index_from_the_readme():
    index = ROOT / "docs/index.md"
    links = re.findall(r"\]\(([^)#]+)", index.read_text(encoding="utf-8"))
    assert {landing(index, link) for link in links} >= {*PAGES} - {index, *ZOO}
    assert "(docs/index.md)" in README.read_text(encoding="utf-8")


def test_the_readme_is_short_and_its_picture_small():
    assert len(README.read_text(encoding="utf-8").splitlines()) < 150
    picture = (ROOT / "docs/images/waste.png").read_bytes()
    assert len(picture) < 100_000
    assert struct.unpack(">I", picture[16:20])[0] == 1200


def test_the_page_of_fleets_names_all_that_a_router_sees_of_a_replica():
    page = (ROOT / "docs/fleet.md").read_text(encoding="utf-8")
    told = re.search(r"It sees of each replica (.+?)Take random numbers", page, re.DOTALL)[1]
    seen = {name for name in vars(Seen) if name in vars(View) or name in {"place", "pool", "role"}}
    seen -= {name for name in seen if name.startswith("_")}
    assert set(re.findall(r"`(\w+)", told)) == seen
    assert {name for name in vars(View) if not name.startswith("_")} - seen == {"show"}


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version", "readme"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "kvsim.sim.__version__"}
    newest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest[1] == __version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    assert f"\nrepository-code: {project['project']['urls']['Repository']}\n" in citation


def test_the_readme_has_one_block_for_each_step_of_ci():
    text = README.read_text(encoding="utf-8")
    for step in ("run", "test"):
        assert len(re.findall(rf"<!-- ci: {step} -->\n```sh\n[^`]+```\n", text)) == 1
