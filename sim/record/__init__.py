"""What is written down of a run, and the numbers made from it."""
