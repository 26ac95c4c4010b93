"""Parse choices written as a name and numbers, as in `uniform:100:2000`."""

from collections.abc import Mapping
from math import isfinite

from kvsim.sim.errors import KvsimError


def chosen(option: str, text: str, forms: Mapping[str, str]) -> tuple[str, list[float]]:
    """The name and the numbers of a choice: `uniform:100:2000` is `("uniform", [100.0, 2000.0])`.

    Parameters
    ----------
    option : str
        Name of the option, for errors.
    text : str
        The user's text; a number alone means `fixed:NUMBER` if that form exists.
    forms : mapping of str to str
        Name of each choice -> its numbers, as in `LOW:HIGH`, or "".

    Raises
    ------
    KvsimError
        An unknown name, or the wrong number of finite numbers.
    """
    name, *values = text.split(":")
    if "fixed" in forms and not values and name not in forms:
        name, values = "fixed", [text]
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        raise _wrong(option, text, forms) from None
    wanted = forms[name].split(":") if forms.get(name) else []
    if name not in forms or len(numbers) != len(wanted) or not all(map(isfinite, numbers)):
        raise _wrong(option, text, forms)
    return name, numbers


def whole(option: str, text: str, what: str, value: float, *, least: int, most: int) -> int:
    """Check an integer among a choice's numbers; `what` is its name there, as in `LOW`."""
    if value != int(value) or not least <= value <= most:
        must = f"a whole number from {least} to {most:,}"
        raise KvsimError(f"{option} must have {must} as {what}, got {text!r}")
    return int(value)


def _wrong(option: str, text: str, forms: Mapping[str, str]) -> KvsimError:
    *most, last = (f"{name}:{numbers}" if numbers else name for name, numbers in forms.items())
    allowed = f"{', '.join(most)} or {last}" if most else last
    return KvsimError(f"{option} must be {allowed}, got {text!r}")
