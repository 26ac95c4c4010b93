"""The life of a request: from the `event_log` to its `spans`, told in `lines` of one set of `words`.

`story` and `view` are what `sim explain` shows; the HTML report and the timeline traces take spans and words.
"""
