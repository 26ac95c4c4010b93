"""The output of a reproduction: `report.md` for people, `results.json` for programs, an image per figure."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvsim.reports import palette
from kvsim.reports.papers.checks import AGREES, Judged
from kvsim.reports.papers.declared import Paper
from kvsim.reports.papers.running import Findings
from kvsim.reports.papers.terminal import less
from kvsim.reports.rundir.claims import Claim
from kvsim.reports.rundir.whole import whole_directory
from kvsim.sim import __version__
from kvsim.sim.options.outputs import Pictures


def write_report(
    directory: Path | Claim,
    paper: Paper,
    findings: Findings,
    results: Sequence[Judged],
    *,
    quick: bool,
    pictures: Pictures | None = None,
) -> None:
    """Write the directory atomically."""
    with whole_directory(directory, kind="reproduction") as part:
        drawn: dict[str, str] = {}
        if pictures is not None:
            from kvsim.reports.figures.style import styled  # late: it imports matplotlib
            from kvsim.reports.papers.pictures import draw

            drawn = draw(part, paper, findings, results, styled(pictures))
        text = _markdown(paper, findings, results, drawn, quick)
        (part / "report.md").write_text(text, encoding="utf-8")
        found = as_json(paper, findings, results, quick)
        (part / "results.json").write_text(
            json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def as_json(paper: Paper, findings: Findings, results: Sequence[Judged], quick: bool) -> dict[str, Any]:
    """Everything in JSON's types."""
    points = {
        judged.figure.number: [
            {"panel": panel, "system": system, "points": [list(point) for point in found.points]}
            for (figure, panel, system, choice), found in sorted(findings.found.items())
            if figure == judged.figure.number and not choice and found.points
        ]
        for judged in results
    }
    return {
        "kvsim": __version__,
        "paper": paper.name,
        "citation": paper.citation,
        "quick": quick,
        "figures": [
            judged.as_json() | {"simulated_points": points[judged.figure.number]} for judged in results
        ],
        "claims": claims(paper, results),
        "simulation": {
            "runs": findings.runs,
            "cpu_s": findings.cpu_s,
            "spent_cpu_s": findings.spent_cpu_s,
            "wall_s": findings.wall_s,
        },
    }


def claims(paper: Paper, results: Sequence[Judged]) -> list[dict[str, Any]]:
    """The claims in the paper's text, beside its figures and the simulation."""
    told: list[dict[str, Any]] = []
    by_number = {judged.figure.number: judged for judged in results}
    for claim in paper.claims:
        judged = by_number.get(claim["figure"])
        if judged is None:
            continue
        ratios: dict[str, list[tuple[float, float]]] = {}
        rows = [row for row in judged.rows if row.panel in claim.get("panels", [row.panel])]
        rows = [row for row in rows if row.value == claim.get("value", "rate")]
        for of in (row for row in rows if row.system == claim["of"]):
            for row in rows:
                told_of_both = row.published and of.published and row.simulated and of.simulated
                if told_of_both and row.system in claim["over"] and row.panel == of.panel:
                    pair = (of.published / row.published, of.simulated / row.simulated)
                    ratios.setdefault(row.system, []).append(pair)
        told.append(
            {
                "text": claim["text"],
                "figure": claim["figure"],
                "remark": claim["remark"],
                "ratios": {
                    system: {
                        "published": [min(p for p, _ in pairs), max(p for p, _ in pairs)],
                        "simulated": [min(s for _, s in pairs), max(s for _, s in pairs)],
                    }
                    for system, pairs in ratios.items()
                },
            }
        )
    return told


# -- markdown ---------------------------------------------------------------------------------------


def _markdown(
    paper: Paper, findings: Findings, results: Sequence[Judged], pictures: dict[str, str], quick: bool
) -> str:
    agreeing = [judged for judged in results if judged.verdict == AGREES]
    lines = [
        f"# {paper.title}, simulated",
        "",
        f"kvsim {__version__}. {paper.citation}",
        "",
        f"{len(agreeing)} of {len(results)} figures agree with what was published. "
        f"{findings.runs:,} simulations, {findings.cpu_s / 60:.1f} CPU minutes "
        f"({findings.spent_cpu_s / 60:.1f} now, the rest from the cache).",
        "",
    ]
    if quick:
        lines += [f"**Quick: {less(results)}. Indicative only.**", ""]
    lines += ["| figure | what it shows | verdict |", "|---|---|---|"]
    lines += [f"| {j.figure.number} | {j.figure.title} | {_word(j.verdict)} |" for j in results]
    lines += [
        "",
        "*Range* is from the lowest to the highest simulated number over the open choices, each changed "
        "alone; the verdict is that of the chosen ones.",
        "",
    ]
    for judged in results:
        lines += _figure(judged, pictures.get(judged.figure.number))
    if told := claims(paper, results):
        lines += _claims(told)
    if not quick:
        lines += _choices(paper, results)
    return "\n".join(lines).rstrip() + "\n"


def _figure(judged: Judged, picture: str | None) -> list[str]:
    figure = judged.figure
    lines = [f"## Figure {figure.number}: {figure.title}", ""]
    if picture:
        lines += [f"![Published and simulated]({picture})", ""]
    lines += [f"The figure {_word(judged.verdict)}. Numbers in {figure.settings['unit']}.", ""]
    lines += ["| check | found | verdict |", "|---|---|---|"]
    for check in judged.checks:
        word = _word(check.verdict) if check.decides else f"{check.verdict} (decides nothing)"
        lines.append(f"| {check.what} | {check.detail} | {word} |")
    for check in judged.checks:
        if check.cause:
            lines += ["", f"**Why it misses: {check.what}.** {check.cause}"]
        if check.remark:
            lines += ["", check.remark]
    lines += [
        "",
        "| panel | system | quantity | published | simulated | difference | range | band | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in judged.rows:
        far = "" if row.percent is None else f"{row.percent:+.1f} %"
        spread = "" if row.low is None else f"{palette.figures(row.low)} to {palette.figures(row.high)}"
        cells = (
            *(row.panel, row.system, row.name, palette.figures(row.published)),
            *(palette.figures(row.simulated), far, spread, row.band, row.verdict and _word(row.verdict)),
        )
        lines.append("| " + " | ".join(cells) + " |")
    if judged.rejected:
        told = "; ".join(f"{who}: {count:,}" for who, count in judged.rejected.items())
        lines += ["", f"**Requests that could not be served** and make their server look faster: {told}."]
    return [*lines, "", *(f"- {note}" for note in figure.notes), ""] if figure.notes else [*lines, ""]


def _claims(told: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## What the text claims",
        "",
        "| the text | over | its figures | simulated |",
        "|---|---|---|---|",
    ]
    for claim in told:
        for system, ratios in claim["ratios"].items():
            each = (
                " to ".join(f"{bound:.2f}" for bound in ratios[who]) for who in ("published", "simulated")
            )
            lines.append(f"| {claim['text']} | {system} | {' | '.join(each)} |")
        lines.append(f"| | | {claim['remark']} | |")
    return [*lines, ""]


def _choices(paper: Paper, results: Sequence[Judged]) -> list[str]:
    """The largest effect of each open choice, by figure."""
    lines = [
        "## What the paper leaves open",
        "",
        "| choice | chosen | the other answer | changes most |",
        "|---|---|---|---|",
    ]
    numbers = {judged.figure.number for judged in results}
    for choice in paper.choices:
        if not numbers.intersection(choice.figures):
            continue
        told = []
        for judged in results:
            changes = [
                (abs(c["other"] / c["chosen"] - 1), c)
                for c in judged.choices
                if c["choice"] == choice.name and c["chosen"] and c["other"] is not None
            ]
            if changes:
                _, most = max(changes, key=lambda pair: pair[0])
                told.append(
                    f"Figure {judged.figure.number}, {most['panel']}, {most['system']}, {most['value']}: "
                    f"{palette.figures(most['chosen'])} becomes {palette.figures(most['other'])}"
                )
        lines.append(f"| {choice.name} | {choice.chosen} | {choice.other} | {'; '.join(told) or '-'} |")
    return [*lines, ""]


def _word(verdict: str) -> str:
    return verdict if verdict == AGREES else f"**{verdict}**"
