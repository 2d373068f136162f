"""Clients at our own nameserver and broker with access control: users and rights that change while they work."""

import asyncio
import logging

import pytest
from consuming import take

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.server import Broker
from sprocketmq.client import AdminClient, Producer, PullConsumer, PushConsumer
from sprocketmq.client.credentials import read_credentials
from sprocketmq.errors import AuthenticationFailed, AuthorizationFailed
from sprocketmq.namesrv.server import NameServer, NameServerConfig
from sprocketmq.protocol.credentials import Credentials, Secret
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.security.config import SecurityConfig
from sprocketmq.security.directory import SecureDirectory, create
from sprocketmq.security.policies import PolicyType, policy_entry
from sprocketmq.security.user_file import change_users_file
from sprocketmq.security.users import User
from sprocketmq.storage.config import StoreConfig
from sprocketmq.testing import eventually

SECRET = "the secret of app in these tests"
APP = Credentials("app", SECRET)
QUEUE = MessageQueue("t", "broker-a", 0)


class Secured:
    """A nameserver and a broker with the files of ``sprocketmq secure init``, and an ordinary user ``app``."""

    def __init__(self, root) -> None:
        create(root / "secure", ["127.0.0.1"])
        self.files = SecureDirectory(root / "secure")
        self.add_user(SECRET)
        self.grant()
        inner = read_credentials(self.files.inner_credentials)
        self.namesrv = NameServer(NameServerConfig(port=0, security=SecurityConfig(users_file=self.files.users, inner_credentials=inner)))
        self._store = StoreConfig(root=root / "store", commitlog_segment_bytes=1 << 24, preallocate=False)
        self._inner = inner

    async def start(self) -> None:
        await self.namesrv.start()
        security = SecurityConfig(users_file=self.files.users, inner_credentials=self._inner)
        self.broker = Broker(BrokerConfig(store=self._store, port=0, namesrv=(self.namesrv.address,), security=security))
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.namesrv.stop()

    @property
    def options(self) -> dict:
        return {"namesrv": self.namesrv.address, "tls": False}

    # --- users ---

    def add_user(self, secret: str) -> None:
        change_users_file(self.files.users, lambda old: old.create_user(User("app", (Secret(secret),))))

    def grant(self) -> None:
        rights = {"Topic:t": ("Pub", "Sub", "Get"), "Group:cg": ("Sub",)}
        entries = [policy_entry(resource, actions, "Allow") for resource, actions in rights.items()]
        change_users_file(self.files.users, lambda old: old.put_entries("app", PolicyType.CUSTOM, entries))

    async def change(self, change) -> None:
        change_users_file(self.files.users, change)
        await self.reload()

    async def reload(self) -> None:
        for server in (self.namesrv, self.broker):
            await server.guard.reload_if_changed()


@pytest.fixture
async def secured(tmp_path):
    running = Secured(tmp_path)
    await running.start()
    try:
        async with AdminClient(credentials=running.files.client / "credentials.json", **running.options) as admin:
            await eventually(lambda: running.namesrv.routes.clusters().broker_addr_table)
            await admin.create_topic("t", queues=2)
        yield running
    finally:
        await running.stop()


async def test_an_ordinary_user_sends_and_consumes_what_it_may(secured):
    async with (
        Producer("pg", credentials=APP, auto_batch=True, **secured.options) as producer,
        PushConsumer("cg", "t", consume_from="first", credentials=APP, **secured.options) as consumer,
    ):
        await asyncio.gather(*(producer.send(Message("t", b"%d" % number)) for number in range(100)))
        assert len(await take(consumer, 100)) == 100
        with pytest.raises(AuthorizationFailed, match="User:app has no permission to access Topic:other"):
            await producer.send(Message("other", b"x", queue=MessageQueue("other", "broker-a", 0)))


async def test_clients_without_a_login_or_with_a_wrong_one_do_not_start(secured):
    for credentials in (None, Credentials("app", "not the secret of app at all")):
        producer = Producer("pg", credentials=credentials, **secured.options)
        with pytest.raises(AuthenticationFailed):
            await producer.start()
        await producer.close()


async def test_a_consumer_of_a_group_that_is_not_its_own_does_not_start(secured):
    consumer = PushConsumer("others", "t", credentials=APP, **secured.options)
    with pytest.raises(AuthorizationFailed, match="Group:others"):
        await consumer.start()


@pytest.mark.parametrize("how", ["user deleted", "rights revoked", "secret changed"])
async def test_a_consumer_survives_that_its_access_is_taken_and_given_back(secured, caplog, how):
    async with (
        Producer("pg", credentials=secured.files.client / "credentials.json", **secured.options) as producer,
        PushConsumer("cg", "t", consume_from="first", credentials=APP, **secured.options) as consumer,
    ):
        await producer.send(Message("t", b"before", queue=QUEUE))
        assert await take(consumer, 1) == [b"before"]
        caplog.clear()
        if how == "rights revoked":
            await secured.change(lambda old: old.delete_policies("app"))
        else:
            await secured.change(lambda old: old.delete_user("app"))
        if how == "secret changed":
            secured.add_user("quite another secret of app")
            await secured.reload()
        await producer.send(Message("t", b"meanwhile", queue=QUEUE))
        await eventually(lambda: any("refused" in queue.last_error for queue in consumer.stats().queues))
        if how != "rights revoked":
            if how == "secret changed":
                await secured.change(lambda old: old.delete_user("app"))
            secured.add_user(SECRET)
        secured.grant()
        await secured.reload()
        assert await take(consumer, 1) == [b"meanwhile"]
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR and "consumer group" in record.message]
    assert len(errors) <= 2, "one for each text of a refusal, however many queues and tries it has"
    assert errors


async def test_a_poll_says_that_access_is_gone(secured):
    async with PullConsumer("cg", consume_from="first", credentials=APP, **secured.options) as consumer:
        await consumer.assign([QUEUE])
        assert await consumer.poll(timeout_s=0) == []
        await secured.change(lambda old: old.delete_user("app"))
        with pytest.raises(AuthenticationFailed):
            await consumer.poll(timeout_s=60)


async def test_a_producer_whose_user_is_deleted_says_of_each_message_what_became_of_it(secured):
    async with Producer("pg", credentials=APP, auto_batch=True, **secured.options) as producer:
        futures = [producer.submit(Message("t", b"%d" % number, queue=QUEUE)) for number in range(500)]
        await asyncio.gather(*futures[:1])
        await secured.change(lambda old: old.delete_user("app"))
        futures += [producer.submit(Message("t", b"%d" % number, queue=QUEUE)) for number in range(500, 1000)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(refused) >= 500
    assert {type(error) for error in refused} == {AuthenticationFailed}
    async with PullConsumer("tools", credentials=secured.files.client / "credentials.json", **secured.options) as consumer:
        assert await consumer.max_offset(QUEUE) == 1000 - len(refused)
