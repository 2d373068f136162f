"""``replay``: send stored messages again: dead letters to their original topics, a period of time, or to another cluster.

A first pass over the messages without bodies determines the targets and fixes the offsets; a dry run ends there. The second pass sends
through the sink, with ids that follow from each message's place, so a repeated replay sends the same ids.
"""

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sprocketmq.arrow.schema import COLUMNS
from sprocketmq.errors import ConfigError, FatalError, TopicNotFound
from sprocketmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_send_topic, check_topic
from sprocketmq.protocol.properties import RETRY_TOPIC
from sprocketmq.spark.errors import in_one_sentence
from sprocketmq.spark.jobs.progress import JobProgress, Report
from sprocketmq.spark.jobs.tasks import over_connect
from sprocketmq.spark.security import SECURITY_NAMES, Secure, parse_secure, security_options
from sprocketmq.spark.source.access import ClusterAccess, cluster_access
from sprocketmq.spark.source.offsets import encode_offsets
from sprocketmq.spark.source.options import DEFAULT_GROUP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Property with the original place of a replayed message: topic, broker, queue and offset.
REPLAYED_FROM = "REPLAYED_FROM"
_POLL_S = 0.1
_PLANNED = ("topic", "brokerName", "queueId", "queueOffset", "tags", "keys", "properties", "storeTimestamp")
_SENT = ("body", "flag", "msgId")
# Options that the job sets itself.
_TAKEN = frozenset({"nameserver", "topic", "dedupid", "ordered", *SECURITY_NAMES})


class NoOrigin(FatalError):
    """``count`` messages do not state their original topic."""

    def __init__(self, source: str, count: int) -> None:
        super().__init__(f"{count:,} messages of {source} do not say which topic they came from: name the topic they are to go to")
        self.source = source
        self.count = count


@dataclass(frozen=True)
class ReplaySummary:
    """What a replay sent, or would send in a dry run: messages by topic, and the store times of the first and last."""

    source: str
    targets: dict[str, int]
    dry_run: bool
    first_stored_ms: int | None
    last_stored_ms: int | None
    elapsed_s: float

    @property
    def messages(self) -> int:
        """Number of messages sent, or to be sent in a dry run."""
        return sum(self.targets.values())

    def rows(self) -> list[tuple[str, str]]:
        verb = "would be sent" if self.dry_run else "sent"
        rows = [("source", self.source), (f"messages {verb}", f"{self.messages:,}")]
        rows += [(f"to {topic}", f"{count:,}") for topic, count in self.targets.items()]
        if self.first_stored_ms is not None and self.last_stored_ms is not None:
            rows.append(("stored", f"{_utc(self.first_stored_ms)} to {_utc(self.last_stored_ms)}"))
        return [*rows, ("time", f"{self.elapsed_s:.1f} s")]

    def as_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "targets": self.targets,
            "messages": self.messages,
            "dry_run": self.dry_run,
            "first_stored_ms": self.first_stored_ms,
            "last_stored_ms": self.last_stored_ms,
            "elapsed_s": round(self.elapsed_s, 3),
        }


def replay(
    spark: "SparkSession",
    source: str,
    *,
    nameserver: str,
    secure: Secure | None = None,
    to: str | None = None,
    to_nameserver: str | None = None,
    to_secure: Secure | None = None,
    only_group: bool = False,
    since_ms: int | None = None,
    until_ms: int | None = None,
    tags: Sequence[str] = (),
    keys: Sequence[str] = (),
    where: str | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    keep_ids: bool = False,
    keep_queues: bool = False,
    mark: bool = True,
    options: Mapping[str, str] | None = None,
    progress: Report | None = None,
) -> ReplaySummary:
    """Send messages of ``source`` again. Messages that arrive while it runs are not read.

    The target is topic ``to``. Without it dead letters (``%DLQ%group``) and retries go back to their original topics, and other messages to
    the topic of the same name in another cluster, ``to_nameserver``. Other consumer groups of an original topic get these messages, too:
    with ``only_group`` dead letters go to the group's retry topic instead, so that only the group that failed gets them.

    Messages are selected by store time in ``[since_ms, until_ms)`` (milliseconds since 1970), by having one of ``tags`` and one of ``keys``
    where any are given, and by ``where``, an SQL condition on the source's columns; ``limit`` takes the oldest of them. ``dry_run`` sends
    nothing and returns what would be sent.

    Body, tag, keys, flag and user properties are kept; a sharding key keeps messages of one key in order. ``keep_queues`` sends each to the
    queue with its original number. The id follows from the message's place: it differs from the original id and is the same in each replay;
    ``keep_ids`` keeps the original one. With ``mark`` property REPLAYED_FROM states the place. ``options`` go to the sink.

    ``secure`` is a directory with credentials and trusted certificate that the driver and all workers have, or a mapping with options such
    as ``credentials.file``; ``to_secure`` is the same for the other cluster, ``to_nameserver``.

    Raises ConfigError for invalid arguments, TopicNotFound for a missing source or target (nothing is sent then), NoOrigin, and the errors
    of reading and writing: messages sent before the error stay sent, and have the same ids in the next attempt.
    """
    began = time.monotonic()
    report = progress or (lambda _: None)
    target = check_request(
        source,
        to=to,
        to_nameserver=to_nameserver,
        only_group=only_group,
        since_ms=since_ms,
        until_ms=until_ms,
        limit=limit,
        options=options,
    )
    report(JobProgress(0, None, "messages", "looking at what there is"))
    if to_nameserver is None:
        if to_secure is not None:
            raise ConfigError("to_secure goes with to_nameserver, another cluster; leave it out")
        to_secure = secure
    there = cluster_access(nameserver, DEFAULT_GROUP, security=parse_secure(secure))
    bounds = _bounds(there, source, since_ms, until_ms)

    place = {"nameserver": nameserver, **security_options(secure)}

    def chosen(*, bodies: bool) -> "DataFrame":
        return _chosen(spark, place, source, bounds, target, since_ms, until_ms, tags, keys, where, limit, bodies=bodies)

    with _in_own_words():
        counts, first_ms, last_ms = _plan(chosen(bodies=False))
    lost = counts.pop(None, 0)
    if lost:
        raise NoOrigin(source, lost)
    targets = {topic: counts[topic] for topic in sorted(filter(None, counts))}
    target_access = cluster_access(to_nameserver or nameserver, DEFAULT_GROUP, security=parse_secure(to_secure))
    _check_targets(target_access, targets, to_nameserver or nameserver)
    total = sum(targets.values())
    if total and not dry_run:
        with _in_own_words():
            frame = _messages(chosen(bodies=True), target, keep_ids=keep_ids, keep_queues=keep_queues, mark=mark)
            writer = frame.write.format("rocketmq").mode("append").options(**(options or {}))
            writer = writer.options(**security_options(to_secure))
            writer = writer.option("nameserver", to_nameserver or nameserver).option("dedupId", "deterministic")
            if target is not None:
                writer = writer.option("topic", target)
            _watched(spark, f"replay of {source}", writer.save, total, report)
    return ReplaySummary(source, targets, dry_run, first_ms, last_ms, time.monotonic() - began)


def check_request(
    source: str,
    *,
    to: str | None = None,
    to_nameserver: str | None = None,
    only_group: bool = False,
    since_ms: int | None = None,
    until_ms: int | None = None,
    limit: int | None = None,
    options: Mapping[str, str] | None = None,
) -> str | None:
    """Return the target topic of a replay, None when each message goes back to its original topic.

    Needs neither Spark nor a broker. Raises ConfigError for invalid arguments.
    """
    target = _target(source, to, to_nameserver, only_group=only_group)
    _check_arguments(since_ms, until_ms, limit, options or {}, to, source, to_nameserver)
    return target


def check_source(source: str, nameserver: str, secure: Secure | None = None) -> None:
    """Check without Spark that the source exists. Raises TopicNotFound, and FatalError for a group without dead letters."""
    _bounds(cluster_access(nameserver, DEFAULT_GROUP, security=parse_secure(secure)), source, None, None)


@contextlib.contextmanager
def _in_own_words() -> Iterator[None]:
    """Raise errors of Spark as one sentence."""
    try:
        yield
    except Exception as e:
        own = in_one_sentence(e)
        if own is e:
            raise
        raise own from e


def _target(source: str, to: str | None, to_nameserver: str | None, *, only_group: bool) -> str | None:
    """Return the target topic, None when each message goes back to its original topic."""
    check_topic(source)
    if only_group:
        if to is not None or to_nameserver is not None:
            raise ConfigError("only_group sends to the group's own retry topic: give neither another topic nor another cluster")
        if not source.startswith(DLQ_PREFIX):
            raise ConfigError(f"only_group is for the dead letters of a group ({DLQ_PREFIX}group), not for {source!r}")
        return RETRY_PREFIX + source.removeprefix(DLQ_PREFIX)
    if to is not None:
        return check_send_topic(to)
    if source.startswith((DLQ_PREFIX, RETRY_PREFIX)):
        return None
    if to_nameserver is None:
        raise ConfigError(
            f"say where the messages of {source!r} are to go: another topic, or another cluster (the same topic again if you mean it)"
        )
    return check_send_topic(source)


def _check_arguments(
    since_ms: int | None,
    until_ms: int | None,
    limit: int | None,
    options: Mapping[str, str],
    to: str | None,
    source: str,
    elsewhere: str | None,
) -> None:
    if since_ms is not None and until_ms is not None and until_ms <= since_ms:
        raise ConfigError(f"nothing is stored from {_utc(since_ms)} until {_utc(until_ms)}: the end must be later than the beginning")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be 1 or more, not {limit}")
    for name in options:
        if name.lower() in _TAKEN:
            raise ConfigError(f"option {name!r} of the sink is settled by the job itself: use its arguments")
    if to == source and elsewhere is None and source.startswith((DLQ_PREFIX, RETRY_PREFIX)):
        raise ConfigError(f"sent to {source} again they would be dead letters, or retries, once more: name another topic")


def _bounds(access: ClusterAccess, source: str, since_ms: int | None, until_ms: int | None) -> tuple[str, str]:
    """Return the starting and ending offsets in the form of the source's options."""
    try:
        queues = access.queues([source])
    except TopicNotFound:
        if source.startswith(DLQ_PREFIX):
            group = source.removeprefix(DLQ_PREFIX)
            raise FatalError(f"consumer group {group!r} has no dead letters: there is no topic {source}") from None
        raise
    start, end = access.earliest(queues), access.latest(queues)
    if since_ms is not None:
        start = {queue: max(offset, start[queue]) for queue, offset in access.at_time(queues, since_ms).items()}
    if until_ms is not None:
        end = {queue: max(start[queue], min(offset, end[queue])) for queue, offset in access.at_time(queues, until_ms).items()}
    return json.dumps(encode_offsets(start)["topics"]), json.dumps(encode_offsets(end)["topics"])


def _chosen(
    spark: "SparkSession",
    place: Mapping[str, str],
    source: str,
    bounds: tuple[str, str],
    target: str | None,
    since_ms: int | None,
    until_ms: int | None,
    tags: Sequence[str],
    keys: Sequence[str],
    where: str | None,
    limit: int | None,
    *,
    bodies: bool,
) -> "DataFrame":
    """Return the selected messages with the target topic of each in column `target`."""
    from pyspark.sql import functions as f

    # Bodies are read only for sending, other columns only when the condition mentions them.
    asked = [name for name in COLUMNS if where is not None and name.lower() in where.lower()]
    columns = dict.fromkeys((*_PLANNED, *(_SENT if bodies else ()), *asked))
    frame = (
        spark.read.format("rocketmq")
        .options(**place)
        .option("subscribe", source)
        .option("startingOffsets", bounds[0])
        .option("endingOffsets", bounds[1])
        .option("columns", ",".join(columns))
        .load()
    )
    stored = f.unix_millis("storeTimestamp")
    if since_ms is not None:
        frame = frame.where(stored >= since_ms)
    if until_ms is not None:
        frame = frame.where(stored < until_ms)
    if tags:
        frame = frame.where(f.col("tags").isin(list(tags)))
    if keys:
        frame = frame.where(f.arrays_overlap(f.split("keys", " "), f.array(*map(f.lit, keys))))
    if where is not None:
        frame = frame.where(where)
    if limit is not None:
        frame = frame.orderBy("storeTimestamp", "brokerName", "queueId", "queueOffset").limit(limit)
    properties = f.col("properties")
    if target is not None:
        return frame.withColumn("target", f.lit(target))
    # Apache's brokers state the original topic of a dead letter in both properties, that of a retry in the first.
    return frame.withColumn("target", f.coalesce(properties[RETRY_TOPIC], properties["DLQ_ORIGIN_TOPIC"]))


def _plan(chosen: "DataFrame") -> tuple[dict[str | None, int], int | None, int | None]:
    """Return the number of messages for each topic, and the first and last store time."""
    from pyspark.sql import functions as f

    stored = f.unix_millis("storeTimestamp")
    found = chosen.groupBy("target").agg(f.count("*").alias("n"), f.min(stored).alias("first"), f.max(stored).alias("last")).collect()
    counts = {row["target"]: int(row["n"]) for row in found}
    return counts, min((row["first"] for row in found), default=None), max((row["last"] for row in found), default=None)


def _check_targets(access: ClusterAccess, targets: Mapping[str, int], nameserver: str) -> None:
    for topic in targets:
        check_send_topic(topic)
        if not access.topic_exists(topic):
            raise TopicNotFound(topic, nameserver)


def _messages(chosen: "DataFrame", target: str | None, *, keep_ids: bool, keep_queues: bool, mark: bool) -> "DataFrame":
    """Return rows for the sink."""
    from pyspark.sql import functions as f

    place = f.concat_ws(":", "topic", "brokerName", "queueId", "queueOffset")
    new: dict[str, Any] = {REPLAYED_FROM: place} if mark else {}
    if target is not None and target.startswith(RETRY_PREFIX):
        new[RETRY_TOPIC] = f.coalesce(f.col("properties")[RETRY_TOPIC], "topic")
    properties = f.col("properties")
    if new:
        kept = f.map_filter(properties, lambda name, _: ~name.isin(list(new)))
        pairs = [part for name, value in new.items() for part in (f.lit(name), value)]
        properties = f.map_concat(kept, f.create_map(*pairs))
    columns = {
        "body": f.col("body"),
        "topic": f.col("target"),
        "tags": f.col("tags"),
        "keys": f.col("keys"),
        "properties": properties,
        "flag": f.col("flag"),
        "dedupKey": f.col("msgId") if keep_ids else f.concat(f.lit("replay:"), place),
    }
    if keep_queues:
        columns["queueId"] = f.col("queueId")
    columns["shardingKey"] = f.col("properties")["__SHARDINGKEY"]
    return chosen.select(*(column.alias(name) for name, column in columns.items()))


def _watched(spark: "SparkSession", title: str, work: Callable[[], None], total: int, report: Report) -> None:
    """Run a Spark job and report its progress in messages, estimated from finished tasks."""
    if over_connect(spark):
        work()
    else:
        context = spark.sparkContext
        names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
        before = [context.getLocalProperty(name) for name in names]
        group = f"sprocketmq-{uuid.uuid4()}"
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_POLL_S):
                done, tasks = _tasks(context.statusTracker(), group)
                report(JobProgress(total * done // tasks if tasks else 0, total, "messages"))

        # The job runs in this thread, which has the session that knows the format.
        watcher = threading.Thread(target=watch, name="sprocketmq-replay", daemon=True)
        context.setJobGroup(group, title)
        watcher.start()
        try:
            work()
        finally:
            over.set()
            watcher.join()
            for name, value in zip(names, before, strict=True):
                context.setLocalProperty(name, value)
    report(JobProgress(total, total, "messages"))


def _tasks(tracker: Any, group: str) -> tuple[int, int]:
    """Return the number of finished tasks of a job group, and of all its tasks."""
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in () if info is None else info.stageIds:
            one = tracker.getStageInfo(stage)
            if one is not None:
                done += one.numCompletedTasks
                total += one.numTasks
    return done, total


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")
