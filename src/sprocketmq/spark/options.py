"""Options of the `rocketmq` format, checked before a job starts. Every message names the option and what it may be."""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sprocketmq.errors import InvalidName
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_group, check_topic
from sprocketmq.spark.decode import DEFAULT_BATCH_BYTES, DEFAULT_BATCH_ROWS
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.schema import COLUMNS, DEFAULT_COLUMNS

EARLIEST = -2
LATEST = -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}

# Where reading starts or ends: EARLIEST, LATEST, or an offset (or one of the two) for each queue.
Place = int | dict[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read. ``starting_timestamp_ms`` is None unless it was given and then goes before ``starting``."""

    nameserver: str
    topics: tuple[str, ...]
    group: str
    columns: tuple[str, ...]
    starting: Place
    ending: Place
    starting_timestamp_ms: int | None
    max_offsets_per_trigger: int | None
    max_partitions: int
    fail_on_data_loss: bool
    batch_rows: int
    batch_bytes: int
    pull_timeout_ms: int


NAMES = (
    *("nameserver", "subscribe", "group", "columns", "startingOffsets", "startingTimestamp", "endingOffsets", "maxOffsetsPerTrigger"),
    *("maxPartitions", "failOnDataLoss", "batchRows", "batchBytes", "pullTimeoutMs"),
)


def parse_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns a read has: the default twelve, or those ``columns`` names, in its order and by their own spelling."""
    text = _lowered(options).get("columns")
    if text is None:
        return DEFAULT_COLUMNS
    known = {name.lower(): name for name in COLUMNS}
    chosen = []
    for word in (part.strip() for part in text.split(",")):
        name = known.get(word.lower())
        if name is None:
            raise OptionError("columns", f"there is no column {word!r}; the columns are {', '.join(COLUMNS)}")
        if name in chosen:
            raise OptionError("columns", f"{name!r} is named twice")
        chosen.append(name)
    return tuple(chosen)


def check_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return every option's name by its lower case. Raises OptionError when ``options`` has one that there is not."""
    by_lower = {name.lower(): name for name in NAMES}
    for name in options:
        if name.lower() not in by_lower:
            near = difflib.get_close_matches(name.lower(), by_lower, 1)
            hint = f"did you mean {by_lower[near[0]]!r}? " if near else ""
            raise OptionError(name, f"there is no such option; {hint}The options are {', '.join(NAMES)}")
    return by_lower


def parse_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Return the checked options of a batch or stream read. Names are taken in any case. Raises OptionError."""
    given = _lowered(options)
    by_lower = check_names(options)
    nameserver = given.get("nameserver", "").strip()
    if not nameserver:
        raise OptionError("nameserver", 'it is required: "host:port", several separated by semicolons')
    for address in nameserver.split(";"):
        host, colon, port = address.strip().rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise OptionError("nameserver", f"{address!r} is not host:port; give several separated by semicolons")
    topics = _topics(given.get("subscribe", ""))
    try:
        group = check_group(given.get("group", "sprocketmq-spark"))
    except InvalidName as e:
        raise OptionError("group", str(e)) from None
    for name, where in (("endingoffsets", False), ("maxoffsetspertrigger", True)):
        if name in given and streaming != where:
            kind = "stream" if where else "batch"
            raise OptionError(by_lower[name], f"it is for {kind} reads (spark.{'readStream' if where else 'read'}) only; leave it out")
    timestamp = given.get("startingtimestamp")
    if timestamp is not None and "startingoffsets" in given:
        raise OptionError("startingTimestamp", "it cannot be given together with startingOffsets; leave one out")
    limit = given.get("maxoffsetspertrigger")
    return ReadOptions(
        nameserver=nameserver,
        topics=topics,
        group=group,
        columns=parse_columns(options),
        starting=_place(given, "startingOffsets", LATEST if streaming else EARLIEST, topics),
        ending=_place(given, "endingOffsets", LATEST, topics),
        starting_timestamp_ms=None if timestamp is None else _integer("startingTimestamp", timestamp, 0, "milliseconds since 1970"),
        max_offsets_per_trigger=None if limit is None else _integer("maxOffsetsPerTrigger", limit, 1, "a number of rows"),
        max_partitions=_integer("maxPartitions", given.get("maxpartitions", str(os.cpu_count() or 1)), 1, "a number of tasks"),
        fail_on_data_loss=_boolean("failOnDataLoss", given.get("failondataloss", "true")),
        batch_rows=_integer("batchRows", given.get("batchrows", str(DEFAULT_BATCH_ROWS)), 1, "rows of an Arrow batch"),
        batch_bytes=_integer("batchBytes", given.get("batchbytes", str(DEFAULT_BATCH_BYTES)), 1024, "bytes of an Arrow batch"),
        pull_timeout_ms=_integer("pullTimeoutMs", given.get("pulltimeoutms", "20000"), 1, "milliseconds"),
    )


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise OptionError("subscribe", "it is required: the topic to read, or several separated by commas")
    for topic in topics:
        try:
            check_topic(topic)
        except InvalidName as e:
            raise OptionError("subscribe", str(e)) from None
    return topics


def _integer(name: str, text: str, least: int, what: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise OptionError(name, f"{text!r} is not a whole number of at least {least} ({what})")
    return number


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(name, f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _place(given: Mapping[str, str], name: str, default: int, topics: tuple[str, ...]) -> Place:
    text = given.get(name.lower())
    if text is None:
        return default
    word = text.strip().lower()
    if word in _WORDS:
        if name == "endingOffsets" and word == "earliest":
            raise OptionError(name, "a read cannot end at the earliest offset")
        return _WORDS[word]
    form = 'earliest, latest, or JSON such as {"Topic": {"broker-a": {"0": 23, "1": -1}}} (-2 is earliest, -1 latest)'
    try:
        value = json.loads(text)
    except ValueError:
        raise OptionError(name, f"{text!r} is not {form}") from None
    place: dict[MessageQueue, int] = {}
    for topic, brokers in _object(name, value, form).items():
        if topic not in topics:
            raise OptionError(name, f"topic {topic!r} is not subscribed to (subscribe is {', '.join(topics)})")
        for broker, queues in _object(name, brokers, form).items():
            for queue_id, offset in _object(name, queues, form).items():
                if not queue_id.isdecimal():
                    raise OptionError(name, f"{queue_id!r} is not a queue number (topic {topic}, broker {broker})")
                if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                    raise OptionError(name, f"{offset!r} is not an offset (topic {topic}, broker {broker}, queue {queue_id})")
                if name == "endingOffsets" and offset == EARLIEST:
                    raise OptionError(name, f"a read cannot end at the earliest offset (topic {topic}, broker {broker}, queue {queue_id})")
                place[MessageQueue(topic, broker, int(queue_id))] = offset
    if not place:
        raise OptionError(name, f"it names no queue; it must be {form}")
    return place


def _object(name: str, value: Any, form: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OptionError(name, f"{json.dumps(value)} stands where a JSON object should; the value must be {form}")
    return value
