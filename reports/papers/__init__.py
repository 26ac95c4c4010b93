"""Figures of a paper, simulated from first principles and put beside what was published.

A paper is a folder of data here: `paper.toml` names its systems, models, workloads and open choices, and one
`figureN.toml` per figure says what is run, what is read off, what was published and what counts as agreement.
Nothing else knows a paper.

    declared.py   the files -> Paper, Figure
    cells.py      one simulation: a dict of settings -> a dict of numbers, kept in a cache
    series.py     what is read off: single values, the rate at which a latency is reached, sweeps
    mechanisms.py closed forms and single mechanisms, where a paper needs no server
    running.py    all series of the figures, in several processes
    checks.py     published beside simulated: rows, bands, verdicts
    report.py     report.md, results.json
    terminal.py   the same as tables
    pictures.py   the overlays
"""
