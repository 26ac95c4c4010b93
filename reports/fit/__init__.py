"""The output of `sim fit`: tables for the terminal, and a bar chart."""
