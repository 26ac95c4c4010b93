"""Benchmark tools' measurements of real servers: read into one form, replayed, compared, and written."""
