"""A pyverbs that needs no device: its objects are there, count, and may refuse.

Nothing goes from one to another here (see ``fake_verbs``); what is tried is what the
product makes of pyverbs' calls, errors and descriptors.
"""

import fcntl
import os
import types

from pp3shm.link import rdma


class PyverbsError(Exception):
    """As pyverbs' own: no OSError."""


class FakePyverbs:
    """Modules by name, and everything that was made with them.

    Args:
        monkeypatch: of the test; ``rdma`` uses the fake from then on.

    Attributes:
        open: kinds of the objects that are not closed.
        busy: kinds whose ``close`` is refused.
        refused: kinds that cannot be made.
        channels: descriptors of completion channels, ours and others'.
        lowest_fd: of the channels that are made.
        strangers: channels of somebody else that come with each of ours.
        works: completions that the queue gives next.
        receives: posted receives.
    """

    def __init__(self, monkeypatch):
        self.open, self.busy, self.refused = [], set(), set()
        self.channels, self.lowest_fd, self.strangers = set(), 0, 0
        self.works, self.receives = [], 0
        monkeypatch.setattr(rdma, "load", lambda: self.modules)
        monkeypatch.setattr(rdma, "_channels", lambda: set(self.channels))
        monkeypatch.setattr(rdma, "_lost", [])
        self.modules = {
            "device": types.SimpleNamespace(Context=self._kind("Context")),
            "pd": types.SimpleNamespace(PD=self._kind("PD")),
            "mr": types.SimpleNamespace(MR=self._kind("MR")),
            "cq": types.SimpleNamespace(
                CompChannel=self._kind("CompChannel"), CQ=self._kind("CQ")
            ),
            "qp": types.SimpleNamespace(
                QP=self._kind("QP"),
                QPCap=types.SimpleNamespace,
                QPInitAttr=types.SimpleNamespace,
                QPAttr=types.SimpleNamespace,
            ),
            "wr": types.SimpleNamespace(
                SGE=lambda *_: None, RecvWR=types.SimpleNamespace
            ),
            "pyverbs_error": types.SimpleNamespace(PyverbsError=PyverbsError),
            "enums": types.SimpleNamespace(
                IBV_ACCESS_LOCAL_WRITE=1,
                IBV_ACCESS_REMOTE_WRITE=2,
                IBV_QPT_RC=2,
                IBV_WC_SUCCESS=0,
                IBV_WC_RECV_RDMA_WITH_IMM=129,
            ),
        }

    def _kind(self, kind):
        """A class of its own, as ``isinstance`` wants one."""
        return type(kind, (_Made,), {"fake": self})

    def ring(self):
        """Something is in the queue: the channels become readable."""
        for fd in self.channels:
            os.eventfd_write(fd, 1)


class _Made:
    """Any object of pyverbs."""

    cmd_fd, lkey, rkey, qp_num = -1, 1, 2, 17

    def __init__(self, *_, **__):
        fake, self.kind = self.fake, type(self).__name__
        if self.kind in fake.refused:
            raise PyverbsError(f"{self.kind} refused")
        fake.open.append(self.kind)
        if self.kind == "CompChannel":
            self.fd = _eventfd(fake.lowest_fd)
            fake.channels |= {self.fd}
            fake.channels |= {_eventfd(0) for _ in range(fake.strangers)}

    def close(self):
        if self.kind in self.fake.busy:
            raise PyverbsError(f"{self.kind} busy")
        self.fake.open.remove(self.kind)
        if self.kind == "CompChannel":
            self.fake.channels.discard(self.fd)
            os.close(self.fd)

    def query_port(self, _number):
        return types.SimpleNamespace(active_mtu=3)

    def get_cq_event(self, _cq):
        os.eventfd_read(self.fd)

    def ack_events(self, _count):
        pass

    def req_notify(self):
        pass

    def post_recv(self, _request):
        self.fake.receives += 1

    def poll(self, most):
        works, self.fake.works = self.fake.works[:most], self.fake.works[most:]
        return len(works), works


def _eventfd(lowest):
    """One that is not below ``lowest``; the caller has made room for it."""
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    if fd >= lowest:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(fd)
    return moved
