"""kill -9 of the real broker among pops: no message is lost, what was acknowledged in time is not given again, and pops in order keep it.

``SPROCKETMQ_CRASH_POPS`` sets how often it is killed (12 by default), ``SPROCKETMQ_CRASH_SEED`` repeats the choices of a run.
"""

import asyncio
import base64
import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.errors import SprocketError
from sprocketmq.net.client import Connection, ConnectionPool
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import SendStatus
from sprocketmq.protocol.records import decode_records
from sprocketmq.testing.serving import ServeProcess

KILLS = int(os.environ.get("SPROCKETMQ_CRASH_POPS", "12"))
SEED = os.environ.get("SPROCKETMQ_CRASH_SEED") or str(random.randrange(1 << 32))
GROUP, IN_ORDER = "poppers", "poppers_in_order"
TOPICS = {"singles": {}, "batches": {"queue.type": "BatchCQ"}}
POPPERS = {GROUP: 4, IN_ORDER: 2}
# Messages that are sent to each topic in one life of the broker, and the requests after one of which it dies.
SENT = 150
REQUESTS = 80
PATIENCE_S = 240.0
SETTINGS = {"commitlog_segment_bytes": 1 << 20, "flush_interval_s": 0.02, "save_offsets_interval_s": 0.1}


class Given(NamedTuple):
    """One message of a pop: its receipt handle, and until when the receipt holds for certain, by this process's clock."""

    group: str
    topic: str
    body: bytes
    queue_id: int
    offset: int
    handle: str
    holds_until: float


class Ledger:
    """What was sent, and of one group what was given, and what was acknowledged while its receipt held."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.sent: set[bytes] = set()
        self.given: set[bytes] = set()
        self.done: set[bytes] = set()
        self.repeated = 0

    def take(self, messages: list[Given]) -> None:
        for message in messages:
            assert message.body not in self.done, f"{message.body!r} was acknowledged and given again (seed {SEED})"
            self.repeated += message.body in self.given
            self.given.add(message.body)

    def acknowledging(self, messages: list[Given]) -> None:
        """Note what the broker may know as acknowledged from now on."""

    def acknowledged(self, messages: list[Given]) -> None:
        now = time.monotonic()
        self.done |= {message.body for message in messages if now < message.holds_until}


class OrderedLedger(Ledger):
    """Also that nothing is given before what stands before it in its queue is done with, or given by the same pop.

    As in the reference, a message that was acknowledged is given again behind one of its queue that was not.
    """

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.maybe_done: dict[tuple[str, int], set[int]] = {}

    def take(self, messages: list[Given]) -> None:
        waited_for: set[tuple[str, int]] = set()
        for message in messages:
            queue = (message.topic, message.queue_id)
            if message.body not in self.done:
                waited_for.add(queue)
            elif queue in waited_for:
                self.done.discard(message.body)
        super().take(messages)
        places: dict[tuple[str, int], list[int]] = {}
        for message in messages:
            places.setdefault((message.topic, message.queue_id), []).append(message.offset)
        for queue, offsets in places.items():
            assert offsets == sorted(offsets), f"{offsets} of {queue} (seed {SEED})"
            missing = set(range(offsets[-1])) - self.maybe_done.get(queue, set()) - set(offsets)
            assert not missing, f"{offsets} of {queue} were given before {sorted(missing)} (seed {SEED})"

    def acknowledging(self, messages: list[Given]) -> None:
        for message in messages:
            self.maybe_done.setdefault((message.topic, message.queue_id), set()).add(message.offset)


class Popper:
    """Requests of one POP client, until the broker is gone. ``answered`` is called with every answer."""

    def __init__(self, conn: Connection, rng: random.Random, ledger: Ledger, answered: Callable[[], None]) -> None:
        self.conn = conn
        self.rng = rng
        self.ledger = ledger
        self.answered = answered

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        answer = await self.conn.request(code, ext=ext, body=body, timeout_s=30)
        self.answered()
        return answer

    async def pop(self, topic: str, count: int, invisible_ms: int, poll_ms: int) -> list[Given]:
        """Pop from all queues of a topic."""
        group, order = self.ledger.group, "true" if self.ledger.group == IN_ORDER else "false"
        fields = {"consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": str(count), "invisibleTime": str(invisible_ms)}
        more = {"pollTime": str(poll_ms), "bornTime": str(round(time.time() * 1000)), "initMode": "0", "expType": "TAG", "exp": "*"}
        asked = time.monotonic()
        answer = await self.ask(RequestCode.POP_MESSAGE, {**fields, **more, "order": order})
        if answer.code == ResponseCode.POLLING_TIMEOUT:
            return []
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        found = list(_given(group, topic, answer, asked + invisible_ms / 1000))
        self.ledger.take(found)
        return found

    async def acknowledge(self, messages: list[Given]) -> None:
        """Acknowledge messages of one topic, each with a request or all with one."""
        self.ledger.acknowledging(messages)
        if self.rng.random() < 0.5:
            for one in messages:
                answer = await self.ask(RequestCode.ACK_MESSAGE, {**_receipt(one), "offset": str(one.offset)})
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                self.ledger.acknowledged([one])
        elif messages:
            acks = [_batch_ack(one) for one in messages]
            answer = await self.ask(RequestCode.BATCH_ACK_MESSAGE, {}, json.dumps({"brokerName": "broker-a", "acks": acks}).encode())
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            self.ledger.acknowledged(messages)

    async def change(self, one: Given, invisible_ms: int) -> None:
        """Have a message come again at another time."""
        ext = {**_receipt(one), "offset": str(one.offset), "invisibleTime": str(invisible_ms)}
        answer = await self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE), answer.remark

    async def work(self) -> None:
        """Pop, and acknowledge most of it, until the broker is gone."""
        rng = self.rng
        with contextlib.suppress(SprocketError):
            while True:
                found = await self.pop(rng.choice(list(TOPICS)), rng.randrange(1, 33), rng.choice((100, 1_000, 5_000)), 200)
                rng.shuffle(found)
                kept = len(found) * 9 // 10
                for one in found[kept:]:
                    if rng.random() < 0.5:
                        await self.change(one, rng.choice((1, 100, 1_000)))
                await self.acknowledge(found[:kept])


def _given(group: str, topic: str, answer: Command, holds_until: float) -> Iterator[Given]:
    starts = {int(item.split(" ")[1]): item.split(" ")[2] for item in answer.ext["startOffsetInfo"].split(";")}
    for message in decode_records(answer.body):
        queue_id, offset, ext = message.queue_id, message.queue_offset, answer.ext
        handle = message.properties.get("POP_CK") or " ".join(
            [starts[queue_id], ext["popTime"], ext["invisibleTime"], ext["reviveQid"], "0", "broker-a", str(queue_id), str(offset)]
        )
        yield Given(group, topic, bytes(message.body), queue_id, offset, handle, holds_until)


def _receipt(one: Given) -> dict[str, str]:
    return {"consumerGroup": one.group, "topic": one.topic, "queueId": str(one.queue_id), "extraInfo": one.handle}


def _batch_ack(one: Given) -> dict[str, object]:
    _, popped_ms, invisible_ms, revive, *_ = one.handle.split(" ")
    fields = {"c": one.group, "t": one.topic, "r": "0", "so": one.offset, "q": one.queue_id, "rq": int(revive)}
    return {**fields, "pt": int(popped_ms), "it": int(invisible_ms), "b": base64.b64encode(b"\x01").decode()}


async def address_of(namesrv: str) -> str:
    async with AdminClient(namesrv=namesrv) as admin:
        return next(iter((await admin.cluster()).broker_addr_table.values())).broker_addrs[0]


async def prepare(namesrv: str) -> None:
    async with AdminClient(namesrv=namesrv) as admin:
        for topic, attributes in TOPICS.items():
            await admin.create_topic(topic, queues=2, attributes=attributes)


async def send(namesrv: str, ledgers: list[Ledger], life: int) -> None:
    async with Producer("sender", namesrv=namesrv, auto_batch=True) as producer:
        messages = [Message(topic, f"{topic} {life} {n}".encode()) for topic in TOPICS for n in range(SENT)]
        results = await asyncio.gather(*(producer.send(message) for message in messages))
    for ledger in ledgers:
        ledger.sent |= {m.body for m, result in zip(messages, results, strict=True) if result.status is SendStatus.SEND_OK}


async def one_life(namesrv: str, kill: Callable[[], None], ledgers: list[Ledger], rng: random.Random, life: int) -> None:
    """Pop from several connections, and kill the broker after some answer."""
    await send(namesrv, ledgers, life)
    left = rng.randrange(1, REQUESTS)

    def answered() -> None:
        nonlocal left
        left -= 1
        if not left:
            kill()

    address = await address_of(namesrv)
    members = [ledger for ledger in ledgers for _ in range(POPPERS[ledger.group])]
    pools = [ConnectionPool(expected="broker") for _ in members]
    poppers = [
        Popper(await pool.get(address), random.Random(rng.random()), ledger, answered) for pool, ledger in zip(pools, members, strict=True)
    ]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(popper.work() for popper in poppers))
    for pool in pools:
        await pool.close()


async def settle(namesrv: str, ledger: Ledger, rng: random.Random) -> None:
    """Pop and acknowledge until everything that was sent is done."""
    address = await address_of(namesrv)
    pool = ConnectionPool(expected="broker")
    popper = Popper(await pool.get(address), rng, ledger, lambda: None)
    async with asyncio.timeout(PATIENCE_S):
        while not await _all_done(namesrv, ledger.group):
            for topic in TOPICS:
                await popper.acknowledge(await popper.pop(topic, 32, 60_000, 100))
    await pool.close()


async def _all_done(namesrv: str, group: str) -> bool:
    async with AdminClient(namesrv=namesrv) as admin:
        progress = [await admin.progress(group, topic) for topic in TOPICS]
    return all(found.queues and not sum(queue.lag for queue in found.queues) for found in progress)


@pytest.mark.timeout(0 if KILLS > 100 else 900)
def test_pops_survive_kill_9(tmp_path: Path) -> None:
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    rng = random.Random(SEED)
    ledgers = [Ledger(GROUP), OrderedLedger(IN_ORDER)]
    with ServeProcess(tmp_path / "store", **SETTINGS) as server:
        asyncio.run(prepare(server.start()))
        for life in range(KILLS):
            asyncio.run(one_life(server.start(), server.kill, ledgers, rng, life))
        namesrv = server.start()
        for ledger in ledgers:
            asyncio.run(settle(namesrv, ledger, rng))
        server.stop()
    for ledger in ledgers:
        assert not ledger.sent - ledger.given, f"{ledger.group} lost some, seed {SEED}"
        assert ledger.done
        counted = f"{len(ledger.sent)} messages, {len(ledger.done)} acknowledged in time, {ledger.repeated} given more than once"
        print(f"{KILLS} kills, {ledger.group}: {counted}")
