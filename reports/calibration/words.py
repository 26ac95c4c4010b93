"""Quantities of a calibration in words: durations, rates, sizes, launches."""

from collections.abc import Mapping
from typing import Any

from kvsim.reports.palette import figures

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_RATES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def duration(seconds: float) -> str:
    """`3.26 us`."""
    unit, name = next((each for each in _TIMES if seconds >= 0.9995 * each[0]), _TIMES[-1])
    return f"{figures(seconds / unit)} {name}"


def span(seconds: float) -> str:
    """A waiting time: `45 s`, `4 min 22 s`."""
    whole = max(round(seconds), 1)
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"


def rate(per_second: float, unit: str) -> str:
    """`4.03 TB/s`."""
    size, prefix = next((each for each in _RATES if per_second >= 0.9995 * each[0]), (1.0, ""))
    return f"{figures(per_second / size)} {prefix}{unit}"


def size(count: float) -> str:
    """Bytes: `4 KiB`."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{float(figures(count / 1024**power).replace(',', '')):g} {unit}"
    return f"{count:,.0f} B"


def percent(share: float | None) -> str:
    """`2.1 %`."""
    return "-" if share is None else f"{100 * share:.1f} %"


def batch(x: Mapping[str, Any]) -> str:
    """The batch of a composed step: `64 x 2,000 lognormal + prompt 470 after 1,000`."""
    if "rows" in x:
        return f"{x['rows']:,} rows"
    said = []
    if x.get("batch"):
        skew = x.get("skew", "even")
        mixed = "" if skew == "even" else f" {skew.replace('_', ' ')}"
        said.append(f"{x['batch']:,} x {x['context']:,}{mixed}")
    if x.get("sequences"):
        behind = f" after {x['prefix']:,}" if x.get("prefix") else ""
        many = "prompt" if x["sequences"] == 1 else f"prompts {x['sequences']:,} x"
        said.append(f"{many} {x['chunk']:,}{behind}")
    return " + ".join(said) or str(x.get("what", "-"))


def layer(x: Mapping[str, Any]) -> str:
    """The geometry of a composed step; "" if it is unknown."""
    if "rows" in x:
        return f"output of {x['vocabulary']:,} words from {x['hidden']:,}"
    if "heads" in x:
        narrow = ", 8 bits" if x.get("weight_bytes") == 1 else ""
        routed = f", {x['experts']} experts" if x.get("experts") else ""
        heads = f"{x['heads']}/{x['kv_heads']} heads of {x['head_dim']}"
        return f"layer {x['hidden']:,} wide, {heads}{routed}{narrow}"
    return ""
