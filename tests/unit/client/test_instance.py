import asyncio
import logging
import time

import pytest
from fake_cluster import FakeNamesrv, answer, fake_cluster, hang_up, silence
from tests.inside import id_of, instance_of, run_due
from tests.ports import address_of, hold

from sprocketmq.client import AdminClient, Producer, PullConsumer, nameservers
from sprocketmq.client import instance as instance_module
from sprocketmq.client.instance import Instance
from sprocketmq.client.nameservers import namesrv_addresses
from sprocketmq.clock import ManualClock
from sprocketmq.errors import (
    BrokerError,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    NameserverUnavailable,
    NotRocketMQ,
    RequestTimeout,
    TopicNotFound,
)
from sprocketmq.net.client import Connection, ConnectionPool
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.frame import ReceiveBuffer
from sprocketmq.protocol.message import Message
from sprocketmq.testing import eventually


@pytest.fixture
async def web_server():
    async def handle(reader, writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
async def grpc_server():
    """An HTTP/2 server greets with its SETTINGS."""

    async def handle(reader, writer):
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        await reader.read(100)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def closed_port():
    with hold() as held:
        yield address_of(held)


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(nameservers, "NAMESRV_PAUSE_S", 0.001)
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)


# --- addresses ----------------------------------------------------------------------------------------------------------


def test_nameservers_come_as_text_as_a_sequence_or_from_the_environment(monkeypatch):
    assert namesrv_addresses("a:1;b:2") == ("a:1", "b:2")
    assert namesrv_addresses(["a:1", "b:2"]) == ("a:1", "b:2")
    monkeypatch.setenv("NAMESRV_ADDR", "c:3")
    assert namesrv_addresses(None) == ("c:3",)


def test_without_any_address_the_error_says_how_to_give_one(monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match="NAMESRV_ADDR"):
        Producer("g")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Producer("g", namesrv="localhost")


# --- wrong ports --------------------------------------------------------------------------------------------------------


async def test_nothing_listening_is_named_with_what_was_expected_there(closed_port, no_pauses):
    with pytest.raises(NameserverUnavailable) as e:
        await Producer("g", namesrv=closed_port).start()
    assert closed_port in str(e.value)
    assert "nothing listens there" in str(e.value)
    assert "RocketMQ nameserver" in str(e.value)


async def test_a_web_server_is_named_with_what_was_expected_there(web_server, no_pauses):
    with pytest.raises(NotRocketMQ) as e:
        await PullConsumer("g", namesrv=web_server).start()
    assert web_server in str(e.value)
    assert "HTTP response" in str(e.value)
    assert "expected a nameserver" in str(e.value)


async def test_a_grpc_port_is_named_with_what_was_expected_there(grpc_server, no_pauses):
    with pytest.raises(NotRocketMQ) as e:
        await AdminClient(namesrv=grpc_server).start()
    assert grpc_server in str(e.value)
    assert "gRPC" in str(e.value)
    assert "expected a nameserver" in str(e.value)


async def test_a_server_that_says_nothing_is_named_with_what_was_expected_there(no_pauses, monkeypatch):
    monkeypatch.setattr(nameservers, "REQUEST_TIMEOUT_S", 0.05)

    async def handle(reader, writer):
        await reader.read()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(NameserverUnavailable) as e:
            await Producer("g", namesrv=address).start()
        assert address in str(e.value)
        assert "expected a RocketMQ nameserver there" in str(e.value)


async def test_a_brokers_port_given_as_nameserver_is_told_apart(cluster, no_pauses):
    with pytest.raises(NotRocketMQ, match="perhaps a broker"):
        await Producer("g", namesrv=cluster.broker.address).start()


async def test_a_web_server_registered_as_broker_is_named_with_what_was_expected_there(cluster, web_server):
    cluster.broker.port = int(web_server.rpartition(":")[2])
    cluster.put("t")
    async with Producer("g", namesrv=cluster.namesrv.address, timeout_s=30) as producer:
        with pytest.raises(NotRocketMQ) as e:
            await producer.send(Message("t", b"x"))
    assert web_server in str(e.value)
    assert "expected a broker" in str(e.value)
    await cluster.broker.server.stop()


# --- nameservers come and go --------------------------------------------------------------------------------------------


async def test_the_next_nameserver_is_asked_when_one_is_gone(cluster, closed_port):
    for first in (closed_port, cluster.namesrv.address):
        second = cluster.namesrv.address if first == closed_port else closed_port
        async with PullConsumer("g", namesrv=[first, second]) as consumer:
            assert len(await consumer.queues("t")) == 4


async def test_a_nameserver_that_hangs_up_or_is_not_ready_is_asked_again_a_bounded_number_of_times(cluster, no_pauses):
    cluster.namesrv.script(Q.GET_ROUTEINFO_BY_TOPIC, hang_up, answer(R.SYSTEM_ERROR, "name server not ready"))
    async with PullConsumer("g", namesrv=cluster.namesrv.address) as consumer:
        cluster.namesrv.script(Q.GET_ROUTEINFO_BY_TOPIC, *[hang_up] * 10)
        before = cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC)
        with pytest.raises(NameserverUnavailable) as e:
            await consumer.queues("t")
        assert e.value.tried == (cluster.namesrv.address,)
        assert cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC) - before == 3


async def test_sends_go_on_with_known_routes_while_the_nameserver_is_gone_and_new_topics_work_when_it_is_back(cluster, no_pauses):
    async with Producer("g", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"1"))
        await cluster.namesrv.stop()
        await producer.send(Message("t", b"2"))
        with pytest.raises(NameserverUnavailable):
            await producer.send(Message("other", b"x"))
        await cluster.namesrv.restart()
        cluster.put("other")
        await producer.send(Message("other", b"3"))


async def test_callers_that_ask_for_the_same_route_share_one_question(cluster):
    instance = Instance(cluster.namesrv.address, kind="test")
    await instance.start()
    before = cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC)
    routes = await asyncio.gather(*(instance.fetch_route("t") for _ in range(10)))
    assert len(set(map(id, routes))) == 1
    assert cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC) - before == 1
    await instance.close()


# --- refresh and heartbeats, on a clock that is moved by hand -----------------------------------------------------------


async def test_routes_and_heartbeats_are_refreshed_every_30_seconds(cluster):
    clock = ManualClock()
    async with Producer("pg", namesrv=cluster.namesrv.address, clock=clock) as producer:
        await producer.send(Message("t", b"x"))
        await cluster.broker.until(lambda: len(cluster.broker.beats) == 1)
        beat = cluster.broker.beats[0]
        assert [p.group_name for p in beat.producer_data_set] == ["pg"]
        assert beat.consumer_data_set == []
        cluster.put("t", queues=7)
        before = cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC)
        clock.advance(29)
        run_due(producer)
        clock.advance(1)
        assert cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC) == before
        run_due(producer)
        await cluster.broker.until(lambda: len(cluster.broker.beats) == 2)
        await cluster.namesrv.until(lambda: cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC) == before + 1)

        async def sees_seven() -> bool:
            return len(await producer.queues("t")) == 7

        await eventually(sees_seven)
    assert cluster.broker.count(Q.UNREGISTER_CLIENT) == 1


async def test_a_refresh_that_fails_keeps_the_route_and_is_tried_again(cluster, no_pauses, caplog):
    clock = ManualClock()
    instance = Instance(cluster.namesrv.address, kind="test", clock=clock)
    await instance.start()
    await instance.fetch_route("t")
    del cluster.namesrv.routes["t"]
    await instance.refresh_routes()
    assert "t" in instance.routes
    await instance.close()


async def test_a_broker_that_refuses_heartbeats_is_logged(cluster, caplog):
    cluster.broker.script(Q.HEART_BEAT, answer(R.SYSTEM_ERROR, "no room"))
    with caplog.at_level(logging.WARNING):
        async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
            await producer.send(Message("t", b"x"))
            await cluster.broker.until(lambda: cluster.broker.count(Q.HEART_BEAT) == 1)
            await instance_of(producer).heartbeat_now()
    assert "no room" in caplog.text


async def test_a_connection_on_which_two_heartbeats_in_a_row_get_nothing_is_closed(cluster, monkeypatch):
    async with Producer("pg", namesrv=cluster.namesrv.address, clock=ManualClock()) as producer:
        await producer.send(Message("t", b"x"))
        instance = instance_of(producer)
        await instance.heartbeat_now()
        conn = instance.brokers.peek(cluster.broker.address)
        monkeypatch.setattr(instance_module, "REQUEST_TIMEOUT_S", 0.01)
        cluster.broker.script(Q.HEART_BEAT, silence, silence, silence)
        await instance.heartbeat_now()
        await producer.send(Message("t", b"y"))  # the broker is alive
        await instance.heartbeat_now()
        assert not conn.closed
        await instance.heartbeat_now()
        assert conn.closed
        await producer.send(Message("t", b"z"))


# --- life ---------------------------------------------------------------------------------------------------------------


async def test_a_client_that_is_not_started_or_closed_says_so(cluster):
    producer = Producer("g", namesrv=cluster.namesrv.address)
    with pytest.raises(ClientClosed, match="not started"):
        await producer.send(Message("t", b"x"))
    async with producer:
        await producer.start()
    for use in (lambda: producer.send(Message("t", b"x")), lambda: producer.send_batch([Message("t", b"x")]), producer.start):
        with pytest.raises(ClientClosed, match="closed"):
            await use()
    with pytest.raises(ClientClosed, match="closed"):
        producer.submit(Message("t", b"x"))
    await producer.close()


async def test_a_start_that_fails_leaves_nothing_behind_and_close_is_harmless(closed_port, no_pauses):
    consumer = PullConsumer("g", namesrv=closed_port)
    with pytest.raises(NameserverUnavailable):
        await consumer.start()
    await consumer.close()


async def test_who_waits_for_a_route_or_a_broker_at_close_is_told(cluster, monkeypatch):
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 60)
    consumer = PullConsumer("g", namesrv=cluster.namesrv.address)
    await consumer.start()
    queue = (await consumer.queues("t"))[0]
    cluster.broker.script(Q.PULL_MESSAGE, answer(R.SYSTEM_BUSY))
    cluster.namesrv.script(Q.GET_ROUTEINFO_BY_TOPIC, silence)
    waiting = [asyncio.ensure_future(consumer.pull(queue, 0)), asyncio.ensure_future(consumer.queues("other"))]
    await cluster.broker.until(lambda: cluster.broker.count(Q.PULL_MESSAGE))
    await cluster.namesrv.until(lambda: cluster.namesrv.count(Q.GET_ROUTEINFO_BY_TOPIC) > 2)
    await consumer.close()
    for task in waiting:
        with pytest.raises(ClientClosed):
            await task


async def test_close_does_not_wait_for_a_broker_that_does_not_answer(cluster, monkeypatch):
    monkeypatch.setattr(instance_module, "UNREGISTER_TIMEOUT_S", 0.05)
    cluster.broker.script(Q.UNREGISTER_CLIENT, silence)
    async with asyncio.timeout(60):
        async with Producer("g", namesrv=cluster.namesrv.address) as producer:
            await producer.send(Message("t", b"x"))


async def test_two_clients_share_nothing(monkeypatch):
    now = time.monotonic_ns()
    monkeypatch.setattr(instance_module.time, "monotonic_ns", lambda: now)  # the clock of Windows stands still for 16 ms
    async with fake_cluster(1, "t") as cluster:
        first = Producer("g", namesrv=cluster.namesrv.address)
        second = Producer("g", namesrv=cluster.namesrv.address)
        await first.start()
        await second.start()
        assert id_of(first) != id_of(second)
        await first.close()
        await second.send(Message("t", b"x"))
        await second.close()


async def test_an_unknown_topic_is_told_with_the_nameserver_that_was_asked():
    namesrv = FakeNamesrv()
    await namesrv.start()
    async with PullConsumer("g", namesrv=namesrv.address) as consumer:
        with pytest.raises(TopicNotFound, match=namesrv.address) as e:
            await consumer.queues("nope")
        assert e.value.topic == "nope"
    await namesrv.close()


# --- tasks that several wait for ----------------------------------------------------------------------------------------


async def test_who_waits_for_a_connection_when_the_pool_closes_is_told_and_not_cancelled(monkeypatch):
    pool = ConnectionPool(expected="broker")
    monkeypatch.setattr(pool, "_open", lambda *_: asyncio.Event().wait())
    waiting = asyncio.ensure_future(pool.get("127.0.0.1:1"))
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(ClientClosed):
        await waiting


async def test_a_connection_that_a_stranger_keeps_from_opening_is_a_failed_connection(monkeypatch):
    pool = ConnectionPool(expected="broker")
    monkeypatch.setattr(pool, "_open", lambda *_: asyncio.Event().wait())
    waiting = asyncio.ensure_future(pool.get("127.0.0.1:1"))
    await asyncio.sleep(0)
    pool._opening["127.0.0.1:1"].cancel()
    with pytest.raises(ConnectFailed, match="the attempt was cancelled"):
        await waiting
    assert not pool._opening
    await pool.close()


async def test_cancelling_one_of_those_who_ask_for_a_route_leaves_the_others_their_answer(cluster):
    instance = Instance(cluster.namesrv.address, kind="Producer")
    await instance.start()
    one, other = (asyncio.ensure_future(instance.fetch_route("t")) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    assert (await other).topic == "t"
    assert one.cancelled()
    await instance.close()


async def test_cancelling_one_of_those_who_wait_for_a_heartbeat_leaves_it_to_the_others(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x"))
        await cluster.broker.until(lambda: cluster.broker.count(Q.HEART_BEAT) == 1)
        one, other = (asyncio.ensure_future(instance_of(producer).heartbeat_now()) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        await other
        assert one.cancelled()
        assert cluster.broker.count(Q.HEART_BEAT) > 1


async def test_a_route_that_cannot_be_read_does_not_keep_others_from_being_fresh(cluster):
    cluster.put("u")
    instance = Instance(cluster.namesrv.address, kind="Producer")
    await instance.start()
    for topic in ("t", "u"):
        await instance.fetch_route(topic)
    asked = []

    def refuse(conn, command):
        asked.append(command.ext["topic"])
        conn.respond(command, R.SYSTEM_ERROR, remark="no")
        return True

    cluster.namesrv.script(Q.GET_ROUTEINFO_BY_TOPIC, refuse, refuse)
    with pytest.raises(BrokerError):
        await instance.refresh_routes()
    assert sorted(asked) == ["t", "u"]
    await instance.close()


async def test_a_request_whose_end_is_not_taken_keeps_no_other_from_its_own(caplog):
    class Broken:
        def done(self):
            return False

        def set_exception(self, error):
            raise ValueError("a fault in the program")

    conn = Connection(asyncio.get_running_loop(), "127.0.0.1:1", ReceiveBuffer(), expected="broker")
    conn.request_for(Broken(), 10, timeout_s=0.0)
    expired = conn.request(10, timeout_s=0.0)
    conn.request_for(Broken(), 10, timeout_s=60)
    lost = conn.request(10, timeout_s=60)
    with pytest.raises(RequestTimeout):
        await expired
    conn.connection_lost(None)
    with pytest.raises(ConnectionLost):
        await lost
    assert caplog.text.count("failed on its outcome: ") == 2
