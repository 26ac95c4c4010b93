"""A calibration in the terminal: while it is measured (`watch`), and its `profile` afterwards (`tables`)."""
