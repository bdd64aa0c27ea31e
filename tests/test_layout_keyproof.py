"""The key proof and the prefix digest."""

import copy
import os

import numpy as np
import pytest
import strategies as given_
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.errors import ConfigError, FrameError
from pp3shm.layout import keyproof
from pp3shm.layout.digest import PrefixDigest

KEY, NONCE_P, NONCE_W = b"k" * 16, b"p" * 32, b"w" * 32


@given_.examples(50)
@given(
    st.binary(min_size=16, max_size=64), st.binary(min_size=32, max_size=32), st.data()
)
def test_the_three_messages_prove_one_key(key, nonce_p, data):
    """36, 68 and 36 bytes; each side reads the other's nonce from them."""
    nonce_w = data.draw(st.binary(min_size=32, max_size=32))
    opening = keyproof.first(nonce_p)
    answer = keyproof.answer(key, nonce_p, nonce_w)
    second = keyproof.second(key, nonce_p, nonce_w)
    assert [len(m) for m in (opening, answer, second)] == [36, 68, 36]
    assert nonce_p == keyproof.read_first(opening)
    assert nonce_w == keyproof.check_answer(key, nonce_p, answer)
    keyproof.check_second(key, nonce_p, nonce_w, second)


def test_any_changed_bit_or_length_of_a_proof_is_refused():
    """Magic, nonce and tag; no message tells the tag that would have been right."""
    answer = keyproof.answer(KEY, NONCE_P, NONCE_W)
    second = keyproof.second(KEY, NONCE_P, NONCE_W)
    for at in range(68):
        bad = bytearray(answer)
        bad[at] ^= 1
        with pytest.raises(FrameError) as caught:
            keyproof.check_answer(KEY, NONCE_P, bytes(bad))
        assert answer[36:].hex() not in str(caught.value)
    for at in range(36):
        bad = bytearray(second)
        bad[at] ^= 1
        with pytest.raises(FrameError, match=r"^keyproof\."):
            keyproof.check_second(KEY, NONCE_P, NONCE_W, bytes(bad))
    for message in (b"", answer[:-1], answer + b"x"):
        with pytest.raises(FrameError, match=r"^keyproof\.answer\.bytes"):
            keyproof.check_answer(KEY, NONCE_P, message)
    with pytest.raises(FrameError, match=r"^keyproof\.first\.magic"):
        keyproof.read_first(bytes(36))


def test_a_proof_of_another_key_or_role_or_nonce_is_refused():
    """A worker's tag sent back to it proves nothing."""
    answer = keyproof.answer(KEY, NONCE_P, NONCE_W)
    mirrored = answer[:4] + answer[36:]
    for key, nonce, second in (
        (KEY, NONCE_W, mirrored),
        (b"o" * 16, NONCE_W, keyproof.second(KEY, NONCE_P, NONCE_W)),
        (KEY, b"x" * 32, keyproof.second(KEY, NONCE_P, NONCE_W)),
    ):
        with pytest.raises(FrameError, match=r"^keyproof\.tag: "):
            keyproof.check_second(key, NONCE_P, nonce, second)


@pytest.mark.parametrize("size", [0, 15, 65])
def test_a_key_has_16_to_64_bytes(size, tmp_path):
    """In a file too; the error names the file."""
    with pytest.raises(ConfigError, match="16 to 64 bytes"):
        keyproof.answer(bytes(size), NONCE_P, NONCE_W)
    file = tmp_path / "psk"
    file.write_bytes(bytes(size))
    with pytest.raises(ConfigError, match=f"{file}.*64 bytes"):
        keyproof.load_key(file)


def test_a_key_file_is_the_key_byte_for_byte(tmp_path):
    """No newline is cut; a missing file or a directory is an error that names it."""
    file = tmp_path / "psk"
    file.write_bytes(b"0123456789abcdef\n")
    assert keyproof.load_key(file) == b"0123456789abcdef\n"
    for missing in (tmp_path / "none", tmp_path, "nul\0name"):
        with pytest.raises(ConfigError, match="a readable key file"):
            keyproof.load_key(missing)


@pytest.mark.parametrize("size", [31, 33])
def test_a_nonce_has_32_bytes(size):
    """On every side."""
    for call in (
        lambda: keyproof.first(bytes(size)),
        lambda: keyproof.answer(KEY, bytes(size), NONCE_W),
        lambda: keyproof.second(KEY, NONCE_P, os.urandom(size)),
    ):
        with pytest.raises(FrameError, match=r"^keyproof\.nonce: expected 32 bytes"):
            call()


@given_.examples(60)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50), st.integers(0, 50))
def test_a_digest_kept_by_parts_is_that_of_the_whole(tokens, split):
    """Lists, tuples and arrays; a copy goes its own way."""
    whole = PrefixDigest(tokens)
    grown = PrefixDigest(tuple(tokens[:split]))
    fork = grown.copy()
    grown.update(np.array(tokens[split:], np.int64))
    assert (whole.value, len(tokens)) == (grown.value, grown.length)
    assert fork.length == len(tokens[:split])
    fork.update(np.array(tokens[split:], np.int32)[::-1][::-1])
    assert whole.value == fork.value


@pytest.mark.parametrize(
    "tokens",
    [[2**31], [-(2**31) - 1], np.array([2**31]), np.array([0.5]), [0.5], ["1"],
     np.zeros((2, 2), np.int32), np.array([2**63], np.uint64)],
    ids=repr,
)  # fmt: skip
def test_a_token_that_is_no_32_bit_integer_is_refused_and_not_hashed(tokens):
    """Nothing is wrapped; the digest stays that of what went before."""
    digest = PrefixDigest([1, 2])
    before = digest.value
    with pytest.raises(FrameError, match=r"^tokens: "):
        digest.update(tokens)
    assert (before, 2) == (digest.value, digest.length)


def test_a_digest_copied_by_the_copy_module_is_independent():
    """A shallow copy would share the running hash, silently."""
    digest = PrefixDigest([1])
    twin = copy.copy(digest)
    twin.update([2])
    assert digest.value == PrefixDigest([1]).value
