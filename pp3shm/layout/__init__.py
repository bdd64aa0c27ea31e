"""Bytes and their meaning: frames, profile, the page, and the ten checks of a REPLY."""
