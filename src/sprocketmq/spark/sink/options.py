"""Options and columns of the sink, checked before a job starts. Errors name the option or column and its allowed values."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sprocketmq.client.send.producer import DEFAULT_PRODUCER_GROUP, MAX_MESSAGE_BYTES
from sprocketmq.errors import ConfigError, InvalidName
from sprocketmq.protocol.batch import MAX_BATCH_COUNT
from sprocketmq.protocol.names import check_send_topic
from sprocketmq.spark.option_values import CLIENT_PREFIX, OptionError, Values
from sprocketmq.spark.security import SECURITY_NAMES, SecurityOptions, parse_security

BATCH, AUTO, SINGLE = "batch", "auto", "single"
FAIL, SPLIT, DEAD_LETTER = "fail", "split", "dead-letter"
DEFAULT_GROUP = "sprocketmq-spark-sink"
DEFAULT_BATCH_BYTES = 256 << 10
# Requests in flight of one task: enough to keep a broker busy, and a bound on the memory of a worker.
DEFAULT_IN_FLIGHT = {BATCH: 16, AUTO: 16, SINGLE: 256}

NAMES = (
    *("nameserver", "topic", "sendMode", "batchBytes", "batchMessages", "producerGroup", "ordered", "waitStoreOk", "retries"),
    *("sendTimeoutMs", "maxInFlight", "maxMessageBytes", "dedupId", "onTooLarge", "deadLetterPath", CLIENT_PREFIX),
    *SECURITY_NAMES,
)
# Options of a stream that Spark passes on, but that are meant for Spark.
_SPARK_OPTIONS = (
    *("checkpointLocation", "queryName", "asyncProgressTrackingEnabled", "asyncProgressTrackingCheckpointIntervalMs"),
    "_asyncProgressTrackingOverrideSinkSupportCheck",
)
_CLIENT_OPTIONS = ("latency_fault_tolerance", "retry_another_broker_when_not_store_ok")

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TEXT = ("string",)
_TIME = ("timestamp", "bigint")
# The columns of a message with their allowed Spark types.
COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "queueId": _INTEGERS,
    "brokerName": _TEXT,
    "shardingKey": _TEXT,
    "delayTimeLevel": _INTEGERS,
    "deliverTimestamp": _TIME,
    "flag": _INTEGERS,
    "bornTimestamp": _TIME,
    "dedupKey": ("string", "binary"),
}
# Columns of the source that cannot be written. They are ignored, so that rows can be written as they were read.
IGNORED_COLUMNS = frozenset(
    {
        *("queueOffset", "sysFlag", "storeTimestamp", "bornHost", "storeHost", "msgId", "offsetMsgId", "commitLogOffset", "storeSize"),
        *("bodyCRC", "reconsumeTimes", "preparedTransactionOffset", "batchBaseOffset", "batchNum"),
    }
)


class ColumnError(ConfigError):
    """The schema to be written has a column that the sink cannot take, or lacks one that it needs."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(f"column {column!r} of the rocketmq sink: {problem}")
        self.column = column
        self.problem = problem

    def __reduce__(self) -> tuple[type["ColumnError"], tuple[str, str]]:
        return type(self), (self.column, self.problem)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write. ``topic`` is None when a column names it; times are in milliseconds, sizes in bytes."""

    nameserver: str
    topic: str | None
    group: str
    send_mode: str
    batch_bytes: int
    batch_messages: int
    ordered: bool
    wait_store_ok: bool
    retries: int
    timeout_ms: int
    max_in_flight: int
    max_message_bytes: int
    deterministic: bool
    on_too_large: str
    dead_letter_path: str | None
    client_options: tuple[tuple[str, bool], ...]
    security: SecurityOptions


def parse_sink_options(options: Mapping[str, str], columns: Mapping[str, int]) -> SinkOptions:
    """Return the checked options of a write of ``columns`` (``check_columns``). Raises OptionError or ColumnError."""
    values = Values({name: value for name, value in options.items() if name.lower() not in _LOWER_SPARK_OPTIONS}, NAMES)
    topic = values.text("topic")
    if topic is not None:
        try:
            check_send_topic(topic)
        except InvalidName as e:
            raise OptionError("topic", str(e)) from None
    elif "topic" not in columns:
        raise OptionError("topic", "it is required: the topic to write to, unless the rows have a column 'topic'")
    mode = values.word("sendMode", (BATCH, AUTO, SINGLE), BATCH)
    if mode == SINGLE:
        for name in ("batchBytes", "batchMessages"):
            if values.given(name):
                raise OptionError(name, "with sendMode=single there are no batches; leave it out")
    largest = values.size("maxMessageBytes", MAX_MESSAGE_BYTES, 1024, 15 << 20)
    batch_bytes = values.size("batchBytes", min(DEFAULT_BATCH_BYTES, largest), 1024, 15 << 20)
    if batch_bytes > largest:
        raise OptionError("batchBytes", f"{batch_bytes} bytes are more than the brokers take ({largest}, see maxMessageBytes)")
    ordered = values.word("ordered", ("none", "shardingKey"), "none") == "shardingKey"
    if ordered and "shardingKey" not in columns:
        raise OptionError("ordered", "shardingKey needs a column 'shardingKey'; add it, or leave the option out")
    deterministic = values.word("dedupId", ("none", "deterministic"), "none") == "deterministic"
    if "dedupKey" in columns and not deterministic:
        raise OptionError("dedupId", "the rows have a column 'dedupKey': set dedupId to deterministic, or drop the column")
    if deterministic and "dedupKey" not in columns and _tracks_asynchronously(options):
        raise OptionError(
            "asyncProgressTrackingEnabled",
            "with it a micro-batch that is run again may hold other rows under its old number, and dedupId=deterministic would give them"
            " the ids of those before: give the rows a column 'dedupKey', or leave one of the two out",
        )
    too_large = values.word("onTooLarge", (FAIL, SPLIT, DEAD_LETTER), FAIL)
    path = values.text("deadLetterPath")
    if too_large == DEAD_LETTER and path is None:
        raise OptionError("deadLetterPath", "it is required with onTooLarge=dead-letter: the directory that rows too large are written to")
    if path is not None and too_large != DEAD_LETTER:
        raise OptionError("deadLetterPath", f"nothing is written there with onTooLarge={too_large}; set onTooLarge to dead-letter")
    group = values.group("producerGroup", DEFAULT_GROUP)
    if group == DEFAULT_PRODUCER_GROUP:
        raise OptionError("producerGroup", f"it may not be {group!r}: give your producers a name of their own")
    return SinkOptions(
        nameserver=values.nameserver(),
        topic=topic,
        group=group,
        send_mode=mode,
        batch_bytes=batch_bytes,
        batch_messages=values.integer("batchMessages", MAX_BATCH_COUNT, 1, MAX_BATCH_COUNT, "messages of a batch"),
        ordered=ordered,
        wait_store_ok=values.boolean("waitStoreOk", True),
        retries=values.integer("retries", 5, 0, 1000, "further tries of a send"),
        timeout_ms=values.milliseconds("sendTimeoutMs", 20_000, 1),
        max_in_flight=values.integer("maxInFlight", DEFAULT_IN_FLIGHT[mode], 1, 100_000, "requests that are not answered yet"),
        max_message_bytes=largest,
        deterministic=deterministic,
        on_too_large=too_large,
        # Workers may have a working directory different from the driver's.
        dead_letter_path=path if path is None or "://" in path else str(Path(path).resolve()),
        client_options=tuple((name, _yes(name, text)) for name, text in values.client_options(_CLIENT_OPTIONS)),
        security=parse_security(values),
    )


_LOWER_SPARK_OPTIONS = frozenset(name.lower() for name in _SPARK_OPTIONS)


def _tracks_asynchronously(options: Mapping[str, str]) -> bool:
    given = {name.lower(): value for name, value in options.items()}
    return given.get("asyncprogresstrackingenabled", "false").strip().lower() == "true"


def _yes(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{CLIENT_PREFIX}{name}", f"{text!r} is neither true nor false")
    return text.strip().lower() == "true"


def check_columns(fields: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the index of each message column in a schema of ``(name, Spark type)``, by the sink's spelling.

    Names are case-insensitive. Columns of IGNORED_COLUMNS and those of type void are left out. Raises ColumnError for a schema without
    ``body``, an unknown column, a column that occurs twice, or one with a wrong type.
    """
    known = {name.lower(): name for name in COLUMNS}
    ignored = {name.lower() for name in IGNORED_COLUMNS}
    places: dict[str, int] = {}
    for place, (written, kind) in enumerate(fields):
        name = known.get(written.lower())
        if name is None:
            if written.lower() in ignored:
                continue
            near = difflib.get_close_matches(written.lower(), known, 1)
            hint = f"did you mean {known[near[0]]!r}? " if near else "drop it. "
            raise ColumnError(written, f"a message has no such part; {hint}The columns are {', '.join(COLUMNS)}")
        if name in places:
            raise ColumnError(written, "it is there twice; drop one of them")
        plain = kind.partition(" collate")[0].partition("(")[0].replace("varchar", "string")
        if plain == "char":
            plain = "string"
        if plain == "void" and name != "body":
            continue
        if plain not in COLUMNS[name]:
            raise ColumnError(written, f"its type is {kind}, it must be {' or '.join(COLUMNS[name])}: {_cast(name)}")
        places[name] = place
    if "body" not in places:
        raise ColumnError(
            "body", 'it is missing: a message needs one, binary or string, for example df.selectExpr("to_json(struct(*)) AS body")'
        )
    return places


def _cast(name: str) -> str:
    wanted = COLUMNS[name][0]
    if name == "properties":
        return "convert names and values to text, for example with map_from_entries"
    return f'cast it, for example with "CAST({name} AS {wanted.upper()}) AS {name}"'
