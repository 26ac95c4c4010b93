"""nvidia-smi's report on the measured card: clocks, power, temperature, modes, and throttling."""

import subprocess
from collections.abc import Mapping

WANTED = (
    "driver_version", "clocks.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu", "pstate",
    "mig.mode.current", "ecc.mode.current",
)  # fmt: skip
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Fields whose bits tell why clocks are low; drivers before 535 know only the second name."""

SLOWED_BY = "slowed_by"
BITS: Mapping[int, str] = {
    0x01: "gpu_idle", 0x02: "applications_clocks_setting", 0x04: "sw_power_cap", 0x08: "hw_slowdown",
    0x10: "sync_boost", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown", 0x100: "display_clocks_setting",
}  # fmt: skip
"""As in nvml.h."""

THROTTLED = {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
"""Heat and power supply only: a large product reaches the power limit on a healthy card."""


def clocks(uuid: str | None = None) -> dict[str, str]:
    """The current report, as text; empty if nvidia-smi or the card is not found.

    `uuid`: the card's as torch reports it, since nvidia-smi ignores CUDA_VISIBLE_DEVICES. A MIG slice has its
    own UUID, and is found only if there is one card.
    """
    for reasons in REASONS:
        rows = _asked(("uuid", *WANTED, reasons))
        mine = [row for row in rows if bare(row["uuid"]) == bare(uuid)] or (rows if len(rows) == 1 else [])
        if mine:
            return {name: mine[0][name] for name in WANTED} | {SLOWED_BY: reasons_of(mine[0][reasons])}
    return {}


def bare(uuid: str | None) -> str:
    """A UUID without its prefix."""
    return str(uuid).removeprefix("GPU-").lower()


def _asked(names: tuple[str, ...]) -> list[dict[str, str]]:
    """A row per card of the machine; empty if a field is unknown."""
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in found.stdout.splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def reasons_of(bits: str) -> str:
    """The names of the reasons: "sw_power_cap, hw_slowdown", or "nothing"; non-numbers are unchanged."""
    try:
        number = int(bits, 16)
    except ValueError:
        return bits
    return ", ".join(name for bit, name in BITS.items() if number & bit) or "nothing"
