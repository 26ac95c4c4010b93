"""What `sim fit` shows: tables for the terminal, and the bars of a picture."""
