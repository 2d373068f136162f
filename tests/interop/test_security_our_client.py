"""Our client at Apache's nameserver and broker with TLS and access control: what it may do, and how it says what it may not."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import DAY, Authority
from tests.interop import apache
from tests.interop.apache import Login
from tests.interop.ours import OurProcess
from tests.interop.secured import ADMIN, Secured
from tests.ports import LOOPBACK

from sprocketmq import AdminClient, Message, Producer, PullConsumer, PushConsumer, TlsConfig, sync
from sprocketmq.errors import AuthenticationFailed, AuthorizationFailed, NameserverUnavailable, TlsFailed
from sprocketmq.net.address import parse_address
from sprocketmq.protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from sprocketmq.testing import eventually, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

_numbers = itertools.count()


@pytest.fixture
def topic(secured_apache: Secured) -> str:
    """A topic of the test's own."""
    return secured_apache.create_topic(f"secured_{next(_numbers)}")


@pytest.fixture
def group() -> str:
    """A group of the test's own."""
    return f"secured_group_{next(_numbers)}"


@pytest.fixture
def user(secured_apache: Secured, topic: str, group: str) -> Login:
    """A user who may send to the topic, and consume from it with the group."""
    login = Login(f"user-{next(_numbers)}", "a-user-has-a-long-secret-too")
    return secured_apache.create_user(login, (f"Topic:{topic}", "Pub,Sub,Get"), (f"Group:{group}", "Sub"))


async def test_a_user_sends_in_every_way_and_consumes(secured_apache: Secured, user: Login, topic: str, group: str) -> None:
    arguments = secured_apache.client(user)
    async with Producer("secured_producer", **arguments) as producer:
        await producer.send(Message(topic, b"0", keys=["key-é"], tag="TagA"))
        await producer.send_batch([Message(topic, b"1"), Message(topic, b"2")])
        await producer.send(Message(topic, b"3" * 5000))  # compressed: the signature is over what is sent
    async with Producer("secured_batches", auto_batch=True, **arguments) as producer:
        await asyncio.gather(*(producer.send(Message(topic, b"%d" % i)) for i in range(4, 40)))

    bodies: list[bytes] = []
    async with PushConsumer(group, {topic: "*"}, consume_from="first", **arguments) as consumer:
        async for batch in consumer.batches():
            bodies += [message.body[:4] for message in batch]
            batch.ack()
            if len(bodies) >= 40:
                break
    assert sorted(bodies) == sorted([*(b"%d" % i for i in range(40) if i != 3), b"3333"])

    async with PullConsumer(group, **arguments) as reader:
        for queue in await reader.queues(topic):
            assert (await reader.committed(queue) or 0) == await reader.max_offset(queue)


def test_the_sync_face_logs_in_as_well(secured_apache: Secured, user: Login, topic: str) -> None:
    with sync.Producer("secured_producer", **secured_apache.client(user)) as producer:
        assert producer.send(Message(topic, b"x")).queue_offset == 0


async def test_an_administrator_makes_topics_groups_users_and_policies(secured_apache: Secured) -> None:
    name = f"administered_{next(_numbers)}"
    async with AdminClient(**secured_apache.client(ADMIN)) as admin:
        await admin.create_topic(name, queues=2, cluster=secured_apache.cluster)
        await admin.create_group(name, cluster=secured_apache.cluster)
        assert name in await admin.topics()
        assert name in await admin.groups()
        broker, subject = secured_apache.address, f"User:{name}"
        await admin.create_user(broker, name, "who-is-made-here-has-a-secret")
        assert await admin.user(broker, name) == UserInfo(name, None, "Normal", "enable")
        rule = PolicyEntryInfo(f"Topic:{name}", ["Pub", "Get"], [], "Allow")
        await admin.put_acl(broker, AclInfo(subject, [PolicyInfo([rule])]))
        (acl,) = await admin.acls(broker, subject=subject)
        assert [(entry.resource, entry.actions) for policy in acl.policies for entry in policy.entries] == [(rule.resource, rule.actions)]
        async with Producer(name, **secured_apache.client(Login(name, "who-is-made-here-has-a-secret"))) as producer:
            await producer.send(Message(name, b"x"))
        await admin.update_user(broker, name, status="disable")
        assert [user.user_status for user in await admin.users(broker, name)] == ["disable"]
        await admin.delete_acl(broker, subject)
        assert await admin.acl(broker, subject) is None
        await admin.delete_user(broker, name)
        assert await admin.user(broker, name) is None


def wrong_secret(servers: Secured, topic: str) -> Login:
    login = servers.create_user(Login(f"wrong-{next(_numbers)}", "the-right-secret-is-this"), (f"Topic:{topic}", "Pub,Get"))
    return Login(login.access_key, "the-wrong-secret-is-this")


def unknown(servers: Secured, topic: str) -> Login:
    return Login("nobody-has-this-name", "the-secret-of-nobody-at-all")


def disabled(servers: Secured, topic: str) -> Login:
    login = servers.create_user(Login(f"disabled-{next(_numbers)}", "a-disabled-user-has-one-too"), (f"Topic:{topic}", "Pub,Get"))
    servers.update_user(login.access_key, userStatus="disable")
    return login


@pytest.mark.parametrize("login", [wrong_secret, unknown, disabled], ids=lambda function: function.__name__)
async def test_who_cannot_prove_who_they_are_is_told_so_once(
    secured_apache: Secured, topic: str, login: Callable[[Secured, str], Login]
) -> None:
    refused = login(secured_apache, topic)
    async with Producer("secured_producer", **secured_apache.client(refused)) as producer:
        with pytest.raises(AuthenticationFailed) as raised:
            await producer.send(Message(topic, b"x"))
    assert refused.secret_key not in f"{raised.value!r} {raised.value}"
    assert raised.value.address == secured_apache.address


async def test_who_sends_no_credentials_is_told_so(secured_apache: Secured, topic: str) -> None:
    arguments = secured_apache.client(ADMIN) | {"credentials": None}
    async with Producer("secured_producer", **arguments) as producer:
        with pytest.raises(AuthenticationFailed):
            await producer.send(Message(topic, b"x"))


async def test_a_user_without_permission_is_told_what_is_missing(secured_apache: Secured, topic: str) -> None:
    login = secured_apache.create_user(Login(f"reader-{next(_numbers)}", "who-may-read-has-a-secret"), (f"Topic:{topic}", "Sub,Get"))
    async with Producer("secured_producer", **secured_apache.client(login)) as producer:
        with pytest.raises(AuthorizationFailed, match=f"Topic:{topic}"):
            await producer.send(Message(topic, b"x"))
    async with PullConsumer("not_my_group", **secured_apache.client(login)) as reader:
        queue = (await reader.queues(topic))[0]
        with pytest.raises(AuthorizationFailed, match="Group:not_my_group"):
            await reader.pull(queue, 0)


async def test_a_server_that_another_authority_has_signed_is_not_trusted(
    secured_apache: Secured, user: Login, topic: str, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "another authority")
    with pytest.raises(TlsFailed) as raised:
        async with Producer("secured_producer", **secured_apache.client(user, ca_file=stranger.ca_file)) as producer:
            await producer.send(Message(topic, b"x"))
    assert raised.value.problem == "untrusted"


async def test_the_name_of_the_host_has_to_be_in_the_certificate(secured_apache: Secured, user: Login, topic: str) -> None:
    with pytest.raises(TlsFailed) as raised:
        async with Producer("secured_producer", **secured_apache.client(user, server_name="somewhere.else")) as producer:
            await producer.send(Message(topic, b"x"))
    assert raised.value.problem == "host name"


async def test_a_certificate_that_expires_at_the_broker_is_refused_until_there_is_a_new_one(
    secured_apache: Secured, user: Login, topic: str
) -> None:
    # Apache's servers look at their certificate files twice a second.
    issue = functools.partial(secured_apache.authority.issue, secured_apache.broker, hosts=(LOOPBACK,))
    address, tls = parse_address(secured_apache.address), secured_apache.tls

    def verified() -> bool:
        with socket.create_connection(address, 30) as connection:
            try:
                with tls.wrap_socket(connection, server_hostname=address[0]):
                    return True
            except ssl.SSLCertVerificationError:
                return False

    async def send() -> None:
        async with Producer("secured_producer", **secured_apache.client(user)) as producer:
            await producer.send(Message(topic, b"x"))

    issue(begins=-2 * DAY, ends=-DAY)
    try:
        wait_until(lambda: not verified(), what="Apache's broker shows the expired certificate")
        with pytest.raises(TlsFailed) as raised:
            await send()
        assert (raised.value.problem, raised.value.address) == ("expired", secured_apache.address)
    finally:
        issue()
        wait_until(verified, what="Apache's broker shows the new certificate")
    await send()


async def test_a_consumer_whose_user_is_deleted_says_so_closes_and_loses_nothing(
    secured_apache: Secured, user: Login, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    rights = (f"Topic:{topic}", "Pub,Sub,Get"), (f"Group:{group}", "Sub")
    bodies: set[int] = set()

    async def take(consumer: PushConsumer, wanted: set[int]) -> None:
        async for batch in consumer.batches():
            bodies.update(int(message.body) for message in batch)
            batch.ack()
            if wanted <= bodies:
                return

    async with Producer("secured_admin", **secured_apache.client(ADMIN)) as producer:
        await producer.send_batch([Message(topic, b"%d" % number) for number in range(8)])
        async with asyncio.timeout(120), PushConsumer(group, {topic: "*"}, consume_from="first", **secured_apache.client(user)) as consumer:
            await take(consumer, {*range(8)})
            await asyncio.to_thread(secured_apache.delete_user, user.access_key)
            # Apache's broker answers a pull that it holds, whoever has been deleted meanwhile: it refuses the next.
            await producer.send_batch([Message(topic, b"%d" % number) for number in range(8, 16)])
            await eventually(lambda: any("is not found" in queue.last_error for queue in consumer.stats().queues))
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert any(group in error and "is not found" in error for error in errors)
        assert user.secret_key not in caplog.text
        await asyncio.to_thread(secured_apache.create_user, user, *rights)
        async with asyncio.timeout(120), PushConsumer(group, {topic: "*"}, consume_from="first", **secured_apache.client(user)) as consumer:
            await take(consumer, {*range(16)})


async def test_clear_text_to_a_tls_port_fails_by_name(secured_apache: Secured, user: Login, topic: str) -> None:
    arguments = secured_apache.client(user) | {"tls": None}
    with pytest.raises(NameserverUnavailable, match="pass tls=True"):
        async with Producer("secured_producer", **arguments) as producer:
            await producer.send(Message(topic, b"x"))


async def test_tls_to_a_port_without_it_fails_by_name(our_cluster: OurProcess) -> None:
    with pytest.raises(TlsFailed):
        async with AdminClient(namesrv=our_cluster.namesrv, tls=True) as admin:
            await admin.topics()


async def test_certificates_of_the_test_mode_are_taken_only_without_verification(
    apache_namesrv: apache.ApacheNamesrv, apache_broker: apache.ApacheBroker
) -> None:
    name = f"test_mode_{next(_numbers)}"
    with pytest.raises(TlsFailed) as raised:
        async with AdminClient(namesrv=apache_namesrv.address, tls=True) as admin:
            await admin.topics()
    assert raised.value.problem == "untrusted"
    arguments: dict[str, Any] = {"namesrv": apache_namesrv.address, "tls": TlsConfig(verify=False)}
    async with AdminClient(**arguments) as admin:
        await admin.create_topic(name, queues=1, cluster=apache_broker.cluster)
    async with Producer("test_mode_producer", **arguments) as producer:
        assert (await producer.send(Message(name, b"x"))).queue_offset == 0
