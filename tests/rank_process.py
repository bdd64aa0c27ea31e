"""A further rank in a process of its own: ``rank_process.py INVITATION PROFILE``.

Reads tickets from standard input, one a line, and answers each with a line: ticket,
whole-round failure or 0, statuses, and a digest of the views taken twice, some
microseconds apart, while other rounds go on.
"""

import hashlib
import sys
import time

from pp3shm import Profile, Rank


def digest(reply):
    views = (reply.tokens, reply.confidence, reply.mask, reply.ids, reply.q)
    return hashlib.blake2b(b"".join(v.tobytes() for v in views)).hexdigest()[:16]


def main():
    profile = Profile.from_json(sys.argv[2].encode())
    with Rank.attach(sys.argv[1], profile, wait="futex") as rank:
        print("attached", rank.rank, rank.epoch.hex(), flush=True)
        for line in sys.stdin:
            ticket = int(line)
            with rank.reply(ticket) as reply:
                before = digest(reply)
                time.sleep(0.0002)
                after = digest(reply)
                statuses = ",".join(map(str, reply.status.tolist()))
                failed = 0 if reply.failed is None else int(reply.failed)
                print(ticket, failed, statuses, before, after, flush=True)


main()
