"""Log from master to slave over TLS: the same bytes, and what happens when only one side encrypts."""

import asyncio
import socket

import pytest
from replicating import Pair, fill, put

from sprocketmq.broker.replication.follower import FollowerState
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.tls import TlsConfig, client_context
from sprocketmq.testing import eventually

SECRET = "a secret of the cluster"


@pytest.fixture
async def pair(tmp_path, authority, server_certificate):
    made = []

    async def pair(mode: str, *, encrypted: bool, secret: str | None = None, client_auth: str = "none", tls: TlsConfig | None = None):
        files = server_certificate
        server = ServerTls(mode, files.cert_file, files.key_file, ca_file=authority.ca_file, client_auth=client_auth)
        client = client_context(tls or TlsConfig(ca_file=authority.ca_file)) if encrypted else None
        made.append(Pair(tmp_path, master={"tls": server, "secret": secret}, tls=client, secret=secret))
        return made[-1]

    yield pair
    for one in made:
        await one.stop()


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_the_log_over_tls_is_the_masters_byte_for_byte(pair, secret):
    both = await pair("enforcing", encrypted=True, secret=secret)
    fill(both.store, 500, size=4000)
    await both.start()
    await both.equal()
    for n in range(20):
        put(both.store, b"body %02d" % n * 3000)
        both.wrote()
    await both.equal()


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_a_permissive_master_has_plain_slaves_too(pair, secret):
    both = await pair("permissive", encrypted=False, secret=secret)
    fill(both.store, 100)
    await both.start()
    await both.equal()


async def test_a_plain_slave_is_refused_by_an_enforcing_master_which_says_so(pair, caplog):
    both = await pair("enforcing", encrypted=False)
    fill(both.store, 10)
    await both.start()
    await eventually(lambda: any("HA port" in m and "does not speak TLS, which this port requires" in m for m in caplog.messages))
    assert both.copy.commitlog_max_offset == 0


async def test_a_slave_with_tls_at_a_plain_master_says_so(pair):
    both = await pair("disabled", encrypted=True)
    fill(both.store, 10)
    await both.start()
    await eventually(lambda: "no encrypted connection to the master's HA port" in both.follower.reason)
    assert both.follower.state is FollowerState.CONNECTING
    assert both.copy.commitlog_max_offset == 0


async def test_a_slave_that_must_have_a_certificate_needs_one(pair, authority):
    mine = authority.issue("slave")
    both = await pair("enforcing", encrypted=True, client_auth="required", tls=TlsConfig(authority.ca_file, mine.cert_file, mine.key_file))
    fill(both.store, 100)
    await both.start()
    await both.equal()


async def test_a_master_with_tls_stops_with_a_handshake_under_way(pair):
    both = await pair("enforcing", encrypted=True)
    await both.lead()
    with socket.create_connection(("127.0.0.1", both.port)) as peer:
        peer.sendall(b"\x16\x03\x01")
        await asyncio.sleep(0)
        await both.master.stop()
        assert await asyncio.to_thread(peer.recv, 100) == b""
