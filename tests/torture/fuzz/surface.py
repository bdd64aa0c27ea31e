"""Coverage-guided fuzzing of the Python surface, one process a step.

usage: surface.py SEED RUNS FOLDER
Leaves FOLDER/seen.json: how often each parser refused or let pass. An exception that is
none of a parser's own ends it; whoever started it reads the traceback.
"""

import json
import logging
import random
import resource
import struct
import sys
from collections import Counter
from pathlib import Path

import atheris
import hypothesis.strategies  # noqa: F401 - not to be instrumented
import numpy as np

with atheris.instrument_imports(include=["pp3shm"]):
    from torture.fuzz import inputs, parsers, wire

    from pp3shm.demo.drafter import FORMAT
    from pp3shm.errors import ProfileError
    from pp3shm.layout import keyproof
    from pp3shm.layout.frames import (
        HEADER_BYTES,
        ErrorBody,
        Kind,
        Reset,
        encode_endpoint,
        encode_error,
        encode_frame,
        encode_reset,
    )
    from pp3shm.proxy.plan import ProxyPlan

MOST_MEMORY = 3 << 30
MOST_BYTES = 6000
SEEN: Counter[str] = Counter()


def tell() -> None:
    """Said on the way: libFuzzer ends the process without a last word."""
    (Path(sys.argv[3]) / "seen.json").write_text(json.dumps(SEEN))


def one(data: bytes) -> None:
    """The first byte says whose bytes the rest are."""
    SEEN["inputs"] += 1
    if SEEN["inputs"] % 500 == 0:
        tell()
    if not data:
        return
    function, errors = parsers.PARSERS[data[0] % len(parsers.PARSERS)]
    name = function.__name__
    try:
        function(data[1:])
    except errors:
        SEEN[f"{name} refused"] += 1
    else:
        SEEN[f"{name} passed"] += 1


# What JSON lets a peer say that our texts never do.
JSON_WORDS = ("Infinity", "-Infinity", "NaN", "1e999", "-1", "0", "true", "null", "[]",
              "{}", "99999999999999999999", "1.5", "\\ud800", "\\u0000")  # fmt: skip
DEEP = b"[" * 3000


def dictionary() -> str:
    """The layout's words and JSON's."""
    quoted = ('"' + word.replace("\\", "\\\\") + '"' for word in JSON_WORDS)
    return inputs.dictionary() + "\n".join(quoted) + "\n"


def _script(*frames: tuple[int, bytes], spoil: int = 0) -> bytes:
    return b"".join(
        struct.pack("<BBH", kind, spoil, len(body)) + body for kind, body in frames
    )


def seeds() -> dict[str, list[bytes]]:
    """Real bytes for every parser."""
    found: dict[str, list[bytes]] = {}
    texts = [b"tcp://127.0.0.1:7333", b"tcp://[::1]:80", b"unix:///a", b"unix://@a"]
    found["address"] = [*texts, b"tcp://h:0", b"rdma://x", b"\xff" + b"\0\xd8" * 2]
    found["note"] = [json.dumps(said).encode() for said in (
        None, {"kind": "LinkError", "text": "t"}, {"kind": "ProfileError", "text": "t",
        "field": "f", "ours": 1, "theirs": 2}, [[[]]], {"kind": 1})]  # fmt: skip
    said = {"format": FORMAT, "vocab": 3, "sizes": [3, 3], "temperature": 1.0}
    said |= dict.fromkeys(("id_map_sha256", "target_sha256", "draft_sha256"), "0" * 64)
    meta = json.dumps(said).encode()
    found["drafter_file"] = [
        b"\1" + meta,
        b"\0" + parsers.described(meta),
        b"\1" + DEEP,
    ]
    found["plan"] = [DEEP]
    found["profile"] = [DEEP]
    found["doorman"] = [struct.pack("<4si32s", b"PP3R", rank, bytes(32))
                        for rank in (-1, 1, 2, 9)]  # fmt: skip
    found["key_file"] = [bytes(16), bytes(64), bytes(15), bytes(65)]
    first, second = (
        keyproof.first(parsers.NONCE),
        keyproof.second(parsers.PSK, parsers.NONCE, parsers.NONCE),
    )
    answer = keyproof.answer(parsers.PSK, parsers.NONCE, parsers.NONCE)
    found["proof"] = [b"\0" + first, b"\1" + answer, b"\2" + second,
                      b"\3" + first + second, b"\4" + answer]  # fmt: skip
    found["record"] = [parsers.record_seed()]
    found["endpoint"] = [encode_endpoint(parsers.ENDPOINT), bytes(52)]
    for index, (ours, asked, frame) in enumerate(parsers.EXCHANGES):
        choice, body = bytes([index]), frame[HEADER_BYTES:-4]
        prefix = np.arange(3, dtype=np.int32)
        reset = encode_reset(ours, Reset(0, 1, prefix))
        told = encode_error(ErrorBody(5, str(ProfileError("vocab", 1, 2))))
        canonical = ours.canonical_json()
        for name, data in (
            ("header", frame[:HEADER_BYTES]), ("body", frame[HEADER_BYTES:]),
            ("error", told), ("profile", canonical), ("step", choice + asked),
            ("reset", choice + reset), ("reply", choice + b"\1" + frame),
            ("plan", ProxyPlan(ours, "unix://@w", bytes(16)).to_bytes()),
            ("session", choice + _script((1, reset), (0, asked), (0, asked))),
            ("serve", choice + _script((5, reset), (3, asked), (3, asked), (7, b""))),
            ("serve", choice + _script((3, asked), (6, told))),
            ("talk", choice + _script((4, body), (4, body), (6, told))),
            ("talk", choice + b"\xff" + _script((6, told))),
            ("reader", choice + frame + encode_frame(
                Kind.BYE, wire.SESSION, 1, b"") + frame),
        ):  # fmt: skip
            found.setdefault(name, []).append(data)
        for bit in range(6):
            bad = _script((4, body), spoil=1 << bit)
            found["talk"].append(choice + bad)
            found["serve"].append(choice + b"\3" + bad[1:])
    return found


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Mostly by libFuzzer; words at the edges; the parser stays what it was."""
    rng = random.Random(seed)
    if rng.random() < 0.6 or len(data) < 6:
        return bytes(atheris.Mutate(data, most))
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        size = rng.choice((1, 2, 4, 8))
        at = rng.randrange(1, len(changed))
        word = rng.choice(WORDS) % 2 ** (8 * size)
        changed[at : at + size] = word.to_bytes(size, "little")
    return bytes(changed[:most])


WORDS = inputs.words()


def main() -> None:
    """Runs and tells."""
    seed, runs, folder = sys.argv[1:4]
    corpus = Path(folder) / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    names = [function.__name__ for function, _ in parsers.PARSERS]
    for name, found in seeds().items():
        for index, data in enumerate(found):
            whole = bytes([names.index(name)]) + data
            (corpus / f"{name}-{index}").write_bytes(whole)
    words = Path(folder) / "dictionary"
    words.write_text(dictionary())
    logging.disable(logging.CRITICAL)  # a refusal is logged; here each input is one
    # A peer that makes us allocate without bound shall meet it.
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    atheris.Setup(
        [
            sys.argv[0], str(corpus), f"-seed={seed}", f"-runs={runs}",
            f"-dict={words}", f"-max_len={MOST_BYTES}", "-timeout=20",
            "-rss_limit_mb=2048",
            f"-artifact_prefix={folder}/", "-print_final_stats=1",
        ],
        one,
        custom_mutator=mutate,
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main()
