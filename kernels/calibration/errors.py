"""What can go wrong with a calibration and is not a mistake in the program."""


class CalibrationError(Exception):
    """A calibration cannot begin or go on; the text says why and what to do."""


class NotInstalledError(CalibrationError):
    """Torch or triton is not there."""


class NoGpuError(CalibrationError):
    """There is no GPU that torch can use."""


class JournalError(CalibrationError):
    """The journal belongs to another device, other versions or another plan."""
