"""A client that speaks single requests, as tests of a broker need it."""

import asyncio

from sprocketmq.net.address import parse_address
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, build_subscription
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.frame import FrameBuffer
from sprocketmq.protocol.records import decode_records

WAIT_S = 60


def create_topic(name, queues=4, **fields):
    """Return the header of 17."""
    ext = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
    return {**ext, "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", **fields}


class Asking:
    """Requests over one connection; what the broker asks of its own accord is kept in ``pushed``."""

    def __init__(self, broker):
        self.broker = broker
        self.pushed = []
        self._arrived = asyncio.Event()
        self.pool = ConnectionPool(expected="broker", on_request=self._on_request)

    async def open(self):
        self.conn = await self.pool.get(self.broker.address)

    async def close(self):
        await self.pool.close()

    def _on_request(self, conn, command):
        self.pushed.append(command)
        self._arrived.set()

    async def next_push(self):
        while not self.pushed:
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), WAIT_S)
        return self.pushed.pop(0)

    def request(self, code, ext=None, body=b"", timeout_s=WAIT_S):
        return self.conn.request(code, ext=ext or {}, body=body, timeout_s=timeout_s)

    async def __call__(self, code, ext=None, body=b""):
        return await self.request(code, ext, body)

    def send_ext(self, topic, *, queue=0, properties="", batch=False, **fields):
        ext = {"a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1700000000000", "h": "0"}
        return {**ext, "i": properties, "j": "0", "k": "false", "m": "true" if batch else "false", **fields}

    async def send(self, topic, body=b"body", *, queue=0, properties="", **fields):
        return await self(310, self.send_ext(topic, queue=queue, properties=properties, **fields), body)

    async def send_batch(self, topic, bodies, *, queue=0, properties="", each=b""):
        body = encode_batch([(0, text, each) for text in bodies])
        return await self(320, self.send_ext(topic, queue=queue, properties=properties, batch=True), body)

    def pull_ext(self, topic, offset, *, queue=0, group="cg", expression="*", wait_ms=0, count=32, **fields):
        return {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": "6" if wait_ms else "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": str(wait_ms),
            "subscription": expression,
            "subVersion": "0",
            "expressionType": "TAG",
            **fields,
        }

    def pull(self, topic, offset, **options):
        return self.request(11, self.pull_ext(topic, offset, **options), timeout_s=30)

    async def bodies(self, topic, offset=0, **options):
        answer = await self.pull(topic, offset, **options)
        return [bytes(message.body) for message in decode_records(answer.body)]

    async def heartbeat(self, client_id="c1", *, consumers=(), producers=(), topics=("orders",), expression="*", version=1, **more):
        data = [
            ConsumerData(group, subscription_data_set=[build_subscription(topic, expression, version) for topic in topics], **more)
            for group in consumers
        ]
        beat = HeartbeatData(client_id, [ProducerData(name) for name in producers], data)
        return await self(34, {}, beat.encode())


async def exchange(address, frames, *, answers=1):
    """Send raw frames over a connection of their own and return the answers."""
    reader, writer = await asyncio.open_connection(*parse_address(address))
    writer.write(frames)
    buffer = FrameBuffer()
    found: list[Command] = []
    while len(found) < answers:
        data = await asyncio.wait_for(reader.read(65536), WAIT_S)
        assert data, f"closed after {len(found)} answers"
        found += buffer.feed(data)
    writer.close()
    await writer.wait_closed()
    return found
