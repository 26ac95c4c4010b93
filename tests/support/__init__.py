"""Code that tests share: fake runs, reference data, a naive reference, synthetic GPUs."""
