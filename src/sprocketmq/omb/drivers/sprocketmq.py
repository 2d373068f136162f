"""The driver ``sprocketmq``: this package's client, for SprocketMQ's brokers and Apache's.

As in OMB's driver for RocketMQ, the producers of one worker share one client.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sprocketmq import Batching, Message, Producer, PushConsumer, ReceivedBatch
from sprocketmq.errors import ConfigError, SendQueueFull
from sprocketmq.net.tls import TlsConfig
from sprocketmq.omb.driver import OnDone, OnReceived
from sprocketmq.omb.drivers._topics import TopicDriver
from sprocketmq.omb.plan import STAMP_BYTES

# How soon a message for which there is not enough room is tried again.
ROOM_S = 1e-3


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The settings of the driver; see docs/guide/omb.md."""

    namesrv: str = "127.0.0.1:9876"
    name: str = "sprocketmq"
    driver_class: str = ""
    # Topics with batch queues (RIP-26).
    batch_queues: bool = False
    # AutoBatch (RIP-27); without it each message is a request.
    auto_batch: bool = True
    batch_max_bytes: int | None = None
    batch_max_delay_ms: int = 10
    adaptive: bool = False
    max_in_flight: int = 10_000
    max_in_flight_bytes: int = 100 << 20
    # As in OMB's drivers for other systems, bodies are sent as they are: clients of RocketMQ compress from 4,096 bytes on.
    compress_over_bytes: int = 4 << 20
    consumer_batch_max: int = 256
    max_cached: int = 1000
    max_span: int = 2000
    secure: str | None = None
    access_key_file: str | None = None
    tls: bool | None = None
    tls_ca: str | None = None

    @property
    def client_options(self) -> dict[str, Any]:
        """The arguments that every client takes."""
        return {
            "namesrv": self.namesrv,
            "secure": self.secure and Path(self.secure),
            "credentials": self.access_key_file and Path(self.access_key_file),
            "tls": self.tls if self.tls_ca is None else TlsConfig(ca_file=self.tls_ca),
        }


def create(config: Mapping[str, object]) -> "SprocketDriver":
    """Return the driver. Raises ConfigError for a setting that it does not have or that cannot be."""
    try:
        return SprocketDriver(msgspec.convert(config, Config, strict=False))
    except msgspec.ValidationError as e:
        known = ", ".join(Config.__struct_encode_fields__)
        raise ConfigError(f"driver sprocketmq: {str(e).replace('`', '')}: its settings are {known}") from None


class SprocketDriver(TopicDriver):
    """Topics, producers and consumers of RocketMQ."""

    name = "sprocketmq"

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__(config.namesrv, config.client_options, batch_queues=config.batch_queues)
        self._producer: Producer | None = None

    async def producer(self, topic: str) -> "TopicProducer":
        """Return a producer for ``topic``; all share one client."""
        config = self._config
        if self._producer is None:
            batching = Batching(config.batch_max_bytes, config.batch_max_delay_ms, adaptive=config.adaptive) if config.auto_batch else None
            self._producer = Producer(
                "omb_producers",
                **config.client_options,
                batching=batching,
                max_in_flight=config.max_in_flight,
                max_in_flight_bytes=config.max_in_flight_bytes,
                compress_over_bytes=config.compress_over_bytes,
            )
            await self._producer.start()
        await self._producer.queues(topic)
        return TopicProducer(self._producer, topic)

    async def consumer(self, topic: str, subscription: str, received: OnReceived) -> "TopicConsumer":
        """Return a member of the group ``subscription``."""
        config = self._config
        consumer = PushConsumer(
            subscription,
            {topic: "*"},
            **config.client_options,
            consume_from="first",
            batch_max=config.consumer_batch_max,
            max_cached=config.max_cached,
            max_span=config.max_span,
        )
        await consumer.start()
        return TopicConsumer(consumer, received)

    async def stop(self) -> None:
        """Close all clients."""
        if self._producer is not None:
            await self._producer.close()
        await super().stop()


class TopicProducer:
    """One topic of the shared producer."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._submit = producer.submit
        self._topic = topic
        self.flush = producer.flush

    def send(self, key: bytes | None, payload: bytes, done: OnDone, tag: str | None = None) -> bool:
        """Submit one message."""
        try:
            if key is None and tag is None:
                self._submit(Message(self._topic, payload), done.answered)
            else:
                self._submit(Message(self._topic, payload, tag, () if key is None else (key.decode(),)), done.answered)
        except SendQueueFull:
            return False
        return True

    async def room(self) -> None:
        """Wait until the producer has room."""
        before = self._producer.in_flight
        await self._producer.room()
        if self._producer.in_flight >= before:  # it has some, but not for a large body
            await asyncio.sleep(ROOM_S)

    async def close(self) -> None:
        """Do nothing: the driver closes the producer."""


class TopicConsumer:
    """Takes batches, and reads the stamp of each message."""

    def __init__(self, consumer: PushConsumer, received: OnReceived) -> None:
        self._consumer = consumer
        self._received = received
        self._listening = consumer.listen(self._take, concurrency=1)

    def _take(self, batch: ReceivedBatch) -> None:
        bodies = [message.body for message in batch]
        stamps = np.frombuffer(b"".join([body[:STAMP_BYTES] for body in bodies]), ">i8")
        self._received(stamps, sum(map(len, bodies)))

    def pause(self) -> None:
        """Pause all queues."""
        self._consumer.pause()

    def resume(self) -> None:
        """Resume all queues."""
        self._consumer.resume()

    async def close(self) -> None:
        """Leave the group; raises the error that ended the consumer."""
        await self._consumer.close()
        await self._listening
