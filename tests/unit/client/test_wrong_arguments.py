"""Every method of every client with arguments that cannot be: an error of ours or a TypeError, and no call that waits."""

import asyncio
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

from sprocketmq import (
    AdminClient,
    Batching,
    Credentials,
    Message,
    MessageQueue,
    Namespace,
    Producer,
    PullConsumer,
    PushConsumer,
    TlsConfig,
    TraceConfig,
    TransactionOutcome,
    TransactionProducer,
    arrow,
)
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import SprocketError
from sprocketmq.protocol.bodies import AclInfo, SubscriptionGroupConfig, TopicConfig
from sprocketmq.spark.jobs.land import plan_landing

QUEUE = MessageQueue("t", "broker-a", 0)
# What a method can take, by the name of the parameter.
GOOD: dict[str, Callable[[], Any]] = {
    "acl": lambda: AclInfo("User:u"),
    "batch": lambda: False,
    "body": lambda: b"x",
    "changes": lambda: {"flushDiskType": "ASYNC_FLUSH"},
    "client_id": lambda: "nobody",
    "epoch": lambda: 1,
    "expression": lambda: "*",
    "group": lambda: "g",
    "groups": lambda: [SubscriptionGroupConfig("g")],
    "key": lambda: "t",
    "master_address": lambda: "127.0.0.1:1",
    "max_bytes": lambda: 1000,
    "message": lambda: Message("t", b"x"),
    "messages": lambda: [Message("t", b"x")],
    "msg_id": lambda: "7F0000010000000000000000000000AA",
    "name": lambda: "TOPIC_PUT_NUMS",
    "offset": lambda: 0,
    "offset_msg_id": lambda: "7F00000100002A9F0000000000000000",
    "offsets": lambda: {QUEUE: 0},
    "properties": lambda: "",
    "queue": lambda: QUEUE,
    "queues": lambda: [QUEUE],
    "recall_handle": lambda: "no handle",
    "request": lambda: Message("t", b"x"),
    "secret": lambda: "secret",
    "subject": lambda: "User:u",
    "subscriptions": lambda: "t",
    "tag": lambda: "a",
    "timestamp_ms": lambda: 0,
    "to": lambda: "first",
    "topic": lambda: "t",
    "topics": lambda: [TopicConfig("t")],
    "username": lambda: "u",
    "where": lambda: "t",
}
WRONG = (None, -1, 1.5, math.nan, True, 2**70, "", "a b", b"\xff", [], {}, ("a", 1), object(), lambda: 1)
# Its own tests: it starts, ends or runs as long as the client, or it is for the modules beside it.
OWN_TESTS = {"start", "close", "listen", "run", "accept", "watch_room", "refused"}
# A call that waits for longer hangs: no timeout of these clients is as long.
HANGS_AFTER_S = 60.0


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(default_topic_queues=1) as running:
        running.create_topic("t", queues=1)
        yield running


CLIENTS = {
    "AdminClient": lambda address: AdminClient(namesrv=address),
    "Producer": lambda address: Producer("pg", namesrv=address, retries=0, timeout_s=0.9),
    "TransactionProducer": lambda address: TransactionProducer(
        "tg", lambda message: TransactionOutcome.COMMIT, namesrv=address, retries=0, timeout_s=0.9
    ),
    "PullConsumer": lambda address: PullConsumer("cg", namesrv=address),
    "PushConsumer": lambda address: PushConsumer("bg", "t", namesrv=address),
}


def calls_of(client: object, address: str) -> list[tuple[str, Callable[[], Any]]]:
    """Return a call of each method for each wrong argument, with its text."""
    good = {**GOOD, "address": lambda: address}
    calls: list[tuple[str, Callable[[], Any]]] = []
    for name, method in inspect.getmembers(client, inspect.ismethod):
        if name.startswith("_") or name in OWN_TESTS:
            continue
        parameters = inspect.signature(method).parameters.values()
        if any(one.kind is one.VAR_POSITIONAL for one in parameters):
            calls += [(f"{name}({wrong!r})", lambda method=method, wrong=wrong: method(wrong)) for wrong in WRONG]
            continue
        required = {one.name: good[one.name] for one in parameters if one.default is one.empty}
        for wrong_name in (one.name for one in parameters):
            for wrong in WRONG:
                if wrong == 2**70 and wrong_name.endswith("_s"):
                    continue  # a time

                def call(method=method, required=required, wrong_name=wrong_name, wrong=wrong):
                    return method(**({key: make() for key, make in required.items() if key != wrong_name} | {wrong_name: wrong}))

                calls.append((f"{name}({wrong_name}={wrong!r})", call))
    return calls


@pytest.mark.parametrize("kind", CLIENTS)
async def test_no_wrong_argument_is_met_with_an_error_from_inside(cluster, kind):
    inside: list[str] = []
    async with CLIENTS[kind](cluster.namesrv) as client:
        for text, call in calls_of(client, cluster.address("broker-a")):
            try:
                outcome = call()
                if inspect.isawaitable(outcome):
                    await asyncio.wait_for(outcome, HANGS_AFTER_S)
            except (SprocketError, TypeError):
                continue
            except Exception as e:
                inside.append(f"{text}: {type(e).__name__}: {e}")
    assert not inside, "\n".join(inside)


NAMESRV = "127.0.0.1:1"
# What is made of arguments, and functions that check theirs at once, with what they need.
MADE: dict[Callable[..., Any], dict[str, Any]] = {
    AdminClient: {"namesrv": NAMESRV},
    Batching: {},
    Credentials: {"access_key": "a", "secret_key": "b"},
    LocalCluster: {},
    Message: {"topic": "t", "body": b"x"},
    Namespace: {"name": "shop"},
    Producer: {"group": "pg", "namesrv": NAMESRV},
    PullConsumer: {"group": "cg", "namesrv": NAMESRV},
    PushConsumer: {"group": "cg", "subscriptions": "t", "namesrv": NAMESRV},
    TlsConfig: {},
    TraceConfig: {},
    TransactionProducer: {"group": "tg", "check": print, "namesrv": NAMESRV},
    arrow.arrow_schema: {},
    arrow.follow: {"topic": "t", "namesrv": NAMESRV},
    arrow.read_store: {"path": "nowhere"},
    arrow.read_topic: {"topic": "t", "namesrv": NAMESRV},
    plan_landing: {"topics": "t", "to": "nowhere", "nameserver": NAMESRV},
}


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_what_is_made_of_wrong_arguments_is_refused_without_an_error_from_inside(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if make is arrow.read_store:
        (tmp_path / "nowhere" / "commitlog").mkdir(parents=True)
    inside: list[str] = []
    for name in (
        one.name for one in inspect.signature(make).parameters.values() if one.kind is not one.VAR_KEYWORD and one.name != "clock"
    ):
        for wrong in WRONG:
            try:
                make(**{**MADE[make], name: wrong})
            except (SprocketError, TypeError):
                continue
            except Exception as e:
                inside.append(f"{name}={wrong!r}: {type(e).__name__}: {e}")
    assert not inside, "\n".join(inside)
