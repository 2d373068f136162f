"""A secured cluster: brokers that register and follow by their inner credentials, clients with the rights of their users, strangers."""

import asyncio
import contextlib

import pytest
from pairs import caught_up, follows
from tests.waiting import stays

from sprocketmq import Message, Producer, PushConsumer
from sprocketmq.broker.replication.follower import FollowerState
from sprocketmq.broker.replication.roles import Role
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import AuthenticationFailed, AuthorizationFailed
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.credentials import Credentials, Secret
from sprocketmq.protocol.headers import KvConfig, RegisterBroker, TopicRequest
from sprocketmq.security.config import SecurityConfig
from sprocketmq.security.guard import CHECK_FAILED
from sprocketmq.security.policies import PolicyType, policy_entry
from sprocketmq.security.tables import AccessTables
from sprocketmq.security.user_file import change_users_file, create_users_file
from sprocketmq.security.users import User, UserType
from sprocketmq.testing import eventually

INNER = Credentials("inner", "the secret that brokers share")
ADMIN = Credentials("admin", "the secret of the admin here")
APP = Credentials("app", "the secret of an application")
SECOND = Credentials("second", "the secret of another application")


@pytest.fixture
def users_file(tmp_path):
    tables = AccessTables().create_user(User("admin", (ADMIN.secret_key,), UserType.SUPER)).create_user(User("app", (APP.secret_key,)))
    entries = [policy_entry("Topic:orders", ["Pub", "Sub", "Get"], "Allow"), policy_entry("Group:g", ["Sub"], "Allow")]
    create_users_file(tmp_path / "users.json", tables.put_entries("app", PolicyType.CUSTOM, entries))
    return tmp_path / "users.json"


@pytest.fixture
def security(users_file):
    return SecurityConfig(users_file=users_file, inner_credentials=INNER)


@pytest.fixture
async def namesrv(security):
    server = NameServer(NameServerConfig(port=0, security=security))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def ask():
    """Send one request to an address, signed by a user or by nobody."""
    pools = []

    async def ask(address, code, ext=None, body=b"", *, user=ADMIN):
        pool = ConnectionPool(expected="server", credentials=user)
        pools.append(pool)
        conn = await pool.get(address)
        return await conn.request(code, ext=ext or {}, body=body, timeout_s=60)

    yield ask
    for pool in pools:
        await pool.close()


async def master_and_slave(start_broker, namesrv, secured, **slaves):
    found = {"namesrv": (namesrv.address,), "clock": SYSTEM_CLOCK, "security": secured}
    master = await start_broker("master", ha_port=0, **found)
    master.topics.create_internal("orders", 1)
    await master.registrar.register()
    slave = await start_broker("slave", **{**found, "role": Role.SLAVE, "broker_id": 1, **slaves})
    return master, slave


async def test_brokers_replicate_and_are_promoted_by_their_inner_credentials(start_broker, namesrv, security, ask):
    master, slave = await master_and_slave(start_broker, namesrv, security)
    await eventually(lambda: follows(slave))
    async with Producer("p", namesrv=namesrv.address, credentials=APP) as producer:
        await producer.send(Message("orders", b"before"))
    await eventually(lambda: caught_up(master, slave))
    promotion = {"masterAddress": slave.address, "masterEpoch": "1000"}
    assert (await ask(slave.address, 1008, promotion, user=None)).remark == CHECK_FAILED
    assert (await ask(slave.address, 1008, promotion, user=APP)).code == 16
    assert (await ask(slave.address, 1008, promotion)).code == 0
    # The new master tells the former one, which needs the right to do so.
    await eventually(lambda: master.role.is_slave and follows(master))
    assert namesrv.routes.broker("broker-a").broker_addrs == {0: slave.address, 1: master.address}


async def test_a_slave_with_other_inner_credentials_gets_nothing(start_broker, namesrv, security, tmp_path):
    other = SecurityConfig(users_file=security.users_file, inner_credentials=Credentials("inner", "another secret that brokers share"))
    master, slave = await master_and_slave(start_broker, namesrv, security, security=other)
    await stays(lambda: not follows(slave) and slave.replication.metadata.synced == 0)
    assert master.replication.slaves == []
    assert slave.store.commitlog_max_offset == 0


async def test_the_secret_of_the_port_for_slaves_follows_from_the_inner_credentials(start_broker, namesrv, security):
    """A slave that knows the addresses but signs nothing: the port for slaves refuses it by itself."""
    master, slave = await master_and_slave(start_broker, namesrv, security, ha_secret="not the secret that follows")
    await eventually(lambda: slave.replication.follower is not None and slave.replication.follower.reason)
    assert slave.replication.follower.state is not FollowerState.FOLLOWING
    assert master.config.replication_secret == security.replication_secret


async def test_strangers_neither_register_nor_change_a_nameserver(namesrv, ask):
    register = to_ext(RegisterBroker("broker-x", "127.0.0.1:1", "DefaultCluster", "", 0))
    put = to_ext(KvConfig("ORDER_TOPIC_CONFIG", "orders", "broker-a:1"))
    for user, remark in ((None, CHECK_FAILED), (APP, "User:app has no permission")):
        for code, ext in ((103, register), (104, register), (100, put), (205, {"brokerName": "broker-a"}), (319, {}), (106, {}), (206, {})):
            answer = await ask(namesrv.address, code, ext, user=user)
            assert answer.code == 16, code
            assert answer.remark.startswith(remark)
    assert namesrv.routes.clusters().broker_addr_table == {}
    assert (await ask(namesrv.address, 103, register, user=INNER)).code == 0


async def test_routes_are_for_users_of_the_topic(start_broker, namesrv, security, ask):
    broker = await start_broker(namesrv=(namesrv.address,), security=security)
    for topic in ("orders", "other"):
        broker.topics.create_internal(topic, 1)
    await broker.registrar.register()
    for user, topic, code in ((APP, "orders", 0), (APP, "other", 16), (APP, "%RETRY%g", 17), (APP, "%RETRY%h", 16), (None, "orders", 16)):
        assert (await ask(namesrv.address, 105, to_ext(TopicRequest(topic)), user=user)).code == code, topic


async def test_clients_with_the_grants_of_the_guide_produce_and_consume(start_broker, namesrv, security):
    broker = await start_broker(namesrv=(namesrv.address,), security=security, clock=SYSTEM_CLOCK)
    broker.topics.create_internal("orders", 4)
    await broker.registrar.register()
    async with (
        Producer("p", namesrv=namesrv.address, credentials=APP) as producer,
        PushConsumer("g", "orders", namesrv=namesrv.address, consume_from="first", credentials=APP) as consumer,
    ):
        await producer.send_batch([Message("orders", b"%d" % number) for number in range(100)])
        found = []

        async def handle(batch):
            found.extend(message.body for message in batch)

        running = asyncio.ensure_future(consumer.run(handle))
        await eventually(lambda: len(found) == 100)
        running.cancel()
        await asyncio.wait([running])
    assert sorted(found, key=int) == [b"%d" % number for number in range(100)]


async def test_clients_without_rights_fail_with_a_clear_error(start_broker, namesrv, security):
    broker = await start_broker(namesrv=(namesrv.address,), security=security, clock=SYSTEM_CLOCK)
    broker.topics.create_internal("other", 1)
    await broker.registrar.register()
    wrong = Credentials("app", "a secret that is wrong here")
    for credentials, error in ((wrong, AuthenticationFailed), (APP, AuthorizationFailed)):
        with pytest.raises(error):
            async with Producer("p", namesrv=namesrv.address, credentials=credentials) as producer:
                await producer.send(Message("other", b"body"))
    assert broker.store.commitlog_max_offset == 0


async def test_a_nameserver_takes_over_changed_users(namesrv, users_file, ask):
    assert (await ask(namesrv.address, 105, to_ext(TopicRequest("orders")), user=APP)).code == 17
    change_users_file(users_file, lambda old: old.update_user("app", secret=Secret("another secret of the application")))
    await eventually(lambda: namesrv.guard.user("app").secrets != (APP.secret_key,))
    assert (await ask(namesrv.address, 105, to_ext(TopicRequest("orders")), user=APP)).remark == CHECK_FAILED


async def test_a_user_deleted_while_its_consumer_runs_leaves_its_messages_to_the_others(start_broker, namesrv, security, users_file):
    def second(old):
        entries = [policy_entry("Topic:orders", ["Sub", "Get"], "Allow"), policy_entry("Group:g", ["Sub"], "Allow")]
        return old.create_user(User("second", (SECOND.secret_key,))).put_entries("second", PolicyType.CUSTOM, entries)

    change_users_file(users_file, second)
    await eventually(lambda: namesrv.guard.user("second") is not None)
    broker = await start_broker(namesrv=(namesrv.address,), security=security, clock=SYSTEM_CLOCK)
    broker.topics.create_internal("orders", 4)
    await broker.registrar.register()
    found = {"app": [], "second": []}
    deleted = False
    late = []

    def reader(name):
        async def handle(batch):
            found[name].extend(message.body for message in batch)
            if deleted and name == "app":
                late.extend(message.body for message in batch if message.body != b"before")

        return handle

    async with contextlib.AsyncExitStack() as stack:
        running = []
        for credentials in (APP, SECOND):
            settings = {"namesrv": namesrv.address, "consume_from": "first", "credentials": credentials}
            consumer = await stack.enter_async_context(PushConsumer("g", "orders", **settings))
            running.append(asyncio.ensure_future(consumer.run(reader(credentials.access_key))))
        producer = await stack.enter_async_context(Producer("p", namesrv=namesrv.address, credentials=ADMIN))
        while not (found["app"] and found["second"]):
            await producer.send(Message("orders", b"before"))
        change_users_file(users_file, lambda old: old.delete_user("app"))
        await eventually(lambda: broker.guard.user("app") is None and namesrv.guard.user("app") is None)
        deleted = True
        for number in range(40):
            await producer.send(Message("orders", b"%d" % number))
        await eventually(lambda: {*found["second"]} >= {b"%d" % number for number in range(40)})
        assert late == []
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def test_a_broker_that_a_nameserver_does_not_know_says_what_to_do(start_broker, namesrv, caplog):
    await start_broker(namesrv=(namesrv.address,))
    assert "registration_lost" in caplog.text
    assert "Give broker and nameserver the same inner_credentials" in caplog.text
