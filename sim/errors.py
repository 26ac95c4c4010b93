"""The only exception shown to users: its text is the whole message.

If the root of a checkout is on Python's path, the folder `sim` is also a package of its own. This module
exists only once, whichever way it is imported.
"""

import re
import sys
from importlib import import_module

LONGEST = 300
"""The most characters of a value in a message; longer ones are cut to beginning and end."""
LONGEST_MESSAGE = 1100
"""The most characters of a message."""

_LONG = f"{{{LONGEST},}}"
_VALUES = re.compile(rf"(?<=got )[\[({{].{_LONG}[\])}}]|'[^']{_LONG}'|\"[^\"]{_LONG}\"|\S{_LONG}", re.DOTALL)
_PREPARED = re.compile(r"\.([^/\\]+)\.(?:partial|old|probe)-[0-9]+(?=[/\\]|\b)")
"""A temporary name of a file or directory (sim/files/marker.py)."""


class KvsimError(ValueError):
    """A mistake in the user's input: names the field, the value and what is allowed."""

    def __init__(self, text: str = "") -> None:
        super().__init__(brief(text))


class NoProgress(KvsimError):
    """The run would never end: names the request and the numbers."""


def brief(text: str) -> str:
    """A message with long values cut in the middle, and with final names instead of temporary ones."""
    return ends(_VALUES.sub(_ends, _PREPARED.sub(r"\1", text)), LONGEST_MESSAGE)


def _ends(value: re.Match[str]) -> str:
    return ends(value[0])


def ends(text: str, longest: int = LONGEST) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]}...{text[-longest // 6 :]} ({len(text):,} characters)"


MOST_NAMES = 16
"""The most known names listed in an error."""


def unknown(field: str, value: str, known: list[str]) -> KvsimError:
    """An error that suggests the nearest known name and lists known names."""
    from difflib import get_close_matches

    if "," in value and all(name in known for name in value.split(",")):
        return KvsimError(f"{field} must be one, got {value!r}; sim sweep and sim capacity take several")
    wanted = value.lower()
    alike = [name for name in known if wanted and name.startswith(wanted)]
    if not alike and _letters(wanted):
        alike = [name for name in known if _letters(name).startswith(_letters(wanted))]
    near = [name for name in get_close_matches(wanted, known, n=3, cutoff=0.5) if _sizes(wanted, name)]
    nearest = alike or near
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return KvsimError(f"{field} {value!r} is unknown{hint} (known: {listed(known)})")


def _letters(name: str) -> str:
    """The letters and digits only, so that `llama3` is a prefix of `llama-3.1-8b`."""
    return "".join(each for each in name.lower() if each.isalnum())


def _sizes(wanted: str, name: str) -> bool:
    """Whether the numbers are equal, or a subset: qwen3-4b is not a typo of qwen3-8b or qwen3-14b."""
    ours, theirs = ([each for each in text if each.isdigit()] for text in (wanted, name))
    if sorted(ours) == sorted(theirs):
        return True
    one, other = (set(re.findall(r"[\d.]+b", text)) for text in (wanted, name))
    if one and other and not one & other:
        return False
    rest = iter(theirs)
    return all(digit in rest for digit in ours)


def listed(names: list[str]) -> str:
    """All names, or the first ones of many."""
    more = len(names) - MOST_NAMES
    return f"{', '.join(names[:MOST_NAMES])} and {more} more" if more > 1 else ", ".join(names)


def of_pyarrow(error: Exception) -> bool:
    """Whether pyarrow raised the error, without importing pyarrow."""
    return type(error).__module__.partition(".")[0] == "pyarrow"


if __name__ != "kvsim.sim.errors":
    sys.modules[__name__] = import_module("kvsim.sim.errors")


MOST_TRIALS = 1_000_000
"""The most random calls, workloads or requests to test a user's part with: a million take minutes."""


def check_trials(name: str, count: int) -> None:
    """Raise KvsimError for an unreasonable number of trials."""
    if not 1 <= count <= MOST_TRIALS:
        raise KvsimError(f"{name} must be from 1 to {MOST_TRIALS:,}, got {count:,}")
