"""Servers that others measured, points and requests (see NOTICE); sim/validate.py reads them."""
