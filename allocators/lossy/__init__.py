"""Caches that keep less than was computed: fewer tokens, or fewer bits of each.

Their memory is exact. What they lose of an answer's quality is not modelled, nor is what choosing costs.
"""
