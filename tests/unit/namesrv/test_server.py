"""The nameserver over real sockets, against what Apache's answered to the same requests."""

import asyncio
import json
import zipfile
from pathlib import Path

import pytest

from sprocketmq.clock import ManualClock
from sprocketmq.errors import PortInUse
from sprocketmq.namesrv import NameServer, NameServerConfig, kvconfig
from sprocketmq.net.address import parse_address
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.bodies import DataVersion, RegisterBrokerBody, RuntimeInfo, TopicConfig, TopicConfigTable
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.frame import FrameBuffer
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.headers import RegisterBroker
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.testing import eventually

FIXTURES = Path(__file__).parents[2] / "fixtures" / "frames"
with zipfile.ZipFile(FIXTURES / "frames.zip") as archive:
    RAW = {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def namesrv(clock):
    server = NameServer(NameServerConfig(port=0), clock=clock)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def ask(namesrv):
    pool = ConnectionPool(expected="nameserver")

    async def ask(code, ext=None, body=b""):
        conn = await pool.get(namesrv.address)
        return await conn.request(code, ext=ext or {}, body=body, timeout_s=60)

    ask.pool = pool
    yield ask
    await pool.close()


def recorded(name, side):
    (command,) = FrameBuffer().feed(RAW[f"{name}.{side}.bin"])
    return command


async def replay(namesrv, name):
    """Send a recorded request frame as it is; return the answer, or None when the request is one-way."""
    reader, writer = await asyncio.open_connection(*parse_address(namesrv.address))
    writer.write(RAW[f"{name}.request.bin"])
    head = await asyncio.wait_for(reader.readexactly(4), 60)
    rest = await reader.readexactly(int.from_bytes(head, "big"))
    (command,) = FrameBuffer().feed(head + rest)
    writer.close()
    await writer.wait_closed()
    return command


def registration(topics, *, version=0, address="127.0.0.1:27911", **header):
    body = RegisterBrokerBody(
        TopicConfigTable({name: TopicConfig(topic_name=name) for name in topics}, DataVersion(0, 5, version))
    ).encode()
    fields = {"broker_name": "broker-a", "cluster_name": "DefaultCluster", "ha_server_addr": "127.0.0.1:1", "broker_id": 0, **header}
    return to_ext(RegisterBroker(broker_addr=address, **{"body_crc32": crc32(body), **fields})), body


async def test_the_recorded_broker_registers_and_its_routes_read_like_the_recorded_ones(ask, namesrv):
    for kind in ("json", "bin"):
        request = recorded(f"register-broker.{kind}", "request")
        answer = await ask(103, request.ext, request.body)
        expected = recorded(f"register-broker.{kind}", "response")
        assert (answer.code, answer.ext, answer.body) == (expected.code, expected.ext, bytes(expected.body))
    increment = recorded("register-topic-increment.json", "request")
    assert (await ask(103, increment.ext, increment.body)).code == 0
    for name in ("route.json", "route.bin", "route-default-topic.json"):
        answer, expected = await replay(namesrv, name), recorded(name, "response")
        assert (answer.code, answer.opaque) == (0, expected.opaque)
        assert json.loads(bytes(answer.body)) == json.loads(bytes(expected.body))
    answer, expected = await replay(namesrv, "cluster-info.json"), recorded("cluster-info.json", "response")
    assert loads(bytes(answer.body)) == loads(bytes(expected.body))
    assert b'{0:"127.0.0.1:27911"}' in bytes(answer.body)
    for name in ("topic-list-namesrv.json", "topics-by-cluster.bin", "system-topics-namesrv.json", "wipe-write-perm.json"):
        answer, expected = await replay(namesrv, name), recorded(name, "response")
        assert answer.code == 0
        assert answer.ext.keys() == expected.ext.keys()
        if expected.body:
            assert json.loads(bytes(answer.body)).keys() == json.loads(bytes(expected.body)).keys()


ANSWERED_ALIKE = [
    *("route-missing", "kv-get-missing", "unknown-code", "kv-put", "kv-delete", "delete-topic-namesrv", "unregister-broker"),
]


@pytest.mark.parametrize(
    "name", [f"{name}.{kind}" for name in ANSWERED_ALIKE for kind in ("json", "bin") if f"{name}.{kind}.request.bin" in RAW]
)
async def test_recorded_requests_are_answered_alike(namesrv, name):
    answer, expected = await replay(namesrv, name), recorded(name, "response")
    assert (answer.code, answer.opaque, answer.ext, answer.remark) == (expected.code, expected.opaque, expected.ext, expected.remark)
    assert bytes(answer.body) == bytes(expected.body)


async def test_a_slave_is_told_its_master(ask):
    ext, body = registration(["a", "b"])
    await ask(103, ext, body)
    slave, body = registration(["a", "b"], address="127.0.0.1:27921", broker_id=1)
    answer = await ask(103, slave, body)
    assert answer.ext == {"masterAddr": "127.0.0.1:27911", "haServerAddr": "127.0.0.1:1"}


async def test_a_compressed_registration_is_understood(ask, namesrv):
    import struct
    import zlib

    def piece(text):
        return struct.pack(">i", len(text)) + text

    raw = piece(b'{"counter":3,"stateVersion":0,"timestamp":7}') + struct.pack(">i", 2)
    raw += piece(b"orders 4 4 6 SINGLE_TAG {}") + piece(b"bills 8 8 6 SINGLE_TAG {}") + piece(b"[]") + struct.pack(">i", 0)
    body = zlib.compress(raw, 9)
    ext, _ = registration([], compressed=True)
    ext["bodyCrc32"] = str(crc32(body))
    assert (await ask(103, ext, body)).code == 0
    assert sorted(namesrv.routes.topics()) == ["bills", "orders"]


async def test_a_damaged_registration_changes_nothing(ask, namesrv):
    ext, body = registration(["a", "b"])
    answer = await ask(103, ext, body[:-1] + b"!")
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    answer = await ask(103, {**ext, "bodyCrc32": "0"}, b"{")
    assert answer.code == 1
    answer = await ask(103, {**ext, "bodyCrc32": "0", "compressed": "true"}, b"no zlib")
    assert answer.code == 1
    answer = await ask(103, {"brokerName": "x"}, body)
    assert answer.code == 1
    assert "brokerAddr" in answer.remark
    assert namesrv.routes.topics() == []


async def test_a_broker_disappears_with_its_connection(ask, namesrv):
    ext, body = registration(["a", "b"])
    await ask(103, ext, body)
    assert (await ask(105, {"topic": "a"})).code == 0
    ask.pool.drop(namesrv.address)
    assert (await ask(105, {"topic": "a"})).code == 17


async def test_a_silent_broker_is_dropped_after_two_minutes(ask, namesrv, clock, said):
    ext, body = registration(["a", "b"])
    await ask(103, ext, body)
    clock.advance(119)
    namesrv.expire_brokers()
    assert namesrv.routes.topics()
    identity = {k: ext[k] for k in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
    assert (await ask(904, identity)).code == 0
    clock.advance(119)
    namesrv.expire_brokers()
    assert namesrv.routes.topics()
    assert (await ask(322, identity, DataVersion(0, 5, 0).encode())).ext == {"changed": "false"}
    clock.advance(121)
    namesrv.expire_brokers()
    assert namesrv.routes.topics() == []
    assert said("broker_expired") == [f"broker_expired broker=broker-a address={ext['brokerAddr']} silent_s=120"]


async def test_data_versions_are_compared(ask):
    ext, body = registration(["a", "b"], version=3)
    identity = {k: ext[k] for k in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
    unknown = await ask(322, identity, DataVersion(0, 5, 3).encode())
    assert (unknown.ext, unknown.body) == ({"changed": "true"}, b"")
    await ask(103, ext, body)
    same = await ask(322, identity, DataVersion(0, 5, 3).encode())
    assert same.ext == {"changed": "false"}
    assert DataVersion.decode(same.body) == DataVersion(0, 5, 3)
    assert (await ask(322, identity, DataVersion(0, 5, 4).encode())).ext == {"changed": "true"}


async def test_old_clients_get_bare_keys_unless_they_ask_for_standard_json(ask, namesrv):
    from sprocketmq.protocol.command import Command, encode_command

    ext, body = registration(["a", "b"])
    await ask(103, ext, body)

    async def route(**extra):
        reader, writer = await asyncio.open_connection(*parse_address(namesrv.address))
        writer.write(encode_command(Command(105, version=399, ext={"topic": "a", **extra})))
        head = await asyncio.wait_for(reader.readexactly(4), 60)
        (command,) = FrameBuffer().feed(head + await reader.readexactly(int.from_bytes(head, "big")))
        writer.close()
        await writer.wait_closed()
        return bytes(command.body)

    assert b'"brokerAddrs":{0:"127.0.0.1:27911"}' in await route()
    assert b'"brokerAddrs":{"0":"127.0.0.1:27911"}' in await route(acceptStandardJsonOnly="true")


async def test_standard_routes_are_ascii(ask):
    ext, body = registration(["a", "b"], cluster_name="Größe")
    await ask(103, ext, body)
    answer = await ask(105, {"topic": "a"})
    assert answer.body.isascii()
    assert json.loads(answer.body)["brokerDatas"][0]["cluster"] == "Größe"


async def test_member_groups_read_like_the_reference(ask):
    ext, body = registration(["a", "b"])
    await ask(103, ext, body)
    answer = await ask(901, {"clusterName": "DefaultCluster", "brokerName": "broker-a"})
    assert answer.body == b'{"brokerMemberGroup":{"brokerAddrs":{0:"127.0.0.1:27911"},"brokerName":"broker-a","cluster":"DefaultCluster"}}'
    answer = await ask(901, {"clusterName": "c", "brokerName": "ghost"})
    assert loads(answer.body)["brokerMemberGroup"]["brokerAddrs"] == {}


async def test_key_value_configuration(ask, said):
    item = {"namespace": "n", "key": "k"}
    assert (await ask(100, {**item, "value": "v"})).code == 0
    assert (await ask(101, item)).ext == {"value": "v"}
    assert json.loads((await ask(219, {"namespace": "n"})).body) == {"table": {"k": "v"}}
    assert (await ask(102, item)).code == 0
    missing = await ask(101, item)
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: k")
    (changed,), (deleted,) = said("kv_changed"), said("kv_deleted")
    assert changed.startswith("kv_changed namespace=n key=k peer=127.0.0.1:")
    assert deleted.startswith("kv_deleted namespace=n key=k peer=127.0.0.1:")
    assert (await ask(219, {"namespace": "n"})).remark == "No config item, Namespace: n"


async def test_order_topics_travel_with_registrations(ask):
    await ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:4"})
    ext, body = registration(["a", "b"])
    assert json.loads((await ask(103, ext, body)).body) == {"table": {"orders": "broker-a:4"}}


async def test_topics_registered_and_deleted_by_tools(ask, said):
    ext, body = registration(["a", "b"])
    await ask(103, ext, body)
    route = b'{"brokerDatas":[],"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":2,"writeQueueNums":2}]}'
    assert (await ask(217, {"topic": "made"}, route)).code == 0
    assert (await ask(105, {"topic": "made"})).code == 0
    assert (await ask(216, {"topic": "made"})).code == 0
    assert (await ask(105, {"topic": "made"})).code == 17
    assert said("route_deleted")[0].startswith("route_deleted topic=made peer=127.0.0.1:")


async def test_the_configuration_is_text(ask, namesrv):
    text = (await ask(319)).body.decode()
    assert f"listenPort={namesrv.address.rpartition(':')[2]}\n" in text


async def test_a_taken_port_is_an_error_that_names_it(namesrv):
    host, port = parse_address(namesrv.address)
    with pytest.raises(PortInUse):
        await NameServer(NameServerConfig(host=host, port=port)).start()


async def test_stopping_twice_is_fine(clock):
    server = NameServer(NameServerConfig(port=0), clock=clock)
    await server.start()
    await server.stop()
    await server.stop()


async def test_one_topic_of_an_unknown_broker_is_refused(ask):
    ext, body = registration(["only"])
    answer = await ask(103, ext, body)
    assert (answer.code, answer.remark) == (1, "register broker failed")


async def test_configuration_items_are_bounded(ask, monkeypatch):
    monkeypatch.setattr(kvconfig, "MAX_ITEMS", 1)
    assert (await ask(100, {"namespace": "n", "key": "a", "value": "1"})).code == 0
    assert (await ask(100, {"namespace": "n", "key": "a", "value": "2"})).code == 0
    assert (await ask(100, {"namespace": "m", "key": "b", "value": "1"})).code == 1


async def test_write_permission_over_the_wire(ask, said):
    ext, body = registration(["a", "b"])
    await ask(103, ext, body)
    assert (await ask(205, {"brokerName": "broker-a"})).ext == {"wipeTopicCount": "2"}
    assert json.loads((await ask(105, {"topic": "a"})).body)["queueDatas"][0]["perm"] == 4
    assert (await ask(327, {"brokerName": "broker-a"})).ext == {"addTopicCount": "2"}
    assert json.loads((await ask(105, {"topic": "a"})).body)["queueDatas"][0]["perm"] == 6
    (removed,), (added,) = said("write_permission_removed"), said("write_permission_added")
    assert removed.startswith("write_permission_removed broker=broker-a topics=2 peer=127.0.0.1:")
    assert added.startswith("write_permission_added broker=broker-a topics=2 peer=127.0.0.1:")


async def test_bad_connections_are_counted_in_the_runtime_statistics(namesrv, ask):
    reader, writer = await asyncio.open_connection(*parse_address(namesrv.address))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    table = RuntimeInfo.decode((await ask(28)).body).table
    assert (table["brokenConnections"], table["refusedConnections"], table["failedRequests"]) == ("1", "0", "0")


async def test_a_broker_that_comes_and_goes_is_logged_once_in_a_while(namesrv, caplog):
    for _ in range(5):
        pool = ConnectionPool(expected="nameserver")
        ext, body = registration(["t1", "t2"])
        answer = await (await pool.get(namesrv.address)).request(103, ext=ext, body=body, timeout_s=60)
        assert answer.code == 0
        await pool.close()
        await eventually(lambda: not namesrv.routes.clusters().broker_addr_table)
    assert len([record for record in caplog.records if record.event == "broker_gone"]) == 1
