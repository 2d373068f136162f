"""``lag``: how far a reader is behind the end of its topics: a consumer group, a streaming query, or a landing.

The position of a reader comes from the brokers for a group, from the checkpoint directory or progress report for a query, and from the
table for a landing. The ends of the topics come from the brokers.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sprocketmq import sync
from sprocketmq.errors import ConfigError, FatalError, TopicNotFound
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.jobs.land.table import read_table
from sprocketmq.spark.security import Secure, parse_secure
from sprocketmq.spark.source.access import ClusterAccess
from sprocketmq.spark.source.offsets import Offsets, WrongCheckpoint, decode_offsets

# Group of the connection; nothing is committed for it.
_OWN_GROUP = "sprocketmq-lag"


class NoProgress(FatalError):
    """The position of the reader is not known."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


@dataclass(frozen=True)
class QueueLag:
    """One queue: ``position`` is the reader's next offset, None while it does not know the queue; ``begin`` and ``end`` are the broker's.

    ``end`` is None when the queue or its broker is gone. ``last_ms`` is the store time of the last message read, where that is known.
    """

    queue: MessageQueue
    position: int | None
    begin: int | None
    end: int | None
    last_ms: int | None = None

    @property
    def lag(self) -> int:
        """Unread messages that the broker still has."""
        if self.end is None:
            return 0
        return max(0, self.end - max(self.begin or 0, self.position or 0))

    @property
    def lost(self) -> int:
        """Messages that were removed before they were read."""
        return 0 if self.position is None or self.begin is None else max(0, self.begin - self.position)


@dataclass(frozen=True)
class Lag:
    """The lag of ``what``, by queue, sorted. ``at_s`` is a monotonic time."""

    kind: str
    what: str
    queues: tuple[QueueLag, ...]
    at_s: float

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)

    @property
    def lost(self) -> int:
        return sum(queue.lost for queue in self.queues)

    @property
    def gone(self) -> int:
        """Queues that are read and not there any more."""
        return sum(queue.end is None for queue in self.queues)

    def rows(self) -> list[tuple[str, str]]:
        rows = [(self.kind, self.what), ("queues", f"{len(self.queues):,}"), ("messages behind", f"{self.lag:,}")]
        if self.lost:
            rows.append(("removed before they were read", f"{self.lost:,}"))
        if self.gone:
            rows.append(("queues not there any more", f"{self.gone:,}"))
        return rows

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "what": self.what,
            "lag": self.lag,
            "lost": self.lost,
            "queues": [
                {
                    "topic": one.queue.topic,
                    "broker_name": one.queue.broker_name,
                    "queue_id": one.queue.queue_id,
                    "position": one.position,
                    "begin": one.begin,
                    "end": one.end,
                    "lag": one.lag,
                    "lost": one.lost,
                    "last_ms": one.last_ms,
                }
                for one in self.queues
            ],
        }


def rates(before: Lag, after: Lag) -> tuple[float, float]:
    """Return messages read and messages added per second between two measurements of the same reader."""
    seconds = after.at_s - before.at_s
    if seconds <= 0:
        return 0.0, 0.0
    old = {one.queue: one for one in before.queues}
    read = sum(max(0, (one.position or 0) - (old[one.queue].position or 0)) for one in after.queues if one.queue in old)
    added = sum(max(0, (one.end or 0) - (old[one.queue].end or 0)) for one in after.queues if one.queue in old)
    return read / seconds, added / seconds


class LagReader:
    """Measures the lag of one reader repeatedly; a context manager that keeps its connections.

    Exactly one argument names the reader: ``group`` (with ``topic``: only that topic), ``checkpoint`` (the directory of a streaming query),
    ``table`` (a landed table) or ``query`` (a StreamingQuery, or the progress report of a StreamingQueryListener). Raises ConfigError.
    """

    def __init__(
        self,
        nameserver: str,
        *,
        group: str | None = None,
        topic: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        table: str | os.PathLike[str] | None = None,
        query: Any = None,
        secure: Secure | None = None,
    ) -> None:
        given = [
            name for name, value in (("group", group), ("checkpoint", checkpoint), ("table", table), ("query", query)) if value is not None
        ]
        if len(given) != 1:
            but = f", not {' and '.join(given)}" if given else ""
            raise ConfigError(f"say whose lag: one of group, checkpoint, table and query{but}")
        if topic is not None and group is None:
            raise ConfigError("topic goes with group: a query and a table have their own topics; leave it out")
        self._kind = given[0]
        self._group = group
        self._topic = topic
        self._checkpoint = checkpoint
        self._table = table
        self._query = query
        self._nameserver = nameserver
        self._security = parse_secure(secure)
        self._admin: sync.AdminClient | None = None
        self._access: ClusterAccess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        if self._admin is not None:
            self._admin.close()
        if self._access is not None:
            self._access.close()
        self._admin = self._access = None

    def read(self) -> Lag:
        """Measure once. Raises NoProgress, WrongCheckpoint, NotALandingTable, GroupNotFound, TopicNotFound and what the client raises."""
        if self._kind == "group":
            return self._of_group(self._group or "")
        if self._kind == "checkpoint":
            assert self._checkpoint is not None
            what, positions = str(self._checkpoint), checkpoint_offsets(self._checkpoint)
        elif self._kind == "table":
            assert self._table is not None
            state = read_table(self._table)
            what, positions = str(state.path), decode_offsets(state.end)
        else:
            what, positions = progress_offsets(self._query)
        return self._compare(what, positions)

    def _of_group(self, group: str) -> Lag:
        if self._admin is None:
            login = self._security.resolve()
            self._admin = sync.AdminClient(namesrv=self._nameserver, credentials=login.credentials, tls=login.tls or False)
            self._admin.start()
        found = self._admin.progress(group, self._topic)
        if not found.queues:
            self._admin.group_config(group)  # raises GroupNotFound unless the group exists and has read nothing yet
        begins, _ = self._bounds([one.queue for one in found.queues])
        queues = []
        for one in found.queues:
            begin = begins.get(one.queue)
            # Brokers also return 0 for a group that never committed.
            position = None if one.committed_offset == 0 and begin else one.committed_offset
            queues.append(QueueLag(one.queue, position, begin, one.end_offset, one.last_consumed_ms or None))
        return Lag("group", group, tuple(queues), time.monotonic())

    def _compare(self, what: str, positions: Offsets) -> Lag:
        begins, ends = self._bounds(positions)
        queues = tuple(QueueLag(queue, positions.get(queue), begins.get(queue), ends.get(queue)) for queue in sorted({*positions, *ends}))
        return Lag(self._kind, what, queues, time.monotonic())

    def _bounds(self, known: Any) -> tuple[Offsets, Offsets]:
        """Return the first and end offsets of all queues of the topics of ``known``, without topics that are gone."""
        if self._access is None:
            self._access = ClusterAccess(self._nameserver, _OWN_GROUP, security=self._security)
        queues: list[MessageQueue] = []
        for topic in sorted({queue.topic for queue in known}):
            try:
                queues += self._access.queues([topic])
            except TopicNotFound:
                continue
        return self._access.earliest(queues), self._access.latest(queues)


def lag(
    nameserver: str,
    *,
    group: str | None = None,
    topic: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    table: str | os.PathLike[str] | None = None,
    query: Any = None,
    secure: Secure | None = None,
) -> Lag:
    """Return the current lag of one reader. Arguments and errors are those of LagReader and its ``read``."""
    with LagReader(nameserver, group=group, topic=topic, checkpoint=checkpoint, table=table, query=query, secure=secure) as reader:
        return reader.read()


def checkpoint_offsets(path: str | os.PathLike[str]) -> Offsets:
    """Return the end offsets of the last finished batch of a streaming query, for all its `rocketmq` sources.

    Raises NoProgress for a directory that is not a checkpoint or has no finished batch, WrongCheckpoint without a `rocketmq` source.
    """
    root = Path(path)
    if "://" in str(path):
        raise ConfigError(
            f"{path} is not a directory of a file system: name one where the checkpoint is mounted, or ask with the query itself"
        )
    if not (root / "offsets").is_dir():
        raise NoProgress(f"checkpoint {root}", "it has no directory offsets; name the query's checkpointLocation")
    finished = {int(file.name) for file in (root / "commits").glob("[0-9]*") if file.name.isdecimal()}
    written = {int(file.name) for file in (root / "offsets").glob("[0-9]*") if file.name.isdecimal()}
    if not finished & written:
        raise NoProgress(f"checkpoint {root}", "the query has not finished a batch yet")
    file = root / "offsets" / str(max(finished & written))
    return _offsets_of(file.read_text(encoding="utf-8").splitlines()[1:], f"checkpoint {root}")


def progress_offsets(query: Any) -> tuple[str, Offsets]:
    """Return the name of a query and its end offsets, from a StreamingQuery or from one of its progress reports.

    Raises NoProgress before the first finished batch, WrongCheckpoint without a `rocketmq` source.
    """
    progress = query.lastProgress if hasattr(query, "lastProgress") else query
    if progress is None:
        raise NoProgress(f"query {query.name or query.id}", "it has not finished a batch yet")
    name = str(progress["name"] or progress["id"])
    return name, _offsets_of([source["endOffset"] for source in progress["sources"]], f"query {name}")


def _offsets_of(values: list[Any], what: str) -> Offsets:
    """Return the offsets of `rocketmq` sources among JSON values of any source. Raises WrongCheckpoint when there are none."""
    found: Offsets = {}
    ours = False
    for value in values:
        try:
            offsets = json.loads(value) if isinstance(value, str) else value
            found |= decode_offsets(offsets) if isinstance(offsets, Mapping) else {}
        except (ValueError, WrongCheckpoint):
            continue
        ours = ours or isinstance(offsets, Mapping)
    if not ours:
        raise WrongCheckpoint(f"{what} has no offsets of the rocketmq source: is it a query that reads topics?")
    return found
