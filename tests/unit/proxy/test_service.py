"""The endpoint over sockets, in front of our nameserver and broker, driven by plain gRPC calls."""

import asyncio
import hashlib
import hmac
import ssl

import grpc
import pytest
from tests.ports import address_of, hold

from sprocketmq.client import AdminClient, PullConsumer
from sprocketmq.client.consume.pull_requests import PullStatus
from sprocketmq.client.credentials import NO_SECURITY
from sprocketmq.clock import ManualClock
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import NameserverUnavailable, PortInUse
from sprocketmq.net.address import parse_address
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.proxy.codes import FILTER_SQL, ClientType, Code, MessageType, Permission
from sprocketmq.proxy.schema import MESSAGES, SERVICE, duration, timestamp
from sprocketmq.proxy.server import EndpointServer
from sprocketmq.proxy.service import SETTINGS_WITHIN_S
from sprocketmq.proxy.upstream import Upstream
from sprocketmq.proxy.users import Users
from sprocketmq.testing import eventually


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as running:
        running.create_topic("orders", queues=4)
        running.create_topic("fifo", queues=4, attributes={"message.type": "FIFO"})
        running.create_topic("kept", queues=2)
        running.create_topic("delayed", queues=2, attributes={"message.type": "DELAY"})
        yield running


class Caller:
    """A client that makes the calls a test wants."""

    def __init__(self, address, client_id="client-1", channel=None, **metadata):
        self.channel = channel or grpc.aio.insecure_channel(address)
        self.metadata = (("x-mq-client-id", client_id), *((name.replace("_", "-"), value) for name, value in metadata.items()))

    async def call(self, name, request=None, metadata=None):
        method = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES[f"{name}Response"].FromString,
        )
        return await method(request or MESSAGES[f"{name}Request"](), metadata=metadata or self.metadata, timeout=60)

    async def receive(self, request):
        method = self.channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES["ReceiveMessageResponse"].FromString,
        )
        return [answer async for answer in method(request, metadata=self.metadata, timeout=60)]

    def telemetry(self):
        method = self.channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES["TelemetryCommand"].FromString,
        )
        return method(metadata=self.metadata)

    async def settle(self, settings):
        stream = self.telemetry()
        await stream.write(MESSAGES["TelemetryCommand"](settings=settings))
        return stream, await stream.read()


@pytest.fixture
async def endpoint(mq):
    server = EndpointServer(mq.namesrv, host="127.0.0.1", port=0, security=NO_SECURITY, users=Users({}))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def caller(endpoint):
    one = Caller(endpoint.address)
    yield one
    await one.channel.close()


def message(topic, body=b"hello", **system):
    one = MESSAGES["Message"](body=body)
    one.topic.name = topic
    one.system_properties.CopyFrom(MESSAGES["SystemProperties"](**{"message_id": "id-1", **system}))
    return one


def sending(*messages):
    return MESSAGES["SendMessageRequest"](messages=messages)


def topic_request(name, topic):
    request = MESSAGES[f"{name}Request"]()
    request.topic.name = topic
    return request


def producer(*topics):
    settings = MESSAGES["Settings"](client_type=ClientType.PRODUCER)
    for topic in topics:
        settings.publishing.topics.add().name = topic
    return settings


def consumer(group, topic="orders"):
    settings = MESSAGES["Settings"](client_type=ClientType.SIMPLE_CONSUMER)
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add()
    entry.topic.name, entry.expression.type, entry.expression.expression = topic, 1, "*"
    return settings


async def stored(mq, topic):
    async with PullConsumer("looks", namesrv=mq.namesrv) as reader:
        found = []
        for queue in await reader.queues(topic):
            result = await reader.pull(queue, 0)
            if result.status is PullStatus.FOUND:
                found += result.messages
    return found


async def test_a_route_leads_to_the_endpoint(endpoint, caller):
    request = topic_request("QueryRoute", "delayed")
    address = request.endpoints.addresses.add()
    address.host, address.port, request.endpoints.scheme = "example.org", 4711, 3
    answer = await caller.call("QueryRoute", request)
    assert answer.status.code == Code.OK
    assert [(queue.id, queue.permission, queue.broker.name) for queue in answer.message_queues] == [
        (n, Permission.READ_WRITE, "broker-a") for n in range(2)
    ]
    queue = answer.message_queues[0]
    assert [(one.host, one.port) for one in queue.broker.endpoints.addresses] == [("example.org", 4711)]
    assert list(queue.accept_message_types) == [MessageType.DELAY]


async def test_an_address_that_nobody_listens_at_is_told_to_the_client_that_named_it_alone(endpoint, caller):
    with hold() as held:
        host, port = held.getsockname()
        request = topic_request("QueryRoute", "orders")
        request.endpoints.addresses.add(host=host, port=port)
        answer = await caller.call("QueryRoute", request)
        assert {(one.host, one.port) for queue in answer.message_queues for one in queue.broker.endpoints.addresses} == {(host, port)}
        assert (await caller.call("SendMessage", sending(message("orders")))).status.code == Code.OK
        other = topic_request("QueryRoute", "orders")
        other.endpoints.addresses.add(host="127.0.0.1", port=parse_address(endpoint.address)[1])
        answer = await Caller(endpoint.address, "client-2", caller.channel).call("QueryRoute", other)
        told = {(one.host, one.port) for queue in answer.message_queues for one in queue.broker.endpoints.addresses}
        assert told == {parse_address(endpoint.address)}


async def test_an_advertised_address(mq):
    server = EndpointServer(mq.namesrv, host="127.0.0.1", port=0, security=NO_SECURITY, users=Users({}), advertised="10.0.0.7:8081")
    await server.start()
    caller = Caller(server.address)
    answer = await caller.call("QueryRoute", topic_request("QueryRoute", "orders"))
    assert {(one.host, one.port) for queue in answer.message_queues for one in queue.broker.endpoints.addresses} == {("10.0.0.7", 8081)}
    await caller.channel.close()
    await server.stop()


@pytest.mark.parametrize(("topic", "code"), [("nosuch", Code.TOPIC_NOT_FOUND), ("", Code.ILLEGAL_TOPIC), ("a b", Code.ILLEGAL_TOPIC)])
async def test_routes_that_are_not_there(caller, topic, code):
    answer = await caller.call("QueryRoute", topic_request("QueryRoute", topic))
    assert (answer.status.code, bool(answer.status.message)) == (code, True)


async def test_an_assignment_for_a_group(caller):
    request = topic_request("QueryAssignment", "orders")
    request.group.name = "group-a"
    answer = await caller.call("QueryAssignment", request)
    assert [(one.message_queue.broker.name, one.message_queue.id) for one in answer.assignments] == [("broker-a", -1)]


async def test_an_assignment_for_a_group_in_order(mq, caller):
    async with AdminClient(namesrv=mq.namesrv) as admin:
        await admin.create_group("in-order", orderly=True)
    request = topic_request("QueryAssignment", "orders")
    request.group.name = "in-order"
    answer = await caller.call("QueryAssignment", request)
    assert [one.message_queue.id for one in answer.assignments] == [0, 1, 2, 3]


async def test_messages_are_stored_with_what_they_carry(mq, caller):
    messages = [message("kept", b"m%d" % n, message_id=f"sent-{n}", tag="t", keys=["a", "b"]) for n in range(3)]
    answer = await caller.call("SendMessage", sending(*messages))
    assert answer.status.code == Code.OK
    assert [entry.message_id for entry in answer.entries] == ["sent-0", "sent-1", "sent-2"]
    found = {one.msg_id: one for one in await stored(mq, "kept")}
    for n in range(3):
        one = found[f"sent-{n}"]
        assert (one.body, one.tag, one.keys) == (b"m%d" % n, "t", ["a", "b"])


async def test_a_message_group_goes_to_one_queue(mq, caller):
    for n in range(6):
        answer = await caller.call("SendMessage", sending(message("fifo", message_id=f"f-{n}", message_group="g")))
        assert answer.entries[0].offset == n


async def test_a_delivery_time(mq, caller):
    due = message("delayed", message_id="due", delivery_timestamp=timestamp(4_000_000_000_000))
    answer = await caller.call("SendMessage", sending(due))
    assert answer.status.code == Code.ILLEGAL_DELIVERY_TIME


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ((), Code.BAD_REQUEST),
        ((message("orders"), message("kept")), Code.BAD_REQUEST),
        ((message("orders", b""),), Code.MESSAGE_BODY_EMPTY),
        ((message("orders", message_id=""),), Code.ILLEGAL_MESSAGE_ID),
        ((message("orders", message_group="g"),), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ((message("fifo"),), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ((message("nosuch"),), Code.TOPIC_NOT_FOUND),
    ],
)
async def test_messages_that_cannot_be(caller, messages, code):
    assert (await caller.call("SendMessage", sending(*messages))).status.code == code


async def test_a_client_without_an_id(caller):
    answer = await caller.call("QueryRoute", topic_request("QueryRoute", "orders"), metadata=(("x-mq-client-id", " "),))
    assert answer.status.code == Code.CLIENT_ID_REQUIRED


async def test_a_client_of_a_namespace(caller):
    metadata = (("x-mq-client-id", "client-1"), ("x-mq-namespace", "tenant"))
    answer = await caller.call("QueryRoute", topic_request("QueryRoute", "orders"), metadata=metadata)
    assert (answer.status.code, "'tenant': this endpoint has no namespaces" in answer.status.message) == (Code.BAD_REQUEST, True)
    metadata = (("x-mq-client-id", "client-1"), ("x-mq-namespace", ""))
    assert (await caller.call("QueryRoute", topic_request("QueryRoute", "orders"), metadata=metadata)).status.code == Code.OK


async def test_topics_and_groups_of_a_namespace(caller):
    route = topic_request("QueryRoute", "orders")
    route.topic.resource_namespace = "tenant"
    assert (await caller.call("QueryRoute", route)).status.code == Code.ILLEGAL_TOPIC
    assignment = topic_request("QueryAssignment", "orders")
    assignment.group.name, assignment.group.resource_namespace = "g", "tenant"
    answer = await caller.call("QueryAssignment", assignment)
    assert (answer.status.code, "'tenant'" in answer.status.message) == (Code.ILLEGAL_CONSUMER_GROUP, True)
    second = message("orders", message_id="id-2")
    second.topic.resource_namespace = "tenant"
    assert (await caller.call("SendMessage", sending(message("orders"), second))).status.code == Code.BAD_REQUEST
    settings = consumer("g")
    settings.subscription.group.resource_namespace = "tenant"
    stream, answer = await caller.settle(settings)
    assert answer.status.code == Code.ILLEGAL_CONSUMER_GROUP
    stream.cancel()


async def test_a_method_that_is_not_there(caller):
    method = caller.channel.unary_unary(f"/{SERVICE}/PullMessage")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await method(b"", metadata=caller.metadata, timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


# --- settings ---


async def test_a_producer_is_told_its_settings(mq, endpoint, caller):
    stream, answer = await caller.settle(producer("orders"))
    assert answer.status.code == Code.OK
    assert answer.settings.publishing.max_body_size == 4 << 20
    assert answer.settings.publishing.validate_message_type
    assert answer.settings.backoff_policy.max_attempts == 3
    assert (await caller.call("Heartbeat")).status.code == Code.OK
    await caller.call("NotifyClientTermination")
    assert len(endpoint.service.clients) == 0
    assert await stream.read() is grpc.aio.EOF


async def test_brokers_know_the_topics_of_a_producers_newest_settings_only(endpoint, caller, monkeypatch):
    told = []
    monkeypatch.setattr(Upstream, "produces", lambda _, topic: told.append(f"+{topic}"))
    monkeypatch.setattr(Upstream, "produces_no_more", lambda _, topic: told.append(f"-{topic}"))
    stream, _ = await caller.settle(producer("orders", "bills"))
    await stream.write(MESSAGES["TelemetryCommand"](settings=producer("bills", "fees")))
    assert (await stream.read()).status.code == Code.OK
    assert told == ["+orders", "+bills", "-orders", "+bills", "+fees"]
    stream.cancel()


async def test_a_consumer_is_told_its_settings(mq, endpoint, caller):
    async with AdminClient(namesrv=mq.namesrv) as admin:
        await admin.create_group("settled", max_reconsume_times=4, orderly=True)
    stream, answer = await caller.settle(consumer("settled"))
    assert (answer.status.code, answer.settings.backoff_policy.max_attempts, answer.settings.subscription.fifo) == (Code.OK, 5, True)
    assert [one.seconds for one in answer.settings.backoff_policy.customized_backoff.next][:4] == [1, 5, 10, 30]
    assert answer.settings.subscription.receive_batch_size == 32
    stream.cancel()
    await eventually(lambda: all(client.commands is None for client in endpoint.service.clients.of_user("")))


async def test_heartbeats_without_settings(caller):
    assert (await caller.call("Heartbeat")).status.code == Code.UNRECOGNIZED_CLIENT_TYPE


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (MESSAGES["Settings"](), Code.UNRECOGNIZED_CLIENT_TYPE),
        (MESSAGES["Settings"](client_type=99), Code.UNRECOGNIZED_CLIENT_TYPE),
        (MESSAGES["Settings"](client_type=ClientType.PRODUCER), Code.BAD_REQUEST),
        (MESSAGES["Settings"](client_type=ClientType.PUSH_CONSUMER), Code.BAD_REQUEST),
        (consumer(" "), Code.ILLEGAL_CONSUMER_GROUP),
        (consumer("a b"), Code.ILLEGAL_CONSUMER_GROUP),
        (consumer("g", "a b"), Code.ILLEGAL_TOPIC),
        (producer("orders", "a b"), Code.ILLEGAL_TOPIC),
        (producer(*(f"t{n}" for n in range(1001))), Code.TOO_MANY_REQUESTS),
    ],
)
async def test_settings_that_cannot_be(caller, settings, code):
    stream, answer = await caller.settle(settings)
    assert answer.status.code == code
    stream.cancel()


async def test_a_stream_that_never_sends_settings_ends_with_the_endpoint(mq):
    server = EndpointServer(mq.namesrv, host="127.0.0.1", port=0, security=NO_SECURITY, users=Users({}))
    await server.start()
    caller = Caller(server.address)
    stream = caller.telemetry()
    await stream.wait_for_connection()
    await asyncio.wait_for(server.stop(), 60)
    with pytest.raises(grpc.aio.AioRpcError):
        while await stream.read() is not grpc.aio.EOF:
            pass
        raise grpc.aio.AioRpcError(grpc.StatusCode.OK, None, None)
    await caller.channel.close()


@pytest.mark.parametrize("refused", [False, True])
async def test_a_stream_that_brings_no_settings_in_time_is_ended(mq, monkeypatch, refused):
    monkeypatch.setattr("sprocketmq.proxy.service.EXPIRE_S", 0.02)
    clock = ManualClock()
    server = EndpointServer(mq.namesrv, host="127.0.0.1", port=0, security=NO_SECURITY, users=Users({}), clock=clock)
    await server.start()
    settled, silent = Caller(server.address, "settled"), Caller(server.address, "silent")
    kept, _ = await settled.settle(producer("orders"))
    stream, _ = await silent.settle(consumer("g", "a b")) if refused else (silent.telemetry(), None)
    await stream.initial_metadata() if refused else await stream.wait_for_connection()
    reading = asyncio.create_task(stream.read())

    def time_passes():
        clock.advance(SETTINGS_WITHIN_S)
        return reading.done()

    await eventually(time_passes)
    ended = await reading
    assert (ended.status.code, "no settings" in ended.status.message) == (Code.UNRECOGNIZED_CLIENT_TYPE, True)
    assert await stream.read() is grpc.aio.EOF
    assert not kept.done()
    for one in (settled, silent):
        await one.channel.close()
    await server.stop()


async def test_the_number_of_calls_under_way_is_bounded(mq, monkeypatch):
    monkeypatch.setattr("sprocketmq.proxy.calls.MAX_CALLS", 2)
    server = EndpointServer(mq.namesrv, host="127.0.0.1", port=0, security=NO_SECURITY, users=Users({}))
    await server.start()
    caller = Caller(server.address)
    streams = [(await caller.settle(producer("orders")))[0] for _ in range(2)]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await caller.call("QueryRoute", topic_request("QueryRoute", "orders"))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    streams[0].cancel()

    async def is_served():
        try:
            return (await caller.call("QueryRoute", topic_request("QueryRoute", "orders"))).status.code == Code.OK
        except grpc.aio.AioRpcError:
            return False

    await eventually(is_served)
    await caller.channel.close()
    await server.stop()


# --- receipts ---


async def test_forged_handles(caller):
    entry = MESSAGES["AckMessageEntry"](message_id="m", receipt_handle="forged")
    request = MESSAGES["AckMessageRequest"](entries=[entry])
    request.topic.name, request.group.name = "orders", "g"
    answer = await caller.call("AckMessage", request)
    assert (answer.status.code, answer.entries[0].status.code) == (Code.INVALID_RECEIPT_HANDLE,) * 2
    change = MESSAGES["ChangeInvisibleDurationRequest"](receipt_handle="forged", invisible_duration=duration(30))
    change.topic.name, change.group.name = "orders", "g"
    assert (await caller.call("ChangeInvisibleDuration", change)).status.code == Code.INVALID_RECEIPT_HANDLE
    dead = MESSAGES["ForwardMessageToDeadLetterQueueRequest"](receipt_handle="forged")
    dead.topic.name, dead.group.name = "orders", "g"
    assert (await caller.call("ForwardMessageToDeadLetterQueue", dead)).status.code == Code.INVALID_RECEIPT_HANDLE


async def test_transactions_and_recalls_that_cannot_be(caller):
    end = MESSAGES["EndTransactionRequest"](transaction_id="forged", resolution=1)
    end.topic.name = "orders"
    assert (await caller.call("EndTransaction", end)).status.code == Code.INVALID_TRANSACTION_ID
    end.transaction_id, end.resolution = "broker-a@1-2", 7
    assert (await caller.call("EndTransaction", end)).status.code == Code.BAD_REQUEST
    recall = MESSAGES["RecallMessageRequest"](recall_handle="forged")
    recall.topic.name = "delayed"
    assert (await caller.call("RecallMessage", recall)).status.code == Code.BAD_REQUEST
    recall.topic.name = "orders"
    assert (await caller.call("RecallMessage", recall)).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_a_call_that_cannot_wait(caller):
    request = MESSAGES["ReceiveMessageRequest"](invisible_duration=duration(1))
    request.group.name, request.message_queue.topic.name = "g", "orders"
    (answer,) = await caller.receive(request)
    assert answer.status.code == Code.ILLEGAL_INVISIBLE_TIME


async def test_a_message_that_is_given_back_at_once(caller, mq):
    """Node's push consumer asks for no invisible time when its listener fails."""
    mq.create_topic("given-back", queues=1)
    async with AdminClient(namesrv=mq.namesrv) as admin:
        await admin.create_group("again")
    request = MESSAGES["ReceiveMessageRequest"](batch_size=1, invisible_duration=duration(3600), long_polling_timeout=duration(5))
    request.group.name, request.message_queue.topic.name = "again", "given-back"
    request.filter_expression.type, request.filter_expression.expression = 1, "*"
    stream, _ = await caller.settle(consumer("again", "given-back"))
    await caller.call("SendMessage", sending(message("given-back", message_type=1)))

    async def received():
        return [answer.message for answer in await caller.receive(request) if answer.WhichOneof("content") == "message"]

    (first,) = await received()
    change = MESSAGES["ChangeInvisibleDurationRequest"](receipt_handle=first.system_properties.receipt_handle)
    change.topic.name, change.group.name = "given-back", "again"
    assert (await caller.call("ChangeInvisibleDuration", change)).status.code == Code.OK
    (again,) = await received()
    assert (again.body, again.system_properties.delivery_attempt) == (first.body, 2)
    change.receipt_handle = again.system_properties.receipt_handle
    change.invisible_duration.CopyFrom(duration(-1))
    assert (await caller.call("ChangeInvisibleDuration", change)).status.code == Code.ILLEGAL_INVISIBLE_TIME
    stream.cancel()


async def received(caller, group, topic, *, kind=1, expression="*", count=16, poll_s=5):
    """Return the messages of one pop."""
    request = MESSAGES["ReceiveMessageRequest"](batch_size=count, invisible_duration=duration(3600), long_polling_timeout=duration(poll_s))
    request.group.name, request.message_queue.topic.name = group, topic
    request.filter_expression.type, request.filter_expression.expression = kind, expression
    answers = await caller.receive(request)
    return [answer.message for answer in answers if answer.WhichOneof("content") == "message"], answers[0].status.code


async def test_an_sql_condition_chooses_messages(caller, mq):
    mq.create_topic("filtered", queues=1)
    async with AdminClient(namesrv=mq.namesrv) as admin:
        await admin.create_group("choosy")
    settings = consumer("choosy", "filtered")
    condition = "price > 10 AND region IS NOT NULL"
    entry = settings.subscription.subscriptions[0]
    entry.expression.type, entry.expression.expression = FILTER_SQL, condition
    stream, answer = await caller.settle(settings)
    assert answer.status.code == Code.OK
    for n, user in enumerate(
        ({"price": "5", "region": "a"}, {"price": "11", "region": "a"}, {"price": "99"}, {"price": "12", "region": "b"})
    ):
        one = message("filtered", b"%d" % n, message_id=f"f-{n}")
        one.user_properties.update(user)
        assert (await caller.call("SendMessage", sending(one))).status.code == Code.OK
    found, code = await received(caller, "choosy", "filtered", kind=FILTER_SQL, expression=condition)
    assert ([one.body for one in found], code) == ([b"1", b"3"], Code.OK)
    stream.cancel()


async def test_an_sql_condition_that_cannot_be_is_refused(caller, mq):
    async with AdminClient(namesrv=mq.namesrv) as admin:
        await admin.create_group("wrong")
    for expression in ("price >", "price > " * 10_000):
        assert await received(caller, "wrong", "orders", kind=FILTER_SQL, expression=expression) == ([], Code.ILLEGAL_FILTER_EXPRESSION)


async def test_priorities_from_a_send_to_a_receive(caller, mq):
    mq.create_topic("urgent", queues=4, attributes={"message.type": "PRIORITY"})
    async with AdminClient(namesrv=mq.namesrv) as admin:
        await admin.create_group("workers")
    for n, priority in enumerate((0, 3, 1, 3)):
        answer = await caller.call("SendMessage", sending(message("urgent", b"%d" % n, message_id=f"p-{n}", priority=priority)))
        assert answer.status.code == Code.OK
    assert (
        await caller.call("SendMessage", sending(message("orders", priority=1)))
    ).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    found, _ = await received(caller, "workers", "urgent")
    assert [(one.body, one.system_properties.priority) for one in found] == [(b"1", 3), (b"3", 3), (b"2", 1), (b"0", 0)]
    assert {one.system_properties.message_type for one in found} == {MessageType.PRIORITY}


# --- users, TLS ---


def signed(access_key, secret_key):
    date = "20261123T150000Z"
    signature = hmac.new(secret_key.encode(), date.encode(), hashlib.sha1).hexdigest()
    return {
        "x_mq_date_time": date,
        "authorization": f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={signature}",
    }


async def test_users_have_to_sign(mq, caplog):
    users = Users({"alice": Credentials("alice", "secret-of-alice")})
    server = EndpointServer(mq.namesrv, host="127.0.0.1", port=0, security=NO_SECURITY, users=users)
    await server.start()
    request = topic_request("QueryRoute", "orders")
    for metadata, code in (
        (signed("alice", "secret-of-alice"), Code.OK),
        (signed("alice", "wrong"), Code.UNAUTHORIZED),
        (signed("bob", "secret-of-alice"), Code.UNAUTHORIZED),
        ({}, Code.UNAUTHORIZED),
        ({"authorization": "Basic x"}, Code.UNAUTHORIZED),
    ):
        caller = Caller(server.address, **metadata)
        assert (await caller.call("QueryRoute", request)).status.code == code
        stream = caller.telemetry()
        await stream.write(MESSAGES["TelemetryCommand"](settings=producer("orders")))
        assert (await stream.read()).status.code == code
        stream.cancel()
        await caller.channel.close()
    assert "grpc_login_refused" in caplog.text
    assert "secret-of-alice" not in caplog.text
    await server.stop()


async def test_plain_and_encrypted_clients_at_one_port(endpoint):
    pem = await asyncio.to_thread(ssl.get_server_certificate, parse_address(endpoint.address))
    host = grpc.ssl_channel_credentials(pem.encode())
    encrypted = grpc.aio.secure_channel(endpoint.address, host, options=[("grpc.ssl_target_name_override", "localhost")])
    for channel in (encrypted, grpc.aio.insecure_channel(endpoint.address)):
        caller = Caller(endpoint.address, channel=channel)
        answer = await caller.call("QueryRoute", topic_request("QueryRoute", "orders"))
        assert (answer.status.code, len(answer.message_queues)) == (Code.OK, 4)
        await channel.close()


async def test_bytes_that_are_no_http_close_the_connection(endpoint):
    reader, writer = await asyncio.open_connection(*parse_address(endpoint.address))
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 10)
    await asyncio.wait_for(reader.read(), 60)
    writer.close()


async def test_a_port_that_is_taken(mq):
    with hold() as held:
        held.listen()
        port = held.getsockname()[1]
        server = EndpointServer(mq.namesrv, host="127.0.0.1", port=port, security=NO_SECURITY, users=Users({}))
        with pytest.raises(PortInUse):
            await server.start()


async def test_a_cluster_that_is_not_there():
    with hold() as held:
        server = EndpointServer(address_of(held), host="127.0.0.1", port=0, security=NO_SECURITY, users=Users({}))
        with pytest.raises(NameserverUnavailable):
            await server.start()
