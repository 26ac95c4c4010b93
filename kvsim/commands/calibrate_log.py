"""Run `sim calibrate log`: fit step times to a server's log, print the fit, write a profile."""

import shlex
from pathlib import Path

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.whole_file import check_file, whole_file
from kvsim.sim.fit.log import read_log
from kvsim.sim.fit.running import read_running
from kvsim.sim.fit.steps import PARTS, fit_steps

HEAD = "# Step times of a server, fitted to its log by sim calibrate log: for --cost"


def fitted_to_log(log: Path, out: Path | None, *, force: bool) -> None:
    """Fit step times, print the fit, and write the profile."""
    fit = fit_steps(read_running(log))
    try:
        start = read_log(log)
        server = f", vLLM {start.release or '?'}{f', {start.model}' if start.model else ''}"
    except KvsimError:  # a log without the start-up lines
        server = ""
    name = log.name.removesuffix(".gz").removesuffix(".log")
    target = out or Path(f"{name}.toml")
    check_file(target, force=force, ours=_ours)
    parts = ", ".join(f"{each:.4f}" for each in fit.part_errors)
    content = (
        HEAD,
        f'name = "{name}"',
        f'cost = "{fit.times}"',
        f'source = "{fit.steps} steps of {log.name}{server}"',
        f"held_out_step_error = {fit.step_error:.4f}",
        f"held_out_part_errors = [{parts}]",
        "",
    )
    with whole_file(target, force=force, ours=_ours) as part:
        part.write_text("\n".join(content), encoding="utf-8")
    times = fit.times
    for line in (
        f"{fit.steps:,} steps of {log}{server}",
        f"a step takes {times.words}; {1e3 * fit.between_s:.2f} ms of it lie between two steps",
        f"seen: up to {times.most_sequences:,} sequences and {times.most_tokens:,} prompt tokens a step",
        f"held out: a step {100 * fit.step_error:.1f} % off (median); {PARTS} parts of the log, each "
        f"predicted from the others: {', '.join(f'{100 * each:+.1f}' for each in fit.part_errors)} %",
        f"written to {target}",
        f"next: sim run --cost {shlex.quote(str(target))} --model ... --gpu ...",
    ):
        print(line)


def _ours(path: Path) -> bool:
    """Whether this command wrote a file."""
    return path.read_text(encoding="utf-8", errors="replace").startswith(HEAD)
