"""The key proof of section 9, on both sides of a connection.

It authenticates the start of the connection and nothing after it.
"""

import secrets

from pp3shm.errors import FrameError, LinkError
from pp3shm.layout import keyproof
from pp3shm.layout.tables import KEY_MAGIC
from pp3shm.link.base import Link
from pp3shm.link.reader import read_exactly


def prove_to_worker(link: Link, psk: bytes, deadline: float) -> None:
    """The proxy's side: challenge the worker, check its answer, answer it.

    Args:
        link: a connection on which nothing was sent yet.
        psk: the pre-shared key.
        deadline: on the clock of ``time.monotonic``.

    Raises:
        ConfigError: the key's length.
        LinkError: the worker did not prove in time that it has the key. Nothing was
            said to it after that.
    """
    nonce_p = secrets.token_bytes(keyproof.NONCE_BYTES)
    link.send(keyproof.first(nonce_p))
    answer = read_exactly(link, keyproof.ANSWER_BYTES, deadline)
    try:
        nonce_w = keyproof.check_answer(psk, nonce_p, answer)
    except FrameError as error:
        raise LinkError(f"{link.peer}: {error}") from error
    link.send(keyproof.second(psk, nonce_p, nonce_w))


def demand_proof(
    link: Link, psk: bytes, deadline: float, stop: int | None = None
) -> None:
    """The worker's side: answer the proxy's challenge and check its proof.

    Sends its own nonce and tag, which section 9 asks for, to whoever opens with a
    challenge, and nothing to anybody else.

    Args:
        link: a connection just accepted.
        psk: the pre-shared key.
        deadline: on the clock of ``time.monotonic``, for the whole proof.
        stop: a descriptor that ends the wait by becoming readable.

    Raises:
        LinkError: no proof in time, or a wrong one. The caller closes without a word.
    """
    # The magic first: a peer that speaks without a proof is refused by it at once.
    magic = read_exactly(link, len(KEY_MAGIC), deadline, stop)
    if magic != KEY_MAGIC:
        raise LinkError(f"{link.peer}: expected a key proof, found none")
    nonce_p = read_exactly(link, keyproof.NONCE_BYTES, deadline, stop)
    nonce_w = secrets.token_bytes(keyproof.NONCE_BYTES)
    link.send(keyproof.answer(psk, nonce_p, nonce_w))
    second = read_exactly(link, keyproof.SECOND_BYTES, deadline, stop)
    try:
        keyproof.check_second(psk, nonce_p, nonce_w, second)
    except FrameError as error:
        raise LinkError(f"{link.peer}: {error}") from error
