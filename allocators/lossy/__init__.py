"""Caches that keep less than was computed: fewer tokens, or fewer bits per token.

Their memory is exact. The loss of answer quality is not modelled, nor is the cost of choosing tokens.
"""
