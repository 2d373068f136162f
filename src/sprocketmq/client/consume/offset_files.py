"""Offsets of a broadcasting consumer, in a file of this machine (docs/internals/consumers.md#offsets-of-broadcasting-consumers).

Path and format are those of the Java client, so each continues with the other's file::

    <directory>/<client>/<group>/offsets.json        {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}
    <directory>/<client>/<group>/offsets.json.bak    the previous version
    <directory>/<client>/<group>/offsets.json.lock   held while a consumer is open
"""

import asyncio
import logging
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from sprocketmq.client.consume.process_queue import ProcessQueue
from sprocketmq.client.instance import Instance
from sprocketmq.directories import home_directory
from sprocketmq.errors import ConfigError, OffsetsLocked, OffsetsNotSaved, RemoteProtocolError
from sprocketmq.protocol.bodies import ResetOffsets as OffsetTable
from sprocketmq.protocol.message import MessageQueue

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

log = logging.getLogger(__name__)

NAME = "offsets.json"
# Ten thousand queues are less than 2 MiB.
MAX_FILE_BYTES = 64 << 20


def default_directory() -> Path:
    """Return where offsets are kept without ``offsets_dir``: ``.rocketmq_offsets`` in the user's home, as for Java clients.

    Raises ConfigError for a user without a home.
    """
    home = home_directory()
    if home is None:
        raise ConfigError("this user has no home directory for the offsets of broadcasting consumers: name a directory (offsets_dir=)")
    return home / ".rocketmq_offsets"


class OffsetFile:
    """The offsets of one group on this machine: read at ``open``, kept in memory, written by ``save``.

    ``save`` replaces the file atomically, after its bytes are on the disk: a crash leaves the old file or the new one. A damaged file is
    moved aside with a warning, and the backup is used. Only one process can open the file at a time.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, client: str, group: str) -> None:
        root = default_directory() if directory is None else Path(directory)
        self.path: Path = root / client / group / NAME
        self._offsets: dict[MessageQueue, int] = {}
        self._changed = False
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Lock and read the file. Raises OffsetsLocked when another consumer has it open, ConfigError when it cannot be used."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._acquire()
            self._offsets = self._read(self.path) or self._read(self._backup) or {}
        except OSError as e:
            self.close()
            raise ConfigError(f"offsets of a broadcasting consumer cannot be kept in {self.path}: {e}; give another offsets_dir") from e

    def close(self) -> None:
        """Unlock the file. Offsets that were not saved are lost. Harmless when closed."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset of ``queue``, None when it has none."""
        return self._offsets.get(queue)

    def put(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset of ``queue``; the next ``save`` writes it."""
        if self._offsets.get(queue) != offset:
            self._offsets[queue] = offset
            self._changed = True

    def save(self) -> None:
        """Write the file if offsets have changed. Raises OSError; the next call tries again. May run in another thread."""
        if not self._changed:
            return
        self._changed = False
        try:
            self._write(OffsetTable(self._offsets.copy()).encode())
        except BaseException:
            self._changed = True
            raise

    # --- files ---

    @property
    def _backup(self) -> Path:
        return self.path.with_name(NAME + ".bak")

    def _acquire(self) -> None:
        lock = self.path.with_name(NAME + ".lock").open("ab")
        try:
            taken = _try_lock(lock)
        except BaseException:
            lock.close()
            raise
        if not taken:
            lock.close()
            raise OffsetsLocked(str(self.path))
        self._lock = lock

    def _read(self, path: Path) -> dict[MessageQueue, int] | None:
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        try:
            return _parse(data)
        except RemoteProtocolError as e:
            aside = _free_name(path.with_name(path.name + ".damaged"))
            path.replace(aside)
            log.warning("offsets of a broadcasting consumer are damaged: %s is now %s; %s", path, aside.name, e)
            return None

    def _write(self, data: bytes) -> None:
        new = self.path.with_name(NAME + ".tmp")
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            # After a crash between the two renames only the backup exists, and is read.
            self.path.replace(self._backup)
        new.replace(self.path)
        if sys.platform != "win32":
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


class LocalOffsets:
    """Offsets of a broadcasting group: every machine keeps its own, and brokers have none.

    The client part of the path is ``<own address>@DEFAULT``, as for a Java consumer without an instance name.
    """

    def __init__(self, instance: Instance, group: str, directory: str | os.PathLike[str] | None) -> None:
        self._instance = instance
        self._group = group
        self._directory = directory
        self._file: OffsetFile | None = None
        self._saving = asyncio.Lock()

    async def open(self) -> None:
        """Read the file. Raises what ``OffsetFile.open`` raises."""
        self._file = OffsetFile(self._directory, f"{self._instance.namesrv.local_ip}@DEFAULT", self._group)
        await asyncio.to_thread(self._file.open)

    async def close(self) -> None:
        """Unlock the file; offsets that were not committed are lost."""
        async with self._saving:
            if self._file is not None:
                self._file.close()

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool) -> int | None:  # noqa: ARG002 - the signature of all offset stores
        """Return the committed offset of ``queue``, None when there is none. ``zero_if_young`` has no effect here."""
        return None if self._file is None else self._file.get(queue)

    async def committed_of(self, queues: Iterable[MessageQueue], *, zero_if_young: bool) -> dict[MessageQueue, int | None]:
        """Return the committed offset of each of ``queues``; see ``committed``."""
        return {queue: await self.committed(queue, zero_if_young=zero_if_young) for queue in queues}

    async def commit(self, pqs: Iterable[ProcessQueue]) -> None:
        """Write the offsets and return when they are on the disk. Raises OffsetsNotSaved."""
        if self._file is None:
            return
        for pq in pqs:
            self._file.put(pq.queue, pq.commit_offset)
        async with self._saving:
            try:
                await asyncio.to_thread(self._file.save)
            except OSError as e:
                raise OffsetsNotSaved(str(self._file.path), str(e)) from e

    settle = commit
    commit_behind = commit

    def settled(self, pq: ProcessQueue) -> bool:  # noqa: ARG002 - the signature of all offset stores
        """Return False."""
        return False


def _parse(data: bytes) -> dict[MessageQueue, int]:
    if len(data) > MAX_FILE_BYTES:
        raise RemoteProtocolError(f"it is larger than {MAX_FILE_BYTES} bytes")
    offsets = OffsetTable.decode(data).offset_table
    for queue, offset in offsets.items():
        if offset < 0:
            raise RemoteProtocolError(f"it has offset {offset} for {queue}")
    return offsets


def _try_lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed; return False when another open file of the same name is locked. Raises OSError."""
    if sys.platform == "win32":
        try:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
    else:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _free_name(path: Path) -> Path:
    """Return ``path``, or ``path`` with the first number that is not taken."""
    found = path
    number = 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found
