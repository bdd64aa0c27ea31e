"""The proof of a pre-shared key, before any frame (wire page, section 9).

proxy ``first`` -> worker ``answer`` -> proxy ``second``. It authenticates the start
of a connection and protects nothing that follows. No message tells a tag or a key.
"""

import hmac
from hashlib import blake2b
from pathlib import Path

from pp3shm.errors import ConfigError, FrameError
from pp3shm.layout.record import Record
from pp3shm.layout.tables import KEY_ANSWER, KEY_FIRST, KEY_MAGIC, KEY_SECOND

NONCE_BYTES = 32
FIRST_BYTES = KEY_FIRST.size
ANSWER_BYTES = KEY_ANSWER.size
SECOND_BYTES = KEY_SECOND.size
LEAST_KEY_BYTES, MOST_KEY_BYTES = 16, 64

_PERSON = b"pp3shm.psk.v1"


def _tag(psk: bytes, role: bytes, nonce_p: bytes, nonce_w: bytes) -> bytes:
    check_key(psk)
    for nonce in (nonce_p, nonce_w):
        if len(nonce) != NONCE_BYTES:
            raise FrameError("keyproof.nonce", f"{NONCE_BYTES} bytes", len(nonce))
    return blake2b(
        role + nonce_p + nonce_w, digest_size=32, key=psk, person=_PERSON
    ).digest()


def check_key(psk: bytes, where: str = "key") -> None:
    """Refuse a key of another length than the specification's.

    Raises:
        ConfigError: naming ``where``, and never the key.
    """
    if not LEAST_KEY_BYTES <= len(psk) <= MOST_KEY_BYTES:
        raise ConfigError(
            where, f"{LEAST_KEY_BYTES} to {MOST_KEY_BYTES} bytes", f"{len(psk)} bytes"
        )


def first(nonce_p: bytes) -> bytes:
    """The proxy's opening message.

    Raises:
        FrameError: the nonce has not 32 bytes.
    """
    if len(nonce_p) != NONCE_BYTES:
        raise FrameError("keyproof.nonce", f"{NONCE_BYTES} bytes", len(nonce_p))
    return KEY_FIRST.pack(magic=KEY_MAGIC, nonce=nonce_p)


def answer(psk: bytes, nonce_p: bytes, nonce_w: bytes) -> bytes:
    """The worker's answer: its nonce and its tag.

    Raises:
        ConfigError: the key's length.
        FrameError: a nonce's length.
    """
    tag = _tag(psk, b"W", nonce_p, nonce_w)
    return KEY_ANSWER.pack(magic=KEY_MAGIC, nonce=nonce_w, tag=tag)


def second(psk: bytes, nonce_p: bytes, nonce_w: bytes) -> bytes:
    """The proxy's answer: its tag.

    Raises:
        ConfigError: the key's length.
        FrameError: a nonce's length.
    """
    tag = _tag(psk, b"P", nonce_p, nonce_w)
    return KEY_SECOND.pack(magic=KEY_MAGIC, tag=tag)


def read_first(message: bytes) -> bytes:
    """The proxy's nonce.

    Raises:
        FrameError: length or magic.
    """
    nonce: bytes = _read(KEY_FIRST, message)["nonce"]
    return nonce


def check_answer(psk: bytes, nonce_p: bytes, message: bytes) -> bytes:
    """Checks the worker's answer in constant time and gives its nonce.

    Raises:
        FrameError: length, magic, or a tag that another key made.
    """
    found = _read(KEY_ANSWER, message)
    nonce_w: bytes = found["nonce"]
    _compare(_tag(psk, b"W", nonce_p, nonce_w), found["tag"])
    return nonce_w


def check_second(psk: bytes, nonce_p: bytes, nonce_w: bytes, message: bytes) -> None:
    """Checks the proxy's tag in constant time.

    Raises:
        FrameError: length, magic, or a tag that another key made.
    """
    found = _read(KEY_SECOND, message)
    _compare(_tag(psk, b"P", nonce_p, nonce_w), found["tag"])


def _read(record: Record, message: bytes) -> dict[str, bytes]:
    if len(message) != record.size:
        raise FrameError(f"{record.name}.bytes", record.size, len(message))
    return record.unpack(message)


def _compare(ours: bytes, theirs: bytes) -> None:
    if not hmac.compare_digest(ours, theirs):
        raise FrameError("keyproof.tag", "the tag of our key", "another")


def load_key(path: str | Path) -> bytes:
    """A pre-shared key: the whole content of a file, 16 to 64 bytes.

    Raises:
        ConfigError: the file cannot be read, or its length.
    """
    try:
        with Path(path).open("rb") as file:
            key = file.read(MOST_KEY_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(str(path), "a readable key file", error) from None
    if len(key) > MOST_KEY_BYTES:
        raise ConfigError(
            str(path), f"at most {MOST_KEY_BYTES} bytes of key", "a longer file"
        )
    check_key(key, str(path))
    return key
