"""Real text decoded speculatively: the text, its models, the checks and the report."""
