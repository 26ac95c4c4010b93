"""Errors of a calibration that are not bugs in the program."""


class CalibrationError(Exception):
    """A calibration cannot begin or continue; the message says why and what to do."""


class NotInstalledError(CalibrationError):
    """Torch or triton is not installed."""


class NoGpuError(CalibrationError):
    """torch finds no usable GPU."""


class DeviceLostError(CalibrationError):
    """The GPU no longer responds: an error broke the context, and this process can measure nothing more."""


class IncompleteError(CalibrationError):
    """Too much failed for a profile."""


class JournalError(CalibrationError):
    """The journal belongs to another device, other versions or another plan."""
