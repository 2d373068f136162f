"""Crashes a store at every file-system call and checks what a restart makes of it.

::

    points = Explorer(seed="7", flush="SYNC_FLUSH").run(points=1000)

An Explorer runs a store on a SimFileSystem through a seeded workload. Before every call that changes the disk it makes five copies of the
disk, one as each kind of crash would leave it (``simulated_disk.MODES``), opens a store on each and checks:

* every acknowledged message is there: after a power loss those that a flush covered, after a kill all that were committed;
* every message that is there was sent, with this body and offset, and only messages that were never flushed are missing;
* a deleted topic stays deleted; expired messages may be missing;
* the store accepts messages again, and a second crash, also during recovery, loses nothing that was there after the first.

A failure raises CrashFound with seed, call and mode; ``Explorer(seed, only=(call, mode))`` repeats that point alone.
"""

import random
from collections.abc import Iterator
from typing import Final

from sprocketmq.errors import SprocketError
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.store import MessageStore
from sprocketmq.testing.rig.crash_book import Book, CrashFound, Key
from sprocketmq.testing.rig.simulated_disk import KILL_MODES, MODES, CrashMode, SimFileSystem
from sprocketmq.testing.rig.small_store import HOST, QUEUES, ROOT, TOPICS, open_store, read_queue
from sprocketmq.testing.rig.workload import Workload, body_of

# Findings of ``sprocketmq verify`` that a power failure causes in messages that were not flushed.
DAMAGE_KINDS: Final = frozenset(("log damaged", "offset gap", "lost messages"))


class Explorer:
    """Crash a workload at every call that counts, in every mode, and check each restart. ``points`` counts the crashes so far."""

    def __init__(self, seed: str, *, flush: str, only: tuple[int, CrashMode] | None = None) -> None:
        self.seed = seed
        self.flush = flush
        self.only = only
        self.points = 0
        self._wanted = 0
        self._workload = Workload(f"{seed} {flush}", flush=flush)

    def run(self, points: int) -> int:
        """Try ``points`` crashes, at all calls of the workload in order; return their number. Raises CrashFound."""
        self._wanted = points
        workload = self._workload
        workload.fs.on_call = self._before
        try:
            workload.start()
            while self.points < points:
                workload.step()
        except _Enough:
            pass
        except CrashFound:
            raise
        except SprocketError as e:
            raise CrashFound(f"the workload itself failed at call {workload.fs.calls}: {e!r} (seed {self.seed})") from e
        finally:
            workload.fs.on_call = None
            workload.stop()
        return self.points

    def _before(self, call: str, path: str) -> None:
        fs = self._workload.fs
        number = fs.calls
        for mode in MODES:
            if self.only in (None, (number, mode)):
                rng = random.Random(f"{self.seed} {self.flush} {number} {mode}")
                try:
                    check_crash(fs.crash(rng, mode), self._workload.book, rng, killed=mode in KILL_MODES, flush=self.flush)
                except (AssertionError, SprocketError, OSError, ValueError, LookupError) as e:
                    raise CrashFound(
                        f"{e!r} after a crash at call {number} ({call} {path}) in mode {mode}; repeat it with "
                        f"Explorer({self.seed!r}, flush={self.flush!r}, only=({number}, {mode!r}))"
                    ) from e
            self.points += 1
        if self.points >= self._wanted:
            raise _Enough
        self._workload.meanwhile(path)


class _Enough(Exception):
    """All points were tried: stops the workload inside a call."""


def check_crash(disk: SimFileSystem, book: Book, rng: random.Random, *, killed: bool, flush: str) -> None:
    """Open a store on what a crash left, check it against the book, write to it, crash it again and check once more.

    ``killed``: only the process died, so what was committed must be there; otherwise what was flushed. Raises CrashFound, or the error
    that the store raises.
    """
    durable = book.committed if killed else book.flushed
    inner: list[SimFileSystem] = []

    def during_recovery(_call: str, _path: str) -> None:
        if len(inner) < 1 and rng.random() < 0.03:
            inner.append(disk.crash(rng, rng.choice(MODES)))

    disk.on_call = during_recovery
    store = open_store(disk, flush)
    disk.on_call = None
    try:
        shown = _look(store, book, durable)
        _ask(store, book, shown, rng)
        expected = _write_on(store, shown, rng)
    finally:
        store.abandon()
    mode = rng.choice(MODES)
    again = disk.crash(rng, mode)
    if rng.random() < 0.05:
        _verify(again, flush)
    _same_again(again, book, expected, flush, f"after writing on and a second crash ({mode})")
    for other in inner:
        _same_again(other, book, shown, flush, "after a crash during recovery")


def _keys(store: MessageStore, book: Book) -> Iterator[Key]:
    known = set(book.queues)
    known.update((topic, queue) for topic in {*store.topics_on_disk(), *TOPICS} for queue in range(QUEUES))
    yield from sorted(known)


def _verify(disk: SimFileSystem, flush: str) -> None:
    """Open and close a store and check every file as ``sprocketmq verify`` does."""
    from sprocketmq.storage.inspect.findings import ERROR
    from sprocketmq.storage.inspect.verification import verify

    open_store(disk, flush).close()
    # A power failure may leave holes in what was not flushed, which verify reports as damage.
    found = [f for f in verify(str(ROOT), fs=disk).findings if f.severity == ERROR and f.kind not in DAMAGE_KINDS]
    if found:
        raise CrashFound(f"verify reports: {found[:3]}")


Shown = dict[Key, tuple[int, int, dict[int, bytes]]]


def _look(store: MessageStore, book: Book, durable: int) -> Shown:
    shown = {}
    for key in _keys(store, book):
        low, high, found = shown[key] = read_queue(store, key)
        problem = book.problem(key, low, high, found, durable)
        if problem:
            raise CrashFound(f"{key}: {problem}")
    return shown


def _ask(store: MessageStore, book: Book, shown: Shown, rng: random.Random) -> None:
    """Query some messages by their keys."""
    for key in rng.sample(sorted(shown), 2):
        known = book.queues.get(key, [])
        found = shown[key][2]
        # The record of an inner batch has only its first message's key.
        offsets = [o for o in found if o < len(known) and (o == 0 or known[o - 1].physical != known[o].physical)]
        for offset in rng.sample(offsets, min(2, len(offsets))):
            identity = known[offset].identity
            bodies = [m.body for record in store.query(key[0], identity) for m in decode_records(record, verify_crc=True)]
            if found[offset] not in bodies:
                raise CrashFound(f"{identity} at offset {offset} of {key} is not found by its key")


def _write_on(store: MessageStore, shown: Shown, rng: random.Random) -> Shown:
    """Append to every queue, flush, and return what must be there from now on."""
    expected = {}
    for key, (low, high, found) in shown.items():
        body = body_of(f"after-{rng.random()}", rng)
        offset, _ = store.stage_message(*key, body, b"", tags_code=0, born_timestamp_ms=1, born_host=HOST)
        if offset != high:
            raise CrashFound(f"{key} gives offset {offset} to the first message after a restart, its max offset was {high}")
        expected[key] = (low, high + 1, {**found, offset: body})
    store.commit()
    store.publish(store.flush(thorough=rng.random() < 0.5))
    return expected


def _same_again(disk: SimFileSystem, book: Book, expected: Shown, flush: str, when: str) -> None:
    store = open_store(disk, flush)
    try:
        for key, (low, high, found) in expected.items():
            got_low, got_high, got = read_queue(store, key)
            missing = [offset for offset in sorted(found.keys() - got.keys()) if not book.may_go(key, offset)]
            more = [o for o in sorted(got.keys() - found.keys()) if not (book.may_go(key, o) and got[o] == book.queues[key][o].body)]
            changed = [offset for offset in found.keys() & got.keys() if found[offset] != got[offset]]
            if missing or more or changed or got_high != high or (got_low != low and not book.may_go(key, max(low, got_low) - 1)):
                raise CrashFound(
                    f"{key} is [{got_low}, {got_high}) where it was [{low}, {high}) {when}: "
                    f"gone {missing[:5]}, new {more[:5]}, changed {changed[:5]}"
                )
    finally:
        store.abandon()
