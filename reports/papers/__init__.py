"""Figures of a paper, simulated from first principles and compared with the published ones.

A paper is a folder of data here: `paper.toml` names its systems, models, workloads and open choices, and one
`figureN.toml` per figure declares its runs, its readings, the published values and what counts as agreement.
No other code is specific to a paper.

    declared.py   the files -> Paper, Figure
    cells.py      one simulation: a dict of settings -> a dict of numbers, kept in a cache
    series.py     readings: single values, the rate at which a latency is reached, sweeps
    mechanisms.py closed forms and single mechanisms, if a paper needs no server
    running.py    all series of the figures, in several processes
    checks.py     published beside simulated: rows, bands, verdicts
    report.py     report.md, results.json
    terminal.py   the report as tables
    pictures.py   the overlays
"""
