"""The page Messages: searching, showing one message, producing a test message, following a topic."""

import asyncio
import binascii
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal, TypeVar

import msgspec

from sprocketmq.client import AdminClient, Producer
from sprocketmq.client.admin.search import SearchResult
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError, RetriableError, SprocketError, TopicNotFound
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.web.api.message_views import Json, as_detail, as_line, as_lines, body_part
from sprocketmq.web.calls import Call, Route, Stream

_T = TypeVar("_T")

MAX_LISTED = 256
SEARCH_TIMEOUT_S = 10.0
MAX_SEARCHED_BYTES = 32 << 20
MAX_SCANNED = 10_000
MAX_PRODUCED_BYTES = 1 << 20
# Hex digits or escaped text take more room than the body.
MAX_REQUEST_BYTES = 4 << 20
# Names that a page suggests, and queues that it lets choose from.
MAX_SUGGESTED, MAX_QUEUES = 50, 1000
# Following: queues that are read and messages that are shown in one tick; the rest is counted as skipped.
TICK_S = 1.0
FOLLOWED_QUEUES, FOLLOWED_MESSAGES = 8, 50
MAX_FOLLOWED_S = 30 * 60.0
LONGEST_PAUSE_S = 10.0

_END_OF_TIME_MS = 2**63 - 1


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to search for: ``by`` says which of the other fields count.

    Times are wall-clock milliseconds; ``contains`` is text that the body, a key, the tag or a property has.
    """

    topic: str
    by: Literal["time", "key", "id", "tag", "offset"] = "time"
    text: str = ""
    begin_ms: int | None = None
    end_ms: int | None = None
    broker: str = ""
    queue: int | None = None
    offset: int = 0
    contains: str = ""
    count: int = 64


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to produce. ``body`` is text, or bytes written as hex digits or base64."""

    topic: str
    body: str
    encoding: Literal["text", "hex", "base64"] = "text"
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = {}
    broker: str = ""
    queue: int | None = None
    delay_level: int = 0


async def find(admin: AdminClient, wanted: Wanted) -> Json:
    """Return the messages found, the newest first (by offset: in the order of the queue), and what cut the search.

    Raises ConfigError for what cannot be searched, TopicNotFound, and what asking the brokers raises.
    """
    if not 1 <= wanted.count <= MAX_LISTED:
        raise ConfigError(f"count is {wanted.count}: ask for 1 to {MAX_LISTED} messages")
    begin_ms, end_ms = wanted.begin_ms or 0, _END_OF_TIME_MS if wanted.end_ms is None else wanted.end_ms
    if begin_ms < 0 or end_ms < begin_ms or end_ms > _END_OF_TIME_MS:
        raise ConfigError("the time range ends before it begins: give a later end")
    if wanted.by == "time":
        return _of_search(await _by_time(admin, wanted, begin_ms, end_ms))
    async with time_limit():
        if wanted.by == "offset":
            queue = await _queue(admin, wanted.topic, wanted.broker, wanted.queue)
            found = await admin.messages_from(queue, wanted.offset, max_count=wanted.count)
            more = len(found) == wanted.count
            return {"messages": as_lines(found), "cut": "messages" if more else None, "in_range": None, "scanned": None, "unreachable": []}
        text = wanted.text.strip()
        if not text:
            raise ConfigError(f"enter the {wanted.by} to search for")
        if wanted.by == "id":
            found = await _by_id(admin, wanted.topic, text)
        else:
            query = admin.query_by_key if wanted.by == "key" else admin.query_by_tag
            found = await query(wanted.topic, text, max_count=wanted.count, begin_ms=begin_ms, end_ms=end_ms)
    newest_first = found[::-1]
    # Brokers return at most 64 of each and do not say whether there are more.
    is_cut = wanted.by != "id" and len(found) >= min(wanted.count, 64)
    return {"messages": as_lines(newest_first), "cut": "messages" if is_cut else None, "in_range": None, "scanned": None, "unreachable": []}


@asynccontextmanager
async def time_limit() -> AsyncIterator[None]:
    """Raise RetriableError when the requests of a page take longer than SEARCH_TIMEOUT_S."""
    try:
        async with asyncio.timeout(SEARCH_TIMEOUT_S):
            yield
    except TimeoutError:
        raise RetriableError(f"the brokers did not answer within {SEARCH_TIMEOUT_S:g} s: try again") from None


async def show(admin: AdminClient, topic: str, broker: str, queue_id: int, offset: int) -> Json:
    """Return all about the message at an offset, with the first part of its body and its batch. Raises ConfigError when it is gone."""
    message, batch = await message_and_batch(admin, MessageQueue(topic, broker, queue_id), offset)
    detail = as_detail(message, batch)
    return detail | {"body": await asyncio.to_thread(body_part, message)}


async def download(admin: AdminClient, topic: str, broker: str, queue_id: int, offset: int) -> bytes:
    """Return the whole body of the message at an offset, decompressed. Raises ConfigError when it is gone, ProtocolError for damage."""
    message, _ = await message_and_batch(admin, MessageQueue(topic, broker, queue_id), offset)
    return await asyncio.to_thread(lambda: message.body)


async def message_and_batch(admin: AdminClient, queue: MessageQueue, offset: int) -> tuple[ReceivedMessage, Sequence[ReceivedMessage]]:
    """Return the message at an offset and those of its record. Raises ConfigError when it is gone."""
    async with time_limit():
        batch = await admin.batch_at(queue, offset)
    message = next((message for message in batch if message.queue_offset == offset), None)
    if message is None:
        raise ConfigError(
            f"there is no message at offset {offset} of queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name}:"
            " it was deleted, or the queue is shorter"
        )
    return message, batch


async def produce(admin: AdminClient, producer: Producer, wanted: NewMessage) -> Json:
    """Send a test message to an existing topic and return where it is. Raises ConfigError, TopicNotFound and what sending raises."""
    body = _bytes_of(wanted)
    if len(body) > MAX_PRODUCED_BYTES:
        raise ConfigError(f"the body has {len(body)} bytes: test messages have at most {MAX_PRODUCED_BYTES}")
    queues = await admin.queues(wanted.topic)  # a send to an unknown topic would create it where brokers create topics
    queue = None if wanted.queue is None else _among(queues, wanted.topic, wanted.broker, wanted.queue)
    message = Message(wanted.topic, body, wanted.tag or None, wanted.keys, wanted.properties, delay_level=wanted.delay_level, queue=queue)
    result = await producer.send(message, timeout_s=5)
    return {
        "status": result.status.name,
        "msg_id": result.msg_id,
        "topic": result.topic,
        "broker": result.broker_name,
        "queue": result.queue_id,
        "offset": result.queue_offset,
    }


async def follow(admin: AdminClient, topic: str, *, tick_s: float = TICK_S, clock: Clock = SYSTEM_CLOCK) -> AsyncGenerator[Json]:
    """Yield the messages stored in a topic from now on, once a tick: ``messages``, how many were ``skipped``, and the ``rate`` per second.

    It belongs to no consumer group and commits nothing: it asks for the ends of the queues and reads what lies before them. It ends with
    ``ended`` when the topic is gone (``"gone"``) or after MAX_FOLLOWED_S (``"time"``); ``problem`` says why a tick has no messages.
    """
    began = before = clock.monotonic()
    ends: dict[MessageQueue, int] | None = None
    pause_s = tick_s
    while clock.monotonic() - began < MAX_FOLLOWED_S:
        try:
            stats = await admin.topic_stats(topic)
            latest = {queue: offsets.max_offset for queue, offsets in stats.offset_table.items()}
            now = clock.monotonic()
            if ends is None:
                yield {"messages": [], "skipped": 0, "rate": 0.0, "queues": len(latest)}
            else:
                yield await _news(admin, ends, latest, now - before)
            ends, before, pause_s = latest, now, tick_s
        except TopicNotFound as e:
            yield {"ended": "gone", "problem": str(e)}
            return
        except RetriableError as e:
            yield {"messages": [], "skipped": 0, "rate": None, "problem": str(e)}
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        await asyncio.sleep(pause_s)
    yield {"ended": "time", "problem": None}


async def _news(admin: AdminClient, ends: dict[MessageQueue, int], latest: dict[MessageQueue, int], seconds: float) -> Json:
    """Return the newest messages between two looks at a topic's queues."""
    grown = {queue: end - ends.get(queue, 0) for queue, end in latest.items() if end > ends.get(queue, 0)}
    total = sum(grown.values())
    read = sorted(grown, key=lambda queue: (-grown[queue], queue))[:FOLLOWED_QUEUES]
    each = max(1, FOLLOWED_MESSAGES // max(1, len(read)))
    answers = await asyncio.gather(
        *(admin.messages_from(queue, latest[queue] - min(grown[queue], each), max_count=min(grown[queue], each)) for queue in read),
        return_exceptions=True,
    )
    for error in answers:
        if isinstance(error, TopicNotFound) or (isinstance(error, BaseException) and not isinstance(error, SprocketError)):
            raise error
    messages = [message for answer in answers if not isinstance(answer, BaseException) for message in answer]
    messages.sort(key=lambda message: (message.store_timestamp_ms, message.queue_offset))
    rate = total / seconds if seconds > 0 else 0.0
    return {"messages": [as_line(message) for message in messages], "skipped": max(0, total - len(messages)), "rate": rate}


async def _by_time(admin: AdminClient, wanted: Wanted, begin_ms: int, end_ms: int) -> SearchResult:
    queue = None
    if wanted.queue is not None:
        queue = await _queue(admin, wanted.topic, wanted.broker, wanted.queue)
    return await admin.search(
        wanted.topic,
        begin_ms=begin_ms,
        end_ms=end_ms,
        queue=queue,
        match=_contains(wanted.contains) if wanted.contains else None,
        max_count=wanted.count,
        max_scanned=MAX_SCANNED,
        max_bytes=MAX_SEARCHED_BYTES,
        timeout_s=SEARCH_TIMEOUT_S,
    )


def _contains(text: str) -> Callable[[ReceivedMessage], bool]:
    """Return the condition that a message's body, tag, a key or a property contains a text."""
    data = text.encode()

    def contains(message: ReceivedMessage) -> bool:
        try:
            return data in message.raw_properties or data in message.body
        except SprocketError:  # damaged: cannot be found by its text
            return False

    return contains


async def _by_id(admin: AdminClient, topic: str, msg_id: str) -> list[ReceivedMessage]:
    """Return the messages with an id, the producer's or the broker's."""
    try:
        found = [message for message in await admin.messages_at(msg_id) if message.topic == topic]
    except (ConfigError, RetriableError):  # not a broker's id, or its broker is down or known by another address
        found = []
    return found or await admin.query_by_unique_key(topic, msg_id)


async def _queue(admin: AdminClient, topic: str, broker: str, queue_id: int | None) -> MessageQueue:
    return _among(await admin.queues(topic), topic, broker, queue_id or 0)


def _among(queues: Sequence[MessageQueue], topic: str, broker: str, queue_id: int) -> MessageQueue:
    """Return a queue of a topic; of the first broker that has it when none is named. Raises ConfigError."""
    found = next((queue for queue in queues if queue.queue_id == queue_id and broker in ("", queue.broker_name)), None)
    if found is None:
        where = f" on broker {broker}" if broker else ""
        raise ConfigError(f"topic {topic} has no queue {queue_id}{where}: it has {len(queues)} queues in all")
    return found


async def find_route(call: Call) -> object:
    """Answer a search."""
    return await find(await call.admin(), wanted_of(call))


async def show_route(call: Call) -> object:
    """Answer with one message."""
    return await show(await call.admin(), call.text("topic"), call.text("broker"), call.number("queue"), call.number("offset"))


async def body_route(call: Call) -> object:
    """Answer with a whole body, in base64: the page makes a file of it."""
    where = call.text("topic"), call.text("broker"), call.number("queue"), call.number("offset")
    body = await download(await call.admin(), *where)
    return {"body": await asyncio.to_thread(lambda: b64encode(body).decode())}


async def queues_route(call: Call) -> object:
    """Answer with the queues of a topic, for the choice of one."""
    queues = await (await call.admin()).queues(call.text("topic"))
    return {"queues": [{"broker": queue.broker_name, "queue": queue.queue_id} for queue in queues[:MAX_QUEUES]]}


async def topics_route(call: Call) -> object:
    """Answer with the names of topics, of which a page suggests some."""

    async def load() -> list[str]:
        return await (await call.admin()).topics()

    part = call.text("part", "").lower()
    names = [name for name in await call.cached("messages: topics", 5.0, load) if part in name.lower()]
    return {"topics": names[:MAX_SUGGESTED], "left_out": max(0, len(names) - MAX_SUGGESTED)}


async def produce_route(call: Call) -> object:
    """Send a test message."""
    return await produce(await call.admin(), await call.producer(), converted(call.arguments, NewMessage))


async def follow_stream(call: Call) -> AsyncGenerator[tuple[str, object]]:
    """Stream the messages of a topic as they are stored."""
    async with aclosing(follow(await call.admin(), call.text("topic"))) as ticks:
        async for tick in ticks:
            if not call.dashboard.sessions.open(call.session):
                return
            yield "tick", tick


def wanted_of(call: Call) -> Wanted:
    """Return the search that a request asks for. Raises ConfigError."""
    return converted({name: value for name, value in call.arguments.items() if value != "" and name in Wanted.__struct_fields__}, Wanted)


def converted(arguments: Mapping[str, Any], kind: type[_T]) -> _T:
    """Return the arguments of a request as a struct. Raises ConfigError."""
    try:
        return msgspec.convert(dict(arguments), kind, strict=False)
    except msgspec.ValidationError as e:
        raise ConfigError(f"the request cannot be read: {e}") from None


def _of_search(found: SearchResult) -> Json:
    return {
        "messages": as_lines(found.messages),
        "cut": found.cut,
        "in_range": found.in_range,
        "scanned": found.scanned,
        "unreachable": list(found.unreachable),
    }


def _bytes_of(wanted: NewMessage) -> bytes:
    try:
        if wanted.encoding == "hex":
            return bytes.fromhex(wanted.body)
        if wanted.encoding == "base64":
            return b64decode("".join(wanted.body.split()), validate=True)
        return wanted.body.encode()
    except (ValueError, binascii.Error) as e:
        raise ConfigError(f"the body is not {wanted.encoding}: {e}") from None


ROUTES = (
    Route("GET", "/api/messages", find_route),
    Route("GET", "/api/messages/topics", topics_route),
    Route("GET", "/api/messages/queues", queues_route),
    Route("GET", "/api/message", show_route),
    Route("GET", "/api/message/body", body_route),
    Route("POST", "/api/message/produce", produce_route, max_body=MAX_REQUEST_BYTES),
)
STREAMS = (Stream("/api/messages/follow", follow_stream),)
