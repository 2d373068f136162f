"""The page Dead letters: browsing a group's dead letters, comparing one with its original, and replaying chosen ones.

A replay sends a copy to the topic that the message came from. The dead letter stays where it is, as messages of a log are never taken out
and no offset moves; a copy therefore names the dead letter it was made from in the property ``REPLAYED_FROM``.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from sprocketmq.client import AdminClient, Producer
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError, MaybeStoredError, ProtocolError, RetriableError, SprocketError, TopicNotFound
from sprocketmq.net.tasks import Background, all_of, share
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_group, check_send_topic
from sprocketmq.protocol.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, UNIQ_KEY
from sprocketmq.protocol.records import ReceivedMessage
from sprocketmq.web.api.message_views import Json, as_detail, body_part, cut, user_properties
from sprocketmq.web.api.messages import Wanted, converted, find, message_and_batch, time_limit
from sprocketmq.web.calls import Call, Route
from sprocketmq.web.dashboard import Dashboard

# The copy's trail: %DLQ%group, broker, queue and offset of the dead letter.
REPLAYED_FROM = "REPLAYED_FROM"
# Names of the origin topic in dead letters, of this project's brokers and of Apache's.
_ORIGIN_TOPICS = (RETRY_TOPIC, "DLQ_ORIGIN_TOPIC", "REAL_TOPIC")
MAX_GROUPS, GROUPS_AT_ONCE = 200, 8
MAX_REPLAYED, SENDS_AT_ONCE = 500, 8
REPLAY_TIMEOUT_S = 60.0
MAX_RECEIPTS, MAX_REMEMBERED = 256, 20_000
MAX_RECEIPT_NAME = 100


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a dead letter is in the topic of its group."""

    broker: str
    queue: int
    offset: int


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters of ``group`` to send to their origin topics.

    ``receipt`` is a name that the page generates for one replay: a second request with it returns the first one's receipt. ``again`` allows
    dead letters that this dashboard has replayed before.
    """

    group: str
    places: tuple[Place, ...]
    receipt: str
    again: bool = False


async def groups(admin: AdminClient) -> Json:
    """Return the groups that have a topic of dead letters, those with the most first, and whether there are more than MAX_GROUPS."""
    names = [topic.removeprefix(DLQ_PREFIX) for topic in await admin.topics() if topic.startswith(DLQ_PREFIX)]
    room = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def count(group: str) -> Json:
        async with room:
            try:
                stats = await admin.topic_stats(DLQ_PREFIX + group)
            except SprocketError as e:
                return {"group": group, "messages": None, "newest_ms": None, "problem": str(e)}
        offsets = stats.offset_table.values()
        messages = sum(max(0, each.max_offset - each.min_offset) for each in offsets)
        newest_ms = max((each.last_update_timestamp for each in offsets), default=0)
        return {"group": group, "messages": messages, "newest_ms": newest_ms or None, "problem": None}

    async with time_limit():
        counted = await all_of(count(group) for group in names[:MAX_GROUPS])
    counted.sort(key=lambda one: (-(one["messages"] or 0), one["group"]))
    return {"groups": counted, "left_out": max(0, len(names) - MAX_GROUPS)}


async def browse(admin: AdminClient, group: str, wanted: Mapping[str, Any], replays: "Replays") -> Json:
    """Return dead letters of a group as ``messages.find`` does, and when this process has replayed them.

    ``wanted`` are fields of Wanted. A group without dead letters has none.
    """
    topic = DLQ_PREFIX + check_group(group)
    query = converted(dict(wanted) | {"topic": topic}, Wanted)
    try:
        found = await find(admin, query)
    except TopicNotFound:
        return {"messages": [], "cut": None, "in_range": 0, "scanned": 0, "unreachable": []}
    for line in found["messages"]:
        line["replayed"] = replays.of(topic, Place(line["broker"], line["queue"], line["offset"]))
    return found


async def compare(admin: AdminClient, group: str, place: Place) -> Json:
    """Return a dead letter with its original message, if that still exists, and their differences."""
    topic = DLQ_PREFIX + check_group(group)
    letter, batch = await message_and_batch(admin, MessageQueue(topic, place.broker, place.queue), place.offset)
    shown = as_detail(letter, batch) | {"body": await asyncio.to_thread(body_part, letter)}
    origin, why = None, None
    try:
        async with time_limit():
            origin = await _original(admin, letter)
    except SprocketError as e:
        why = str(e)
    if origin is None:
        return {
            "letter": shown,
            "original": None,
            "why": why or "the original message was deleted, or its topic is gone",
            "same_body": None,
        }
    return {
        "letter": shown,
        "original": as_detail(origin, [origin]),
        "why": None,
        "same_body": await asyncio.to_thread(_same_body, letter, origin),
        "changed": _changed(letter, origin),
    }


class Replays:
    """The replays of one dashboard process: each receipt is for one replay, and a dead letter that was sent is sent again only on request.

    Both memories are bounded and end with the process; the copies' property REPLAYED_FROM remains.
    """

    def __init__(self, background: Background, clock: Clock = SYSTEM_CLOCK) -> None:
        """``background`` runs the replays and ends them when it is closed."""
        self._background = background
        self._clock = clock
        self._receipts: OrderedDict[tuple[str, str], asyncio.Task[Json]] = OrderedDict()
        self._sent: OrderedDict[tuple[str, Place], Json] = OrderedDict()
        self._underway: set[tuple[str, Place]] = set()

    def of(self, topic: str, place: Place) -> Json | None:
        """Return when and to where a dead letter was replayed by this process."""
        return self._sent.get((topic, place))

    async def plan(self, admin: AdminClient, request: ReplayRequest) -> Json:
        """Return the receipt that a replay would have, without sending anything. Raises ConfigError."""
        _check(request)
        return await self._replay(admin, None, request)

    async def replay(self, admin: AdminClient, producer: Producer, request: ReplayRequest, *, viewer: str = "") -> Json:
        """Send copies of dead letters to their origin topics and return the receipt: one entry for each, sent, failed or unknown.

        A request whose receipt the same ``viewer`` has used returns that receipt, also while the first one is at work. Raises ConfigError.
        """
        _check(request)
        key = viewer, request.receipt
        running = self._receipts.get(key)
        if running is None:
            running = self._background.spawn(self._replay(admin, producer, request), "replay", awaited=True)
            self._receipts[key] = running
            while len(self._receipts) > MAX_RECEIPTS:
                self._receipts.popitem(last=False)
        # A browser that disconnects ends its request, not the replay.
        return await share(running, lambda: RetriableError("the dashboard is closing: look into the origin topic for what was sent"))

    async def _replay(self, admin: AdminClient, producer: Producer | None, request: ReplayRequest) -> Json:
        topic = DLQ_PREFIX + request.group
        room = asyncio.Semaphore(SENDS_AT_ONCE)
        origins: dict[str, str | None] = {}  # by topic: why nothing can be sent to it, None when it can
        deadline = self._clock.monotonic() + REPLAY_TIMEOUT_S

        async def one(place: Place) -> Json:
            async with room:
                if self._clock.monotonic() >= deadline:
                    reason = f"not tried: the replay took longer than {REPLAY_TIMEOUT_S:g} s"
                    return {"broker": place.broker, "queue": place.queue, "offset": place.offset, "outcome": "failed", "reason": reason}
                return await self._replay_one(admin, producer, topic, place, origins, again=request.again)

        began_ms = self._clock.time_ms()
        places = dict.fromkeys(request.places)
        entries = await all_of(one(place) for place in places)
        outcomes = [entry["outcome"] for entry in entries]
        return {
            "receipt": request.receipt,
            "group": request.group,
            "dry_run": producer is None,
            "began_ms": began_ms,
            "ended_ms": self._clock.time_ms(),
            "counts": {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)},
            "entries": entries,
        }

    async def _replay_one(
        self,
        admin: AdminClient,
        producer: Producer | None,
        topic: str,
        place: Place,
        origins: dict[str, str | None],
        *,
        again: bool,
    ) -> Json:
        entry: Json = {"broker": place.broker, "queue": place.queue, "offset": place.offset, "outcome": "failed", "reason": None}
        key = topic, place
        if key in self._underway:
            return entry | {"outcome": "skipped", "reason": "another replay is sending it now"}
        before = self._sent.get(key)
        if before is not None and not again:
            return entry | {"outcome": "skipped", "reason": "it was replayed before", "replayed": before}
        if producer is not None:
            self._underway.add(key)
        try:
            letter, _ = await message_and_batch(admin, MessageQueue(topic, place.broker, place.queue), place.offset)
            entry |= {"msg_id": cut(letter.msg_id), "origin": cut(origin_topic(letter) or "")}
            copy = make_copy(letter, topic)
            if reason := await _refusal(admin, copy.topic, origins):
                return entry | {"reason": reason}
            if producer is None:
                return entry | {"outcome": "would_send", "bytes": len(copy.body)}
            return entry | await self._send(producer, copy, key)
        except MaybeStoredError as e:
            self._note(key, {"at_ms": self._clock.time_ms(), "to": None, "unknown": True})
            return entry | {"outcome": "unknown", "reason": f"it may have been stored: {e}"}
        except SprocketError as e:
            return entry | {"reason": str(e)}
        finally:
            if producer is not None:
                self._underway.discard(key)

    async def _send(self, producer: Producer, copy: Message, key: tuple[str, Place]) -> Json:
        result = await producer.send(copy, timeout_s=10)
        to = {
            "topic": result.topic,
            "broker": result.broker_name,
            "queue": result.queue_id,
            "offset": result.queue_offset,
            "msg_id": result.msg_id,
            "status": result.status.name,
        }
        self._note(key, {"at_ms": self._clock.time_ms(), "to": to, "unknown": False})
        return {"outcome": "sent", "to": to}

    def _note(self, key: tuple[str, Place], replayed: Json) -> None:
        self._sent[key] = replayed
        self._sent.move_to_end(key)
        while len(self._sent) > MAX_REMEMBERED:
            self._sent.popitem(last=False)


def _check(request: ReplayRequest) -> None:
    """Raise ConfigError for an invalid replay."""
    check_group(request.group)
    if not 0 < len(request.receipt) <= MAX_RECEIPT_NAME:
        raise ConfigError(f"a replay needs the name of its receipt, of at most {MAX_RECEIPT_NAME} characters")
    if not 0 < len(request.places) <= MAX_REPLAYED:
        raise ConfigError(f"{len(request.places)} dead letters are chosen: replay 1 to {MAX_REPLAYED} at a time")


def origin_topic(letter: ReceivedMessage) -> str | None:
    """Return the topic that a dead letter was first sent to, None when the letter does not contain it."""
    properties = letter.properties
    return next((properties[name] for name in _ORIGIN_TOPICS if properties.get(name)), None)


def make_copy(letter: ReceivedMessage, topic: str) -> Message:
    """Return the message that replays a dead letter of ``topic``. Raises ConfigError when there is none, ProtocolError for damage."""
    origin = origin_topic(letter)
    if origin is None:
        raise ConfigError("the dead letter does not name its origin topic: send it by hand")
    check_send_topic(origin)
    if origin.startswith((DLQ_PREFIX, RETRY_PREFIX)):
        raise ConfigError(f"its origin {origin} is not a topic of producers: replay it from there")
    properties = user_properties(letter.properties) | {
        REPLAYED_FROM: f"{topic} {letter.broker_name} {letter.queue_id} {letter.queue_offset}"
    }
    return Message(origin, letter.body, letter.tag or None, letter.keys, properties, flag=letter.flag)


async def _refusal(admin: AdminClient, origin: str, origins: dict[str, str | None]) -> str | None:
    """Return why nothing can be sent to the origin topic; asked once in a replay."""
    if origin not in origins:
        try:
            await admin.queues(origin)  # a send to an unknown topic would create it where brokers create topics
            origins[origin] = None
        except SprocketError as e:
            origins[origin] = str(e)
    return origins[origin]


async def _original(admin: AdminClient, letter: ReceivedMessage) -> ReceivedMessage | None:
    """Return the message that a dead letter was made from, None when it is gone."""
    origin = origin_topic(letter)
    if origin is None:
        raise ConfigError("the dead letter does not name its origin topic")
    msg_id = letter.properties.get(UNIQ_KEY)
    found = await admin.query_by_unique_key(origin, msg_id) if msg_id else []
    stored_id = letter.properties.get(ORIGIN_MESSAGE_ID, "")
    same = next((message for message in found if message.offset_msg_id == stored_id), None)
    if same is not None or found:
        return same or found[0]
    try:
        return next((message for message in await admin.messages_at(stored_id) if message.topic == origin), None)
    except (ConfigError, RetriableError):  # a producer's id, or a broker that is down or known by another address
        return None


def _same_body(letter: ReceivedMessage, origin: ReceivedMessage) -> bool | None:
    try:
        return letter.body == origin.body
    except ProtocolError:
        return None


def _changed(letter: ReceivedMessage, origin: ReceivedMessage) -> list[Json]:
    """Return the properties that differ, sorted."""
    after, before = letter.properties, origin.properties
    names = sorted({*after, *before})
    changed = [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
    return [{"name": cut(name), "before": old and cut(old), "after": new and cut(new)} for name, old, new in changed]


# The replays of each dashboard of this process.
_replays: WeakKeyDictionary[Dashboard, Replays] = WeakKeyDictionary()


def replays_of(dashboard: Dashboard) -> Replays:
    """Return the replays of a dashboard."""
    found = _replays.get(dashboard)
    if found is None:
        found = _replays[dashboard] = Replays(dashboard.streams, dashboard.clock)
    return found


async def groups_route(call: Call) -> object:
    """Answer with the groups that have dead letters."""
    return await groups(await call.admin())


async def browse_route(call: Call) -> object:
    """Answer a search among the dead letters of a group."""
    wanted = {name: value for name, value in call.arguments.items() if value != "" and name in Wanted.__struct_fields__}
    return await browse(await call.admin(), call.text("group"), wanted, replays_of(call.dashboard))


async def compare_route(call: Call) -> object:
    """Answer with a dead letter and its original."""
    place = Place(call.text("broker"), call.number("queue"), call.number("offset"))
    return await compare(await call.admin(), call.text("group"), place)


async def replay_route(call: Call) -> object:
    """Replay dead letters."""
    request = converted({name: value for name, value in call.arguments.items() if name != "confirm"}, ReplayRequest)
    replays = replays_of(call.dashboard)
    return await replays.replay(await call.admin(), await call.producer(), request, viewer=call.session.user)


async def plan_route(call: Call) -> object:
    """Return what a replay would do."""
    request = converted(call.arguments, ReplayRequest)
    return await replays_of(call.dashboard).plan(await call.admin(), request)


ROUTES = (
    Route("GET", "/api/dead-letters/groups", groups_route),
    Route("GET", "/api/dead-letters", browse_route),
    Route("GET", "/api/dead-letter", compare_route),
    Route("POST", "/api/dead-letters/plan", plan_route, changes=False, timeout_s=REPLAY_TIMEOUT_S),
    Route("POST", "/api/dead-letters/replay", replay_route, timeout_s=REPLAY_TIMEOUT_S + 20),
)
