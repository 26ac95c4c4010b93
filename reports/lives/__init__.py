"""The life of a request: from the `event_log` to `spans`, and from these to `lines` in shared `words`.

`sim explain` shows `story` and `view`; the HTML report and the timeline traces use the spans and the words.
"""
