"""Numbers in sentences: `1 server`, `2 servers`; `+0.0 %`, never `-0.0 %`."""

from math import isnan


def several(count: int, what: str) -> str:
    """`1 GPU`, `1,000 GPUs`, `2 searches`."""
    plural = "es" if what.endswith(("s", "ch")) else "s"
    return f"{count:,} {what}{plural * (count != 1)}"


def signed_percent(share: float) -> str:
    """`+1.2 %` for 0.012; a value that rounds to zero is `+0.0 %`, and NaN is `-`."""
    if isnan(share):
        return "-"
    said = f"{100 * share:+.1f} %"
    return "+0.0 %" if said == "-0.0 %" else said
