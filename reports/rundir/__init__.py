"""A run on disk: a directory of JSON, parquet and PNG files, created atomically.

    out/config.json        everything needed to repeat the run
        summary.json       the numbers of the report
        requests.parquet   a row per request
        timeline.parquet   the ledger and the queues over time
        steps.parquet      a row per engine step, if requested
        samples.parquet    a row per answer, if requests have several
        events.parquet     the events of each request, with reasons, if requested
        map.parquet        the contents of the arena at some instants, if requested
        *.png              the figures

A comparison is a directory of such directories, with a `summary.json` that lists their summaries in order, a
`config.json`, and figures of all runs side by side. Several seeds are a directory of runs or of comparisons,
see reports/seeds/runs.py.

The files are written into the hidden sibling `.out.partial-<pid>`, which is then renamed. The same input
gives the same bytes: the files contain no date and no path.
"""
