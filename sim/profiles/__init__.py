"""Profiles of measured GPUs (JSON)."""
