"""A cluster that takes encrypted connections only: registration, replication and metadata of its brokers, and its clients."""

import pytest
from pairs import caught_up, follows

from sprocketmq import Message, MessageQueue, Producer, PullConsumer
from sprocketmq.broker.replication.roles import Role
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import SprocketError, TlsFailed
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.tls import TlsConfig
from sprocketmq.testing import eventually


@pytest.fixture
def server_tls(server_certificate):
    return ServerTls("enforcing", server_certificate.cert_file, server_certificate.key_file)


@pytest.fixture
def client_tls(authority):
    return TlsConfig(ca_file=authority.ca_file)


@pytest.fixture
async def namesrv(server_tls):
    server = NameServer(NameServerConfig(port=0, tls=server_tls))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def cluster_settings(namesrv, server_tls, client_tls):
    return {"namesrv": (namesrv.address,), "clock": SYSTEM_CLOCK, "tls": server_tls, "tls_client": client_tls}


async def test_brokers_register_and_replicate_and_clients_send_and_read(start_broker, namesrv, cluster_settings, client_tls):
    master = await start_broker("master", ha_port=0, **cluster_settings)
    assert master.registered == (namesrv.address,)
    slave = await start_broker("slave", **{**cluster_settings, "role": Role.SLAVE, "broker_id": 1})
    await eventually(lambda: follows(slave))
    async with Producer("p", namesrv=namesrv.address, tls=client_tls) as producer:
        sent = [await producer.send(Message("orders", b"%d" % n * 2000)) for n in range(20)]
    async with PullConsumer("c", namesrv=namesrv.address, tls=client_tls) as consumer:
        queue = MessageQueue("orders", sent[0].broker_name, sent[0].queue_id)
        found = await consumer.pull(queue, sent[0].queue_offset)
        assert found.messages[0].body == b"0" * 2000
    await eventually(lambda: caught_up(master, slave))
    await eventually(lambda: slave.topics.get("orders") is not None)
    assert slave.store.raw(0, 1 << 20) == master.store.raw(0, 1 << 20)


async def test_a_broker_that_does_not_encrypt_is_not_registered(start_broker, namesrv, cluster_settings, caplog):
    broker = await start_broker("broker", **{**cluster_settings, "tls_client": None})
    assert broker.registered == ()
    assert any("handshake_failed server=nameserver" in message and "does not speak TLS" in message for message in caplog.messages)


async def test_a_client_that_does_not_encrypt_or_does_not_trust_fails_by_name(start_broker, namesrv, cluster_settings):
    broker = await start_broker("broker", **cluster_settings)
    with pytest.raises(SprocketError):
        async with PullConsumer("c", namesrv=namesrv.address) as consumer:
            await consumer.queues("orders")
    with pytest.raises(TlsFailed):
        async with PullConsumer("c", namesrv=namesrv.address, tls=True) as consumer:
            await consumer.queues("orders")
    assert broker.connection_count == 0
