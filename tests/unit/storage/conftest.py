import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sprocketmq.clock import ManualClock
from sprocketmq.protocol.batch import encode_batch, split_columns
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.protocol.records import ReceivedMessage, decode_records, pack_host
from sprocketmq.storage.fs import RealFileSystem
from sprocketmq.storage.store import MessageStore, ReadStatus, StoreConfig

BORN_HOST = pack_host("192.0.2.7", 40001)
STORE_HOST = pack_host("127.0.0.1", 10911)


# Index files of 5,416 bytes with 255 entries.
SMALL_INDEX = {"max_hash_slots": 64, "max_index_entries": 256}


class FaultyFile:
    """A real file whose calls fail when the file system says so."""

    def __init__(self, fs: "FaultyFileSystem", file: Any) -> None:
        self._fs = fs
        self._file = file
        self.path = file.path

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._file, name)

        def checked(*args: Any) -> Any:
            self._fs.check(name, self.path, self._file, args)
            return call(*args)

        return checked


class FaultyFileSystem(RealFileSystem):
    """The real file system, with errors where a test wants them: ``fail(call, error, path=..., skip=n, torn=bytes)``."""

    def __init__(self) -> None:
        self.plans: list[dict[str, Any]] = []
        self.calls: list[tuple[str, str]] = []

    def fail(self, call: str, error: int, *, path: str = "", skip: int = 0, torn: int | None = None) -> None:
        self.plans.append({"call": call, "error": error, "path": path, "skip": skip, "torn": torn})

    def heal(self) -> None:
        self.plans.clear()

    def check(self, call: str, path: str, file: Any = None, args: tuple[Any, ...] = ()) -> None:
        self.calls.append((call, path))
        for plan in self.plans:
            if plan["call"] != call or plan["path"] not in path:
                continue
            if plan["skip"]:
                plan["skip"] -= 1
                continue
            if plan["torn"] is not None and file is not None:
                data = args[0] if call == "pwrite" else b"".join(args[0])
                file.pwrite(bytes(data[: plan["torn"]]), args[1])
            raise OSError(plan["error"], os.strerror(plan["error"]), path)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
        self.check("open", path)
        return FaultyFile(self, super().open(path, create=create, read_only=read_only))

    def make_dirs(self, path: str) -> None:
        self.check("make_dirs", path)
        super().make_dirs(path)

    def rename(self, old: str, new: str) -> None:
        self.check("rename", new)
        super().rename(old, new)

    def fsync_dir(self, path: str) -> None:
        self.check("fsync_dir", path)
        super().fsync_dir(path)


class Bench:
    """One store directory under test: open, append, read back, stop in order or as killed."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.root = root
        self.config = {
            "commitlog_segment_bytes": 64 << 10,
            "consumequeue_segment_bytes": 1000,
            "batchqueue_segment_bytes": 460,
            **SMALL_INDEX,
            **config,
        }
        self.fs = FaultyFileSystem()
        self.clock = ManualClock()
        self.store = self._new()
        self.report = self.store.open()

    def _new(self) -> MessageStore:
        store = MessageStore(StoreConfig(self.root, **self.config), fs=self.fs, clock=self.clock)
        store.store_host = STORE_HOST
        return store

    def stop(self) -> None:
        self.store.close()

    def kill(self) -> None:
        self.store.abandon()

    def reopen(self) -> "Bench":
        self.store = self._new()
        self.report = self.store.open()
        return self

    def restart(self) -> "Bench":
        self.stop()
        return self.reopen()

    def crash(self) -> "Bench":
        self.kill()
        return self.reopen()

    def stage(self, body: bytes, topic: str = "orders", queue: int = 0, *, tag: str | None = None, **extra: Any) -> tuple[int, int]:
        properties = encode_properties({"TAGS": tag} if tag else {})
        return self.store.stage_message(
            topic, queue, body, properties, tags_code=tags_code(tag), born_timestamp_ms=5, born_host=BORN_HOST, **extra
        )

    def send(self, body: bytes, topic: str = "orders", queue: int = 0, **extra: Any) -> tuple[int, int]:
        placed = self.stage(body, topic, queue, **extra)
        self.store.commit()
        return placed

    def stage_batch(self, bodies: list[bytes], topic: str = "orders", queue: int = 0, *, tag: str | None = None) -> tuple[int, list[int]]:
        properties = encode_properties({"KEYS": "k", "TAGS": tag} if tag else {"KEYS": "k"})
        encoded = encode_batch([(0, body, properties) for body in bodies])
        entries = split_columns(encoded)
        return self.store.stage_batch(topic, queue, entries, sys_flag=0, born_timestamp_ms=5, born_host=BORN_HOST)

    def send_batch(self, bodies: list[bytes], topic: str = "orders", queue: int = 0, **extra: Any) -> tuple[int, list[int]]:
        placed = self.stage_batch(bodies, topic, queue, **extra)
        self.store.commit()
        return placed

    def stage_inner_batch(self, bodies: list[bytes], topic: str = "orders", queue: int = 0, *, tag: str | None = None) -> tuple[int, int]:
        inner = encode_batch([(0, body, encode_properties({"TAGS": tag} if tag else {})) for body in bodies])
        outer = encode_properties({"UNIQ_KEY": "u", "TAGS": tag} if tag else {"UNIQ_KEY": "u"})
        return self.store.stage_inner_batch(
            topic, queue, inner, outer, count=len(bodies), tags_code=tags_code(tag), born_timestamp_ms=5, born_host=BORN_HOST
        )

    def send_inner_batch(self, bodies: list[bytes], topic: str = "orders", queue: int = 0, **extra: Any) -> tuple[int, int]:
        placed = self.stage_inner_batch(bodies, topic, queue, **extra)
        self.store.commit()
        return placed

    def messages(self, topic: str = "orders", queue: int = 0, *, start: int | None = None, **limits: Any) -> list[ReceivedMessage]:
        """Read a queue to its end, as a consumer would."""
        offset = self.store.min_offset(topic, queue) if start is None else start
        found: list[ReceivedMessage] = []
        while True:
            result = self.store.read(topic, queue, offset, **limits)
            if result.status not in {ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING}:
                return found
            assert result.next_offset > offset
            offset = result.next_offset
            for buffer in result.buffers:
                found += decode_records(buffer, verify_crc=True)

    def bodies(self, topic: str = "orders", queue: int = 0, **limits: Any) -> list[bytes]:
        return [m.body for m in self.messages(topic, queue, **limits)]

    def segment(self, start: int = 0) -> Path:
        return self.root / "commitlog" / f"{start:020d}"

    def batch_file(self, topic: str = "orders", queue: int = 0, start: int = 0) -> Path:
        return self.root / "batchconsumequeue" / topic / str(queue) / f"{start:020d}"

    def queue_file(self, topic: str = "orders", queue: int = 0, start: int = 0) -> Path:
        return self.root / "consumequeue" / topic / str(queue) / f"{start:020d}"


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(name: str = "store", **config: Any) -> Bench:
        made.append(Bench(tmp_path / name, **config))
        return made[-1]

    yield make
    for bench in made:
        bench.fs.heal()
        bench.store.abandon()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


@pytest.fixture
def eio() -> int:
    return errno.EIO
