"""The sink of the `rocketmq` format: DataFrames into topics, in batch sends encoded from Arrow columns."""

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from sprocketmq.errors import FatalError, RetriableError, SprocketError
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.same_version import SameVersion
from sprocketmq.spark.sessions.worker_gc import settle_worker
from sprocketmq.spark.sink.dead_letters import DeadLetters
from sprocketmq.spark.sink.encode import BatchLimits, RowEncoder
from sprocketmq.spark.sink.message_ids import RowIds
from sprocketmq.spark.sink.options import AUTO, DEAD_LETTER, FAIL, SINGLE, SinkOptions, check_columns, parse_sink_options
from sprocketmq.spark.sink.routing import Router
from sprocketmq.spark.sink.row_batches import RowBatch
from sprocketmq.spark.sink.row_fields import RowRefused
from sprocketmq.spark.sink.sending import ProducerAccess, Sender, is_too_large, producer_access

log = logging.getLogger(__name__)


class SinkError(FatalError):
    """Rows could not be sent to ``topic`` and ``queue``. ``row`` is the first row of the request, ``partition`` the number of the task."""

    def __init__(self, topic: str, queue: str, row: int, partition: int, reason: str) -> None:
        to = f"{queue} of topic {topic!r}" if queue else f"topic {topic!r}"
        super().__init__(f"rows from row {row} of partition {partition} on were not written to {to}: {reason}")
        self.topic = topic
        self.queue = queue
        self.row = row
        self.partition = partition
        self.reason = reason

    def __reduce__(self) -> tuple[type["SinkError"], tuple[str, str, int, int, str]]:
        return type(self), (self.topic, self.queue, self.row, self.partition, self.reason)


@dataclass
class WrittenRows(WriterCommitMessage):
    """What one task wrote: messages, requests and bytes of requests; and the rows in its dead-letter file."""

    rows: int
    requests: int
    bytes: int
    dead_letters: int = 0
    dead_letter_file: str | None = None


class _Sink(SameVersion):
    """The common part of both sinks. Options and columns are checked in the driver; ``write`` runs in a task."""

    def __init__(self, schema: Any, options: Mapping[str, str], overwrite: bool) -> None:
        self._columns = check_columns((field.name, field.dataType.simpleString()) for field in schema.fields)
        self._options = parse_sink_options(options, self._columns)
        if overwrite:
            self._refuse_overwrite()

    def _refuse_overwrite(self) -> None:
        raise AssertionError("implemented by subclasses")

    def _write(self, batches: Iterable[pa.RecordBatch], job: str, partition: int) -> WrittenRows:
        """Send the rows of a task. ``job`` is the same each time the same rows are written, and differs for other rows."""
        options = self._options
        settle_worker()
        access = open_access(options)
        with DeadLetters(options.dead_letter_path, f"{job}-{partition}") as letters:
            aside = letters.add if options.on_too_large == DEAD_LETTER else None
            sender = Sender(
                access,
                max_in_flight=options.max_in_flight,
                ordered=options.ordered,
                halve=options.on_too_large != FAIL,
                refused=None if aside is None else partial(_put_aside, aside),
                failed=partial(_why_not_sent, partition),
            )
            encoder = RowEncoder(
                self._columns,
                Router(_remembered(access)),
                RowIds(access.ids.take, f"{job}/{partition}" if options.deterministic else None),
                BatchLimits(options.batch_bytes, options.batch_messages, options.max_message_bytes),
                topic=options.topic,
                wait_store_ok=options.wait_store_ok,
                by_tag=options.send_mode == AUTO,
                single=options.send_mode == SINGLE,
                refused=aside,
            )
            try:
                for batch in batches:
                    for row_batch in encoder.batches(batch):
                        sender.put(row_batch)
            except BaseException as e:
                sender.give_up()
                if isinstance(e, RowRefused):
                    raise RowRefused(e.row, e.problem, partition) from None
                raise
            sender.finish()
        return WrittenRows(sender.rows, sender.requests, sender.bytes, letters.rows, letters.path if letters.rows else None)


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes the rows of a batch DataFrame, at least once: a failed task runs again and sends its rows again."""

    def __init__(self, schema: Any, options: Mapping[str, str], overwrite: bool = False) -> None:
        super().__init__(schema, options, overwrite)
        # The same for all tasks and attempts: this object is created once and copied to them.
        self._job = uuid.uuid4().hex
        open_access(self._options, check=True)

    def _refuse_overwrite(self) -> None:
        raise OptionError("mode", 'a topic cannot be overwritten, only written on: use .mode("append")')

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return self._write(iterator, self._job, _partition())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_commit("write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_abort("write", messages)


# Spark 4.0 has no such class: it hands Arrow batches to every writer, of streams too, that is a DataSourceArrowWriter.
_StreamArrowWriter: type[DataSourceStreamWriter] = getattr(
    datasource, "DataSourceStreamArrowWriter", type("_StreamArrowWriter", (DataSourceStreamWriter, DataSourceArrowWriter), {})
)


class StreamSink(_Sink, _StreamArrowWriter):
    """Writes micro-batches. One that runs again after a failure sends its rows again, with the same ids if those are deterministic."""

    def __init__(self, schema: Any, options: Mapping[str, str], overwrite: bool = False) -> None:
        super().__init__(schema, options, overwrite)
        # Spark creates this for each micro-batch and again to commit it. An unreachable nameserver is left to the tasks, which retry.
        with contextlib.suppress(RetriableError):
            open_access(self._options, check=True)

    def _refuse_overwrite(self) -> None:
        raise OptionError("outputMode", 'a topic cannot be replaced by each micro-batch: use .outputMode("append") or "update"')

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        context = TaskContext.get()
        query = batch = None
        if context is not None:
            query, batch = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId")
        if self._options.deterministic and "dedupKey" not in self._columns and (query is None or batch is None):
            raise FatalError(
                "Spark does not tell which micro-batch this is, so that dedupId=deterministic cannot be: give the rows a column 'dedupKey'"
            )
        return self._write(iterator, f"{query}-{batch}", _partition())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _log_commit(f"micro-batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _log_abort(f"micro-batch {batchId}", messages)


def open_access(options: SinkOptions, *, check: bool = False) -> ProducerAccess:
    """Return this process's producer for a write. ``check`` also requests the topic's queues, so that a wrong name is reported at once.

    Raises NameserverUnavailable, NotRocketMQ, TlsFailed, UserRefused or TopicNotFound.
    """
    access = producer_access(
        options.nameserver,
        options.group,
        retries=options.retries,
        timeout_ms=options.timeout_ms,
        security=options.security,
        more=options.client_options,
    )
    if check and options.topic is not None:
        access.queues(options.topic)
    return access


def _remembered(access: ProducerAccess) -> Callable[[str], Sequence[Any]]:
    """Return a function that requests the queues of each topic once, so that a key keeps its queue while a task runs."""
    known: dict[str, Sequence[Any]] = {}

    def queues_of(topic: str) -> Sequence[Any]:
        found = known.get(topic)
        if found is None:
            found = known[topic] = access.queues(topic)
        return found

    return queues_of


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def _put_aside(add: Callable[[pa.RecordBatch, list[str]], None], batch: RowBatch, reason: str) -> None:
    add(batch.rows.source.slice(batch.first, 1), [reason])


def _why_not_sent(partition: int, batch: RowBatch, error: SprocketError) -> BaseException:
    queue = "" if batch.queue is None else f"queue {batch.queue.queue_id} on broker {batch.queue.broker_name!r}"
    reason = str(error)
    if is_too_large(error):
        if batch.single:
            reason = f"{reason.rstrip('. ')}. Send less, or have such rows put aside with onTooLarge=dead-letter"
        else:
            size = len(batch.body())
            reason = (
                f"{reason.rstrip('. ')}; it was a batch of {len(batch)} rows, {size} bytes. Lower batchBytes, or have such batches split"
                " with onTooLarge=split"
            )
    # One line: errors.explain finds only single lines in Spark's text.
    return SinkError(batch.topic, queue, batch.row, partition, " ".join(reason.split()))


def _log_commit(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, WrittenRows)]
    aside = [message for message in written if message.dead_letters]
    if aside:
        rows = sum(message.dead_letters for message in aside)
        directory = (aside[0].dead_letter_file or "").rpartition("/")[0]
        log.warning("%s: %d rows were too large and are in %s", what, rows, directory)
    log.info("%s: %d rows in %d requests", what, sum(m.rows for m in written), sum(m.requests for m in written))


def _log_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    rows = sum(message.rows for message in messages if isinstance(message, WrittenRows))
    log.warning("%s failed: %d rows of its finished tasks, and some of the others, are in their topics already", what, rows)
