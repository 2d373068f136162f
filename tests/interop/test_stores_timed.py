"""Timed messages in a store of Apache's broker: ours serves it once all of them are delivered, and not before."""

from __future__ import annotations

import time

import pytest
from tests.interop import apache
from tests.interop.reading import pull_all
from tests.interop.test_stores import CLUSTER, Moving
from tests.interop.test_stores_delayed import come

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.errors import StoreNotSupported
from sprocketmq.storage.store import MessageStore, StoreConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

# Longer than a stop of Apache's broker takes.
DELAY_MS = 25_000


@pytest.mark.parametrize("how", ["killed", pytest.param("stopped", marks=pytest.mark.long)])
async def test_our_broker_refuses_what_waits_in_apaches_timer_wheel(home: object, apache_namesrv: apache.ApacheNamesrv, how: str) -> None:
    port = apache.broker_port()
    moving, topic = Moving(home, apache_namesrv.address, f"timed-{port}", port), f"Timed{how.title()}"  # type: ignore[arg-type]
    with moving.apaches("first") as broker:
        async with AdminClient(namesrv=moving.namesrv) as admin:
            await admin.create_topic(topic, queues=1, cluster=CLUSTER)
        async with Producer("timing", namesrv=moving.namesrv) as producer:
            await producer.send(Message(topic, b"timed", deliver_at_ms=int(time.time() * 1000) + DELAY_MS))
        if how == "killed":
            broker.kill()
    with pytest.raises(StoreNotSupported, match="wait in the timer wheel"):
        MessageStore(StoreConfig(moving.store)).open()
    with moving.apaches("second"):
        await come(moving.namesrv, topic, [b"timed"])
    with moving.ours("third"):
        # Apache's wheel may deliver it again after a kill.
        assert {view["body"] for view in await pull_all(moving.namesrv, topic)} == {b"timed"}
