"""Messages by key and by place: QUERY_MESSAGE (12) and VIEW_MESSAGE_BY_ID (33) (protocol, sections 7.2.9 and 7.2.10)."""

import logging
from collections.abc import Callable

from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import QueryMessage, ViewMessage
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

# As many as the reference answers at most, and for a unique key, which one message has, or a few that were sent again.
MAX_RECORDS = 64
MAX_UNIQUE_RECORDS = 32
# Past this many bytes older messages are left out of the answer; one is always in it.
MAX_ANSWER_BYTES = 16 << 20
_TAG = "T"


class QueryHandlers:
    """Answer questions for single messages. Matches are exact: other keys of the same hash are left out."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    def query(self, conn: ServerConnection, command: Command) -> None:
        """Answer 12: the newest records with a key, unique key or tag, in the order they were stored."""
        request = command.header(QueryMessage)
        unique = bool(request.unique_key_query)
        try:
            records = self._store.query(
                request.topic,
                request.key,
                max_count=MAX_UNIQUE_RECORDS if unique else max(0, min(request.max_num, MAX_RECORDS)),
                begin_ms=request.begin_timestamp_ms,
                end_ms=request.end_timestamp_ms,
                by_tag=request.index_type == _TAG and not unique,
            )
        except OSError as e:
            log.warning("key index: %s", e)
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"the key index cannot be read: {e.strerror or e}")
            return
        if not records:
            ext = {"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": "0"}
            conn.respond(command, ResponseCode.QUERY_NOT_FOUND, ext=ext, remark="can not find message, maybe time range not correct")
            return
        first = len(records) - 1
        size = len(records[first])
        while first and size + len(records[first - 1]) <= MAX_ANSWER_BYTES:
            first -= 1
            size += len(records[first])
        time_ms, physical = self._store.indexed_until
        ext = {"indexLastUpdatePhyoffset": str(physical), "indexLastUpdateTimestamp": str(time_ms)}
        conn.respond(command, ResponseCode.SUCCESS, ext=ext, body=b"".join(records[first:]))

    def view(self, conn: ServerConnection, command: Command) -> None:
        """Answer 33: the record at a place in the log."""
        offset = command.header(ViewMessage).offset
        record = self._store.record_at(offset) if 0 <= offset < self._store.commitlog_visible_offset else None
        if record is None:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}")
        else:
            conn.respond(command, ResponseCode.SUCCESS, body=record)
