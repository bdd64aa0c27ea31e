"""Faults of the package's own readers, planted while it runs."""

from pp3shm.proxy.board import Board
from pp3shm.proxy.state import SessionState
from pp3shm.reply import Reply
from pp3shm.ring.ring import EngineEnd, ProxyEnd


def _round_read_twice():
    """The round of a reply is read from the page again after it was compared."""
    Reply.round = property(lambda self: int(self._views.round))


def _request_by_word():
    """The engine finds the request by the page that the shared word names."""
    EngineEnd.request = lambda self, ticket: self._request[
        self.word(ticket) >> 8 & 4095
    ]


def _page_unbounded():
    """A proxy's page index is not compared with anything."""
    ProxyEnd._at = lambda _, word: word >> 8 & 4095
    ProxyEnd.take = _any_word(ProxyEnd.take)


def _any_word(take):
    def taken(self):
        word = take(self)
        return word if word is None else word | 4095 << 8

    return taken


def _state_unbounded():
    """The session's state is taken for one whatever it is."""
    Board.state_of = lambda self, _: SessionState(self.get("session_state") & 255)


PLANTS = {
    "a reply's round read twice": _round_read_twice,
    "a request found by the shared word": _request_by_word,
    "a page index of Python's own": _page_unbounded,
    "a session's state unchecked": _state_unbounded,
}


def plant(name):
    """Plants the fault of this name; none by the empty one."""
    if name:
        PLANTS[name]()
