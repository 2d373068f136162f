"""A broker from start to end: registration, restart, crash, and starts that cannot work."""

import asyncio
import re
import socket
import time

import pytest
import uvloop
from asking import Asking, create_topic
from tests.ports import address_of, hold

from sprocketmq.broker import Broker, BrokerConfig, server
from sprocketmq.errors import BrokerNameTaken, ConfigError, PortInUse, StoreLocked, StoreNotWritable
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.net.address import own_address, parse_address
from sprocketmq.net.client import ConnectionPool
from sprocketmq.net.server import RemotingServer
from sprocketmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.headers import CreateTopic, RegisterBroker
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.store import StoreConfig
from sprocketmq.testing import eventually


def queues_at(server, topic):
    route = server.routes.route(topic)
    return None if route is None else {q.broker_name: q.write_queue_nums for q in route.queue_datas}


# --- registration -------------------------------------------------------------------------------------------------------


async def test_a_started_broker_is_registered(start_broker, namesrv):
    broker = await start_broker(namesrv=(namesrv.address,))
    assert broker.registered == (namesrv.address,)
    assert queues_at(namesrv, "TBW102") == {"broker-a": 8}
    info = namesrv.routes.clusters()
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: broker.address}
    assert info.cluster_addr_table == {"DefaultCluster": ["broker-a"]}


async def test_every_address_a_broker_tells_listens(start_broker, namesrv, connect, monkeypatch):
    register, headers = namesrv.routes.register, []
    monkeypatch.setattr(namesrv.routes, "register", lambda header, *rest, **more: headers.append(header) or register(header, *rest, **more))
    broker = await start_broker(namesrv=(namesrv.address,))
    ask = await connect(broker)
    told = [header.broker_addr for header in headers] + [header.ha_server_addr for header in headers]
    settings = dict(line.split("=", 1) for line in bytes((await ask(26)).body).decode().splitlines())
    runtime = loads((await ask(28)).body)["table"]
    told += [f"{settings['brokerIP1']}:{value}" for name, value in settings.items() if name.lower().endswith("port")]
    told += [value for value in (*settings.values(), *runtime.values()) if re.fullmatch(r"[\w.]+:\d+", value)]
    assert broker.address in told
    for address in {*told} - {""}:
        host, port = parse_address(address)
        _, writer = await asyncio.open_connection(host, port)
        writer.close()


async def test_a_created_topic_is_routed_when_the_answer_comes(start_broker, namesrv, connect):
    ask = await connect(await start_broker(namesrv=(namesrv.address,)))
    assert (await ask(17, create_topic("orders"))).code == 0
    assert queues_at(namesrv, "orders") == {"broker-a": 4}
    assert queues_at(namesrv, "TBW102") == {"broker-a": 8}
    assert (await ask(17, create_topic("orders", 9))).code == 0
    assert queues_at(namesrv, "orders") == {"broker-a": 9}


async def test_a_topic_that_came_to_life_is_routed_soon(start_broker, namesrv, connect):
    ask = await connect(await start_broker(namesrv=(namesrv.address,)))
    await ask.send("fresh")
    await eventually(lambda: queues_at(namesrv, "fresh") == {"broker-a": 4})


async def test_a_stopped_broker_is_unregistered(start_broker, namesrv):
    broker = await start_broker(namesrv=(namesrv.address,))
    await broker.stop()
    assert namesrv.routes.topics() == []


async def test_a_killed_broker_is_missed_at_once(start_broker, namesrv):
    broker = await start_broker(namesrv=(namesrv.address,))
    await broker.abort()
    await eventually(lambda: namesrv.routes.topics() == [])


async def test_an_unreachable_nameserver_does_not_keep_a_broker_from_starting(start_broker, namesrv, caplog):
    with hold() as held:
        gone = address_of(held)
        broker = await start_broker(namesrv=(gone, namesrv.address))
    assert broker.registered == (namesrv.address,)
    assert f"cannot connect to {gone}" in caplog.text


async def test_a_nameserver_that_comes_back_learns_everything_again(start_broker, connect):
    first = NameServer(NameServerConfig(port=0))
    await first.start()
    host, port = parse_address(first.address)
    broker = await start_broker(namesrv=(first.address,))
    ask = await connect(broker)
    await ask(17, create_topic("before"))
    await first.stop()
    with hold(port):
        assert (await ask(17, create_topic("meanwhile"))).code == 0
        second = NameServer(NameServerConfig(host=host, port=port))
        await second.start()
    await eventually(lambda: queues_at(second, "meanwhile"))
    assert queues_at(second, "before") == {"broker-a": 4}
    assert queues_at(second, "TBW102") == {"broker-a": 8}
    await second.stop()


async def test_a_nameserver_that_missed_a_change_gets_it_later(start_broker, namesrv, monkeypatch):
    broker = await start_broker(namesrv=(namesrv.address,))
    connection = broker.registrar.pool.peek(namesrv.address)
    connection.abort("cut for the test")
    broker.topics.create_or_update(CreateTopic("one", 4, 4, 6))
    broker.topics.create_or_update(CreateTopic("two", 4, 4, 6))
    await eventually(lambda: queues_at(namesrv, "two") and queues_at(namesrv, "one"))
    assert queues_at(namesrv, "TBW102") == {"broker-a": 8}


async def test_the_whole_table_is_told_again_and_again(start_broker, namesrv):
    broker = await start_broker(namesrv=(namesrv.address,), register_interval_s=1.0)
    namesrv.routes.delete_topic("TBW102")
    broker.topics.bump_version()
    await eventually(lambda: queues_at(namesrv, "TBW102"))


async def test_two_brokers_serve_one_cluster(start_broker, namesrv, connect):
    for name in ("broker-a", "broker-b"):
        ask = await connect(await start_broker(name, namesrv=(namesrv.address,), broker_name=name))
        await ask(17, create_topic("orders"))
    assert queues_at(namesrv, "orders") == {"broker-a": 4, "broker-b": 4}
    assert namesrv.routes.clusters().cluster_addr_table == {"DefaultCluster": ["broker-a", "broker-b"]}


# --- two brokers of one name --------------------------------------------------------------------------------------------


def address_at(server, name="broker-a"):
    broker = server.routes.clusters().broker_addr_table.get(name)
    return None if broker is None else broker.broker_addrs[0]


@pytest.fixture
async def register_entry(namesrv):
    """Register a broker that is only an entry in the nameserver's table."""
    pool = ConnectionPool(expected="nameserver")

    async def register(address, name="broker-a"):
        body = RegisterBrokerBody(TopicConfigTable({n: TopicConfig(topic_name=n) for n in ("t1", "t2")}, DataVersion(0, 5, 1))).encode()
        header = RegisterBroker(name, address, "DefaultCluster", "127.0.0.1:1", 0, body_crc32=crc32(body))
        answer = await (await pool.get(namesrv.address)).request(103, ext=to_ext(header), body=body, timeout_s=60)
        assert answer.code == 0
        assert address_at(namesrv, name) == address

    yield register
    await pool.close()


async def test_a_second_broker_of_one_name_does_not_start_and_the_first_keeps_its_routes(start_broker, namesrv, tmp_path):
    first = await start_broker(namesrv=(namesrv.address,))
    with pytest.raises(BrokerNameTaken) as caught:
        await start_broker("second", namesrv=(namesrv.address,))
    assert (caught.value.broker_name, caught.value.address, caught.value.nameserver) == ("broker-a", first.address, namesrv.address)
    assert "--take-over" in str(caught.value)
    assert address_at(namesrv) == first.address
    assert not (tmp_path / "second").exists()


async def test_one_of_several_nameservers_is_enough_to_know_the_name(start_broker, namesrv):
    first = await start_broker(namesrv=(namesrv.address,))
    other = NameServer(NameServerConfig(port=0))
    await other.start()
    try:
        with pytest.raises(BrokerNameTaken, match=first.address):
            await start_broker("second", namesrv=(other.address, namesrv.address))
        assert address_at(other) is None
    finally:
        await other.stop()


async def test_the_entry_of_a_dead_broker_keeps_no_other_from_starting(start_broker, namesrv, register_entry):
    with hold() as closed:
        await register_entry(address_of(closed))
        broker = await start_broker(namesrv=(namesrv.address,))
    assert address_at(namesrv) == broker.address


async def test_an_entry_whose_port_is_another_brokers_now_keeps_none_from_starting(start_broker, namesrv, register_entry):
    other = await start_broker("other", namesrv=(namesrv.address,), broker_name="broker-b")
    await register_entry(other.address)
    broker = await start_broker(namesrv=(namesrv.address,))
    assert address_at(namesrv) == broker.address


async def test_a_broker_that_takes_over_replaces_the_other_which_says_so_once_and_comes_back_after_it(start_broker, namesrv, caplog):
    old = await start_broker(namesrv=(namesrv.address,), register_interval_s=1.0)
    new = await start_broker("second", namesrv=(namesrv.address,), take_over=True, register_interval_s=1.0)
    assert address_at(namesrv) == new.address
    await eventually(lambda: old.registered == ())
    for _ in range(3):
        await old.registrar._tell(None, [namesrv.address])
    assert address_at(namesrv) == new.address
    lost = [record.getMessage() for record in caplog.records if "broker_name_taken" in record.getMessage()]
    assert len([message for message in lost if f"rival={new.address} " in message and "this one no longer registers" in message]) == 1
    await new.stop()
    await eventually(lambda: address_at(namesrv) == old.address)


async def test_of_two_brokers_of_one_name_that_start_together_one_stays(start_broker, namesrv):
    results = await asyncio.gather(*(start_broker(name, namesrv=(namesrv.address,)) for name in ("one", "two")), return_exceptions=True)
    (failure,) = [result for result in results if isinstance(result, BaseException)]
    (broker,) = [result for result in results if not isinstance(result, BaseException)]
    assert isinstance(failure, BrokerNameTaken)
    assert address_at(namesrv) == broker.address
    assert broker.registered == (namesrv.address,)


async def test_a_wildcard_host_advertises_an_address(start_broker, namesrv):
    broker = await start_broker(host="*", namesrv=(namesrv.address,))
    assert parse_address(broker.address) == (own_address("*"), broker.port)
    named = await start_broker("named", host="0.0.0.0", advertise="localhost", broker_name="named")
    assert named.address.startswith("localhost:")


# --- restart and crash --------------------------------------------------------------------------------------------------


async def test_a_restart_keeps_messages_topics_groups_and_offsets(start_broker, connect):
    broker = await start_broker()
    ask = await connect(broker)
    await ask(17, create_topic("orders"))
    await ask.send("orders", b"kept")
    await ask.heartbeat(consumers=["cg"])
    await ask(15, {"consumerGroup": "cg", "topic": "orders", "queueId": "0", "commitOffset": "1"})
    await ask.close()
    await broker.stop()
    again = await start_broker()
    other = await connect(again)
    assert await other.bodies("orders") == [b"kept"]
    assert again.topics.get("orders").write_queues == 4
    assert "cg" in again.groups
    assert again.offsets.get("cg", "orders", 0) == 1


async def test_a_crash_loses_nothing_that_was_acknowledged(start_broker, connect):
    broker = await start_broker()
    ask = await connect(broker)
    for n in range(100):
        assert (await ask.send("fresh", b"%d" % n, queue=n % 4)).code == 0
    await broker.abort()
    again = await start_broker()
    other = await connect(again)
    assert again.topics.get("fresh").write_queues == 4
    found = [body for queue in range(4) for body in await other.bodies("fresh", queue=queue, count=100)]
    assert sorted(found) == sorted(b"%d" % n for n in range(100))


async def test_a_topic_without_its_entry_is_found_by_its_messages(start_broker, connect, tmp_path):
    broker = await start_broker()
    ask = await connect(broker)
    await ask.send("fresh", b"x", queue=2)
    await broker.abort()
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / "store/config" / name).unlink(missing_ok=True)
    again = await start_broker()
    other = await connect(again)
    assert again.topics.get("fresh").read_queues == 3
    assert await other.bodies("fresh", queue=2) == [b"x"]


async def test_damaged_configuration_files_do_not_keep_a_broker_from_starting(start_broker, tmp_path):
    broker = await start_broker()
    broker.topics.create_internal("orders", 4)
    await broker.stop()
    for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
        (tmp_path / "store/config" / name).write_bytes(b'{"dataVersion":')
    again = await start_broker()
    assert "TBW102" in again.topics
    assert (tmp_path / "store/config/topics.json.damaged-1").read_bytes() == b'{"dataVersion":', "what can still be read of it is kept"


async def test_a_configuration_file_that_cannot_be_read_keeps_a_broker_from_starting(start_broker, tmp_path):
    (tmp_path / "store/config/consumerOffset.json").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"consumerOffset\.json cannot be read: Is a directory"):
        await start_broker()


async def test_any_port_means_one_whose_fast_port_is_free_as_well(start_broker, monkeypatch):
    start, offered = RemotingServer.start, []
    with hold() as taken:
        taken.listen()
        fast_port = taken.getsockname()[1]

        async def start_there(self, host, port):
            if not port and not offered:
                offered.append(port := fast_port + 2)
            return await start(self, host, port)

        monkeypatch.setattr(RemotingServer, "start", start_there)
        broker = await start_broker(fast_port_enable=True)
    assert offered
    assert broker.port not in (0, fast_port + 2)
    for port in (broker.port, broker.port - 2):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()


async def test_a_fast_port_that_is_never_free_is_named(start_broker, monkeypatch):
    start, stop, tried, stopped = RemotingServer.start, RemotingServer.stop, [], []

    async def start_there(self, host, port):
        if port:
            raise PortInUse(host, port, "Address already in use")
        tried.append(await start(self, host, port))
        return tried[-1]

    async def stop_there(self):
        stopped.append(self)
        await stop(self)

    monkeypatch.setattr(RemotingServer, "start", start_there)
    monkeypatch.setattr(RemotingServer, "stop", stop_there)
    with pytest.raises(PortInUse) as caught:
        await start_broker(fast_port_enable=True)
    assert len(tried) == server.PORT_PAIR_TRIES
    assert caught.value.port == tried[-1] - 2
    assert len(stopped) >= len(tried)


# --- starts that cannot work --------------------------------------------------------------------------------------------


async def test_two_brokers_do_not_share_a_store(start_broker, tmp_path, connect):
    broker = await start_broker()
    with pytest.raises(StoreLocked) as caught:
        await start_broker()
    assert caught.value.path == str(tmp_path / "store")
    ask = await connect(broker)
    assert (await ask.send("orders")).code == 0


async def test_a_taken_port_is_named_and_the_store_is_given_back(start_broker, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        broker = Broker(BrokerConfig(store=StoreConfig(root=tmp_path / "store"), port=port))
        with pytest.raises(PortInUse) as caught:
            await broker.start()
        assert caught.value.port == port
    await start_broker()


async def test_a_store_path_that_is_a_file_is_named(start_broker, tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreNotWritable) as caught:
        await start_broker()
    assert caught.value.path == str(tmp_path / "store")


async def test_a_machine_without_an_address_says_that_it_advertises_loopback(start_broker, monkeypatch, caplog):
    monkeypatch.setattr(server, "own_address", lambda host, peers: "127.0.0.1")
    broker = await start_broker(host="0.0.0.0")
    assert broker.address == f"127.0.0.1:{broker.port}"
    assert "other machines cannot connect" in caplog.text


async def test_a_host_that_does_not_resolve_is_named(start_broker):
    with pytest.raises(ConfigError, match=r"host 'no\.such\.host\.invalid' does not resolve"):
        await start_broker(host="no.such.host.invalid")


@pytest.mark.parametrize(
    "settings",
    [
        {"broker_name": "bad name"},
        {"cluster_name": ""},
        {"broker_id": 1},
        {"advertise": "*"},
        {"advertise": "::"},
        {"advertise": "mq:10911"},
        {"namesrv": ("nowhere",)},
        {"max_message_bytes": 0},
        {"max_message_bytes": 1 << 30},
        {"flush_interval_s": 0},
        {"register_interval_s": 300},
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, settings):
    with pytest.raises(ConfigError):
        BrokerConfig(store=StoreConfig(root=tmp_path), **settings)


async def test_a_start_is_quick(start_broker, namesrv):
    """In the time the processor works for it, which what else a machine does hardly changes."""
    spent_s = []
    for name in ("warm", "a", "b", "c"):
        began_s = time.thread_time()
        await start_broker(name, broker_name=name, namesrv=(namesrv.address,))
        spent_s.append(time.thread_time() - began_s)
    assert min(spent_s) < 0.2


async def test_stopping_twice_is_fine(start_broker):
    broker = await start_broker()
    await broker.stop()
    await broker.stop()


async def test_a_broken_handler_is_an_answer_with_words(start_broker, connect, monkeypatch):
    broker = await start_broker()
    ask = await connect(broker)
    monkeypatch.setattr(broker.store, "max_offset", lambda *_: 1 / 0)
    answer = await ask(30, {"topic": "TBW102", "queueId": "0"})
    assert (answer.code, answer.remark) == (1, "internal error: ZeroDivisionError: division by zero")
    monkeypatch.undo()
    assert (await ask(30, {"topic": "TBW102", "queueId": "0"})).code == 0


async def test_the_log_is_flushed_soon_after_a_send(start_broker, connect):
    broker = await start_broker(flush_interval_s=0.01)
    ask = await connect(broker)
    await ask.send("orders")
    await eventually(lambda: broker.unflushed_bytes == 0)
    broker.flusher.settle()
    await eventually(lambda: broker.flusher.settled_end == broker.store.commitlog_max_offset)


async def test_the_number_of_topics_is_bounded(start_broker, connect, monkeypatch):
    from sprocketmq.broker import topics

    broker = await start_broker()
    ask = await connect(broker)
    monkeypatch.setattr(topics, "MAX_TOPICS", len(broker.topics) + 1)
    assert (await ask.send("first")).code == 0
    answer = await ask.send("second")
    assert (answer.code, answer.remark) == (1, f"this broker has {len(broker.topics)} topics, its limit")
    assert (await ask(17, create_topic("second"))).code == 1
    assert (await ask(17, create_topic("first", 5))).code == 0


async def test_an_ipv6_broker_has_long_message_ids(start_broker, connect):
    broker = await start_broker()
    broker._listens_at("::1", 10911)
    ask = await connect(broker)
    answer = await ask.send("orders", b"six", queue=0)
    assert answer.ext["msgId"] == "00000000000000000000000000000001" + "00002A9F" + "0" * 16
    batch = await ask.send_batch("orders", [b"a", b"b"])
    assert [len(one) for one in batch.ext["msgId"].split(",")] == [56, 56]
    (first, *_) = decode_records((await ask.pull("orders", 0)).body)
    assert (first.store_host, first.offset_msg_id) == ("[::1]:10911", answer.ext["msgId"])


def test_everything_works_on_the_faster_event_loop_too(tmp_path):
    """uvloop is what ``serve`` runs on: its writes, back-pressure and closes differ in detail."""

    async def scenario():
        server = NameServer(NameServerConfig(port=0))
        await server.start()
        config = BrokerConfig(store=StoreConfig(root=tmp_path / "store", preallocate=False), port=0, namesrv=(server.address,))
        broker = Broker(config)
        await broker.start()
        ask = Asking(broker)
        await ask.open()
        assert (await ask(17, create_topic("orders"))).code == 0
        answers = await asyncio.gather(*(ask.request(310, ask.send_ext("orders", queue=n % 4), bytes([n]) * 200_000) for n in range(100)))
        assert {answer.code for answer in answers} == {0}
        waiting = ask.pull("orders", 25, queue=1, wait_ms=30_000)
        pulls = await asyncio.gather(*(ask.pull("orders", 0, queue=n % 4, count=100) for n in range(20)))
        assert {answer.code for answer in pulls} <= {0, 20}
        first = next(answer for answer in pulls if answer.code == 0)
        bodies = [bytes(message.body) for message in decode_records(first.body)]
        assert bodies == [bytes([body[0]]) * 200_000 for body in bodies]
        await ask.send("orders", b"woken", queue=1)
        assert [bytes(message.body) for message in decode_records((await waiting).body)] == [b"woken"]
        reader, writer = await asyncio.open_connection(*parse_address(broker.address))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        await ask.close()
        await broker.stop()
        await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
