"""Checks of drawn cases: a failure names the call that repeats it."""

from functools import wraps


def noted(check):
    """The same check; its errors say with which arguments it was called."""

    @wraps(check)
    def noting(*args):
        try:
            return check(*args)
        except Exception as error:
            told = ", ".join(getattr(each, "__name__", repr(each)) for each in args)
            error.add_note(f"{check.__name__}({told})")
            raise

    return noting
