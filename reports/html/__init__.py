"""`sim report`: runs as one HTML file that opens in any browser, without a network.

    report.py     reads directories, writes one file of limited size
    page.py       combines page.html, style, scripts and data
    packing.py    columns -> gzip and base64, and how the page unpacks them
    arena.py      map.parquet -> the data of the memory map
    lives.py      requests.parquet and events.parquet -> the table and the life of each request
    charts.py     timelines and latencies -> the data of the charts
    words.py      the runs in words; the table of numbers

The page itself, in order of the scripts: base.js (data, words), arena.js (replay), paint.js (pixels),
player.js (time, zoom, hover), life.js (one request), charts.js (Plotly), table.js (all requests), start.js.
`vendor/` holds Plotly's basic bundle with its licence.
"""
