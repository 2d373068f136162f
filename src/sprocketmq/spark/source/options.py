"""Options of a read with the `rocketmq` format, checked before a job starts. Errors name the option and its allowed values."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sprocketmq.arrow.decode import DEFAULT_BATCH_BYTES, DEFAULT_BATCH_ROWS
from sprocketmq.arrow.schema import COLUMNS, DEFAULT_COLUMNS
from sprocketmq.client.consume.replica_choice import ReadFrom
from sprocketmq.errors import ConfigError, InvalidName
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import check_group, check_send_topic, check_topic
from sprocketmq.protocol.progress_reports import MAX_NAME
from sprocketmq.spark.option_values import CLIENT_PREFIX, Values, camel
from sprocketmq.spark.security import SECURITY_NAMES, SecurityOptions, parse_security
from sprocketmq.spark.source.access import CLIENT_OPTIONS, Filter, FilterRefused, check_filter, client_settings
from sprocketmq.spark.source.offsets import EARLIEST, LATEST, Bound, Offsets
from sprocketmq.spark.source.reading import InnerBatch

if TYPE_CHECKING:
    from sprocketmq.client.consume.pull_requests import ExpressionType

DEFAULT_GROUP = "sprocketmq-spark"

_WHAT = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingFromGroup")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_PROGRESS = ("progressTopic", "progressName")
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "commitOffsetsToBroker",
    *_PROGRESS,
)
NAMES = (
    *("nameserver", *_WHAT, *_STARTS, "startingOffsetsByTimestampStrategy", *_ENDS, "group", "columns", "failOnDataLoss"),
    *("filterExpression", "filterType", *_STREAM_ONLY, "minPartitions", "maxPartitions", "maxRecordsPerPartition"),
    *("batchRows", "batchBytes", "pullBatchSize", "pullBatchBytes", "pullTimeoutMs", "prefetch", "innerBatch", "readFrom", CLIENT_PREFIX),
    *SECURITY_NAMES,
)

_MOST = 2**31 - 1
_MAX_MS = 2**63 - 1
_OFFSETS_FORM = 'earliest, latest, or JSON such as {"Topic": {"broker-a": {"0": 23, "1": -1}}} (-2 is earliest, -1 latest)'
_TIMES_FORM = 'JSON such as {"Topic": {"broker-a": {"0": 1767225600000, "1": 1767225600000}}} (milliseconds since 1970)'
_ASSIGN_FORM = 'JSON such as {"Topic": {"broker-a": [0, 1]}}'


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read.

    A read selects the ``topics``, the topics whose whole name matches ``pattern``, or the queues of ``assign`` (``topics`` are then those
    of the queues). Sizes are in bytes, times in milliseconds; a limit of None is no limit.
    """

    nameserver: str
    topics: tuple[str, ...]
    pattern: str | None
    assign: tuple[MessageQueue, ...]
    group: str
    columns: tuple[str, ...]
    starting: Bound
    error_without_match: bool
    ending: Bound
    commit_offsets: bool
    progress_topic: str | None
    progress_name: str
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int
    max_partitions: int
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    filter: Filter | None
    batch_rows: int
    batch_bytes: int
    pull_batch_size: int
    pull_batch_bytes: int
    pull_timeout_ms: int
    prefetch: int
    inner_batch: InnerBatch
    read_from: ReadFrom
    client_options: tuple[tuple[str, str], ...]
    security: SecurityOptions

    def reads_topic(self, topic: str) -> bool:
        """Return whether the read selects ``topic``."""
        return topic in self.topics if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    def reads(self, queue: MessageQueue) -> bool:
        """Return whether the read selects ``queue``, if it exists."""
        return queue in self.assign if self.assign else self.reads_topic(queue.topic)

    @property
    def what(self) -> str:
        """What is read, for messages."""
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return f"{len(self.assign)} assigned queues of {', '.join(self.topics)}" if self.assign else ", ".join(self.topics)


def parse_options(options: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Return the checked options of a stream or batch read; ``streaming`` None accepts both, while it is not known yet.

    Option names are case-insensitive. Raises OptionError.
    """
    values = Values(options, NAMES)
    for name in _ENDS if streaming else _STREAM_ONLY if streaming is False else ():
        if values.given(name):
            kind = "batch reads (spark.read)" if streaming else "stream reads (spark.readStream)"
            raise values.error(name, f"it is for {kind} only; leave it out")
    nameserver = values.nameserver()
    topics, pattern, assign = _what(values)
    what = _Subscribed(topics, pattern, frozenset(assign))
    starting = _bound(values, _STARTS, LATEST if streaming else EARLIEST, what)
    ending = _bound(values, _ENDS, LATEST, what)
    if isinstance(starting.times, int) and isinstance(ending.times, int) and ending.times < starting.times:
        raise values.error(ending.option, f"{ending.times} is before {starting.option}, {starting.times}")
    if values.given("startingOffsetsByTimestampStrategy") and starting.times is None:
        raise values.error(
            "startingOffsetsByTimestampStrategy", "it goes with startingTimestamp or startingOffsetsByTimestamp; give one of them"
        )
    batch_rows = values.integer("batchRows", DEFAULT_BATCH_ROWS, 1, _MOST, "rows of an Arrow batch")
    batch_bytes = values.size("batchBytes", DEFAULT_BATCH_BYTES, 1024, 1 << 30)
    most, least = _limits(values, "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "a number of messages")
    if values.given("maxTriggerDelay") and least is None:
        raise values.error("maxTriggerDelay", "it goes with minOffsetsPerTrigger; give that, too, or leave it out")
    max_partitions, min_partitions = _limits(values, "maxPartitions", "minPartitions", "a number of tasks")
    commit_offsets = values.boolean("commitOffsetsToBroker", False)
    if commit_offsets and not values.given("group"):
        raise values.error("commitOffsetsToBroker", "name the consumer group to commit for with option group")
    group = values.group("group", DEFAULT_GROUP)
    progress_topic = _progress_topic(values, what)
    return ReadOptions(
        nameserver=nameserver,
        topics=topics,
        pattern=pattern,
        assign=assign,
        group=group,
        columns=values.columns(COLUMNS, DEFAULT_COLUMNS),
        starting=starting,
        error_without_match=values.word("startingOffsetsByTimestampStrategy", ("error", "latest"), "latest") == "error",
        ending=ending,
        commit_offsets=commit_offsets,
        progress_topic=progress_topic,
        progress_name=_progress_name(values, group, pattern or ", ".join(topics)),
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=values.size("maxBytesPerTrigger", 0, 1) or None,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=values.milliseconds("maxTriggerDelay", 900_000, 1),
        min_partitions=min_partitions or 1,
        max_partitions=max_partitions or max(os.cpu_count() or 1, min_partitions or 1),
        max_records_per_partition=values.integer("maxRecordsPerPartition", None, 1, what="messages of a task"),
        fail_on_data_loss=values.boolean("failOnDataLoss", True),
        filter=_filter(values),
        batch_rows=batch_rows,
        batch_bytes=batch_bytes,
        pull_batch_size=values.integer("pullBatchSize", batch_rows, 1, _MOST, "messages of a pull"),
        pull_batch_bytes=values.size("pullBatchBytes", batch_bytes, 1, _MOST),
        pull_timeout_ms=values.milliseconds("pullTimeoutMs", 20_000, 1, _MOST),
        prefetch=values.integer("prefetch", 2, 0, 64, "pulls ahead of Spark"),
        inner_batch=values.word("innerBatch", ("unwrap", "raw"), "unwrap"),
        read_from=values.word("readFrom", ("master", "slave", "any"), "master"),
        client_options=_client_options(values),
        security=parse_security(values),
    )


@dataclass(frozen=True, slots=True)
class _Subscribed:
    """The queues for which offsets may be given."""

    topics: tuple[str, ...]
    pattern: str | None
    assign: frozenset[MessageQueue]

    def problem(self, queue: MessageQueue) -> str | None:
        if self.pattern is not None:
            return (
                None
                if re.fullmatch(self.pattern, queue.topic)
                else f"topic {queue.topic!r} does not match subscribePattern ({self.pattern})"
            )
        if queue.topic not in self.topics:
            return f"topic {queue.topic!r} is not subscribed to ({', '.join(self.topics)} is)"
        if self.assign and queue not in self.assign:
            return f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name} is not in option assign"
        return None


def _progress_topic(values: Values, what: _Subscribed) -> str | None:
    """Return the topic for progress reports, None when there is none."""
    topic = values.text("progressTopic")
    if topic is None:
        if values.given("progressName"):
            raise values.error("progressName", "it goes with progressTopic; give that, too, or leave it out")
        return None
    try:
        check_send_topic(topic)
    except InvalidName as e:
        raise values.error("progressTopic", str(e)) from None
    if topic in what.topics or (what.pattern is not None and re.fullmatch(what.pattern, topic)):
        raise values.error("progressTopic", f"the query would read its own reports from {topic}: choose a topic that it does not read")
    return topic


def _progress_name(values: Values, group: str, what: str) -> str:
    """Return the name of the query in its reports: given, or its group, or what it reads."""
    name = values.text("progressName")
    if name is None:
        name = what[:MAX_NAME] if group == DEFAULT_GROUP else group
    if len(name) > MAX_NAME or not name.isprintable():
        raise values.error("progressName", f"it must be printable text of at most {MAX_NAME} characters")
    return name


def _what(values: Values) -> tuple[tuple[str, ...], str | None, tuple[MessageQueue, ...]]:
    """Return the topics, the pattern and the queues that the options select."""
    which = values.only_one_of(*_WHAT)
    if which is None:
        raise values.error(
            "subscribe", "it is required: the topic to read, or several separated by commas; or give subscribePattern or assign"
        )
    if which == "subscribePattern":
        pattern = values.required(which, "a regular expression that whole topic names match")
        try:
            re.compile(pattern)
        except re.error as e:
            raise values.error(which, f"{pattern!r} is not a regular expression: {e}") from None
        return (), pattern, ()
    if which == "subscribe":
        topics = values.items(which, "the topic to read, or several separated by commas")
        for topic in topics:
            _check_topic(values, which, topic)
        return topics, None, ()
    queues = []
    for topic, broker, numbers in _brokers(values, which, _ASSIGN_FORM):
        if not isinstance(numbers, list) or not numbers:
            raise values.error(
                which, f"{json.dumps(numbers)} stands where a list of queues should (topic {topic}, broker {broker}): {_ASSIGN_FORM}"
            )
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise values.error(which, f"{json.dumps(number)} is not a queue number (topic {topic}, broker {broker})")
            queues.append(MessageQueue(topic, broker, number))
    queues.sort()
    return tuple(dict.fromkeys(queue.topic for queue in queues)), None, tuple(dict.fromkeys(queues))


def _bound(values: Values, names: tuple[str, ...], default: int, what: _Subscribed) -> Bound:
    """Return the beginning or end of the read from one of the options ``names``."""
    option = values.only_one_of(*names)
    is_end = names is _ENDS
    if option is None:
        return Bound(names[0], place=default)
    if option in ("startingTimestamp", "endingTimestamp"):
        return Bound(option, times=values.integer(option, 0, 0, _MAX_MS, "milliseconds since 1970"))
    if option == "startingFromGroup":
        group = values.required(option, "a consumer group")
        try:
            return Bound(option, group=check_group(group))
        except InvalidName as e:
            raise values.error(option, str(e)) from None
    if option.endswith("ByTimestamp"):
        return Bound(option, times=_numbers(values, option, _TIMES_FORM, what, 0, "a time in milliseconds since 1970"))
    word = values.required(option, _OFFSETS_FORM).lower()
    if word in ("earliest", "latest"):
        if is_end and word == "earliest":
            raise values.error(option, "a read cannot end at the earliest offset")
        return Bound(option, place=EARLIEST if word == "earliest" else LATEST)
    place = _numbers(values, option, _OFFSETS_FORM, what, EARLIEST, "an offset")
    for queue, offset in place.items():
        if is_end and offset == EARLIEST:
            where = f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}"
            raise values.error(option, f"a read cannot end at the earliest offset ({where})")
    return Bound(option, place=place)


def _numbers(values: Values, name: str, form: str, what: _Subscribed, least: int, kind: str) -> Offsets:
    """Return the number of each queue from a JSON option by topic, broker and queue id; each is at least ``least``."""
    found: Offsets = {}
    for topic, broker, queues in _brokers(values, name, form):
        for queue_id, number in _object(values, name, queues, form).items():
            if not (queue_id.isascii() and queue_id.isdigit()):
                raise values.error(name, f"{queue_id!r} is not a queue number (topic {topic}, broker {broker})")
            queue = MessageQueue(topic, broker, int(queue_id))
            if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**63:
                raise values.error(name, f"{json.dumps(number)} is not {kind} (topic {topic}, broker {broker}, queue {queue_id})")
            if problem := what.problem(queue):
                raise values.error(name, problem)
            found[queue] = number
    if not found:
        raise values.error(name, f"it names no queue; it must be {form}")
    return found


def _brokers(values: Values, name: str, form: str) -> list[tuple[str, str, Any]]:
    """Return (topic, broker, value for its queues) of a JSON option."""
    text = values.required(name, form)
    if not text.startswith("{"):
        raise values.error(name, f"{text!r} is not {form}")
    found = []
    for topic, brokers in _object(values, name, values.json(name), form).items():
        _check_topic(values, name, topic)
        found += [(topic, broker, queues) for broker, queues in _object(values, name, brokers, form).items()]
    if not found:
        raise values.error(name, f"it names no queue; it must be {form}")
    return found


def _object(values: Values, name: str, value: Any, form: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise values.error(name, f"{json.dumps(value)} stands where a JSON object should; the value must be {form}")
    return value


def _check_topic(values: Values, name: str, topic: str) -> None:
    try:
        check_topic(topic)
    except InvalidName as e:
        raise values.error(name, str(e)) from None


def _limits(values: Values, most: str, least: str, what: str) -> tuple[int | None, int | None]:
    high = values.integer(most, None, 1, what=what)
    low = values.integer(least, None, 1, what=what)
    if high is not None and low is not None and low > high:
        raise values.error(least, f"{low} is more than {most}, {high}")
    return high, low


def _filter(values: Values) -> Filter | None:
    """Return the filter, None for all messages."""
    expression = values.text("filterExpression")
    kind: ExpressionType = values.word("filterType", ("TAG", "SQL92"), "TAG")
    if expression is None:
        if values.given("filterType"):
            raise values.error("filterType", "it goes with filterExpression; give that, too, or leave it out")
        return None
    wanted = (kind, expression)
    try:
        check_filter(wanted)
    except FilterRefused as e:
        raise values.error("filterExpression", str(e)) from None
    return wanted


def _client_options(values: Values) -> tuple[tuple[str, str], ...]:
    given = values.client_options(CLIENT_OPTIONS)
    for name, text in given:
        try:
            client_settings([(name, text)])
        except ConfigError as e:
            raise values.error(CLIENT_PREFIX + camel(name), str(e)) from None
    return given
