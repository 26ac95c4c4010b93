"""`sim report`: runs as one HTML file that needs nothing but a browser, not even a network.

    report.py     directories in, one file out; limits its size
    page.py       page.html, style, scripts and data become one text
    packing.py    columns -> gzip and base64, and how the page unpacks them
    arena.py      map.parquet -> the data of the memory map
    lives.py      requests.parquet and events.parquet -> the table and the life of each request
    charts.py     timelines and latencies -> the data of the charts
    words.py      the runs in words; the table of numbers

The page itself, in order of the scripts: base.js (data, words), arena.js (replay), paint.js (pixels),
player.js (time, zoom, hover), life.js (one request), charts.js (Plotly), table.js (all requests), start.js.
`vendor/` holds Plotly's basic bundle with its licence.
"""
