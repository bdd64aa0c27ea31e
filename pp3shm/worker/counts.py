"""Counters that several threads add to."""

import threading
from collections import Counter


class Counts:
    """Named numbers that only grow; names appear with their first count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counter: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> int:
        """Count ``amount`` more under ``name``; how many that makes."""
        with self._lock:
            self._counter[name] += amount
            return self._counter[name]

    def snapshot(self) -> dict[str, int]:
        """All of them, sorted by name."""
        with self._lock:
            return dict(sorted(self._counter.items()))
