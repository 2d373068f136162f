"""What Apache's older brokers do otherwise with a send, and what they get instead.

**Batches, before 5.4.** A broker that keeps a batch as one record filters and indexes it by the properties of the request: the tag and the
keys of its messages, and an id. One that stores the messages by themselves has no use for them. Older brokers append them to the properties
of each message all the same, and the appended ones win: all messages would have the batch's id and each other's keys. Such a broker gets
none of them, unless its topic keeps batches whole, about which it is asked before the first batch.

**A delivery time, before 5.0.** The broker would deliver the message at once, so it is refused here.
"""

import asyncio

from sprocketmq.client.instance import Instance
from sprocketmq.client.send.requests import SendRequest
from sprocketmq.errors import ClientClosed, ConnectFailed, ConnectionLost, InvalidMessage, RequestTimeout
from sprocketmq.net.client import Connection
from sprocketmq.net.tasks import share
from sprocketmq.protocol.bodies import HeartbeatData, TopicConfig
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import TopicRequest

# The versions that Apache's brokers 5.0.0 and 5.4.0 have in their answers.
DELIVERS_AT_A_TIME = 413
MEMBERS_KEEP_THEIRS = 493

# The table of topics at older brokers is emptied when it has this many.
_MAX_TOPICS = 100_000

# Parts of property strings as JSON text.
_WEAKLY = b"WAIT\\u0001false\\u0002"
_SAFELY = b"WAIT\\u0001true\\u0002"
_TIMED = b"TIMER_DELIVER_MS\\u0001"


class OlderBrokers:
    """What one producer knows of brokers: whether they have to be asked before a request is sent, and the properties that they get."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._greeting = HeartbeatData(instance.client_id, [], []).encode()
        # Of older brokers, by address and topic: whether the topic keeps batches whole.
        self._whole: dict[tuple[str, str], bool] = {}
        # Questions on the way. What comes to the same topic meanwhile waits as well, so that nothing overtakes.
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}

    def known(self, conn: Connection, request: SendRequest) -> bool:
        """Return whether ``properties`` may be called."""
        version = conn.peer_version
        if version >= MEMBERS_KEEP_THEIRS:
            return True
        place = conn.address, request.topic
        if place in self._asking:
            return False
        if request.batch:
            return version > 0 and place in self._whole
        return version > 0 or _TIMED not in request.properties

    async def ask(self, conn: Connection, request: SendRequest, timeout_s: float) -> None:
        """Ask a broker for its version, by a heartbeat of no group, and before a batch an older one for the topic's attributes.

        Raises ConnectFailed when it does not answer within ``timeout_s`` seconds. The connection may have ended meanwhile.
        """
        place = conn.address, request.topic
        asking = self._asking.get(place)
        if asking is None:
            question = self._ask(conn, request.topic, timeout_s, batch=request.batch)
            asking = self._asking[place] = self._instance.spawn(question, f"a question to broker {conn.address}", awaited=True)
            asking.add_done_callback(lambda _: self._asking.pop(place))
        try:
            async with asyncio.timeout(timeout_s):
                await share(asking, lambda: ClientClosed("this client is closed"))
        except (RequestTimeout, ConnectionLost, TimeoutError) as e:  # nothing was sent yet
            raise ConnectFailed(conn.address, "broker", str(e) or f"no answer within {timeout_s:.2g} s") from None

    async def _ask(self, conn: Connection, topic: str, timeout_s: float, *, batch: bool) -> None:
        if not conn.peer_version:
            await conn.ask(RequestCode.HEART_BEAT, ext={}, body=self._greeting, timeout_s=timeout_s)
        if not batch or conn.peer_version >= MEMBERS_KEEP_THEIRS:
            return
        answer = await conn.ask(RequestCode.GET_TOPIC_CONFIG, ext=to_ext(TopicRequest(topic)), timeout_s=timeout_s)
        if len(self._whole) >= _MAX_TOPICS:
            self._whole.clear()
        # Versions before 5.0 refuse the question and have no such topics; what is created by the first message is not one either.
        self._whole[conn.address, topic] = answer.code == ResponseCode.SUCCESS and TopicConfig.decode(answer.body).has_batch_queues

    def properties(self, conn: Connection, request: SendRequest) -> bytes:
        """Return the property string that a broker gets, as JSON text. Raises InvalidMessage for one that it would deliver too early."""
        properties = request.properties
        version = conn.peer_version
        if version >= MEMBERS_KEEP_THEIRS:
            return properties
        if request.batch:
            if self._whole[conn.address, request.topic]:
                return properties
            return b'"%b"' % (_WEAKLY if _WEAKLY in properties else _SAFELY)
        if version < DELIVERS_AT_A_TIME and _TIMED in properties:
            raise InvalidMessage(
                f"the broker at {conn.address} knows no deliver_at_ms and would deliver the message at once: "
                "Apache's know it from 5.0 on; use delay_level"
            )
        return properties
