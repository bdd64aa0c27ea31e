"""Figures 12, 13, 14 and 16: what the C core's test program is run for."""

from torture.core import aarch64, coverage, sanitizers, wrap

FIGURES = (sanitizers.FIGURE, aarch64.FIGURE, wrap.FIGURE, coverage.FIGURE)
