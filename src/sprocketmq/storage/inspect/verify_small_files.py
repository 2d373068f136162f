"""Verifying the small files: snapshot, checkpoint, topics and offsets, against the log and the queues; leftovers of interruptions."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sprocketmq.protocol.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES
from sprocketmq.protocol.names import SCHEDULE_TOPIC
from sprocketmq.storage.inspect.findings import ERROR, NOTE, WARNING, Findings
from sprocketmq.storage.inspect.store_directory import StoreDirectory
from sprocketmq.storage.log.segments import parse_segment_name
from sprocketmq.storage.snapshot import FILE_NAME as DISPATCHED
from sprocketmq.storage.snapshot import Snapshot

if TYPE_CHECKING:
    from sprocketmq.storage.inspect.verify_log import LogCheck
    from sprocketmq.storage.inspect.verify_queues import QueueChecks


class SmallFileChecks:
    """The checks of one store's small files. ``snapshot`` is that of the store, None when it is missing or damaged."""

    def __init__(self, store: StoreDirectory, findings: Findings, *, in_use: bool) -> None:
        self._store = store
        self._findings = findings
        self._in_use = in_use
        topics = store.config("topics.json").get("topicConfigTable")
        # The topics in topics.json, None when it cannot be read.
        self.configured = {str(name): value for name, value in topics.items()} if isinstance(topics, dict) else None
        self.snapshot: Snapshot | None = None

    def batch_topics(self) -> frozenset[str]:
        """Return the topics whose queues are batch queues, by topics.json or by their directories."""
        directories = {e.name for e in self._store.files_in("batchconsumequeue") if e.is_dir}
        return frozenset(directories | {name for name, value in (self.configured or {}).items() if _queue_type(value) == "BatchCQ"})

    def check(self, log: "LogCheck", queues: "QueueChecks") -> None:
        """Check all small files against the log and the queues, which have been checked before."""
        self._check_snapshot(log, queues)
        self._check_checkpoint(log)
        self._check_topics()
        self._check_offsets(queues)
        self._check_leftovers()

    def load_snapshot(self, *, refused: bool) -> None:
        """Load the snapshot; report when it is damaged, unless it is the file for which a broker refuses the store."""
        data = self._store.small(DISPATCHED)
        if data is None:
            return
        path = f"{self._store.root}/{DISPATCHED}"
        self.snapshot = Snapshot.decode(data)
        if self.snapshot is None and not refused:
            what = "the file is damaged: the next start reads the whole log"
            self._findings.add(WARNING, "snapshot", path, 0, what, self._repair())

    def _repair(self, what: str = "") -> str:
        return f"sprocketmq rebuild {shlex.quote(self._store.root)}" + (f" --only {what}" if what else "")

    def _check_snapshot(self, log: "LogCheck", queues: "QueueChecks") -> None:
        snapshot = self.snapshot
        if snapshot is None:
            return
        path = f"{self._store.root}/{DISPATCHED}"
        severity = NOTE if self._in_use else ERROR
        if snapshot.log_offset > log.log_end:
            what = f"it knows the log up to {snapshot.log_offset}, but the log ends at {log.log_end}"
            self._findings.add(
                severity, "snapshot ahead", path, 8, what, "" if self._in_use else "what is missing at the log's end is lost"
            )
            return
        if snapshot.log_offset and log.records and not log.noted_end_met:
            boundary = snapshot.log_offset % max(self._store.segment_bytes, 1) == 0
            if not boundary and snapshot.log_offset > (self._store.segments[0][0] if self._store.segments else 0):
                what = f"its log offset {snapshot.log_offset} is not where a record begins: the next start reads the whole log"
                self._findings.add(WARNING, "snapshot", path, 8, what, self._repair())
        for state in snapshot.queues:
            queue = queues.get(state.topic, state.queue_id)
            if state.next > state.min_offset and (queue is None or (queue.next_offset is not None and state.next > queue.next_offset)):
                end = 0 if queue is None else queue.next_offset
                what = f"it has queue {state.topic}/{state.queue_id} up to offset {state.next}, the log up to {end}"
                self._findings.add(severity, "snapshot ahead", path, None, what, self._repair())

    def _check_checkpoint(self, log: "LogCheck") -> None:
        path = f"{self._store.root}/checkpoint"
        data = self._store.small("checkpoint", 1 << 20)
        if data is None:
            return
        if len(data) < CHECKPOINT.size:
            what = f"the file has {len(data)} bytes, a checkpoint has {CHECKPOINT_FILE_BYTES}: it counts as missing"
            self._findings.add(WARNING, "checkpoint", path, None, what, self._repair("checkpoint"))
            return
        values = CHECKPOINT.unpack_from(data)
        severity = NOTE if self._in_use else WARNING
        if min(values) < 0:
            self._findings.add(
                WARNING, "checkpoint", path, None, "a field is negative: the file counts as missing", self._repair("checkpoint")
            )
            return
        limits = (
            *(("the log's store time", 0, log.last_ms), ("the queues' store time", 8, log.last_ms)),
            *(("the index's store time", 16, log.last_ms), ("the confirmed log offset", 32, log.log_end)),
            ("the queues' log offset", 40, log.log_end),
        )
        for name, at, limit in limits:
            if values[at // 8] > limit and log.records:
                what = f"{name} {values[at // 8]} is ahead of the log's {limit}"
                self._findings.add(severity, "checkpoint ahead", path, at, what, "" if self._in_use else self._repair("checkpoint"))

    def _check_topics(self) -> None:
        """Compare topics.json with the directories of queues: Apache's broker refuses to start when they do not agree on a topic's kind."""
        path = f"{self._store.root}/config/topics.json"
        configured = self.configured
        if configured is None:
            if any(e.name.startswith("topics.json") for e in self._store.files_in("config")):
                show = f"sprocketmq inspect {shlex.quote(path)}"
                self._findings.add(ERROR, "topics", path, 0, "neither it nor its .bak can be read", show)
            return
        for kind, wanted in (("consumequeue", "SimpleCQ"), ("batchconsumequeue", "BatchCQ")):
            for entry in self._store.files_in(kind):
                if not entry.is_dir:
                    continue
                directory = f"{self._store.root}/{kind}/{entry.name}"
                topic = configured.get(entry.name)
                if topic is None:
                    what = f"topic {entry.name!r} has queues, but topics.json does not have it"
                    self._findings.add(WARNING, "unknown topic", directory, None, what, "create the topic again, or remove the directory")
                elif _queue_type(topic) != wanted:
                    what = f"topics.json says {_queue_type(topic)} for topic {entry.name!r}, these are queues of the kind {wanted}"
                    self._findings.add(ERROR, "queue kind", directory, None, what, self._repair("consumequeue,batchconsumequeue"))

    def _check_offsets(self, queues: "QueueChecks") -> None:
        """Compare the offsets of consumer groups and of the delay service with the queues."""
        path = f"{self._store.root}/config/consumerOffset.json"
        table = self._store.config("consumerOffset.json").get("offsetTable")
        for key, offsets in table.items() if isinstance(table, dict) else ():
            topic, _, group = str(key).partition("@")
            self._compare_offsets(path, f"group {group!r}", queues, ((topic, queue, offset) for queue, offset in _pairs(offsets)))
        path = f"{self._store.root}/config/delayOffset.json"
        levels = self._store.config("delayOffset.json").get("offsetTable")
        parked = ((SCHEDULE_TOPIC, level - 1, offset) for level, offset in _pairs(levels))
        self._compare_offsets(path, "delayed delivery", queues, parked)

    def _compare_offsets(self, path: str, who: str, queues: "QueueChecks", offsets: Iterator[tuple[str, int, int]]) -> None:
        for topic, queue_id, offset in offsets:
            if offset <= 0:
                if offset < 0:
                    self._findings.add(
                        WARNING, "offset", path, None, f"{who} is at offset {offset} of {topic}/{queue_id}, which is impossible"
                    )
                continue
            queue = queues.get(topic, queue_id)
            end = queue.next_offset if queue is not None else None
            if queue is not None and end is None:
                continue  # all its messages have expired; its files say where it ends, and they were looked at
            if end is None or offset > end:
                has = "has no message in the log" if end is None else f"ends at {end}"
                expired = end is None and self._store.segments and self._store.segments[0][0] > 0
                what = f"{who} is at offset {offset} of queue {topic}/{queue_id}, which {has}"
                self._findings.add(
                    NOTE if self._in_use or expired else WARNING, "offset ahead", path, None, what, "reset the group's offset"
                )

    def _check_leftovers(self) -> None:
        store, add = self._store, self._findings.add
        for entry in store.entries.values():
            if entry.name.endswith(".tmp") and not entry.is_dir:
                add(NOTE, "leftover", f"{store.root}/{entry.name}", None, "the rest of an interrupted save; it can be removed")
        for entry in store.files_in("config"):
            if entry.name.endswith(".tmp") and not entry.is_dir:
                add(NOTE, "leftover", f"{store.root}/config/{entry.name}", None, "the rest of an interrupted save; it can be removed")
        if store.files_in("rebuilding"):
            add(NOTE, "leftover", f"{store.root}/rebuilding", None, "the rest of an interrupted rebuild; it can be removed")
        if any(entry.name.endswith(".sst") for entry in store.files_in("rocksdbstore")):
            what = "a database of Apache's broker with data in it (transactions, timers): only that broker reads it"
            add(NOTE, "rocksdb", f"{store.root}/rocksdbstore", None, what)
        for entry in store.files_in("commitlog"):
            if parse_segment_name(entry.name) is None or entry.is_dir:
                add(NOTE, "leftover", f"{store.root}/commitlog/{entry.name}", None, "no segment has such a name")
        if store.files_in("damaged"):
            what = "segments that a recovery put aside because no record was in them; remove them when you do not need them"
            add(NOTE, "put aside", f"{store.root}/damaged", None, what, f"sprocketmq inspect {shlex.quote(store.root)}/damaged/FILE")
        if self._in_use:
            abort = store.small("abort", 64) or b""
            who = abort.decode("ascii", "replace").strip() or "unknown"
            add(
                NOTE,
                "in use",
                f"{store.root}/abort",
                None,
                f"a broker (process {who}) uses the store, was killed, or did when it was copied",
            )


def _queue_type(topic: Any) -> str:
    attributes = topic.get("attributes") if isinstance(topic, dict) else None
    kind = attributes.get("queue.type") if isinstance(attributes, dict) else None
    return "BatchCQ" if kind == "BatchCQ" else "SimpleCQ"


def _pairs(table: Any) -> Iterator[tuple[int, int]]:
    """Yield the pairs of integers in a map whose keys may be quoted; other pairs are skipped."""
    for key, value in table.items() if isinstance(table, dict) else ():
        text = str(key)
        if text.isascii() and text.isdigit() and len(text) < 10 and type(value) is int:
            yield int(text), value
