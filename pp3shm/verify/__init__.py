"""Verification ``standard-v1`` in NumPy: the definition of correct, without torch."""
