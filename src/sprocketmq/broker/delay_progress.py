"""The progress of delayed messages, as stored in ``delayOffset.json`` and ``timers.json``.

The files must not be ahead of the disk: after a crash a broker would skip messages whose delivered copies are gone from the log. Progress
is therefore saved with the end of the log that it refers to, once the log is flushed up to there. After a crash a start reads the log from
that end on, so while messages wait a new end is saved as the log grows, also when nothing is delivered for days.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sprocketmq.broker.timer import Timers
from sprocketmq.clock import Clock
from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.bodies import DataVersion
from sprocketmq.storage.store import MessageStore

# While messages wait, progress is saved again after this much more log: a start after a crash reads little more than it.
SAVE_AFTER_BYTES = 64 << 20

_Trees = tuple[dict[str, Any], dict[str, Any]]


class DelayProgress:
    """The content of both files. ``offsets`` returns how many messages of each level were delivered, and how many parked."""

    def __init__(self, store: MessageStore, timers: Timers, offsets: Callable[[], dict[int, tuple[int, int]]], clock: Clock) -> None:
        self.changed = False
        """Whether messages were delivered since the last ``note``."""
        self._store = store
        self._timers = timers
        self._offsets = offsets
        self._clock = clock
        self._version = DataVersion(0, clock.time_ms(), 0)
        self._flushed: _Trees = ({}, {})
        # Progress that refers to log not known to be flushed.
        self._waiting: _Trees | None = None

    def snapshot(self) -> dict[str, Any]:
        """Return the content for delayOffset.json."""
        return self._flushed[0]

    def timers_snapshot(self) -> dict[str, Any]:
        """Return the content for timers.json."""
        return self._flushed[1]

    @property
    def saved_version(self) -> DataVersion:
        """The data version of the snapshots."""
        return msgspec.convert(self._flushed[0].get("dataVersion", {}), DataVersion)

    def adopt(self, offsets: dict[str, Any], timers: dict[str, Any]) -> None:
        """Take the progress of the master that is followed: nothing is delivered here."""
        self._flushed = (offsets, timers)
        self._waiting = None
        self.changed = False

    def finish(self) -> None:
        """Take all progress into the snapshots; the whole log is flushed."""
        self._flushed = self._trees()

    def note(self) -> bool:
        """Take flushes of the log into account; return whether there is new progress to save. Called periodically."""
        fresh = self._waiting is not None and self._store.commitlog_flushed_offset >= self._waiting[0]["logOffset"]
        if fresh and self._waiting is not None:
            self._flushed, self._waiting = self._waiting, None
        if self._waiting is None and (self.changed or self._is_far_back()):
            self.changed = False
            self._waiting = self._trees()
        return fresh

    def _is_far_back(self) -> bool:
        """Return whether messages wait and the log has grown much since the last progress."""
        grown = self._store.commitlog_max_offset - self._flushed[0].get("logOffset", 0)
        return grown >= SAVE_AFTER_BYTES and (self._timers.waiting > 0 or any(done < end for done, end in self._offsets().values()))

    def _trees(self) -> _Trees:
        self._version = self._version.next(self._clock.time_ms())
        table = {level: delivered for level, (delivered, _) in self._offsets().items()}
        log_end = self._store.commitlog_max_offset
        offsets = {"dataVersion": msgspec.to_builtins(self._version), "offsetTable": table, "logOffset": log_end}
        return offsets, self._timers.tree(log_end)


def read_offsets(tree: Mapping[Any, Any]) -> tuple[dict[int, int], int | None]:
    """Return the offset of each level in delayOffset.json, and the end of the log that they refer to: None in a file of Apache's broker.

    Raises RemoteProtocolError for other content.
    """
    if not tree:
        return {}, 0
    table, log_end = tree.get("offsetTable", {}), tree.get("logOffset")
    if not isinstance(table, dict) or not (log_end is None or type(log_end) is int):
        raise RemoteProtocolError("offsetTable or logOffset has the wrong type or value")
    offsets = {}
    for number, offset in table.items():
        if not str(number).isdigit() or type(offset) is not int:
            raise RemoteProtocolError(f"level {number!r} has the offset {offset!r}")
        offsets[int(number)] = offset
    return offsets, log_end
