"""Crash a store at every file-system call and check what a restart makes of it: the workload, the expectations and the explorer.

::

    points = Explorer(seed="7", flush="SYNC_FLUSH").run(points=1000)

An Explorer runs a store on a SimFileSystem through a seeded workload. Before every call that changes the disk it takes the disk as five
kinds of crash would leave it (``simulated_disk.MODES``), opens a store on each and holds it to the promises:

* every message that was acknowledged is there: after a power loss those a flush covered, after a kill all that were committed;
* what is there was sent, is at its offset, has its body, and queue offsets only miss messages that were never flushed;
* a deleted topic stays deleted, an expired message is no offence;
* the store takes messages again, and the next crash, in the middle of recovery too, loses nothing the first restart had shown.

A failure is a CrashFound that names seed, call and mode; ``Explorer(seed, only=(call, mode))`` repeats that point alone.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sprocketmq.clock import ManualClock
from sprocketmq.errors import RemoteProtocolError, SprocketError
from sprocketmq.protocol.batch import encode_batch, split_batch, split_columns
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import ReceivedMessage, decode_records, pack_host, walk_records
from sprocketmq.storage.config import ConfigFile, StoreConfig
from sprocketmq.storage.store import MessageStore, ReadStatus
from sprocketmq.testing.rig.simulated_disk import KILL_MODES, MODES, CrashMode, SimFileSystem

ROOT: Final = Path("/store")
HOST: Final = pack_host("127.0.0.1", 10911)
BATCH_TOPIC: Final = "lists"
TOPICS: Final = ("orders", "%RETRY%billing", BATCH_TOPIC)
TOPICS_FILE: Final = {"topicConfigTable": {BATCH_TOPIC: {"topicName": BATCH_TOPIC, "attributes": {"queue.type": "BatchCQ"}}}}
QUEUES: Final = 2
SMALL_FILES: Final[dict[str, Any]] = {
    "commitlog_segment_bytes": 16 << 10,
    "consumequeue_segment_bytes": 20 * 25,
    "batchqueue_segment_bytes": 46 * 10,
    "max_hash_slots": 25,
    "max_index_entries": 100,
}
DAMAGE_KINDS: Final = frozenset(("log damaged", "offset gap", "lost messages"))
"""File sizes at which a short workload fills many files of every kind."""

Key = tuple[str, int]


class CrashFound(AssertionError):
    """A crash after which the store broke a promise; the text names the promise and how to repeat it."""


@dataclass(slots=True)
class Written:
    """One message that was staged: where it went and what it is."""

    identity: str
    body: bytes
    physical: int
    end: int


def body_of(identity: str, rng: random.Random, largest: int = 2500) -> bytes:
    """Return a body that begins with the id and that no other message has."""
    return identity.encode() + b" " + rng.randbytes(rng.choice((0, 1, 30, 200, 900, largest)))


@dataclass
class Book:
    """What was written to a store and what of it must be there, kept beside the store by whoever drives it.

    ``queues`` has per queue the messages by offset, all generations of a deleted topic but the last forgotten. Those with an end up to
    ``committed`` were committed, up to ``flushed`` covered by a flush. ``deleting`` is a topic whose deletion was begun, ``expired`` the
    log position before which messages may have been dropped.
    """

    queues: dict[Key, list[Written]] = field(default_factory=dict)
    committed: int = 0
    flushed: int = 0
    deleting: str = ""
    expired: int = 0

    def note(self, key: Key, offset: int, written: Written) -> None:
        """Note a staged message. Raises CrashFound when the store gave it another offset than the next one."""
        known = self.queues.setdefault(key, [])
        if offset != len(known):
            raise CrashFound(f"queue {key} gave offset {offset} to {written.identity} where {len(known)} was next")
        known.append(written)

    def withdraw(self, end: int) -> None:
        """Note that what was staged behind ``end`` was refused."""
        for known in self.queues.values():
            while known and known[-1].end > end:
                known.pop()

    def deleted(self, topic: str) -> None:
        """Note that a topic is gone."""
        self.deleting = ""
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]

    def problem(self, key: Key, low: int, high: int, found: dict[int, bytes], durable: int) -> str:
        """Return what is wrong with a queue that has these bounds and bodies; messages that end up to ``durable`` must be there."""
        problem = self._problem(key, low, high, found, durable)
        if problem and key[0] == self.deleting and not found and (low, high) == (0, 0):
            return ""
        return problem

    def may_go(self, key: Key, offset: int) -> bool:
        """Tell whether a message may be gone because it has expired."""
        known = self.queues.get(key, [])
        return offset < len(known) and known[offset].physical < self.expired

    def _problem(self, key: Key, low: int, high: int, found: dict[int, bytes], durable: int) -> str:
        known = self.queues.get(key, [])
        if high > len(known):
            return f"the queue ends at {high}, but only {len(known)} messages were ever sent"
        for offset, body in found.items():
            if offset >= len(known) or known[offset].body != body:
                sent = f"sent was {known[offset].body[:40]!r}" if offset < len(known) else "nothing was sent there"
                return f"offset {offset} has the body {body[:40]!r}, {sent}"
        for offset, written in enumerate(known):
            if written.end <= durable and written.physical >= self.expired and offset not in found:
                return f"{written.identity} at offset {offset} is lost; the queue is [{low}, {high})"
        if high and high - 1 not in found and known[high - 1].physical >= self.expired:
            return f"the queue ends at {high}, but its last message is offset {max(found, default=-1)}"
        return ""


def open_store(fs: SimFileSystem, flush: str) -> MessageStore:
    """Return an open store on a simulated file system, with small files and one topic of batch queues."""
    store = MessageStore(StoreConfig(ROOT, flush_disk_type=flush, **SMALL_FILES), fs=fs, clock=fs.clock)
    store.store_host = HOST
    store.open()
    topics = ConfigFile(ROOT / "config/topics.json", fs)
    if topics.load() is None:  # as a broker does, before the first message of the topic
        topics.save(TOPICS_FILE)
    store.declare_batch_topic(BATCH_TOPIC)
    return store


def read_queue(store: MessageStore, key: Key, *, damage_seen: list[int] | None = None) -> tuple[int, int, dict[int, bytes]]:
    """Return a queue's min and max offset and the bodies by offset, checked as a consumer checks them.

    The places of records that a consumer can tell to be damaged go to ``damage_seen``; without it they raise RemoteProtocolError.
    Raises CrashFound when offsets go back or a read gets nowhere.
    """
    low, high = store.min_offset(*key), store.max_offset(*key)
    found: dict[int, bytes] = {}
    offset, last = low, -1
    while offset < high:
        result = store.read(*key, offset, max_count=1000, max_bytes=16 << 20)
        if result.next_offset <= offset:
            raise CrashFound(f"a read of {key} at {offset} in [{low}, {high}) gets nowhere: {result.status.value}")
        if result.status not in {ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING}:
            raise CrashFound(f"a read of {key} at {offset} in [{low}, {high}) says {result.status.value}")
        for buffer in result.buffers:
            for message in _messages(buffer, key, damage_seen):
                if message.queue_offset <= last or (message.topic, message.queue_id) != key:
                    if damage_seen is None:
                        raise CrashFound(f"{key} has {message!r} at {message.queue_offset} behind {last}")
                    damage_seen.append(message.commitlog_offset)
                    continue
                last = message.queue_offset
                found[last] = message.body
        offset = result.next_offset
    return low, high, found


def _messages(buffer: memoryview, key: Key, damage_seen: list[int] | None) -> Iterator[ReceivedMessage]:
    if damage_seen is None:
        yield from decode_records(buffer, verify_crc=True)
        return
    for at, size in walk_records(buffer):
        record = buffer[at : at + size]
        try:
            messages = [(m, m.topic, m.queue_id) for m in decode_records(record, verify_crc=True)]
            known = [m for m, topic, queue_id in messages if (topic, queue_id) == key and m.body is not None]
        except RemoteProtocolError:
            known = []
        if not known:
            damage_seen.append(int.from_bytes(record[28:36], "big"))
        yield from known


class Workload:
    """A seeded user of a store: sends, flushes, deletes, restarts; ``book`` says what came of it."""

    def __init__(self, seed: str, *, flush: str, deletes: bool = True) -> None:
        self.rng = random.Random(f"workload {seed}")
        self.fs = SimFileSystem(clock=ManualClock())
        self.flush_type = flush
        self.deletes = deletes
        self.book = Book()
        self.count = 0
        self.deleted = False
        self.store: MessageStore
        self._flushing = False

    def start(self) -> None:
        """Open the store; all it does from here on is part of the workload."""
        self.store = open_store(self.fs, self.flush_type)

    def step(self) -> None:
        """Do the next thing."""
        kind = self.rng.random()
        if kind < 0.62:
            self.send()
        elif kind < 0.90:
            self.flush(thorough=self.rng.random() < 0.35)
        elif kind < 0.95:
            if self.deletes:
                self.delete_topic(self.rng.choice(TOPICS)) if kind < 0.93 else self.expire()
        elif kind < 0.975:
            self.restart(clean=True)
        else:
            self.restart(clean=False)
        self.fs.clock.advance(self.rng.choice((0, 0.001, 2)))

    def send(self) -> None:
        """Stage some messages, single and in batches, and commit them."""
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            self._stage((self.rng.choice(TOPICS), self.rng.randrange(QUEUES)), self.rng.choice((1, 1, 1, 4, 12)))
        try:
            self.store.commit()
        except SprocketError:
            self.book.withdraw(self.store.commitlog_max_offset)
            raise
        self.book.committed = self.store.commitlog_max_offset

    def _stage(self, key: Key, size: int) -> None:
        store, rng = self.store, self.rng
        identities = [f"{self.count + i}" for i in range(size)]
        self.count += size
        bodies = [body_of(identity, rng, 2500 if size == 1 else 300) for identity in identities]
        tag = rng.choice((None, "a", "b"))
        texts = [encode_properties({"KEYS": identity, **({"TAGS": tag} if tag else {})}) for identity in identities]
        common: dict[str, Any] = {"born_timestamp_ms": 1, "born_host": HOST}
        if size == 1:
            offset, physical = store.stage_message(*key, bodies[0], texts[0], tags_code=tags_code(tag), **common)
            places = [physical]
        else:
            batch = encode_batch([(0, body, text) for body, text in zip(bodies, texts, strict=True)])
            if key[0] == BATCH_TOPIC and rng.random() < 0.8:
                offset, physical = store.stage_inner_batch(*key, batch, texts[0], count=size, tags_code=tags_code(tag), **common)
                places = [physical]
            else:
                offset, places = store.stage_batch(*key, split_columns(batch) or split_batch(batch), sys_flag=0, **common)
        ends = [*places[1:], store._log.staged_end]
        for i, identity in enumerate(identities):
            record = min(i, len(places) - 1)  # an inner batch is one record
            self.book.note(key, offset + i, Written(identity, bodies[i], places[record], ends[record]))

    def flush(self, *, thorough: bool) -> None:
        """Flush; every now and then messages are committed meanwhile, as the broker's other thread does it."""
        covered = self.store.commitlog_max_offset
        self._flushing = True
        end = self.store.flush(thorough=thorough)
        self._flushing = False
        if end < covered:
            raise CrashFound(f"a flush says it reached {end}, but {covered} was committed before it")
        self.store.publish(end)
        self.book.flushed = max(self.book.flushed, end)

    def meanwhile(self, path: str) -> None:
        """Be the other threads: called before the calls of a flush."""
        if not self._flushing or self.rng.random() > 0.1:
            return
        self._flushing = False
        if "/commitlog" in path or self.rng.random() < 0.7:
            self.send()
        else:
            end = self.store.flush_log()
            self.store.publish(end)
            self.book.flushed = max(self.book.flushed, end)
        self._flushing = True

    def delete_topic(self, topic: str) -> None:
        self.book.deleting = topic
        self.deleted = True
        self.store.delete_topic(topic)
        self.book.deleted(topic)
        self.store.declare_batch_topic(BATCH_TOPIC)

    def expire(self) -> None:
        """Drop the oldest segments, as retention does."""
        segments = self.store.segments()
        if len(segments) > 1:
            position = self.rng.choice(segments[1:])[0]
            self.book.expired = max(self.book.expired, position)
            self.store.delete_before(position)

    def restart(self, *, clean: bool) -> None:
        """Stop, in order or not, and start again; without derived files now and then."""
        if clean:
            self.store.close()
        else:
            self.store.abandon()
            if self.rng.random() < 0.5:
                lost = self.rng.choice(("/dispatched", "/consumequeue/", "/batchconsumequeue/", "/index/", "/checkpoint"))
                if lost == "/dispatched" and self.deleted:
                    lost = "/checkpoint"  # the notes of deletions are nowhere else
                for path in self.fs.paths():
                    if path.startswith(f"{ROOT}{lost}"):
                        self.fs.unlink(path)
        self.store = open_store(self.fs, self.flush_type)
        if clean:
            self.book.flushed = self.book.committed

    def stop(self) -> None:
        """Let go of the store."""
        if hasattr(self, "store"):
            self.store.abandon()


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
        """Go on until ``points`` crashes were tried, all calls of a trace in order; return their number. Raises CrashFound."""
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
    """The points are done; leaves a workload in the middle of a call."""


def check_crash(disk: SimFileSystem, book: Book, rng: random.Random, *, killed: bool, flush: str) -> None:
    """Open a store on what a crash left, hold it to the book, write to it, crash it again and look once more.

    ``killed``: the process died and the system lived, so what was committed must be there; else what was flushed. Raises CrashFound,
    or whatever error the store raises.
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
    """Start and stop a store in order and let ``sprocketmq verify`` look at every file."""
    from sprocketmq.storage.inspect.findings import ERROR
    from sprocketmq.storage.inspect.verification import verify

    open_store(disk, flush).close()
    # A hole that a power failure left in what was not flushed is damage, and there is nothing to repair.
    found = [f for f in verify(str(ROOT), fs=disk).findings if f.severity == ERROR and f.kind not in DAMAGE_KINDS]
    if found:
        raise CrashFound(f"verify says: {found[:3]}")


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
    """Look some messages up by their keys."""
    for key in rng.sample(sorted(shown), 2):
        known = book.queues.get(key, [])
        found = shown[key][2]
        # Of an inner batch only the first message's key is the record's own.
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
