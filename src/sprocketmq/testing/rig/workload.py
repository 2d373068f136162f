"""A seeded user of a store, which notes in a book what must survive a crash."""

import random
from typing import TYPE_CHECKING, Any

from sprocketmq.clock import ManualClock
from sprocketmq.errors import SprocketError
from sprocketmq.protocol.batch import encode_batch, split_columns
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.testing.rig.crash_book import Book, CrashFound, Key, StagedMessage
from sprocketmq.testing.rig.simulated_disk import SimFileSystem
from sprocketmq.testing.rig.small_store import BATCH_TOPIC, HOST, QUEUES, ROOT, TOPICS, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sprocketmq.storage.store import MessageStore


def body_of(identity: str, rng: random.Random, largest: int = 2500) -> bytes:
    """Return a body that begins with the id and that no other message has."""
    return identity.encode() + b" " + rng.randbytes(rng.choice((0, 1, 30, 200, 900, largest)))


class Workload:
    """A seeded sequence of sends, flushes, deletions and restarts of a store; ``book`` has the expected messages."""

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
        """Open the store: the first part of the workload."""
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
            places: Sequence[int] = [physical]
        else:
            batch = encode_batch([(0, body, text) for body, text in zip(bodies, texts, strict=True)])
            if key[0] == BATCH_TOPIC and rng.random() < 0.8:
                offset, physical = store.stage_inner_batch(*key, batch, texts[0], count=size, tags_code=tags_code(tag), **common)
                places = [physical]
            else:
                offset, places = store.stage_batch(*key, split_columns(batch), sys_flag=0, **common)
        ends = [*places[1:], store.commitlog_staged_offset]
        for i, identity in enumerate(identities):
            record = min(i, len(places) - 1)  # an inner batch is one record
            self.book.note(key, offset + i, StagedMessage(identity, bodies[i], places[record], ends[record]))

    def flush(self, *, thorough: bool) -> None:
        """Flush; now and then messages are committed meanwhile, as by the broker's other thread."""
        covered = self.store.commitlog_max_offset
        self._flushing = True
        end = self.store.flush(thorough=thorough)
        self._flushing = False
        if end < covered:
            raise CrashFound(f"a flush returned {end}, but {covered} was committed before it")
        self.store.publish(end)
        self.book.flushed = max(self.book.flushed, end)

    def meanwhile(self, path: str) -> None:
        """Act as the other threads: called before the calls of a flush."""
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
        """Delete the oldest segments, as retention does."""
        segments = self.store.segments()
        if len(segments) > 1:
            position = self.rng.choice(segments[1:])[0]
            self.book.expired = max(self.book.expired, position)
            self.store.delete_before(position)

    def restart(self, *, clean: bool) -> None:
        """Restart, after a clean stop or not; now and then without some derived files."""
        if clean:
            self.store.close()
        else:
            self.store.abandon()
            if self.rng.random() < 0.5:
                lost = self.rng.choice(("/dispatched", "/consumequeue/", "/batchconsumequeue/", "/index/", "/checkpoint"))
                if lost == "/dispatched" and self.deleted:
                    lost = "/checkpoint"  # deletions are recorded nowhere else
                for path in self.fs.paths():
                    if path.startswith(f"{ROOT}{lost}"):
                        self.fs.unlink(path)
        self.store = open_store(self.fs, self.flush_type)
        if clean:
            self.book.flushed = self.book.committed

    def stop(self) -> None:
        """Abandon the store."""
        if hasattr(self, "store"):
            self.store.abandon()
