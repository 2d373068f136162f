"""Options of sockets, and the limit of file descriptors."""

import errno
import resource
import socket

import pytest

from sprocketmq.net.sockets import descriptor_limit, disable_nagle, raise_descriptor_limit

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
        disable_nagle(Transport(sock))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_connection_without_tcp_has_no_such_option():
    one, other = socket.socketpair()
    with one, other:
        disable_nagle(Transport(one))
    disable_nagle(Transport(None))


def test_a_connection_that_is_gone_already_is_left_to_its_end():
    disable_nagle(Transport(ResetSocket()))


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
