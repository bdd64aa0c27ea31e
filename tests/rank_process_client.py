"""The test's side of ``rank_process.py``."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Seen(NamedTuple):
    ticket: int
    failed: int
    statuses: list[int]
    before: str
    after: str


class RankProcess:
    """A rank in a process of its own, driven over pipes."""

    def __init__(self, invitation, profile):
        script = Path(__file__).with_name("rank_process.py")
        self.process = subprocess.Popen(
            [sys.executable, script, invitation, profile.canonical_json().decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        word, rank, self.epoch = self.process.stdout.readline().split()
        assert word == "attached"
        self.rank = int(rank)

    def tell(self, ticket):
        self.process.stdin.write(f"{ticket}\n")
        self.process.stdin.flush()

    def answer(self):
        ticket, failed, statuses, before, after = self.process.stdout.readline().split()
        states = [int(status) for status in statuses.split(",")]
        return Seen(int(ticket), int(failed), states, before, after)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()
