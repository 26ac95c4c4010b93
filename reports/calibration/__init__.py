"""A calibration in the terminal: the progress (`watch`), and the resulting `profile` as `tables`."""
