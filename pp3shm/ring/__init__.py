"""The ring of rounds: regions, entries, waiting; bytes without a meaning."""
