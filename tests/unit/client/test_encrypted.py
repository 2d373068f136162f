"""Every client at servers that encrypt: on both event loops and from threads, and what it says when one of the two sides does not."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import uvloop
from consuming import take
from fake_cluster import FakeCluster, FakeServer
from tests.certificates import Authority, Pair

from sprocketmq import Credentials, TlsConfig, sync
from sprocketmq.client import AdminClient, Producer, PullConsumer, PushConsumer
from sprocketmq.client.consume import pull_loop
from sprocketmq.client.send.batching import Batching
from sprocketmq.errors import NameserverUnavailable, TlsFailed
from sprocketmq.net.server import RemotingServer
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.testing import eventually

QUEUE = MessageQueue("t", "broker-a", 0)
ALICE = Credentials("alice", "the secret of alice")


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request):
    """What runs a coroutine on a loop of its own."""
    return request.param


def encrypt(server: FakeServer, pair: Pair, mode: str = "enforcing") -> None:
    """Have a server that is not started yet encrypt."""
    tls = ServerTls(mode, pair.cert_file, pair.key_file)  # type: ignore[arg-type]
    server.server = RemotingServer(server, name=server.kind, tls=tls)


@asynccontextmanager
async def encrypted_cluster(pair: Pair, broker: Pair | None = None, mode: str = "enforcing"):
    cluster = FakeCluster()
    encrypt(cluster.namesrv, pair, mode)
    encrypt(cluster.broker, broker or pair, mode)
    await cluster.start()
    cluster.put("t")
    try:
        yield cluster
    finally:
        await cluster.stop()


@pytest.mark.parametrize("batching", [None, Batching()], ids=["single", "AutoBatch"])
def test_messages_travel_encrypted_both_ways(run, authority, server_certificate, batching):
    bodies = [bytes([number % 256]) * (number * 97 % 20_000 + 1) for number in range(200)]

    async def work() -> None:
        async with encrypted_cluster(server_certificate) as cluster:
            options = {"namesrv": cluster.namesrv.address, "tls": TlsConfig(authority.ca_file), "credentials": ALICE}
            async with Producer("pg", batching=batching, **options) as producer:
                await asyncio.gather(*(producer.send(Message("t", body, queue=QUEUE)) for body in bodies))
                await producer.send_batch([Message("t", b"x" * 30_000, queue=QUEUE)] * 20)
            async with PushConsumer("cg", "t", consume_from="first", **options) as consumer:
                assert sorted((await take(consumer, 220))[:200]) == sorted(bodies)
            async with PullConsumer("plain", **options) as consumer:
                assert len((await consumer.pull(QUEUE, 0, max_messages=500, max_bytes=16 << 20)).messages) == 220
            async with AdminClient(**options) as admin:
                assert await admin.max_offset(QUEUE) == 220

    run(work())


def test_blocking_clients_encrypt_too(authority, server_certificate):
    async def work() -> None:
        async with encrypted_cluster(server_certificate) as cluster:
            await asyncio.to_thread(from_a_thread, cluster.namesrv.address)

    def from_a_thread(address: str) -> None:
        with sync.Producer("pg", namesrv=address, tls=TlsConfig(authority.ca_file)) as producer:
            producer.send(Message("t", b"x", queue=QUEUE))
        with sync.PullConsumer("cg", namesrv=address, tls=TlsConfig(authority.ca_file)) as consumer:
            assert [message.body for message in consumer.pull(QUEUE, 0).messages] == [b"x"]

    asyncio.run(work())


def test_a_nameserver_with_a_strange_certificate_ends_the_start_at_once(run, server_certificate, tmp_path):
    async def work() -> None:
        async with encrypted_cluster(server_certificate) as cluster:
            strangers = Authority(tmp_path, "strangers")
            producer = Producer("pg", namesrv=cluster.namesrv.address, tls=TlsConfig(strangers.ca_file))
            with pytest.raises(TlsFailed, match=r"nameserver at .* certificate is not trusted") as raised:
                await producer.start()
            assert raised.value.problem == "untrusted"
            await producer.close()

    run(work())


def test_of_several_nameservers_one_that_can_be_trusted_will_do(run, authority, server_certificate, tmp_path):
    strange = Authority(tmp_path, "strangers").issue("nameserver")

    async def work() -> None:
        async with encrypted_cluster(strange) as bad, encrypted_cluster(server_certificate) as good:
            addresses = [bad.namesrv.address, good.namesrv.address]
            for _ in range(4):  # the first to be asked is chosen by chance
                async with AdminClient(namesrv=addresses, tls=TlsConfig(authority.ca_file)) as admin:
                    assert (await admin.route("t")).queue_datas

    run(work())


def test_tls_to_a_cluster_without_it_says_so(run, authority, server_certificate):
    async def work() -> None:
        async with encrypted_cluster(server_certificate, mode="disabled") as cluster:
            producer = Producer("pg", namesrv=cluster.namesrv.address, tls=TlsConfig(authority.ca_file))
            with pytest.raises(TlsFailed, match="if TLS is off on the server"):
                await producer.start()
            await producer.close()

    run(work())


def test_plain_text_to_a_cluster_that_encrypts_says_so(run, server_certificate):
    async def work() -> None:
        async with encrypted_cluster(server_certificate) as cluster:
            producer = Producer("pg", namesrv=cluster.namesrv.address)
            with pytest.raises((NameserverUnavailable, TlsFailed), match="pass tls=True"):
                await producer.start()
            await producer.close()

    run(work())


def test_a_broker_that_cannot_be_trusted_gets_no_message(run, authority, server_certificate, tmp_path):
    strange = Authority(tmp_path, "strangers").issue("broker")

    async def work() -> None:
        async with encrypted_cluster(server_certificate, strange) as cluster:
            options = {"namesrv": cluster.namesrv.address, "tls": TlsConfig(authority.ca_file), "credentials": ALICE}
            async with Producer("pg", timeout_s=0.5, **options) as producer:
                sends = await asyncio.gather(*(producer.send(Message("t", b"x")) for _ in range(3)), return_exceptions=True)
            assert [type(error) for error in sends] == [TlsFailed] * 3
            assert not cluster.broker.seen

    run(work())


def test_a_consumer_waits_for_a_certificate_that_it_can_trust(run, authority, server_certificate, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(pull_loop, "PULL_PAUSE_S", 0.01)
    strange = Authority(tmp_path, "strangers").issue("broker")

    async def work() -> None:
        async with encrypted_cluster(server_certificate) as cluster:
            options = {"namesrv": cluster.namesrv.address, "tls": TlsConfig(authority.ca_file)}
            async with Producer("pg", **options) as producer, PushConsumer("cg", "t", consume_from="first", **options) as consumer:
                await producer.send(Message("t", b"before", queue=QUEUE))
                assert await take(consumer, 1) == [b"before"]
                await cluster.broker.stop()
                encrypt(cluster.broker, strange)
                await cluster.broker.start(cluster.broker.port)
                await eventually(lambda: all("is not trusted" in queue.last_error for queue in consumer.stats().queues))
                await cluster.broker.stop()
                encrypt(cluster.broker, server_certificate)
                await cluster.broker.start(cluster.broker.port)
                await producer.send(Message("t", b"after", queue=QUEUE), timeout_s=60)
                assert await take(consumer, 1) == [b"after"]
        assert sum("cannot pull from broker broker-a" in message for message in caplog.messages) == 1
        assert sum("connected again to broker broker-a" in message for message in caplog.messages) == 1

    run(work())
