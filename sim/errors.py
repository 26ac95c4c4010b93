"""The one exception that a user may see: its text is the whole message."""


class KvsimError(ValueError):
    """A mistake in what the user asked for: names the field, the value and what is allowed."""


MOST_NAMES = 16
"""Known names that an error lists."""


def unknown(field: str, value: str, known: list[str]) -> KvsimError:
    """An error that suggests the nearest known name, and lists them, or the first of many."""
    from difflib import get_close_matches

    wanted = value.lower()
    alike = [name for name in known if wanted and name.startswith(wanted)]
    nearest = alike or get_close_matches(wanted, known, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return KvsimError(f"{field} {value!r} is unknown{hint} (known: {listed(known)})")


def listed(names: list[str]) -> str:
    """All of some names, or the first of many."""
    more = len(names) - MOST_NAMES
    return f"{', '.join(names[:MOST_NAMES])} and {more} more" if more > 1 else ", ".join(names)


def of_pyarrow(error: Exception) -> bool:
    """Whether pyarrow raised it, which is imported late."""
    return type(error).__module__.partition(".")[0] == "pyarrow"
