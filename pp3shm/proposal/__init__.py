"""Proposals: top-32 supports, dyadic counts, their draw, and the Markov chain."""
