"""The driver for Apache Kafka through confluent-kafka (librdkafka).

Settings are librdkafka's own and have its defaults: `bootstrap.servers` (localhost:9092) and others hold for every client, `producer.NAME`
and `consumer.NAME` for one kind. `replicationFactor` is that of new topics (1). A worker's producers share one librdkafka producer; each
consumer has its own.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sprocketmq.errors import ConfigError, SprocketError
from sprocketmq.net.tasks import Background
from sprocketmq.omb.driver import OnDone, OnReceived
from sprocketmq.omb.plan import STAMP_BYTES

# What OMB's driver files say that librdkafka does not know.
NOT_FOR_LIBRDKAFKA = {"name", "driverClass", "replicationFactor"}

BATCH = 1000  # messages that one call takes from a consumer at most
AHEAD = 8  # batches that a consumer's thread hands to the loop before it waits
# librdkafka's answers are fetched on the loop, as its thread would wait for the interpreter's lock at every message.
POLL_S = 0.001
WAIT_S = 0.1
ADMIN_TIMEOUT_S = 60.0
# A controller refuses requests that make more than 10,000 records.
PARTITIONS_AT_ONCE = 2000
LEADERS_S = 0.2
TOPICS_AT_ONCE = 10


def create(config: Mapping[str, object]) -> "KafkaDriver":
    """Return the driver. Raises ConfigError when confluent-kafka is missing or a setting is wrong."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as missing:
        raise ConfigError("the driver kafka needs the package confluent-kafka: pip install confluent-kafka") from missing
    return KafkaDriver(confluent_kafka, config)


def settings_of(config: Mapping[str, object], kind: str) -> dict[str, object]:
    """Return the settings of one kind of client, `producer`, `consumer` or `admin`; its own come before those of every client."""
    common: dict[str, object] = {"bootstrap.servers": "localhost:9092"}
    own: dict[str, object] = {}
    for name, value in config.items():
        first, _, rest = name.partition(".")
        if name in NOT_FOR_LIBRDKAFKA:
            continue
        if first in {"producer", "consumer"} and rest:
            if first == kind:
                own[rest] = value
        else:
            common[name] = value
    return common | own


def replication_of(config: Mapping[str, object]) -> int:
    """Return the replication factor of new topics. Raises ConfigError for anything but a positive number."""
    text = str(config.get("replicationFactor", 1))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"replicationFactor must be a number from 1 on, not {text!r}")
    return int(text)


class KafkaDriver:
    """One process's clients of a Kafka cluster."""

    name = "kafka"

    def __init__(self, kafka: Any, config: Mapping[str, object]) -> None:
        self._kafka = kafka
        self._config = config
        self._replication = replication_of(config)
        self._sender: _Sender | None = None
        self._admin: Any = None

    def _made(self, make: Any, settings: Mapping[str, object]) -> Any:
        try:
            return make(dict(settings))
        except self._kafka.KafkaException as refused:
            raise ConfigError(f"librdkafka refuses the settings: {refused.args[0].str()}") from refused

    async def start(self) -> None:
        """Connect. Raises SprocketError when no broker answers."""
        settings = settings_of(self._config, "admin")
        self._admin = self._made(self._kafka.admin.AdminClient, settings)
        try:
            await asyncio.to_thread(self._admin.list_topics, timeout=10)
        except self._kafka.KafkaException as failed:
            raise SprocketError(f"no Kafka broker answers at {settings['bootstrap.servers']}: {failed.args[0].str()}") from failed

    async def create_topics(self, topics: Sequence[str], partitions: int) -> None:
        """Create topics, and wait until the cluster knows all of them."""
        new = [self._kafka.admin.NewTopic(topic, partitions, self._replication) for topic in topics]
        await self._in_parts(self._admin.create_topics, new, max(1, PARTITIONS_AT_ONCE // partitions))
        # A consumer that subscribes before the broker knows its topic asks again after minutes only.
        deadline = asyncio.get_running_loop().time() + ADMIN_TIMEOUT_S
        while missing := await self._without_leaders(topics, partitions):
            if asyncio.get_running_loop().time() > deadline:
                raise SprocketError(
                    f"{missing} new topics have no leaders after {ADMIN_TIMEOUT_S:.0f} s: look for errors in the broker's log"
                )
            await asyncio.sleep(LEADERS_S)

    async def _without_leaders(self, topics: Sequence[str], partitions: int) -> int:
        """Return how many of the topics are not ready."""
        known = (await asyncio.to_thread(self._admin.list_topics, timeout=ADMIN_TIMEOUT_S)).topics
        ready = [
            topic
            for topic in topics
            if topic in known and sum(partition.leader >= 0 for partition in known[topic].partitions.values()) == partitions
        ]
        return len(topics) - len(ready)

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete topics with their messages; those that are not there are passed over."""
        await self._in_parts(self._admin.delete_topics, topics, TOPICS_AT_ONCE)

    async def _in_parts(self, change: Callable[..., Mapping[str, Any]], topics: Sequence[Any], size: int) -> None:
        unknown = self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
        for start in range(0, len(topics), size):
            futures = change(list(topics[start : start + size]), operation_timeout=ADMIN_TIMEOUT_S, request_timeout=ADMIN_TIMEOUT_S)
            for topic, future in futures.items():
                try:
                    await asyncio.wrap_future(future)
                except self._kafka.KafkaException as failed:
                    if failed.args[0].code() != unknown:
                        raise SprocketError(f"topic {topic}: {failed.args[0].str()}") from failed

    async def producer(self, topic: str) -> "KafkaProducer":
        """Return a producer to ``topic``."""
        if self._sender is None:
            self._sender = _Sender(self._made(self._kafka.Producer, settings_of(self._config, "producer")))
        return KafkaProducer(self._sender, topic)

    async def consumer(self, topic: str, subscription: str, received: OnReceived) -> "KafkaConsumer":
        """Join the group ``subscription``."""
        settings = {"auto.offset.reset": "earliest", **settings_of(self._config, "consumer"), "group.id": subscription}
        return KafkaConsumer(self._made(self._kafka.Consumer, settings), topic, received)

    async def stop(self) -> None:
        """Close what this process shares."""
        if self._sender is not None:
            await self._sender.close()
            self._sender = None


class _Sender:
    """The librdkafka producer of a process, and the task that fetches its answers."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self._answered = asyncio.Event()
        self._background = Background("omb kafka")
        self._background.spawn(self._fetch_answers(), "answers")

    async def _fetch_answers(self) -> None:
        poll = self.producer.poll
        while True:
            if poll(0):
                self._answered.set()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(POLL_S)

    async def answers(self) -> None:
        """Wait until there are answers."""
        self._answered.clear()
        await self._answered.wait()

    async def flush(self) -> None:
        """Wait until all messages were answered."""
        while len(self.producer):
            await self.answers()

    async def close(self) -> None:
        await self.flush()
        await self._background.close()


class KafkaProducer:
    """Sends to one topic through the process's librdkafka producer."""

    def __init__(self, sender: _Sender, topic: str) -> None:
        self._sender = sender
        self._produce = sender.producer.produce
        self._topic = topic

    def send(self, key: bytes | None, payload: bytes, done: OnDone, tag: str | None = None) -> bool:  # noqa: ARG002 - Kafka has no tags
        """Hand a message to librdkafka; False when its queue is full."""
        try:
            self._produce(self._topic, payload, key, on_delivery=done.delivered)
        except BufferError:
            return False
        return True

    async def room(self) -> None:
        """Wait until librdkafka has delivered some messages."""
        await self._sender.answers()

    async def flush(self) -> None:
        """Wait until all messages of this process were answered."""
        await self._sender.flush()

    async def close(self) -> None:
        """Wait for the answers; the driver closes the producer."""
        await self._sender.flush()


class KafkaConsumer:
    """A member of a group; a thread takes batches from librdkafka and hands stamps and lengths to the loop."""

    def __init__(self, consumer: Any, topic: str, received: OnReceived) -> None:
        self._consumer = consumer
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._room = threading.BoundedSemaphore(AHEAD)
        self._pausing = False
        self._closing = False
        consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._consume, name=f"kafka consumer of {topic}", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Ask the thread to pause all partitions."""
        self._pausing = True

    def resume(self) -> None:
        """Ask the thread to resume all partitions."""
        self._pausing = False

    async def close(self) -> None:
        """Commit and leave the group."""
        self._closing = True
        await asyncio.to_thread(self._thread.join)

    def _consume(self) -> None:
        consumer = self._consumer
        paused = False
        while not self._closing:
            if self._pausing is not paused:
                paused = not paused
                (consumer.pause if paused else consumer.resume)(consumer.assignment())
            first = consumer.poll(WAIT_S)
            if first is None:
                continue
            # `consume` alone would wait until the batch is full, and add its timeout to every latency.
            bodies = [message.value() for message in (first, *consumer.consume(BATCH - 1, 0)) if message.error() is None]
            stamps = np.frombuffer(b"".join([body[:STAMP_BYTES] for body in bodies]), ">i8")
            self._room.acquire()
            self._loop.call_soon_threadsafe(self._hand_over, stamps, sum(map(len, bodies)))
        consumer.close()

    def _hand_over(self, stamps: Any, size: int) -> None:
        self._room.release()
        if size:
            self._received(stamps, size)
