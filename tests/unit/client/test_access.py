"""Clients at servers that check signatures and rights: every request is signed, refusals are loud, and access that returns is used."""

import asyncio
import logging
from collections import Counter

import pytest
from consuming import push, take
from fake_cluster import FakeCluster, FakeServer

from sprocketmq.client import AdminClient, Producer, PullConsumer
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import group_member, pull_loop
from sprocketmq.client.send.batching import Batching
from sprocketmq.clock import ManualClock
from sprocketmq.errors import AccessRefused, AuthenticationFailed, AuthorizationFailed, MaybeStoredError
from sprocketmq.net.login import ASK_AGAIN_S, Login
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.credentials import Credentials, signature
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.testing import eventually

ALICE = Credentials("alice", "the secret of alice", "token")
WRONG = Credentials("alice", "another secret")
QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)
    monkeypatch.setattr(pull_loop, "PULL_PAUSE_S", 0.001)
    monkeypatch.setattr(group_member, "REBALANCE_RETRY_S", 0.001)


class Gate:
    """Admits requests to the servers of a fake cluster that a user of ``secrets`` has signed, except those of the codes ``denied``."""

    def __init__(self, cluster: FakeCluster, *servers: FakeServer) -> None:
        self.secrets = {"alice": "the secret of alice"}
        self.denied: set[int] = set()
        self.admitted: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        for server in servers or (cluster.namesrv, *cluster.brokers):
            server.on_request = self.guarded(server.on_request)

    def guarded(self, serve):
        def on_request(conn: ServerConnection, command: Command) -> None:
            remark = self.remark(command)
            if not remark:
                self.admitted[command.code] += 1
                serve(conn, command)
                return
            self.refused[command.code] += 1
            conn.respond(command, R.NO_PERMISSION, remark=remark)

        return on_request

    def remark(self, command: Command) -> str:
        secret = self.secrets.get(command.ext.get("AccessKey", ""))
        if secret is None or signature(secret.encode(), command.ext, bytes(command.body)) != command.ext["Signature"]:
            return "check signature failed."
        if command.code in self.denied:
            return "User:alice has no permission to access Topic:t from 127.0.0.1, no matched policies."
        return ""


@pytest.fixture
def gate(cluster):
    return Gate(cluster)


def errors(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


# --- signing ------------------------------------------------------------------------------------------------------------


async def test_every_request_of_every_client_is_signed(cluster, gate):
    address = cluster.namesrv.address
    async with Producer("pg", namesrv=address, credentials=ALICE) as producer:
        for number in range(10):
            await producer.send(Message("t", b"%d" % number, tag="ä", keys=["k"], properties={"a": "\U0001f600"}, queue=QUEUE))
        await producer.send_batch([Message("t", b"in a batch", queue=QUEUE)] * 3)
    async with Producer("pg", namesrv=address, credentials=ALICE, auto_batch=True) as producer:
        await asyncio.gather(*(producer.send(Message("t", b"x" * 100, queue=QUEUE)) for _ in range(100)))
    async with push(cluster, credentials=ALICE, orderly=True) as consumer:
        assert len(await take(consumer, 113)) >= 113
    async with PullConsumer("plain", namesrv=address, credentials=ALICE) as consumer:
        assert len((await consumer.pull(QUEUE, 0, max_messages=200)).messages) == 113
        await consumer.commit(QUEUE, 5)
        await consumer.assign([QUEUE])
        assert await consumer.poll()
    async with AdminClient(namesrv=address, credentials=ALICE) as admin:
        assert await admin.max_offset(QUEUE) == 113
    assert not gate.refused
    expected = {
        *(Q.SEND_MESSAGE_V2, Q.SEND_BATCH_MESSAGE, Q.PULL_MESSAGE, Q.HEART_BEAT, Q.UNREGISTER_CLIENT, Q.UPDATE_CONSUMER_OFFSET),
        *(Q.GET_ROUTEINFO_BY_TOPIC, Q.GET_CONSUMER_LIST_BY_GROUP, Q.LOCK_BATCH_MQ, Q.UNLOCK_BATCH_MQ, Q.QUERY_CONSUMER_OFFSET),
    }
    assert expected <= set(gate.admitted)


async def test_one_way_requests_are_signed(cluster, gate, monkeypatch):
    monkeypatch.setattr(group_member, "COMMIT_S", 0.01)
    async with Producer("pg", namesrv=cluster.namesrv.address, credentials=ALICE) as producer:
        await producer.send(Message("t", b"x", queue=QUEUE))
    async with push(cluster, credentials=ALICE) as consumer:
        await take(consumer, 1)
        await cluster.broker.until(lambda: any(c.is_oneway for c in cluster.broker.seen))
    assert not gate.refused


async def test_answers_to_requests_of_brokers_are_not_signed(cluster, gate):
    async with push(cluster, credentials=ALICE):
        (conn,) = cluster.broker.groups["cg"].values()
        answer = await conn.request(Q.GET_CONSUMER_RUNNING_INFO, ext={"consumerGroup": "cg"}, timeout_s=60)
    assert "Signature" not in answer.ext
    assert "AccessKey" not in answer.ext


async def test_prepared_pulls_are_signed(cluster, gate):
    async with PullConsumer("cg", namesrv=cluster.namesrv.address, credentials=ALICE) as consumer:
        pulls = consumer.prepare_pulls(QUEUE, max_bytes=1 << 20)
        await consumer.pull(QUEUE, 0)
        future = asyncio.get_running_loop().create_future()
        assert pulls.send(future, 0, 32) == cluster.broker.address
        assert not pulls.read(await future, cluster.broker.address, 0).messages
    assert not gate.refused


async def test_nothing_is_signed_without_credentials(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x"))
    assert not any({"AccessKey", "Signature"} & set(command.ext) for command in cluster.broker.seen + cluster.namesrv.seen)


# --- a client that is refused from the start ----------------------------------------------------------------------------


@pytest.mark.parametrize("credentials", [WRONG, Credentials("nobody", "the secret of alice"), None], ids=["secret", "user", "none"])
@pytest.mark.parametrize(
    "make",
    [
        lambda **options: Producer("pg", **options),
        lambda **options: PullConsumer("cg", **options),
        AdminClient,
    ],
)
async def test_a_nameserver_that_refuses_the_login_ends_the_start(cluster, gate, make, credentials):
    client = make(namesrv=cluster.namesrv.address, credentials=credentials)
    with pytest.raises(AuthenticationFailed, match=f"{cluster.namesrv.address} refused.*pass credentials=") as raised:
        await client.start()
    assert raised.value.code == R.NO_PERMISSION
    assert "secret of" not in str(raised.value)
    await client.close()


@pytest.mark.parametrize("batching", [None, Batching()], ids=["single", "AutoBatch"])
async def test_a_refused_send_fails_at_once_and_is_tried_nowhere_else(two_brokers, batching):
    gate = Gate(two_brokers, *two_brokers.brokers)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, credentials=WRONG, batching=batching) as producer:
        sends = await asyncio.gather(*(producer.send(Message("t", b"x", queue=QUEUE)) for _ in range(20)), return_exceptions=True)
        assert [type(error) for error in sends] == [AuthenticationFailed] * 20
        assert len({id(error) for error in sends}) == 20, "each message has an error of its own"
        with pytest.raises(AuthenticationFailed):
            await producer.send_batch([Message("t", b"x")] * 3)
    assert gate.refused[Q.SEND_MESSAGE_V2] + gate.refused[Q.SEND_BATCH_MESSAGE] == (21 if batching is None else 2)


async def test_a_send_without_the_right_fails_at_once(two_brokers):
    gate = Gate(two_brokers)
    gate.denied = {Q.SEND_MESSAGE_V2}
    async with Producer("pg", namesrv=two_brokers.namesrv.address, credentials=ALICE) as producer:
        with pytest.raises(AuthorizationFailed, match=r"no permission to access Topic:t.*sprocketmq acl grant"):
            await producer.send(Message("t", b"x"))
    assert gate.refused == {Q.SEND_MESSAGE_V2: 1}


async def test_a_send_that_was_lost_before_it_was_refused_may_be_stored(two_brokers):
    """The refusal of the second try says nothing about the first one."""
    gate = Gate(two_brokers)
    for broker in two_brokers.brokers:
        broker.script(Q.SEND_MESSAGE_V2, lambda conn, command: (gate.secrets.clear(), conn.abort("scripted")))
    async with Producer("pg", namesrv=two_brokers.namesrv.address, credentials=ALICE) as producer:
        with pytest.raises(MaybeStoredError) as raised:
            await producer.send(Message("t", b"x"))
        assert isinstance(raised.value.__cause__, AuthenticationFailed)


async def test_a_consumer_that_a_broker_refuses_does_not_start(cluster, caplog):
    Gate(cluster, cluster.broker)
    with pytest.raises(AuthenticationFailed, match="check signature failed"):
        async with push(cluster, credentials=WRONG):
            pass
    assert len(errors(caplog)) == 1
    async with PullConsumer("cg", namesrv=cluster.namesrv.address, credentials=WRONG) as consumer:
        with pytest.raises(AuthenticationFailed):
            await consumer.subscribe("t")
        with pytest.raises(AuthenticationFailed):
            await consumer.pull(QUEUE, 0)


async def test_a_consumer_that_was_refused_may_subscribe_again(cluster):
    gate = Gate(cluster, cluster.broker)
    gate.denied = {Q.HEART_BEAT}
    async with PullConsumer("cg", namesrv=cluster.namesrv.address, credentials=ALICE) as consumer:
        with pytest.raises(AuthorizationFailed):
            await consumer.subscribe("t")
        gate.denied.clear()
        await consumer.subscribe("t")
        await eventually(lambda: len(consumer.assignment) == 4)


# --- a client that is refused later -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["user deleted", "right revoked"])
async def test_a_running_consumer_that_loses_access_says_so_once_and_goes_on_when_it_returns(cluster, gate, caplog, how):
    gate.denied = set()
    async with Producer("pg", namesrv=cluster.namesrv.address, credentials=ALICE) as producer:
        for _ in range(3):
            await producer.send(Message("t", b"before", queue=QUEUE))
        async with push(cluster, credentials=ALICE) as consumer:
            assert await take(consumer, 3) == [b"before"] * 3
            committed = dict(cluster.broker.offsets)
            if how == "user deleted":
                del gate.secrets["alice"]
            else:
                gate.denied = {Q.PULL_MESSAGE, Q.HEART_BEAT, Q.UPDATE_CONSUMER_OFFSET, Q.GET_CONSUMER_LIST_BY_GROUP}
            for conn, pull in cluster.broker.held:
                cluster.broker.on_request(conn, pull)  # brokers end held pulls of users who have lost their rights
            cluster.broker.held.clear()
            await eventually(lambda: gate.refused[Q.PULL_MESSAGE] > 30)
            assert len(errors(caplog)) == 1
            assert "refused" in errors(caplog)[0]
            stats = consumer.stats()
            assert any("refused" in queue.why_idle for queue in stats.queues)
            assert not stats.failure
            assert len(consumer.assignment) == 4, "its queues stay with it"
            assert cluster.broker.offsets == committed
            gate.secrets["alice"] = "the secret of alice"
            gate.denied.clear()
            await producer.send(Message("t", b"after", queue=QUEUE))
            assert await take(consumer, 1) == [b"after"]
    assert len(errors(caplog)) == 1
    assert sum("gives access again after" in message for message in caplog.messages) == 1


async def test_a_poll_raises_while_access_is_lost_and_works_when_it_returns(cluster, gate):
    async with PullConsumer("cg", namesrv=cluster.namesrv.address, credentials=ALICE, consume_from="first") as consumer:
        await consumer.assign([QUEUE])
        assert await consumer.poll(timeout_s=0) == []
        gate.denied = {Q.PULL_MESSAGE}
        for conn, pull in cluster.broker.held:
            cluster.broker.on_request(conn, pull)
        for _ in range(3):
            with pytest.raises(AuthorizationFailed, match="no permission to access Topic:t"):
                await consumer.poll(timeout_s=60)
        gate.denied.clear()
        async with Producer("pg", namesrv=cluster.namesrv.address, credentials=ALICE) as producer:
            await producer.send(Message("t", b"x", queue=QUEUE))
        found = []
        while not found:
            try:
                found = await consumer.poll(timeout_s=60)
            except AuthorizationFailed:
                continue  # of a pull before the right was given back
        assert [message.body for message in found] == [b"x"]


async def test_a_pull_after_a_refusal_commits_nothing(cluster, gate):
    """The queue may be another member's by then, which has committed a later offset."""
    async with Producer("pg", namesrv=cluster.namesrv.address, credentials=ALICE) as producer:
        await producer.send(Message("t", b"x", queue=QUEUE))
    async with push(cluster, credentials=ALICE) as consumer:
        await take(consumer, 1)
        gate.denied = {Q.PULL_MESSAGE}
        for conn, pull in cluster.broker.held:
            cluster.broker.on_request(conn, pull)
        await eventually(lambda: gate.refused[Q.PULL_MESSAGE] > 30)
        cluster.broker.offsets["cg", "t", 0] = 70
        cluster.broker.held.clear()
        gate.denied.clear()
        await eventually(lambda: len(cluster.broker.held) >= 4)
        assert cluster.broker.offsets["cg", "t", 0] == 70


# --- credentials that change --------------------------------------------------------------------------------------------


def renewing(*, clock: ManualClock | None = None) -> tuple[Login, list[Credentials]]:
    given = [WRONG]
    return Login(lambda: given[-1], clock or ManualClock()), given


def test_a_source_is_asked_again_after_a_refusal_at_most_once_a_second():
    clock = ManualClock()
    login, given = renewing(clock=clock)
    assert login.current == WRONG
    login.refused()
    given.append(ALICE)
    login.refused()
    assert login.current == WRONG
    clock.advance(ASK_AGAIN_S)
    login.refused()
    assert login.current == ALICE


def test_a_source_that_fails_leaves_the_old_credentials_and_says_nothing_secret(caplog):
    answers = [ALICE]

    def source() -> Credentials:
        if answers:
            return answers.pop()
        raise ValueError("the vault said: the secret of alice")

    login = Login(source, ManualClock())
    login.refused()
    assert login.current == ALICE
    assert "keeping the old ones: ValueError" in caplog.text
    assert "secret of alice" not in caplog.text


@pytest.mark.parametrize("batching", [None, Batching()], ids=["single", "AutoBatch"])
async def test_a_new_secret_is_used_without_an_error(cluster, gate, batching):
    given = [ALICE]
    options = {"namesrv": cluster.namesrv.address, "credentials": lambda: given[-1]}
    async with (
        Producer("pg", batching=batching, **options) as producer,
        PullConsumer("cg", **options) as consumer,
    ):
        await producer.send(Message("t", b"x", queue=QUEUE))
        gate.secrets["alice"] = "another secret"
        given.append(WRONG)
        await producer.send(Message("t", b"y", queue=QUEUE))
        assert [message.body for message in (await consumer.pull(QUEUE, 0)).messages] == [b"x", b"y"]
    # Each client asks its source at its first refusal, and signs the same request again.
    assert sum(gate.refused.values()) == 2


async def test_a_file_is_read_again(cluster, gate, tmp_path):
    path = tmp_path / "credentials.json"

    def write(secret: str) -> None:
        path.touch(0o600)
        path.write_text(f'{{"access_key": "alice", "secret_key": "{secret}"}}', encoding="utf-8")

    write("the secret of alice")
    async with Producer("pg", namesrv=cluster.namesrv.address, credentials=path) as producer:
        await producer.send(Message("t", b"x"))
        gate.secrets["alice"] = "a new secret"
        write("a new secret")
        await producer.send(Message("t", b"y"))
    assert sum(gate.refused.values()) == 1


async def test_no_error_and_no_log_line_shows_a_secret(cluster, gate, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AccessRefused) as raised:
        async with push(cluster, credentials=WRONG):
            pass
    assert "another secret" not in repr(raised.value) + repr(vars(raised.value)) + caplog.text
