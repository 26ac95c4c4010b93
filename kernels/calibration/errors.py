"""What can go wrong with a calibration and is not a mistake in the program."""


class CalibrationError(Exception):
    """A calibration cannot begin or go on; the text says why and what to do."""


class NotInstalledError(CalibrationError):
    """Torch or triton is not there."""


class NoGpuError(CalibrationError):
    """There is no GPU that torch can use."""


class DeviceLostError(CalibrationError):
    """The GPU answers no more: an error broke the context, and this process can measure nothing else."""


class IncompleteError(CalibrationError):
    """Too much failed for a profile."""


class JournalError(CalibrationError):
    """The journal belongs to another device, other versions or another plan."""
