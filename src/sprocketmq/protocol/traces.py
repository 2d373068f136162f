r"""Message traces as Apache's clients write them to RMQ_SYS_TRACE_TOPIC: what happened to a message, one record for each event.

The body of a trace message is UTF-8 text. A record ends with 0x02, its fields are separated by 0x01, and an absent field is ``null``::

    Pub             timestamp region group topic msgId tags keys storeHost bodyLength costMs msgType offsetMsgId success [clientHost]
    SubBefore       timestamp region group requestId msgId retryTimes keys
    SubAfter        requestId msgId costMs success keys [contextCode [timestamp group]]
    EndTransaction  timestamp region group topic msgId tags keys storeHost msgType transactionId state fromCheck
    Recall          timestamp region group topic msgId success

Times are wall-clock milliseconds, ``success`` and ``fromCheck`` are ``true`` or ``false``. ``requestId`` pairs SubBefore with SubAfter: it
names one call of a handler. Apache's reader drops the rest of a message after a record whose last field is empty, so none is written.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
DEFAULT_REGION = "DefaultRegion"

FIELD_END = "\x01"
RECORD_END = "\x02"
ABSENT = "null"

# Limits of a reader. Apache's writers end a body at 128,000 characters, with records of about 200.
MAX_TRACE_BYTES = 4 << 20
MAX_TRACE_RECORDS = 20_000
# The longest kind of record has 15 fields; what follows them belongs to later versions.
_MAX_FIELDS = 24
_MAX_DIGITS = 19


class MessageType(IntEnum):
    """The kind of message in a Pub or EndTransaction record."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeCode(IntEnum):
    """The outcome of a handler call, in a SubAfter record."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class PubForm(NamedTuple):
    """The text around the fields of one message, for the Pub records of a request: a batch has one for each message."""

    head: str
    before_length: str
    after_length: str
    end: str

    @classmethod
    def of(
        cls,
        timestamp_ms: int,
        region: str,
        group: str,
        topic: str,
        store_host: str,
        cost_ms: int,
        message_type: int,
        *,
        success: bool,
        client_host: str = "",
    ) -> "PubForm":
        """Return the form of a request's records."""
        return cls(
            f"Pub\x01{timestamp_ms}\x01{_text(region)}\x01{_text(group)}\x01{_text(topic)}\x01",
            f"\x01{_text(store_host)}\x01",
            f"\x01{cost_ms}\x01{message_type}\x01",
            f"\x01{_text(success)}{FIELD_END + _text(client_host) if client_host else ''}\x02",
        )

    def record(self, msg_id: str, tags: str, keys: str, body_bytes: int, offset_msg_id: str) -> str:
        """Return the record of one message, whose texts must hold no separators."""
        head, before, after, end = self
        return f"{head}{msg_id}\x01{tags or ABSENT}\x01{keys or ABSENT}{before}{body_bytes}{after}{offset_msg_id or ABSENT}{end}"


@dataclass(frozen=True, slots=True)
class PubTrace:
    """A producer has sent a message. ``client_host`` is empty in records of Apache's clients; the trace message has it as its born host."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    cost_ms: int
    message_type: int
    offset_msg_id: str
    success: bool
    client_host: str = ""

    def encode(self) -> str:
        """Return the record with its end."""
        form = PubForm.of(
            self.timestamp_ms,
            self.region,
            self.group,
            self.topic,
            self.store_host,
            self.cost_ms,
            self.message_type,
            success=self.success,
            client_host=self.client_host,
        )
        return form.record(_text(self.msg_id), _text(self.tags), _text(self.keys), self.body_bytes, _text(self.offset_msg_id))


@dataclass(frozen=True, slots=True)
class SubBeforeTrace:
    """A handler is about to receive a message, which has failed ``retry_times`` times before."""

    timestamp_ms: int
    region: str
    group: str
    request_id: str
    msg_id: str
    retry_times: int
    keys: str

    def encode(self) -> str:
        """Return the record with its end."""
        return record("SubBefore", self.timestamp_ms, self.region, self.group, self.request_id, self.msg_id, self.retry_times, self.keys)


@dataclass(frozen=True, slots=True)
class SubAfterTrace:
    """A handler call has ended. ``code`` is a ConsumeCode; old writers leave out ``timestamp_ms`` (0) and ``group`` ("")."""

    request_id: str
    msg_id: str
    cost_ms: int
    success: bool
    keys: str
    code: int = 0
    timestamp_ms: int = 0
    group: str = ""

    def encode(self) -> str:
        """Return the record with its end."""
        return record(
            "SubAfter",
            self.request_id,
            self.msg_id,
            self.cost_ms,
            self.success,
            self.keys,
            self.code,
            self.timestamp_ms,
            self.group,
        )


@dataclass(frozen=True, slots=True)
class EndTransactionTrace:
    """A transaction was decided: ``state`` is COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    message_type: int
    transaction_id: str
    state: str
    from_check: bool

    def encode(self) -> str:
        """Return the record with its end."""
        return record(
            "EndTransaction",
            self.timestamp_ms,
            self.region,
            self.group,
            self.topic,
            self.msg_id,
            self.tags,
            self.keys,
            self.store_host,
            self.message_type,
            self.transaction_id,
            self.state,
            self.from_check,
        )


@dataclass(frozen=True, slots=True)
class RecallTrace:
    """A producer has recalled a delayed message."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    msg_id: str
    success: bool

    def encode(self) -> str:
        """Return the record with its end."""
        return record("Recall", self.timestamp_ms, self.region, self.group, self.topic, self.msg_id, self.success)


TraceRecord = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace | RecallTrace


def record(*fields: str | int | bool) -> str:
    """Return a record with its end. Empty fields are written as absent; separators inside a field become blanks."""
    return FIELD_END.join(map(_text, fields)) + RECORD_END


def _text(value: str | int | bool) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not value:
        return ABSENT
    if FIELD_END in value or RECORD_END in value:
        return value.replace(FIELD_END, " ").replace(RECORD_END, " ")
    return value


def decode_traces(body: bytes | memoryview, msg_id: str | None = None) -> list[TraceRecord]:
    """Return the records of a trace message, or only those of the message ``msg_id``, in order.

    Records that no reader understands are left out: of unknown kinds, with missing fields, with numbers that are none. Bytes that are not
    UTF-8 are replaced. Of a hostile body at most ``MAX_TRACE_BYTES`` bytes and ``MAX_TRACE_RECORDS`` records are looked at.
    """
    return list(_records(bytes(body[:MAX_TRACE_BYTES]).decode(errors="replace"), msg_id))


def _records(text: str, msg_id: str | None) -> Iterator[TraceRecord]:
    start = 0
    for _ in range(MAX_TRACE_RECORDS):
        if start >= len(text):
            return
        at, end = start, text.find(RECORD_END, start)
        if end < 0:
            end = len(text)
        start = end + 1
        if msg_id is not None and text.find(msg_id, at, end) < 0:
            continue
        fields = text[at:end].split(FIELD_END, _MAX_FIELDS)
        kind = _KINDS.get(fields[0])
        if kind is None:
            continue
        read, id_at, least = kind
        if len(fields) < least or (msg_id is not None and not is_about(fields[id_at], msg_id)):
            continue
        try:
            found = read([field if field != ABSENT else "" for field in fields])
        except ValueError:
            continue
        yield found


def is_about(ids: str, msg_id: str) -> bool:
    """Return whether the id field of a record names a message. Apache's producers write all ids of a batch into one, with commas."""
    return ids == msg_id or ("," in ids and msg_id in ids.split(","))


def _number(text: str) -> int:
    """Return a decimal number; ValueError for anything else, and for what no 64-bit field holds."""
    digits = text[1:] if text[:1] == "-" else text
    if len(digits) > _MAX_DIGITS or not digits.isascii() or not digits.isdigit():
        raise ValueError(text[:40])
    return int(text)


_Heading = tuple[int, str, str, str, str, str, str, str]


def _heading(fields: Sequence[str]) -> _Heading:
    """Return the common beginning of a producer's records, from the timestamp to the store host."""
    return _number(fields[1]), fields[2], fields[3], fields[4], fields[5], fields[6], fields[7], fields[8]


def _pub(fields: Sequence[str]) -> PubTrace:
    # 13 fields: a version without offsetMsgId; 15: with the client's host.
    offset_msg_id, success = ("", fields[12]) if len(fields) == 13 else (fields[12], fields[13])
    return PubTrace(
        *_heading(fields),
        body_bytes=_number(fields[9]),
        cost_ms=_number(fields[10]),
        message_type=_number(fields[11]),
        offset_msg_id=offset_msg_id,
        success=success == "true",
        client_host=fields[14] if len(fields) > 14 else "",
    )


def _sub_before(fields: Sequence[str]) -> SubBeforeTrace:
    return SubBeforeTrace(_number(fields[1]), fields[2], fields[3], fields[4], fields[5], _number(fields[6]), fields[7])


def _sub_after(fields: Sequence[str]) -> SubAfterTrace:
    code = _number(fields[6]) if len(fields) > 6 else 0
    timestamp_ms, group = (_number(fields[7]), fields[8]) if len(fields) > 8 else (0, "")
    return SubAfterTrace(fields[1], fields[2], _number(fields[3]), fields[4] == "true", fields[5], code, timestamp_ms, group)


def _end_transaction(fields: Sequence[str]) -> EndTransactionTrace:
    return EndTransactionTrace(
        *_heading(fields),
        message_type=_number(fields[9]),
        transaction_id=fields[10],
        state=fields[11],
        from_check=fields[12] == "true",
    )


def _recall(fields: Sequence[str]) -> RecallTrace:
    return RecallTrace(_number(fields[1]), fields[2], fields[3], fields[4], fields[5], fields[6] == "true")


# By the first field: the reader, where the message id is, and how many fields there are at least.
_KINDS: dict[str, tuple[Callable[[Sequence[str]], TraceRecord], int, int]] = {
    "Pub": (_pub, 5, 13),
    "SubBefore": (_sub_before, 5, 8),
    "SubAfter": (_sub_after, 2, 6),
    "EndTransaction": (_end_transaction, 5, 13),
    "Recall": (_recall, 5, 7),
}
