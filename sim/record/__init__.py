"""What is recorded of a run, and the numbers derived from it."""
