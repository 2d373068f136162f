"""The property string of a batch request, by what its broker does with it.

A broker that keeps a batch as one record filters and indexes it by these properties: the tag and the keys of its messages, and an id. One
that stores the messages by themselves has no use for them. Apache's brokers before 5.4 append them to the properties of each message all
the same, and the appended ones win: all messages would have the batch's id and each other's keys. Such a broker gets none of them, unless
its topic keeps batches whole, about which it is asked before the first batch.
"""

from sprocketmq.errors import ConnectFailed, ConnectionLost, RequestTimeout
from sprocketmq.net.client import Connection
from sprocketmq.protocol.bodies import HeartbeatData, TopicConfig
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import TopicRequest

# The version that Apache's broker 5.4.0 has in its answers.
MEMBERS_KEEP_THEIRS = 493

# The table of topics at older brokers is emptied when it has this many.
_MAX_TOPICS = 100_000

_WEAKLY = b'"WAIT\\u0001false\\u0002"'
_SAFELY = b'"WAIT\\u0001true\\u0002"'


class BatchHeaders:
    """What one producer knows of brokers: whether they have to be asked before a batch, and the properties that they get."""

    def __init__(self, client_id: str) -> None:
        self._greeting = HeartbeatData(client_id, [], []).encode()
        # Of older brokers, by address and topic: whether the topic keeps batches whole.
        self._whole: dict[tuple[str, str], bool] = {}

    def known(self, conn: Connection, topic: str) -> bool:
        """Return whether ``properties`` may be called."""
        return conn.peer_version >= MEMBERS_KEEP_THEIRS or (conn.peer_version > 0 and (conn.address, topic) in self._whole)

    async def ask(self, conn: Connection, topic: str, timeout_s: float) -> None:
        """Ask a broker for what is not known: its version, by a heartbeat of no group, and then, of an older one, the topic's attributes.

        Raises ConnectFailed when it does not answer within ``timeout_s`` seconds.
        """
        try:
            if not conn.peer_version:
                await conn.ask(RequestCode.HEART_BEAT, ext={}, body=self._greeting, timeout_s=timeout_s)
            if self.known(conn, topic):
                return
            ext = to_ext(TopicRequest(topic))
            answer = await conn.ask(RequestCode.GET_TOPIC_CONFIG, ext=ext, timeout_s=timeout_s)
        except (RequestTimeout, ConnectionLost) as e:  # nothing was sent yet
            raise ConnectFailed(conn.address, "broker", str(e)) from None
        if len(self._whole) >= _MAX_TOPICS:
            self._whole.clear()
        # Versions before 5.0 refuse the question and have no such topics; what is created by the first message is not one either.
        whole = answer.code == ResponseCode.SUCCESS and TopicConfig.decode(answer.body).attributes.get("queue.type") == "BatchCQ"
        self._whole[conn.address, topic] = whole

    def properties(self, conn: Connection, topic: str, properties: bytes) -> bytes:
        """Return the property string for a broker, as JSON text like ``properties``, which is the one for a batch that is kept whole."""
        if conn.peer_version >= MEMBERS_KEEP_THEIRS or self._whole[conn.address, topic]:
            return properties
        return _WEAKLY if _WEAKLY[1:-1] in properties else _SAFELY
