"""The model of a server. It knows no file format and no plot."""

__version__ = "0.1.0"
