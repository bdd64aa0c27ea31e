"""A queue pair by pyverbs: the one module that imports it, and only when asked.

pyverbs holds the GIL in whatever it calls. So nothing here waits in it: completions are
polled, and slept for on the channel's descriptor; only ``connect`` may take long (up to
a second, where the peer's address cannot be reached).
"""

import contextlib
import ctypes
import fcntl
import importlib
import ipaddress
import logging
import mmap
import os
import secrets
import select
import socket
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pp3shm.errors import ConfigError, LinkError
from pp3shm.layout.endpoint import Endpoint
from pp3shm.link.address import RdmaAddress
from pp3shm.link.area import Area
from pp3shm.link.gids import Place, choose
from pp3shm.link.staging import slot_bytes
from pp3shm.link.verbs import Completion, Shape, VerbsEnd

GET_PYVERBS = (
    "apt install python3-pyverbs, of the system libibverbs' release, and run the "
    "Python it is built for: docs/rdma.md"
)
_MODULES = ("addr", "cq", "device", "enums", "mr", "pd", "pyverbs_error", "qp", "wr")

# 4.096 us x 2^12 a try and 3 tries more: that a peer is gone is known after 100 ms.
# Never 7 tries: soft-RoCE takes that for "for ever", and reports nothing at all.
_TIMEOUT, _RETRIES, _RNR_RETRIES, _RNR_TIMER = 12, 3, 6, 12
_HOP_LIMIT = 64
_RECEIVE = 1 << 32  # wr_id of a receive; a write's is its slot
_POLL_MOST = 64

# Making a channel is told from other descriptors by what was there before.
_making = threading.Lock()
_ends: "weakref.WeakSet[RdmaEnd]" = weakref.WeakSet()
_lost: list["RdmaEnd"] = []
"""Ends whose queue pair could not be destroyed: their memory must never be reused."""


def require(place: str) -> None:
    """Refuse where pyverbs is not to be had.

    Args:
        place: what asked for it, e.g. ``worker``.

    Raises:
        ConfigError: it cannot be imported; the error says how to get it.
    """
    try:
        load()
    except ImportError as error:
        last = str(error).strip().splitlines()[-1:] or ["nothing"]
        raise ConfigError(
            place, f"pyverbs for rdma:// ({GET_PYVERBS}), or tcp://", last[0]
        ) from error


def load() -> dict[str, Any]:
    """Pyverbs' modules by name; it raises what an import of it raises.

    Importing it gives the root logger a handler, which is for the program to decide:
    what was there before is there afterwards.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return {name: importlib.import_module(f"pyverbs.{name}") for name in _MODULES}
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def open_end(ip: str, address: RdmaAddress, shape: Shape) -> VerbsEnd:
    """An end on the device that an address names or its connection leads to.

    Args:
        ip: this side's IP address of the connection.
        address: this side's, dialled or listened at.
        shape: of its areas.

    Raises:
        LinkError: no such device, or it refused something.
    """
    return RdmaEnd(choose(ip, address.device, address.gid_index), shape)


def lost_areas() -> int:
    """Ends of this process whose memory is quarantined for ever."""
    return len(_lost)


class RdmaEnd:
    """One reliable connected queue pair. Implements ``VerbsEnd``.

    Args:
        place: device, port and GID.
        shape: of its areas.

    Raises:
        ConfigError: no pyverbs.
        LinkError: the device refused something; the error names it.
    """

    def __init__(self, place: Place, shape: Shape) -> None:
        require("rdma")
        self._v = load()
        self._place = place
        self._shape = shape
        self._open: list[Any] = []  # closed in the reverse order
        self._fds: list[int] = []
        self._areas: list[Area] = []
        self._fd = -1
        self._peer: Endpoint | None = None
        self.regions = 0
        _ends.add(self)
        try:
            with _making, self._verbs("set-up"):
                self._make()
        except BaseException:
            with contextlib.suppress(LinkError):  # counted: lost_areas()
                self.close()
            raise

    @contextlib.contextmanager
    def _verbs(self, what: str) -> Iterator[None]:
        """Pyverbs' errors are no OSErrors; ours name the device and the call."""
        try:
            yield
        except self._v["pyverbs_error"].PyverbsError as error:
            raise LinkError(
                f"rdma {self._place.device}: {what}: expected success, found: {error}"
            ) from error

    def _make(self) -> None:
        context = self._keep(self._v["device"].Context(name=self._place.device))
        self._fds = [context.cmd_fd]
        pd = self._keep(self._v["pd"].PD(context))
        in_rkey = self._make_areas(pd)
        self._make_queue(context)
        self._make_pair(pd)
        port = context.query_port(self._place.port)
        self.local = Endpoint(
            queue_pair=self._qp.qp_num,
            packet_sequence=secrets.randbits(24),
            mtu=128 << port.active_mtu,
            gid_index=self._place.gid.number,
            gid=self._place.gid.raw,
            address=self._in.address,
            rkey=in_rkey,
            slot_bytes=slot_bytes(self._shape.in_bytes),
            slots=self._shape.slots,
        )

    def _make_areas(self, pd: Any) -> int:
        """What the peer writes, what we write from, and a byte; the key of the first.

        A write needs no buffer of its receive, but pyverbs wants one: a byte apart, so
        that a SEND, which nobody may make here, spoils nothing.
        """
        enums, wr, shape = self._v["enums"], self._v["wr"], self._shape
        written = enums.IBV_ACCESS_LOCAL_WRITE
        remote = written | enums.IBV_ACCESS_REMOTE_WRITE
        size = shape.slots * slot_bytes(shape.in_bytes)
        self._in, in_region = self._area(pd, size, remote)
        size = shape.slots * slot_bytes(shape.out_bytes)
        self._out, out_region = self._area(pd, size, 0)
        self._lkey = out_region.lkey
        spare, spare_region = self._area(pd, mmap.PAGESIZE, written)
        byte = wr.SGE(spare.address, 1, spare_region.lkey)
        self._receive = wr.RecvWR(wr_id=_RECEIVE, num_sge=1, sg=[byte])
        return int(in_region.rkey)

    def _make_queue(self, context: Any) -> None:
        """The completion queue, and the channel that says when to look at it."""
        before = _channels()
        self._channel = self._keep(self._v["cq"].CompChannel(context))
        made = _channels() - before
        if len(made) != 1:  # another library makes or closes its own just now
            raise LinkError(
                f"rdma {self._place.device}: expected one new completion channel, "
                f"found {len(made)}"
            )
        (self._fd,) = made
        self._fds.append(self._fd)
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        self._readable = select.poll()
        self._readable.register(self._fd, select.POLLIN)
        depth = 2 * self._shape.slots + 2
        self._cq = self._keep(self._v["cq"].CQ(context, depth, None, self._channel, 0))
        self._cq.req_notify()

    def _make_pair(self, pd: Any) -> None:
        """The queue pair, with as many receives as the peer can have writes."""
        enums, qp = self._v["enums"], self._v["qp"]
        most = self._shape.slots + 1
        cap = qp.QPCap(
            max_send_wr=most, max_recv_wr=most, max_send_sge=1, max_recv_sge=1
        )
        init = qp.QPInitAttr(
            qp_type=enums.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=1
        )
        self._qp = self._keep(qp.QP(pd, init, self._attributes()))
        for _ in range(most):
            self._qp.post_recv(self._receive)

    def _keep(self, made: Any) -> Any:
        self._open.append(made)
        return made

    def _area(self, pd: Any, size: int, access: int) -> tuple[Area, Any]:
        """A registered area; its keys reach it and nothing else."""
        area = Area(size)
        self._areas.append(area)
        region = self._keep(self._v["mr"].MR(pd, size, access, area.address))
        self.regions += 1
        return area, region

    def _attributes(self) -> Any:
        attributes = self._v["qp"].QPAttr(port_num=self._place.port)
        attributes.qp_access_flags = self._v["enums"].IBV_ACCESS_REMOTE_WRITE
        return attributes

    def connect(self, peer: Endpoint) -> None:
        """See ``VerbsEnd``."""
        addr = self._v["addr"]
        attributes = self._attributes()
        mtu = min(self.local.mtu, peer.mtu)
        attributes.path_mtu = (mtu // 128).bit_length() - 1
        attributes.dest_qp_num = peer.queue_pair
        attributes.rq_psn = peer.packet_sequence
        attributes.sq_psn = self.local.packet_sequence
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 0  # nobody reads
        attributes.timeout, attributes.retry_cnt = _TIMEOUT, _RETRIES
        attributes.rnr_retry, attributes.min_rnr_timer = _RNR_RETRIES, _RNR_TIMER
        gid = addr.GID(str(ipaddress.IPv6Address(peer.gid).exploded))
        route = addr.GlobalRoute(
            dgid=gid, sgid_index=self._place.gid.number, hop_limit=_HOP_LIMIT
        )
        attributes.ah_attr = addr.AHAttr(
            gr=route, is_global=1, port_num=self._place.port
        )
        with self._verbs("connect"):
            self._qp.to_rts(attributes)
        self._peer = peer

    def fileno(self) -> int:
        """See ``VerbsEnd``."""
        return self._fd

    def inbox(self, slot: int) -> int:
        """See ``VerbsEnd``."""
        return self._in.address + slot * slot_bytes(self._shape.in_bytes)

    def fill(self, slot: int, frame: bytes) -> None:
        """See ``VerbsEnd``."""
        self._out.fill(slot * slot_bytes(self._shape.out_bytes), frame)

    def post(self, slot: int, size: int) -> None:
        """See ``VerbsEnd``."""
        if self._peer is None:
            place = f"rdma {self._place.device}: post"
            raise LinkError(f"{place}: expected to be connected, found no peer")
        enums, wr = self._v["enums"], self._v["wr"]
        at = self._out.address + slot * slot_bytes(self._shape.out_bytes)
        request = wr.SendWR(
            wr_id=slot,
            opcode=enums.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=1,
            sg=[wr.SGE(at, size, self._lkey)],
            imm_data=socket.htonl(slot),
            send_flags=enums.IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(self._peer.rkey, self._peer.at(slot))
        with self._verbs("post"):
            self._qp.post_send(request)

    def poll(self) -> list[Completion]:
        """See ``VerbsEnd``."""
        found: list[Completion] = []
        with self._verbs("poll"):
            # Asked for again before the queue is looked at: what comes after the look
            # makes the descriptor readable.
            if self._readable.poll(0):
                self._channel.get_cq_event(self._cq)
                self._cq.ack_events(1)
                self._cq.req_notify()
            count = _POLL_MOST
            while count == _POLL_MOST:
                count, completions = self._cq.poll(_POLL_MOST)
                found += map(self._completion, completions)
            for completion in found:
                if completion.came and not completion.fault:
                    self._qp.post_recv(self._receive)
        return found

    def _completion(self, wc: Any) -> Completion:
        enums = self._v["enums"]
        came = wc.wr_id == _RECEIVE
        fault = ""
        if wc.status != enums.IBV_WC_SUCCESS:
            fault = _status_name(enums, wc.status)
        elif came and wc.opcode != enums.IBV_WC_RECV_RDMA_WITH_IMM:
            fault = f"opcode {wc.opcode}, no write with an immediate"
        if not came:
            return Completion(False, wc.wr_id, 0, fault)
        return Completion(
            True, socket.ntohl(wc.imm_data & 0xFFFFFFFF), wc.byte_len, fault
        )

    def close(self) -> None:
        """See ``VerbsEnd``; what could not be closed is not tried again."""
        if self in _lost:
            return
        while self._open:
            try:
                self._open[-1].close()
            except self._v["pyverbs_error"].PyverbsError as error:
                # Something may still write: the areas are never given back.
                _lost.append(self)
                raise LinkError(
                    f"rdma {self._place.device}: expected to destroy "
                    f"{type(self._open[-1]).__name__}, found: {error}"
                ) from error
            closed = self._open.pop()
            self.regions -= isinstance(closed, self._v["mr"].MR)
        while self._areas:
            self._areas.pop().close()
        self._fd = -1

    def forget(self) -> None:
        """In a forked child: neither destroy what is the parent's nor keep it alive.

        Python would destroy the objects with their last reference, through descriptors
        that are the parent's too; so a reference is never given back.
        """
        for made in [*self._open, *(area.mapping for area in self._areas)]:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        self._open.clear()
        self._areas.clear()
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fd, self.regions = -1, 0


def _forget_all() -> None:
    for end in tuple(_ends):
        end.forget()


os.register_at_fork(after_in_child=_forget_all)


def _status_name(enums: Any, status: int) -> str:
    """As the specification spells it, e.g. ``RETRY_EXC_ERR``."""
    for name, value in vars(enums).items():
        if name.startswith("IBV_WC_") and name.endswith("_ERR") and value == status:
            return str(name).removeprefix("IBV_WC_")
    return f"status {status}"


def _channels() -> set[int]:
    """Descriptors of completion channels; pyverbs does not tell its own."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder's own, gone by now
            if "infinibandevent" in str(entry.readlink()):
                found.add(int(entry.name))
    return found
