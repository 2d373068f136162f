"""What goes wrong at the running thing: each mistake has a clear answer, harms no other connection, and loses nothing."""

import asyncio
import json
import os
import shlex
import socket
import struct
import subprocess
import sys
import threading
from itertools import count

import pytest
from tests.ports import address_of, hold

from sprocketmq import AdminClient, Message, Producer, PullConsumer, PushConsumer, sync
from sprocketmq.cli.app import main
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import (
    BatchError,
    ConnectFailed,
    FatalError,
    InvalidMessage,
    InvalidName,
    MessageTooLarge,
    NameserverUnavailable,
    NotRocketMQ,
    PortInUse,
    RetriableError,
    SprocketError,
    StoreLocked,
    TopicNotFound,
)
from sprocketmq.testing import eventually, wait_until


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as cluster:
        yield cluster


_numbers = count()


@pytest.fixture
def orders(mq):
    """A topic of the test's own."""
    name = f"orders-{next(_numbers)}"
    mq.create_topic(name)
    return name


@pytest.fixture
def batches(mq):
    """A topic of the test's own whose batches are kept whole."""
    name = f"batches-{next(_numbers)}"
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        admin.create_topic(name, queues=1, attributes={"queue.type": "BatchCQ"})
    return name


@pytest.fixture
def bystander(mq):
    """A connection that has nothing to do with the mistake, and must go on; what it sent must be there in the end."""
    topic = f"bystander-{next(_numbers)}"
    with sync.Producer("bystander", namesrv=mq.namesrv) as producer:
        producer.send(Message(topic, b"before"))
        yield
        producer.send(Message(topic, b"after"))
    assert sorted(m.body for m in mq.messages(topic, count=2)) == [b"after", b"before"]


def connect(address):
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=120)


def frame(header, body=b"", *, header_length=None):
    """Return a frame as RocketMQ draws it: total length, header length, JSON header, body."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">ii", 4 + len(text) + len(body), len(text) if header_length is None else header_length) + text + body


def asked(code, **ext):
    return {"code": code, "language": "PYTHON", "version": 501, "opaque": 7, "flag": 0, "extFields": ext, "serializeTypeCurrentRPC": "JSON"}


def answer(sock):
    """Return the header of the next response."""
    data = receive(sock, 4)
    data = receive(sock, struct.unpack(">i", data)[0])
    length = struct.unpack(">i", data[:4])[0] & 0xFFFFFF
    return json.loads(data[4 : 4 + length])


def receive(sock, count):
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        assert chunk, "the connection was closed instead of an answer"
        data += chunk
    return data


def is_closed(sock):
    """Wait for the peer to close. True also when it resets the connection."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


# --- bytes that are no protocol -------------------------------------------------------------------------------------------

JUNK = {
    "length 0": struct.pack(">i", 0),
    "length 1": struct.pack(">i", 1) + b"x",
    "length -1": struct.pack(">i", -1),
    "length 2^24+1": struct.pack(">i", (1 << 24) + 1),
    "length 2^31-1": struct.pack(">i", (1 << 31) - 1),
    "header longer than its frame": frame(asked(105, topic="orders"), header_length=10_000),
    "negative header length": frame(asked(105, topic="orders"), header_length=-1),
    "JSON that is not an object": frame(b"[1, 2, 3]"),
    "JSON that is a number": frame(b"42"),
    "not JSON": frame(b"\xff\xfe{"),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
}


@pytest.mark.parametrize("server", ["nameserver", "broker"])
@pytest.mark.parametrize("data", JUNK.values(), ids=JUNK)
def test_bytes_that_are_no_frame_end_their_own_connection_only(mq, bystander, server, data):
    with connect(mq.namesrv if server == "nameserver" else mq.brokers[0]) as sock:
        sock.sendall(data)
        assert is_closed(sock)


@pytest.mark.parametrize("server", ["nameserver", "broker"])
def test_a_frame_of_two_to_the_24th_is_within_the_limit_and_waited_for(mq, bystander, server):
    with connect(mq.namesrv if server == "nameserver" else mq.brokers[0]) as sock:
        sock.sendall(struct.pack(">i", 1 << 24) + struct.pack(">i", 50) + b"{")
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(1)


@pytest.mark.parametrize("cut", [1, 4, 7, 30])
def test_a_connection_dropped_in_mid_frame_leaves_nothing_behind(mq, orders, bystander, cut):
    whole = frame(asked(310, a="g", b=orders, e="0", g="0", h="0"), b"never stored")
    before = len(mq.messages(orders))
    with connect(mq.brokers[0]) as sock:
        sock.sendall(whole[:cut])
    assert len(mq.messages(orders)) == before


def test_an_unknown_request_code_is_answered_as_unsupported_and_the_connection_lives(mq, bystander):
    for address in (mq.namesrv, mq.brokers[0]):
        with connect(address) as sock:
            for _ in range(2):
                sock.sendall(frame(asked(9999)))
                header = answer(sock)
                assert (header["code"], header["opaque"]) == (3, 7)
                assert "9999 not supported" in header["remark"]


@pytest.mark.parametrize(
    "header",
    [
        asked(310),
        asked(310, a="g", b="orders", e="many", g="0", h="0"),
        asked(310, a="g", b="../../etc", e="0", g="0", h="0", d="8"),
        asked(11, consumerGroup="g", topic="orders", queueId="0", queueOffset="x"),
        asked(10),
    ],
    ids=["no fields", "text for a number", "a path for a topic", "text for an offset", "send without fields"],
)
def test_a_request_with_bad_fields_gets_an_error_and_the_connection_lives(mq, bystander, header):
    with connect(mq.brokers[0]) as sock:
        for _ in range(2):
            sock.sendall(frame(header, b"body"))
            found = answer(sock)
            assert found["code"] != 0
            assert found["remark"]


# --- wrong ports ----------------------------------------------------------------------------------------------------------


class Impostor:
    """Something that listens and is no RocketMQ: it says ``reply`` to whatever it hears, or hangs up."""

    def __init__(self, reply):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._reply = reply
        self._connections = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(sock)
            try:
                sock.recv(65536)
                sock.sendall(self._reply)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                continue

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)
        for sock in self._connections:
            sock.close()


WEB = b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\nContent-Length: 0\r\n\r\n"
# What an HTTP/2 server such as the gRPC proxy says first: a SETTINGS frame, then GOAWAY with PROTOCOL_ERROR.
HTTP2 = bytes.fromhex("0000060400000000000003000000640000080700000000000000000000000001")


@pytest.fixture(params=[WEB, HTTP2], ids=["a web server", "the gRPC proxy"])
def impostor(request):
    server = Impostor(request.param)
    yield server
    server.close()


@pytest.fixture
def nothing():
    """An address where nothing listens."""
    with hold() as held:
        yield address_of(held)


CLIENTS = {
    "Producer": lambda address: Producer("pg", namesrv=address),
    "PullConsumer": lambda address: PullConsumer("cg", namesrv=address),
    "PushConsumer": lambda address: PushConsumer("cg", "orders", namesrv=address),
    "AdminClient": lambda address: AdminClient(namesrv=address),
}


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
async def test_a_port_that_speaks_something_else_is_named_with_what_was_expected_there(make, impostor):
    client = make(impostor.address)
    with pytest.raises(NotRocketMQ, match=f"{impostor.address} does not speak the RocketMQ remoting protocol .* expected a nameserver"):
        await client.start()
    await client.close()


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
async def test_a_port_where_nothing_listens_is_named_with_what_was_expected_there(make, nothing):
    client = make(nothing)
    with pytest.raises(NameserverUnavailable, match=f"tried {nothing}.*expected a RocketMQ nameserver there") as failure:
        await client.start()
    assert failure.value.tried == (nothing,)
    assert isinstance(failure.value.cause, ConnectFailed)
    await client.close()


async def test_the_brokers_port_given_for_the_nameservers_is_recognised(mq):
    client = Producer("pg", namesrv=mq.brokers[0])
    with pytest.raises(FatalError, match=f"{mq.brokers[0]}.*expected a nameserver"):
        await client.start()
    await client.close()


async def test_one_wrong_address_among_several_does_no_harm(mq, nothing):
    async with Producer("pg", namesrv=f"{nothing};{mq.namesrv}") as producer:
        await producer.send(Message("orders", b"x"))


COMMANDS = {
    "produce": ("produce", "orders"),
    "consume": ("consume", "orders", "--count", "1"),
    "consume as a member": ("consume", "orders", "--group", "g", "--count", "1"),
    "topic list": ("topic", "list"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_name_a_wrong_port_in_one_line_without_a_traceback(command, impostor, capfd, monkeypatch):
    assert_command_fails_with(command, impostor.address, "does not speak the RocketMQ", capfd, monkeypatch)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_name_a_port_where_nothing_listens_in_one_line(command, nothing, capfd, monkeypatch):
    assert_command_fails_with(command, nothing, "nothing listens there", capfd, monkeypatch)


def assert_command_fails_with(command, address, words, capfd, monkeypatch):
    with open(os.devnull) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main([*command, "--namesrv", address]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("sprocketmq: ")
    assert err.count("\n") == 1
    assert address in err
    assert words in err


# --- a nameserver that goes away ------------------------------------------------------------------------------------------


async def test_without_a_nameserver_known_topics_go_on_new_ones_fail_in_bounded_time_and_recover():
    async with LocalCluster() as mq, Producer("pg", namesrv=mq.namesrv, timeout_s=30) as producer:
        await producer.send(Message("known", b"1"))
        await eventually(lambda: len(mq.messages("known")) == 1)
        mq.stop_namesrv()
        await producer.send(Message("known", b"2"))
        async with asyncio.timeout(60):
            with pytest.raises(RetriableError) as failure:
                await producer.send(Message("new", b"x"))
        assert mq.namesrv in str(failure.value)
        mq.start_namesrv()

        async def sent():
            try:
                return await producer.send(Message("new", b"y"))
            except SprocketError:
                return None

        await eventually(sent, timeout_s=60)
        assert [m.body for m in mq.messages("new")][-1:] == [b"y"]


def test_a_broker_started_before_its_nameserver_registers_when_that_comes(tmp_path):
    with hold() as reserved:
        port = reserved.getsockname()[1]
        options = ["--name", "broker-b", "--namesrv", f"127.0.0.1:{port}", "--port", "0", "--store", str(tmp_path)]
        command = [sys.executable, "-m", "sprocketmq", "broker", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
            try:
                assert broker.stdout.readline().startswith("ready ")
                # A cluster of its own whose nameserver is the one the broker looks for. Its broker has another name: were it to leave
                # under the same one, it would take the registration along, which is renewed after 30 s only.
                with LocalCluster(namesrv_port=port) as mq, sync.AdminClient(namesrv=mq.namesrv) as admin:
                    wait_until(lambda: admin.cluster().broker_addr_table.get("broker-b"), what="the registration")
            finally:
                broker.terminate()
                _, err = broker.communicate(timeout=120)
    assert broker.returncode == 0
    assert "Traceback" not in err
    assert f"127.0.0.1:{port}" in err


# --- bad messages ---------------------------------------------------------------------------------------------------------


async def test_an_unknown_topic_is_refused_when_it_may_not_be_created(bystander):
    async with LocalCluster(auto_create_topic=False) as mq, Producer("pg", namesrv=mq.namesrv) as producer:
        with pytest.raises(TopicNotFound, match="sprocketmq topic create missing"):
            await producer.send(Message("missing", b"x"))
        async with AdminClient(namesrv=mq.namesrv) as admin:
            await admin.create_topic("missing")
        await producer.send(Message("missing", b"x"))


@pytest.mark.parametrize("topic", ["", " ", "no good", "a" * 128, "tüpfel", "../etc", "a\x00b", "TRANS_CHECK_MAX_TIME_TOPIC"])
async def test_a_bad_topic_name_never_leaves_the_client(mq, bystander, topic):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        with pytest.raises(InvalidName, match="topic"):
            await producer.send(Message(topic, b"x"))
        await producer.send(Message("orders", b"x"))


@pytest.mark.parametrize("group", ["", "no good", "g" * 256, "../g"])
@pytest.mark.parametrize("make", [Producer, PullConsumer, lambda g, **k: PushConsumer(g, "orders", **k)], ids=["Producer", "Pull", "Push"])
def test_a_bad_group_name_is_refused_at_once(mq, group, make):
    with pytest.raises(InvalidName, match="group"):
        make(group, namesrv=mq.namesrv)


@pytest.mark.parametrize("tag", [" a", "a||b", "*", "a\x01b"])
async def test_a_tag_nobody_could_subscribe_to_is_refused(mq, bystander, tag):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        with pytest.raises(InvalidName, match="tag"):
            await producer.send(Message("orders", b"x", tag))


async def test_a_body_over_the_limit_is_refused_with_sizes_by_client_and_broker(mq, bystander):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        with pytest.raises(MessageTooLarge) as failure:
            await producer.send(Message("orders", bytes((4 << 20) + 1)))
        assert failure.value.limit == 4 << 20
    async with Producer("pg", namesrv=mq.namesrv, max_message_bytes=6 << 20, compression=None) as generous:
        with pytest.raises(FatalError):
            await generous.send(Message("orders", os.urandom(5 << 20)))
        await generous.send(Message("orders", b"still there"))


async def test_an_empty_body_and_a_body_of_text_are_refused(mq):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        with pytest.raises(InvalidMessage):
            await producer.send(Message("orders", b""))
    with pytest.raises(InvalidMessage, match="encode text"):
        Message("orders", "text")


async def test_an_empty_batch_and_a_batch_of_several_topics_are_refused_whole(mq, orders, bystander):
    before = len(mq.messages(orders))
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        with pytest.raises(BatchError, match="empty"):
            await producer.send_batch([])
        with pytest.raises(BatchError, match="message 1"):
            await producer.send_batch([Message(orders, b"x"), Message("invoices", b"x")])
        with pytest.raises(InvalidName, match="tag"):
            await producer.send_batch([Message(orders, b"x"), Message(orders, b"x", "a||b")])
    assert len(mq.messages(orders)) == before


# --- batches --------------------------------------------------------------------------------------------------------------


def inner(size, body_length, rest=b"", properties_length=0):
    return struct.pack(">iiiii", size, 0, 0, 0, body_length) + rest + struct.pack(">h", properties_length)


def good(body, properties=b""):
    return inner(22 + len(body) + len(properties), len(body), body, len(properties)) + properties


BROKEN_BATCHES = {
    "an inner size of 0": inner(0, 0),
    "a negative inner size": inner(-22, 0),
    "an inner size past the end": inner(1000, 1, b"x"),
    "an inner size below its own fields": inner(4, 0),
    "a body past its message": inner(23, 100, b"x"),
    "properties past their message": inner(23, 1, b"x", 32767),
    "more messages than are counted": good(b"") * 32768,
    "a good message and a broken one": good(b"x") + inner(0, 0),
    "one byte": b"x",
}


def send_raw(sock, topic, body, *, properties="", batch=True):
    ext = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": properties, "m": str(batch).lower()}
    sock.sendall(frame(asked(320 if batch else 310, **ext), body))
    return answer(sock)


@pytest.mark.parametrize("kind", ["orders", "batches"])
@pytest.mark.parametrize("body", BROKEN_BATCHES.values(), ids=BROKEN_BATCHES)
def test_a_broken_batch_is_refused_whole_and_its_connection_lives(mq, bystander, request, kind, body):
    topic = request.getfixturevalue(kind)
    before = [message.body for message in mq.messages(topic)]
    with connect(mq.brokers[0]) as sock:
        refused = send_raw(sock, topic, body, properties="UNIQ_KEY\x01B\x02")
        assert refused["code"] in (1, 13)
        assert any(words in refused["remark"] for words in ("batch entry", "a batch has"))
        assert send_raw(sock, topic, good(b"fine"), properties="UNIQ_KEY\x01B\x02")["code"] == 0
    assert sorted(message.body for message in mq.messages(topic)) == sorted([*before, b"fine"])


@pytest.mark.parametrize("kind", ["orders", "batches"])
def test_properties_with_separators_inside_are_read_as_what_they_spell(mq, bystander, request, kind):
    """Nobody can tell a separator in a value from one behind it; what matters is that readers get all messages all the same."""
    odd = (b"a\x01b\x01c\x02", b"\x02\x02\x01\x01\x02", b"no separator", b"KEYS\x01\x02\x01x\x02", b"TAGS\x01t\x02TAGS\x01u", b"\x01" * 500)
    topic, marker = request.getfixturevalue(kind), b"odd"
    with connect(mq.brokers[0]) as sock:
        body = b"".join(good(marker, properties) for properties in odd)
        assert send_raw(sock, topic, body, properties="UNIQ_KEY\x01ODD\x02KEYS\x01a\x01b\x02")["code"] == 0
        for properties in odd:
            assert send_raw(sock, topic, marker, properties=properties.decode(), batch=False)["code"] == 0
    found = [message for message in mq.messages(topic) if message.body == marker]
    assert len(found) == 2 * len(odd)
    assert [message.properties.get("a") for message in found[:3]] == ["b\x01c", None, None]
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        assert admin.query_by_unique_key(topic, "ODD") == [] or kind == "batches"


async def test_properties_with_separators_inside_never_leave_the_client(mq, bystander):
    async with Producer("pg", namesrv=mq.namesrv) as producer:
        for properties in ({"a": "x\x01y"}, {"a\x02": "x"}, {"a": "x\x02"}):
            with pytest.raises(InvalidMessage):
                await producer.send(Message("orders", b"x", properties=properties))
            with pytest.raises(InvalidMessage, match="message 1"):
                await producer.send_batch([Message("orders", b"x"), Message("orders", b"x", properties=properties)])


def test_bodies_up_to_4_mib_go_through_and_larger_ones_are_refused(mq, orders, batches, bystander):
    limit = 4 << 20
    with connect(mq.brokers[0]) as sock:
        for topic in (orders, batches):
            assert send_raw(sock, topic, bytes(limit), batch=False)["code"] == 0
            refused = send_raw(sock, topic, bytes(limit + 1), batch=False)
            assert (refused["code"], "4194304B" in refused["remark"]) == (13, True)
            whole = good(bytes(limit - 22))
            assert send_raw(sock, topic, whole, properties="UNIQ_KEY\x01LARGE\x02")["code"] == 0
            assert send_raw(sock, topic, whole + good(b""), properties="UNIQ_KEY\x01LARGE\x02")["code"] == 13
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        (large,) = admin.query_by_unique_key(batches, "LARGE")
        assert len(large.body) == limit - 22
    assert max(len(message.body) for message in mq.messages(orders)) == limit


async def test_a_subscription_to_unknown_tags_gets_nothing_and_takes_nothing_from_others(mq, batches, bystander):
    async with Producer("pg", namesrv=mq.namesrv) as producer, PullConsumer("cg", namesrv=mq.namesrv) as consumer:
        (queue,) = await consumer.queues(batches)
        start = await consumer.max_offset(queue)
        await producer.send_batch([Message(batches, b"known", tag="known") for _ in range(5)])
        nothing = await consumer.pull(queue, start, expression="unknown || neither")
        assert (nothing.messages, nothing.next_offset) == ([], start + 5)
        assert len((await consumer.pull(queue, start, expression="known || unknown")).messages) == 5


# --- questions of administrators ------------------------------------------------------------------------------------------


def about_a_topic_of_its_own(request, ext):
    """Put the name of a topic of this test where a question names its kind."""
    return ext | {"topic": request.getfixturevalue(ext["topic"])} if "topic" in ext else ext


IMPOSSIBLE_QUESTIONS = {
    "reset of a queue that is not there": (222, {"topic": "orders", "group": "TOOLS_CONSUMER", "queueId": "99", "timestamp": "0"}),
    "reset to an offset behind the end": (
        222,
        {"topic": "orders", "group": "TOOLS_CONSUMER", "queueId": "0", "offset": str(2**62), "timestamp": "0"},
    ),
    "reset without a group": (222, {"topic": "orders", "timestamp": "0", "isForce": "true"}),
    "units of a queue that is not there": (321, {"topic": "orders", "queueId": "-1", "index": "0", "count": "10"}),
    "a running member that is not there": (307, {"consumerGroup": "nobody", "clientId": "x"}),
    "a message consumed by a member that is not there": (309, {"consumerGroup": "nobody", "clientId": "x", "msgId": "x"}),
    "positions of a group that is not there": (223, {"topic": "orders", "group": "nobody"}),
    "a counter that is not kept": (315, {"statsName": "\x00", "statsKey": "@"}),
    "a key without a number of messages": (12, {"topic": "batches", "key": "k"}),
}


@pytest.mark.parametrize(("code", "ext"), IMPOSSIBLE_QUESTIONS.values(), ids=IMPOSSIBLE_QUESTIONS)
def test_impossible_questions_are_answered_with_a_reason(mq, bystander, request, code, ext):
    ext = about_a_topic_of_its_own(request, ext)
    with connect(mq.brokers[0]) as sock:
        for _ in range(2):
            sock.sendall(frame(asked(code, **({"isForce": "true"} | ext))))
            refused = answer(sock)
            assert refused["code"] != 0
            assert refused["remark"]


EXTREME_QUESTIONS = {
    "units": (321, {"topic": "orders", "queueId": "0", "index": "0", "count": str(2**31 - 1)}),
    "a negative number of units": (321, {"topic": "orders", "queueId": "0", "index": "0", "count": "-1"}),
    "a key in all of time": (
        12,
        {"topic": "batches", "key": "A" * 32, "maxNum": str(2**31 - 1), "beginTimestamp": str(-(2**63)), "endTimestamp": str(2**63 - 1)},
    ),
    "a reset to the end of time": (222, {"topic": "orders", "group": "TOOLS_CONSUMER", "timestamp": str(2**63 - 1), "isForce": "true"}),
    "a reset to before all time": (222, {"topic": "orders", "group": "TOOLS_CONSUMER", "timestamp": str(-(2**63)), "isForce": "true"}),
    "a pull of everything": (
        11,
        {"consumerGroup": "TOOLS_CONSUMER", "topic": "batches", "queueId": "0", "queueOffset": "0", "sysFlag": "4", "subscription": "*"}
        | {"maxMsgNums": str(2**31 - 1), "maxMsgBytes": str(2**31 - 1), "commitOffset": "0", "suspendTimeoutMillis": "0"},
    ),
}


@pytest.mark.parametrize(("code", "ext"), EXTREME_QUESTIONS.values(), ids=EXTREME_QUESTIONS)
def test_extreme_questions_are_answered_within_bounds(mq, bystander, request, code, ext):
    ext = about_a_topic_of_its_own(request, ext)
    with connect(mq.brokers[0]) as sock:
        assert send_raw(sock, ext["topic"], good(b"x"), properties="UNIQ_KEY\x01B\x02")["code"] == 0
        sock.sendall(frame(asked(code, **ext)))
        assert answer(sock)["code"] in (0, 22)


# --- directories and ports of servers -------------------------------------------------------------------------------------


def serve(*arguments):
    """Run `sprocketmq serve`, which is expected to fail, and return exit code, stdout and stderr."""
    command = [sys.executable, "-m", "sprocketmq", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def assert_one_clear_line(result, *words):
    code, out, err = result
    assert (code, out) == (1, "")
    assert err.startswith("sprocketmq: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_two_brokers_on_one_store_the_second_says_who_has_it_and_the_first_goes_on(tmp_path):
    with LocalCluster(tmp_path) as first:
        result = serve("--port", "0", "--namesrv-port", "0", "--store", str(tmp_path))
        assert_one_clear_line(result, f"store {tmp_path} is in use by another broker (process {os.getpid()})", "--store")
        with pytest.raises(StoreLocked):
            LocalCluster(tmp_path).start()
        with sync.Producer("pg", namesrv=first.namesrv) as producer:
            producer.send(Message("orders", b"x"))
        assert len(first.messages("orders", count=1)) == 1


def test_a_store_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        assert_one_clear_line(serve("--port", "0", "--namesrv-port", "0", "--store", str(path)), f"store {path} is not writable")


@pytest.mark.parametrize("option", ["--port", "--namesrv-port"])
def test_a_port_that_is_taken_is_named_and_nothing_is_left_behind(tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"--port": "0", "--namesrv-port": "0", option: str(port)}
        arguments = [word for pair in ports.items() for word in pair]
        assert_one_clear_line(serve(*arguments, "--store", str(tmp_path)), f"cannot listen on 127.0.0.1:{port}", "0 means any free port")
        with pytest.raises(PortInUse):
            LocalCluster(**{option.strip("-").replace("-", "_"): port}).start()
    with LocalCluster(tmp_path):
        pass  # the failed start did not keep the store


def test_a_second_serve_on_the_same_port_does_not_disturb_the_first(mq, bystander, tmp_path):
    port = mq.namesrv.partition(":")[2]
    result = serve("--namesrv-port", port, "--port", "0", "--store", str(tmp_path))
    assert_one_clear_line(result, f"cannot listen on {mq.namesrv}")


# --- stores that a broker must not, or cannot, take over ----------------------------------------------------------------


def serve_on(store, capfd):
    code = main(["serve", "--store", str(store), "--port", "0", "--namesrv-port", "0"])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    assert out == ""
    return code, err


def test_a_directory_that_is_no_store_is_refused_and_left_alone(tmp_path, capfd):
    (tmp_path / "photo.jpg").write_bytes(b"x")
    code, err = serve_on(tmp_path, capfd)
    assert code == 1
    assert "this directory holds files (photo.jpg), but no store; choose an empty directory" in err
    assert os.listdir(tmp_path) == ["photo.jpg"]


def test_a_configuration_file_of_another_shape_is_named_with_the_next_step(tmp_path, capfd):
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    path.write_text('{"topicConfigTable":{"orders":5}}')
    code, err = serve_on(tmp_path, capfd)
    assert code == 2
    assert f"{path} is not a file as brokers write it" in err
    assert f"`sprocketmq inspect {shlex.quote(str(path))}` shows it" in err


def test_a_configuration_file_that_is_damaged_is_told_of(tmp_path, caplog):
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    path.write_bytes(b"{" * 100_000)
    with LocalCluster(store=tmp_path):
        pass
    assert f"{path} is damaged and kept as {path}.damaged-1; there is no good .bak" in caplog.text
