"""What the endpoint knows of its clients, and who may call."""

import asyncio
import json

import pytest
from tests.records import stored

from sprocketmq.clock import ManualClock
from sprocketmq.errors import ConfigError, SecretFileExposed
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.protocol.command import Command
from sprocketmq.proxy import clients as module
from sprocketmq.proxy.clients import GONE_AFTER_S, Clients, Identity, answered
from sprocketmq.proxy.codes import ClientType, Code, Refused, code_of_broker
from sprocketmq.proxy.schema import MESSAGES
from sprocketmq.proxy.sending import Sender
from sprocketmq.proxy.users import read_users


def settings(kind, group="", *topics):
    one = MESSAGES["Settings"](client_type=kind)
    for topic in topics:
        if kind == ClientType.PRODUCER:
            one.publishing.topics.add().name = topic
        else:
            entry = one.subscription.subscriptions.add()
            entry.topic.name, entry.expression.type, entry.expression.expression = topic, 1, "a || b"
    if group:
        one.subscription.group.name = group
    return one


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def known(clock):
    return Clients(clock)


def put(known, name, kind, group="", *topics, user="", listens=True):
    client = known.put(Identity(name, user), settings(kind, group, *topics))
    client.commands = asyncio.Queue(2) if listens else None
    return client


async def test_brokers_are_told_the_groups_of_a_user(known):
    put(known, "c1", ClientType.PUSH_CONSUMER, "g", "t1")
    put(known, "c2", ClientType.PUSH_CONSUMER, "g", "t2")
    put(known, "c3", ClientType.SIMPLE_CONSUMER, "other", "t1", user="alice")
    put(known, "p", ClientType.PRODUCER, "", "t1")
    (group,) = known.consumer_data("")
    assert (group.group_name, [sub.topic for sub in group.subscription_data_set]) == ("g", ["t1", "t2"])
    assert group.subscription_data_set[0].tags_set == ["a", "b"]
    assert [group.group_name for group in known.consumer_data("alice")] == ["other"]


async def test_a_producer_of_the_topic_is_asked_a_different_one_each_time(known):
    one, two = (put(known, f"p{n}", ClientType.PRODUCER, "", "t") for n in range(2))
    put(known, "elsewhere", ClientType.PRODUCER, "", "u")
    put(known, "deaf", ClientType.PRODUCER, "", "t", listens=False)
    put(known, "foreign", ClientType.PRODUCER, "", "t", user="alice")
    asked = [known.producers("t", "")[0] for _ in range(4)]
    assert set(asked) == {one, two}
    assert asked[0] is not asked[1]


async def test_a_client_that_does_not_read_gets_a_bounded_number_of_commands(known):
    client = put(known, "p", ClientType.PRODUCER, "", "t")
    assert [client.tell("command") for _ in range(3)] == [True, True, False]


async def test_clients_that_are_silent_are_forgotten(known, clock, said):
    silent = put(known, "silent", ClientType.PRODUCER, "", "t", listens=False)
    put(known, "listens", ClientType.PRODUCER, "", "t")
    clock.advance(GONE_AFTER_S / 2)
    assert known.seen(silent.identity) is silent
    clock.advance(GONE_AFTER_S / 2 + 1)
    assert known.expire() == []
    clock.advance(GONE_AFTER_S)
    assert known.expire() == [silent]
    assert len(known) == 1
    assert known.seen(silent.identity) is None
    assert said("grpc_client_joined") == [f"grpc_client_joined client={name} kind=PRODUCER" for name in ("silent", "listens")]
    (line,) = said("grpc_client_left")
    assert line.startswith("grpc_client_left client=silent reason=")


async def test_the_number_of_clients_is_bounded(known, monkeypatch):
    monkeypatch.setattr(module, "MAX_CLIENTS", 2)
    for name in "ab":
        put(known, name, ClientType.PUSH_CONSUMER, "g", "t")
    put(known, "a", ClientType.PUSH_CONSUMER, "g", "t")
    with pytest.raises(Refused) as refused:
        put(known, "c", ClientType.PUSH_CONSUMER, "g", "t")
    assert refused.value.code == Code.TOO_MANY_REQUESTS


def test_an_exponential_policy_of_a_group():
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 2000, "max": 60000, "multiplier": 3}}
    told = answered(settings(ClientType.PUSH_CONSUMER, "g", "t"), SubscriptionGroupConfig("g", group_retry_policy=policy)).backoff_policy
    assert told.WhichOneof("strategy") == "exponential_backoff"
    backoff = told.exponential_backoff
    assert (backoff.initial.seconds, backoff.max.seconds, backoff.multiplier) == (2, 60, 3)


def test_broker_codes():
    assert code_of_broker(26) is Code.CONSUMER_GROUP_NOT_FOUND
    assert code_of_broker(1) is Code.INTERNAL_SERVER_ERROR


# --- users ---


def users_file(tmp_path, content, mode=0o600):
    path = tmp_path / "users.json"
    path.write_text(content)
    path.chmod(mode)
    return path


def test_users_of_a_file(tmp_path):
    path = users_file(tmp_path, json.dumps([{"access_key": "alice", "secret_key": "secret"}]))
    assert read_users(path).credentials("alice").secret_key.reveal() == "secret"


@pytest.mark.parametrize("content", ["[]", "{}", "no json", '[{"access_key": "a"}]', '[{"access_key": "", "secret_key": "s"}]'])
def test_files_without_users(tmp_path, content):
    with pytest.raises(ConfigError, match=r"users\.json"):
        read_users(users_file(tmp_path, content))


def test_a_file_that_others_may_read(tmp_path):
    with pytest.raises(SecretFileExposed):
        read_users(users_file(tmp_path, "[]", 0o644))


# --- questions of brokers ---


async def test_a_question_about_a_transaction_that_cannot_be_passed_on_is_logged(known, said):
    sender = Sender(known)
    sender.check(Command(39, ext={"tranStateTableOffset": "1", "commitLogOffset": "2"}, body=b"no record"), "")
    assert said("transaction_check_unreadable")[0].startswith("transaction_check_unreadable reason=")
    record = stored(b"half")
    question = Command(39, ext={"tranStateTableOffset": "1", "commitLogOffset": "2", "bname": "broker-a"}, body=record)
    sender.check(question, "")
    reason = '"no producer of the topic is connected"'
    assert said("transaction_check_undelivered") == [f"transaction_check_undelivered topic=t reason={reason}"]
    producer = put(known, "p", ClientType.PRODUCER, "", "t")
    sender.check(question, "")
    assert producer.commands.get_nowait().recover_orphaned_transaction_command.message.body == b"half"
    assert len(said("transaction_check_undelivered")) == 1
