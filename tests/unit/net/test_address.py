"""Which hosts are wildcards or loopback, what clients can be told, and how a machine finds its own address."""

import socket

import pytest

from sprocketmq.net import address
from sprocketmq.net.address import advertise_problem, bind_host, is_loopback, is_wildcard, own_address


@pytest.mark.parametrize("host", ["", "*", "0.0.0.0", "::", "[::]"])
def test_a_wildcard_is_no_address_to_connect_to(host):
    assert is_wildcard(host)
    assert advertise_problem(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "mq", "mq_1", "mq-1.example.org", "10.0.0.1", "fe80::1%eth0", "::1"])
def test_a_host_name_or_an_ip_address_can_be_advertised(host):
    assert not is_wildcard(host)
    assert advertise_problem(host) == ""


@pytest.mark.parametrize("host", ["mq:10911", "http://mq", "a b", "-", "*.example.org", "[::1]"])
def test_what_is_no_host_cannot_be_advertised(host):
    assert "neither a host name nor an IP address" in advertise_problem(host)


def test_hosts_are_bound_as_sockets_take_them():
    assert [bind_host(host) for host in ("*", "", "[::]", "::1", "localhost")] == ["0.0.0.0", "0.0.0.0", "::", "::1", "localhost"]
    assert [is_loopback(host) for host in ("127.0.0.2", "::1", "[::1]", "localhost", "10.0.0.1", "mq")] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(("host", "loopback"), [("*", "127.0.0.1"), ("::", "::1")])
def test_a_machine_without_a_route_has_its_loopback_address(monkeypatch, host, loopback):
    def no_route(*args, **more):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(address.socket, "getaddrinfo", no_route)
    assert own_address(host, ("127.0.0.1:9876", "[::1]:9876")) == loopback


def test_a_machine_without_a_default_route_uses_the_address_of_its_name(monkeypatch):
    def lookup(host, port, family=0, kind=0):
        if port is not None:
            raise OSError("Network is unreachable")
        return [(family, kind, 6, "", (ip, 0)) for ip in ("127.0.1.1", "10.1.2.3")]

    monkeypatch.setattr(address.socket, "getaddrinfo", lookup)
    assert own_address("*") == "10.1.2.3"


def test_the_address_is_the_one_used_towards_another_machine(monkeypatch):
    asked = []

    class Probe(socket.socket):
        def connect(self, target):
            asked.append(target)

        def getsockname(self):
            return ("10.9.8.7", 1)

    monkeypatch.setattr(address.socket, "socket", Probe)
    assert own_address("0.0.0.0", ("127.0.0.1:9876", "192.0.2.77:9876")) == "10.9.8.7"
    assert asked == [("192.0.2.77", 9876)]
