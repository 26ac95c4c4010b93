"""A calibration in the terminal: during the measurement (`watch`), and its `profile` after it (`tables`)."""
