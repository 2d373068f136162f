"""A cluster and a dashboard in which every page has something to show: for pictures of the pages, and for tests of how they look.

Topics of three kinds, a group with members that is behind, one without, dead letters, traces, queries that report, and an hour of samples.
"""

import contextlib
import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

from sprocketmq import Message, ReceivedBatch, SendResult, sync
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.embedded import LocalCluster
from sprocketmq.net.loops import LoopThread
from sprocketmq.protocol.progress_reports import PROGRESS_TOPIC, ProgressReport, QueuePlace, TopicProgress
from sprocketmq.testing import wait_until
from sprocketmq.web.pages import PAGES
from sprocketmq.web.server import DashboardServer
from sprocketmq.web.target import ClusterTarget

WORDS = ("keyboard", "teapot", "lamp", "bicycle", "atlas", "kettle")
ORDERS, EXPRESS = 120, 8
DEAD_GROUP, SLOW_GROUP = "invoices", "billing"
MINUTES, STEP_S = 64, 5.0
# What is shown besides the pages as the navigation opens them.
DETAILS = (
    "topics-detail",
    "groups-detail",
    "groups-offline",
    "messages-found",
    "messages-one",
    "messages-batch",
    "dead_letters-group",
    "dead_letters-letter",
    "traces-one",
)
NAMES = (*(page.name for page in PAGES), *DETAILS)


@dataclass(frozen=True)
class Populated:
    """``url`` is the dashboard's address, ``paths`` those of all NAMES."""

    cluster: LocalCluster
    url: str
    paths: dict[str, str]

    def address(self, name: str) -> str:
        return self.url + self.paths[name]


class LateClock:
    """A clock that is some seconds late, and less so after every ``advance`` by a minute."""

    def __init__(self, late_s: int) -> None:
        self._late_s = late_s

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() - self._late_s

    def time_ms(self) -> int:
        return SYSTEM_CLOCK.time_ms() - self._late_s * 1000

    def advance(self) -> None:
        self._late_s -= 60


@contextlib.contextmanager
def populated(loop: LoopThread) -> Iterator[Populated]:
    """Run the cluster and a dashboard over it that has samples of an hour when the block begins."""
    dice = random.Random(17)
    clock = LateClock(MINUTES * 60)
    with LocalCluster(brokers=1, replicas=1) as cluster, contextlib.ExitStack() as running:
        create(cluster)
        server = loop.run(lambda: started(cluster, clock))
        running.callback(lambda: loop.run(server.stop))
        one, in_batch = send(cluster, dice)
        bury(cluster)
        running.enter_context(behind(cluster))
        minute = running.enter_context(traffic(cluster, dice))
        for number in range(MINUTES):
            minute(number, 1.0)
            clock.advance()
            loop.run(lambda: sampled(server))
        running.enter_context(going_on(minute))
        details = {
            "topics-detail": "/topics?topic=orders",
            "groups-detail": f"/groups?group={SLOW_GROUP}",
            "groups-offline": f"/groups?group={DEAD_GROUP}",
            "messages-found": "/messages?topic=orders",
            "messages-one": message_path(one),
            "messages-batch": message_path(in_batch),
            "dead_letters-group": f"/dead-letters?group={DEAD_GROUP}",
            "dead_letters-letter": f"/dead-letters?group={DEAD_GROUP}&broker=broker-a&queue=0&offset=0",
            "traces-one": f"/traces?id={one.msg_id}",
        }
        yield Populated(cluster, server.url, {page.name: page.path for page in PAGES} | details)


def create(cluster: LocalCluster) -> None:
    """Create topics and groups."""
    with sync.AdminClient(namesrv=cluster.namesrv) as admin:
        for topic, queues, attributes in (("orders", 8, {}), ("clicks", 4, {"queue.type": "BatchCQ"}), ("payments", 4, {})):
            admin.create_topic(topic, queues=queues, attributes=attributes)
        admin.create_topic(PROGRESS_TOPIC, queues=1)
        for group in (SLOW_GROUP, "shipping"):
            admin.create_group(group)
        admin.create_group(DEAD_GROUP, max_reconsume_times=0)


async def started(cluster: LocalCluster, clock: LateClock) -> DashboardServer:
    server = DashboardServer(ClusterTarget(cluster.namesrv), clock=clock)
    await server.start()
    return server


async def sampled(server: DashboardServer) -> None:
    """Have the dashboard take the sample of this minute, and wait until it has."""
    collector = server.dashboard.collector
    before = collector.view
    collector.wake()
    async for view in collector.updates():
        if view is not before:
            return


def send(cluster: LocalCluster, dice: random.Random) -> tuple[SendResult, SendResult]:
    """Send orders and a batch of payments; return where one order is, which has a trace, and one message inside a batch."""
    with sync.Producer("shop", namesrv=cluster.namesrv, trace=True) as producer:
        for i in range(ORDERS):
            order = {"order": i, "item": dice.choice(WORDS), "price": dice.randint(500, 90000), "paid": dice.random() < 0.8}
            tag = "express" if i >= ORDERS - EXPRESS else dice.choice(("new", "paid", "gift"))
            properties = {"region": dice.choice(("north", "south"))}
            sent = producer.send(Message("orders", json.dumps(order).encode(), tag=tag, keys=(f"order-{i}",), properties=properties))
        producer.send_batch([Message("payments", json.dumps({"payment": i}).encode(), keys=(f"payment-{i}",)) for i in range(40)])
        batch = producer.send_batch([Message("clicks", json.dumps({"page": i, "path": "/" * (i % 17)}).encode()) for i in range(48)])
        return sent, batch[20]


def bury(cluster: LocalCluster) -> None:
    """Let a group refuse the orders that are express."""

    def consume(batch: ReceivedBatch) -> None:
        for message in batch:
            if message.tag == "express":
                batch.retry(message, delay_level=-1)

    with (
        sync.AdminClient(namesrv=cluster.namesrv) as admin,
        sync.PushConsumer(DEAD_GROUP, ["orders"], namesrv=cluster.namesrv, consume_from="first", trace=True) as consumer,
    ):
        topic = f"%DLQ%{DEAD_GROUP}"
        consumer.listen(consume)
        wait_until(lambda: topic in admin.topics() and len(admin.search(topic).messages) == EXPRESS)


@contextlib.contextmanager
def behind(cluster: LocalCluster) -> Iterator[None]:
    """Run a member that has consumed some of the orders, while the block runs."""
    with sync.PullConsumer(SLOW_GROUP, namesrv=cluster.namesrv, consume_from="first") as consumer:
        consumer.subscribe("orders")
        for _ in range(3):
            consumer.poll(max_messages=16)
        consumer.commit()
        yield


@contextlib.contextmanager
def traffic(cluster: LocalCluster, dice: random.Random) -> Iterator[Callable[[int, float], None]]:
    """Yield what happens in one minute or a part of it: clicks are sent and consumed, and a query reports."""
    with (
        sync.Producer("site", namesrv=cluster.namesrv) as producer,
        sync.PushConsumer("shipping", ["clicks"], namesrv=cluster.namesrv) as consumer,
    ):
        consumer.listen(lambda batch: None)

        def minute(number: int, part: float) -> None:
            count = round(240 + 140 * math.sin(number / 7) + 60 * dice.random())
            producer.send_batch([Message("clicks", b'{"page": %d}' % page) for page in range(max(1, round(part * count)))])
            behind = max(0, count - 200)
            read = number * 230
            report = ProgressReport(
                query="clicks-to-lake",
                run="8f2c",
                host="driver",
                started_ms=0,
                at_ms=number * 1000,
                batches=number,
                read=read,
                lag=behind,
                queues=4,
                topics=[TopicProgress("clicks", 4, read, read + behind)],
                slowest=[QueuePlace("clicks", "broker-a", queue, number * 57, number * 57 + 10 * (queue + 1)) for queue in range(4)],
            )
            producer.send(Message(PROGRESS_TOPIC, report.encode()))

        yield minute


@contextlib.contextmanager
def going_on(minute: Callable[[int, float], None]) -> Iterator[None]:
    """Go on with the traffic while the block runs."""
    over = threading.Event()

    def work() -> None:
        number = MINUTES
        while not over.wait(STEP_S):
            number += 1
            minute(number, STEP_S / 60)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def message_path(sent: SendResult) -> str:
    where = {"topic": sent.topic, "broker": sent.broker_name, "queue": sent.queue_id, "offset": sent.queue_offset, "show": 1}
    return f"/messages?{urlencode(where)}"
