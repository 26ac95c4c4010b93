"""A run on disk: a directory of JSON, parquet and PNG files that appears whole or not at all.

    out/config.json        everything needed to repeat the run
        summary.json       the numbers of the report
        requests.parquet   a row per request
        timeline.parquet   the ledger and the queues over time
        steps.parquet      a row per engine step, where it was asked for
        samples.parquet    a row per answer, where requests have several
        events.parquet     what happens to each request, and why, where it was asked for
        map.parquet        what lies where in the arena, at some instants, where it was asked for
        *.png              the figures

A comparison is a directory of such directories, beside a `summary.json` that lists their summaries in
order, a `config.json` and the figures of all runs side by side. Several seeds are a directory of runs, or
of comparisons, see reports/seeds/runs.py.

The files are written into the hidden sibling `.out.partial-<pid>`, which is then renamed. The same
input gives the same bytes: nothing in the files tells when or where they were written.
"""
