"""Exact draft distributions for speculative decoding, through shared memory."""

__version__ = "0.1.0"
