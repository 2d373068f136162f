"""Damages files of a stopped store, opens it, and checks that only the damaged messages are lost.

::

    damage = Damage(seed="7")
    damage.flip("log", random.Random(1), clean=False)      # one bit of the commit log, then a start as after a crash

A Damage is a store on a SimFileSystem that a Workload has filled, as it is after a clean stop and after a kill. Each attempt changes one
file of a copy, opens the store and reads every queue as a consumer does. Whichever file it is, the store must open and no message may have
another body. Damage to the commit log may cost at most the messages of the damaged record, damage to any other file none. A failed attempt
raises DamageFound, which says how to repeat it.
"""

import random
from typing import Final

from sprocketmq.errors import SprocketError
from sprocketmq.storage.store import MessageStore
from sprocketmq.testing.rig.crash_book import Book, Key
from sprocketmq.testing.rig.simulated_disk import SimFileSystem
from sprocketmq.testing.rig.small_store import HOST, ROOT, open_store, read_queue
from sprocketmq.testing.rig.workload import Workload

KINDS: Final = {
    "log": "commitlog/",
    "queue": "consumequeue/",
    "batch queue": "batchconsumequeue/",
    "index": "index/",
    "checkpoint": "checkpoint",
    "dispatched": "dispatched",
    "topics.json": "config/topics.json",
    "abort": "abort",
    "lock": "lock",
}
"""The kinds of files of a store and how their paths begin."""


class DamageFound(AssertionError):
    """More was lost than was damaged, or the store did not open; the text says how to repeat it."""


class Damage:
    """A filled store to be damaged repeatedly; ``disks`` has it after a clean stop (True) and after a kill (False)."""

    def __init__(self, seed: str, *, steps: int = 40) -> None:
        self.seed = seed
        self.steps = steps
        workload = Workload(f"damage {seed}", flush="ASYNC_FLUSH", deletes=False)
        workload.start()
        for _ in range(steps):
            workload.step()
        workload.send()
        self.book: Book = workload.book
        rng = random.Random(0)
        killed = workload.fs.crash(rng, "keep")
        workload.store.close()
        self.disks = {True: workload.fs.crash(rng, "keep"), False: killed}
        self.log_end = self.book.committed

    def paths(self, kind: str, *, clean: bool) -> list[str]:
        """Return the files of a kind."""
        return [path for path in self.disks[clean].paths() if path.startswith(f"{ROOT}/{KINDS[kind]}") and not path.endswith(".tmp")]

    def flip(self, kind: str, rng: random.Random, *, clean: bool) -> None:
        """Flip one bit in the used part of a file of a kind and check. Raises DamageFound."""
        paths = self.paths(kind, clean=clean)
        if not paths:
            return
        path = rng.choice(paths)
        size = len(self.disks[clean].read(path))
        if kind == "log":
            size = max(1, min(size, self.log_end - _start_of(path)))
        elif rng.random() < 0.7:  # most of a fresh file is zeros that are never read
            size = max(1, len(self.disks[clean].read(path).rstrip(b"\0")))
        self.flip_bit(path, rng.randrange(size * 8) if size else 0, clean=clean)

    def flip_bit(self, path: str, bit: int, *, clean: bool) -> None:
        """Flip one bit and check. Raises DamageFound."""
        disk = self._copy(clean=clean)
        disk.flip(path, bit)
        hit = _start_of(path) + bit // 8 if "/commitlog/" in path else None
        self._check(disk, hit, f"flip_bit({path!r}, {bit}, clean={clean})")

    def cut(self, path: str, size: int, *, clean: bool) -> None:
        """Shorten one derived file and check. Raises DamageFound."""
        disk = self._copy(clean=clean)
        disk.cut(path, size)
        self._check(disk, None, f"cut({path!r}, {size}, clean={clean})")

    def remove(self, path: str, *, clean: bool) -> None:
        """Remove one derived file and check. Raises DamageFound."""
        disk = self._copy(clean=clean)
        disk.unlink(path)
        self._check(disk, None, f"remove({path!r}, clean={clean})")

    def tail(self, records: int) -> range:
        """Return the log offsets of the last ``records`` records, from the first of them to the end of the log."""
        places = sorted({written.physical for known in self.book.queues.values() for written in known})
        return range(places[-records], self.log_end)

    def cut_log(self, position: int, *, clean: bool = False) -> None:
        """Truncate the log at ``position`` and check: messages that end before it must be there. Raises DamageFound."""
        disk = self._copy(clean=clean)
        for path in self.paths("log", clean=clean):
            if _start_of(path) >= position:
                disk.unlink(path)
            elif position - _start_of(path) < len(disk.read(path)):
                disk.cut(path, position - _start_of(path))
        self._check(disk, None, f"cut_log({position}, clean={clean})", end=position)

    def _copy(self, *, clean: bool) -> SimFileSystem:
        return self.disks[clean].crash(random.Random(0), "keep")

    def _check(self, disk: SimFileSystem, hit: int | None, how: str, *, end: int | None = None) -> None:
        try:
            store = open_store(disk, "ASYNC_FLUSH")
            try:
                for key in self.book.queues:
                    seen: list[int] = []
                    _, high, found = read_queue(store, key, damage_seen=seen)
                    if seen and hit is None:
                        raise DamageFound(f"the records at {seen[:5]} of {key} are damaged, but the log was not changed")
                    self._compare(key, high, found, hit, end)
                for topic in store.topics_on_disk():
                    if topic not in {name for name, _ in self.book.queues} and hit is None:
                        raise DamageFound(f"there is a topic {topic!r}")
                sent = self._send(store)
            finally:
                store.abandon()
            store = open_store(disk, "ASYNC_FLUSH")
            try:
                for key, (offset, body) in sent.items():
                    if read_queue(store, key, damage_seen=[])[2].get(offset) != body:
                        raise DamageFound(f"what was sent to {key} at offset {offset} after the damage is gone after another start")
            finally:
                store.abandon()
        except (AssertionError, SprocketError, OSError, ValueError, LookupError) as e:
            raise DamageFound(f"{e!r}; repeat it with Damage({self.seed!r}, steps={self.steps}).{how}") from e

    def _compare(self, key: Key, high: int, found: dict[int, bytes], hit: int | None, end: int | None) -> None:
        known = self.book.queues[key]
        damaged = {w.body for k in self.book.queues.values() for w in k if hit is not None and w.physical <= hit < w.end}
        for offset, body in found.items():
            if offset < len(known) and known[offset].body in damaged:
                continue  # no CRC covers the header: a flipped flag can make an inner batch look like one message
            if body not in damaged and (offset >= len(known) or known[offset].body != body):
                raise DamageFound(f"{key} has {body[:40]!r} at offset {offset}, which was never sent there")
        for offset, written in enumerate(known):
            if offset not in found and written.body not in damaged and (end is None or written.end <= end):
                raise DamageFound(f"{written.identity} at offset {offset} of {key} is lost though it was not damaged; max offset is {high}")

    def _send(self, store: MessageStore) -> dict[Key, tuple[int, bytes]]:
        """Send a message to each queue and return where they went."""
        sent = {}
        for topic, queue_id in self.book.queues:
            body = f"sent after the damage to {topic} {queue_id}".encode()
            offset, _ = store.stage_message(topic, queue_id, body, b"", tags_code=0, born_timestamp_ms=1, born_host=HOST)
            sent[topic, queue_id] = offset, body
        store.commit()
        return sent


def _start_of(path: str) -> int:
    name = path.rpartition("/")[2]
    return int(name) if name.isdigit() else 0
