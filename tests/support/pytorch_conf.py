"""Reads values of PYTORCH_CUDA_ALLOC_CONF, as in the recordings of the caching allocator."""

from kvsim.allocators.pytorch.settings import INTERVALS, LARGE_SEGMENT, MIB, NO_LIMIT, Settings

KEYS = {
    *("max_split_size_mb", "roundup_power2_divisions", "garbage_collection_threshold"),
    "expandable_segments",
}


def settings_of(conf: str | None) -> Settings:
    """Read a value of PYTORCH_CUDA_ALLOC_CONF; ValueError if it is invalid."""
    given = dict(_pairs(conf or ""))
    unknown = given.keys() - KEYS
    if unknown:
        raise ValueError(f"no such setting of the caching allocator: {', '.join(sorted(unknown))}")
    limit = given.get("max_split_size_mb")
    return Settings(
        NO_LIMIT if limit is None else _above_a_segment(int(limit)) * MIB,
        _divisions(given.get("roundup_power2_divisions", "0")),
        float(given.get("garbage_collection_threshold", 0)),
        given.get("expandable_segments", "").lower() == "true",
    )


def _pairs(conf: str) -> list[tuple[str, str]]:
    """`a:1,b:[256:1,>:8]` as pairs; a comma inside brackets separates nothing."""
    pieces, depth = [""], 0
    for sign in conf.replace(" ", ""):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += sign
    return [(key, value) for key, _, value in (piece.partition(":") for piece in pieces) if key]


def _above_a_segment(mib: int) -> int:
    """The setting in MiB: a limit below a large segment is refused."""
    if mib * MIB <= LARGE_SEGMENT:
        raise ValueError(f"max_split_size_mb must be above {LARGE_SEGMENT // MIB}, got {mib}")
    return mib


def _divisions(value: str) -> tuple[int, ...]:
    """`4`, or `[256:1,512:2,>:8]`: divisions from each size in MiB on, the first also below.

    As in the original, `>` also covers the interval before it: 512 MiB and more have 8 here.
    """
    if not value.startswith("["):
        return (int(value),) * INTERVALS
    divisions, last = [0] * INTERVALS, 0
    for place, entry in enumerate(value.strip("[]").split(",")):
        mib, _, steps = entry.partition(":")
        if mib == ">":
            divisions[last:] = [int(steps)] * (INTERVALS - last)
            continue
        last = min(int(mib).bit_length() - 1, INTERVALS - 1)
        if place == 0:
            divisions[:last] = [int(steps)] * last
        divisions[last] = int(steps)
    return tuple(divisions)
