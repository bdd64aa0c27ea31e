"""Addresses as users write them."""

import pytest

from pp3shm.errors import ConfigError
from pp3shm.link import TcpAddress, UnixAddress, parse
from pp3shm.link.address import is_loopback


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://127.0.0.1:7333", TcpAddress("127.0.0.1", 7333)),
        ("tcp://localhost:0", TcpAddress("localhost", 0)),
        ("tcp://draft-3.example.org:65535", TcpAddress("draft-3.example.org", 65535)),
        ("tcp://[::1]:7333", TcpAddress("::1", 7333)),
        ("tcp://[fe80::1%eth0]:1", TcpAddress("fe80::1%eth0", 1)),
        ("unix:///run/pp3shm/worker.sock", UnixAddress("/run/pp3shm/worker.sock")),
        ("unix:///with space/ü", UnixAddress("/with space/ü")),
        ("unix://@worker", UnixAddress("worker", abstract=True)),
        ("unix://@/looks/like/a/path", UnixAddress("/looks/like/a/path", True)),
        ("unix:///" + "a" * 106, UnixAddress("/" + "a" * 106)),
    ],
)
def test_good_address_is_read_and_written_back(text, expected):
    assert expected == parse(text)
    assert text == str(parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:7333",
        "tcp:127.0.0.1:7333",
        "http://127.0.0.1:7333",
        "TCP://127.0.0.1:7333",
        "tcp://",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://:7333",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:+1",
        "tcp://127.0.0.1:1_0",
        "tcp://127.0.0.1: 1",
        "tcp://127.0.0.1:\u0661",
        "tcp://127.0.0.1:7333/path",
        "tcp://user@host:1",
        "tcp://::1:7333",
        "tcp://[::1]",
        "tcp://[127.0.0.1]:1",
        "tcp://[]:1",
        "tcp://[::1:1",
        "tcp://ho st:1",
        "tcp://host\0:1",
        "unix://",
        "unix://relative/path",
        "unix://@",
        "unix:///nul\0inside",
        "unix:///" + "a" * 107,
        "unix://@" + "a" * 108,
        "unix:///\ud800",
        "rdma://",
    ],
)
def test_bad_address_is_refused_by_the_place_it_came_from(text):
    with pytest.raises(ConfigError) as caught:
        parse(text, "--listen")
    assert caught.value.place == "--listen"
    assert caught.value.expected
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("fe80::1%lo", False),
        ("localhost", False),
        ("127.1", False),
    ],
)
def test_only_a_numeric_address_of_this_machine_is_loopback(host, expected):
    assert expected is is_loopback(host)
