"""Options of sockets, and the limit of file descriptors."""

import errno
import resource
import socket
import sys

import pytest

from sprocketmq.net.sockets import descriptor_limit, raise_descriptor_limit, send_at_once

# The option's number on Linux.
CONGESTION = 13
UNLIMITED = resource.RLIM_INFINITY


class Transport:
    def __init__(self, sock):
        self._sock = sock

    def get_extra_info(self, name):
        assert name == "socket"
        return self._sock


class ResetSocket:
    """A socket of macOS that the peer has reset already."""

    family = socket.AF_INET

    def setsockopt(self, *_):
        raise OSError(errno.EINVAL, "Invalid argument")


def test_small_segments_are_sent_at_once():
    with socket.socket() as sock:
        send_at_once(Transport(sock))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_connection_without_tcp_has_no_such_option():
    one, other = socket.socketpair()
    with one, other:
        send_at_once(Transport(one))
    send_at_once(Transport(None))


def test_a_connection_that_is_gone_already_is_left_to_its_end():
    send_at_once(Transport(ResetSocket()))


class PacedSocket:
    """A socket of Linux with the congestion control ``chosen``, between two addresses."""

    family = socket.AF_INET

    def __init__(self, chosen, peer, own="10.0.0.1"):
        self.chosen, self._peer, self._own = chosen, peer, own

    def getpeername(self):
        return (self._peer, 10911)

    def getsockname(self):
        return (self._own, 50000)

    def getsockopt(self, level, option, size):
        assert (level, option) == (socket.IPPROTO_TCP, CONGESTION)
        return self.chosen.ljust(size, b"\0")

    def setsockopt(self, level, option, value):
        if option == CONGESTION:
            self.chosen = value


@pytest.fixture
def linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(socket, "TCP_CONGESTION", CONGESTION, raising=False)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "10.0.0.1"])
def test_nothing_is_paced_between_two_sockets_of_one_machine(linux, peer):
    sock = PacedSocket(b"bbr", peer)
    send_at_once(Transport(sock))
    assert sock.chosen == b"reno"


@pytest.mark.parametrize(("chosen", "peer"), [(b"bbr", "10.0.0.2"), (b"bbr", "fe80::1"), (b"cubic", "127.0.0.1"), (b"dctcp", "::1")])
def test_congestion_control_is_left_alone_otherwise(linux, chosen, peer):
    sock = PacedSocket(chosen, peer)
    send_at_once(Transport(sock))
    assert sock.chosen == chosen


@pytest.mark.skipif(sys.platform != "linux", reason="sets the congestion control of Linux")
def test_what_replaces_it_is_there_for_every_user():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        send_at_once(Transport(sock))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"


@pytest.fixture
def limits(monkeypatch):
    """Give the process other limits: ``limits.set(soft, hard)``, and for the system the highest that it takes."""

    class Limits:
        now = (0, 0)
        highest = UNLIMITED

        def set(self, soft, hard, highest=UNLIMITED):
            self.now, self.highest = (soft, hard), highest

        def get(self, which):
            assert which == resource.RLIMIT_NOFILE
            return self.now

        def change(self, which, wanted):
            assert which == resource.RLIMIT_NOFILE
            soft, hard = wanted
            assert hard == self.now[1], "the hard limit cannot be raised again"
            if self.highest != UNLIMITED and soft > self.highest:
                raise ValueError("current limit exceeds maximum limit")
            self.now = wanted

    found = Limits()
    monkeypatch.setattr(resource, "getrlimit", found.get)
    monkeypatch.setattr(resource, "setrlimit", found.change)
    return found


@pytest.mark.parametrize(
    ("soft", "hard", "highest", "raised"),
    [
        pytest.param(1024, 1_048_576, UNLIMITED, 65_536, id="Linux"),
        pytest.param(1024, 4096, UNLIMITED, 4096, id="a low hard limit"),
        pytest.param(1024, 1024, UNLIMITED, 1024, id="no room"),
        pytest.param(256, UNLIMITED, UNLIMITED, 65_536, id="macOS"),
        pytest.param(256, UNLIMITED, 10_240, 10_240, id="macOS that takes no more than OPEN_MAX"),
        pytest.param(256, UNLIMITED, 256, 256, id="a system that refuses"),
        pytest.param(200_000, 1_048_576, UNLIMITED, 200_000, id="higher already"),
        pytest.param(20_000, UNLIMITED, 30_000, 20_000, id="higher than what the system takes after a refusal"),
        pytest.param(UNLIMITED, UNLIMITED, UNLIMITED, 0, id="no limit"),
    ],
)
def test_servers_raise_the_limit_of_open_files(limits, soft, hard, highest, raised):
    limits.set(soft, hard, highest)
    assert raise_descriptor_limit() == raised
    assert limits.now == (raised or soft, hard)
    assert descriptor_limit() == raised
