"""The life of a request: from `event_log` to `spans`, and from these to `lines`, using common `words`.

`sim explain` prints a `story` through `view`; the HTML report and timeline traces use spans and words.
"""
