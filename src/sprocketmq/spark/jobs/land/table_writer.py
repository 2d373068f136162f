"""Write landed tables: commit batches, replace several by a compacted one, recover from a writer that died.

The layout on disk is drawn in ``table.py``.
"""

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sprocketmq.errors import StoreLocked
from sprocketmq.spark.jobs.land.table import (
    FORMAT_VERSION,
    HIDDEN,
    MANIFEST,
    DataFile,
    LandedBatch,
    Offsets,
    TableSpec,
    TableState,
    check_place,
    is_table,
    read_swap,
    read_table,
)
from sprocketmq.spark.jobs.land.table_errors import TableBusy, TableDamaged, TableNotWritable
from sprocketmq.storage.fs import RealFileSystem
from sprocketmq.storage.lock import DirectoryLock

Step = Callable[[str], None]


def no_step(name: str) -> None:
    """Do nothing: the default for the steps of a writer."""


@dataclass(frozen=True)
class WrittenFile:
    """A file in staging: its name there, the partition directory it belongs to ("" for none), rows and bytes."""

    name: str
    partition: str
    rows: int
    bytes: int


class TableWriter:
    """The only writer of a table, from ``open`` to ``close``; as a context manager it also cleans up after an error.

    ``sync`` flushes every commit to the disk before it counts, against power loss; a killed process loses nothing without it.
    ``step`` is called with a name before each change on disk: tests make it fail there.
    """

    def __init__(self, path: str | os.PathLike[str], *, sync: bool = False, step: Step = no_step) -> None:
        self.root = Path(path).absolute()
        self._hidden = self.root / HIDDEN
        self._staging = self._hidden / "staging"
        self._sync = sync
        self._step = step
        self._lock: DirectoryLock | None = None
        self._run = uuid.uuid4().hex[:8]

    def open(self) -> TableState | None:
        """Take the lock, recover from a writer that died, and return the table; None when there is none yet.

        Raises NotALandingTable for a directory that holds something else, TableBusy, TableNotWritable, TableDamaged.
        """
        try:
            check_place(self.root)
            self._hidden.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(RealFileSystem(), str(self._hidden))
            self._recover()
            return read_table(self.root) if is_table(self.root) else None
        except StoreLocked:
            raise TableBusy(self.root, f"it holds {HIDDEN}/lock") from None
        except OSError as e:
            self.close()
            raise TableNotWritable(self.root, e) from e
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock. The next writer removes what is left in staging."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, (Exception, KeyboardInterrupt)) and self._lock is not None:
            with contextlib.suppress(OSError):
                self._recover()
        self.close()

    def create(self, spec: TableSpec) -> TableState:
        """Create the table that ``open`` did not find. Raises TableNotWritable."""
        self._step("describe table")
        with self._writing():
            self._write_json(self._hidden / "table.json", {"v": FORMAT_VERSION, **asdict(spec)})
        return TableState(self.root, spec, ())

    def staging(self) -> Path:
        """Return a new empty directory for the files of one batch. File names in it must be unique across all attempts at a task.

        Raises TableNotWritable.
        """
        path = self._staging / f"{self._run}-{uuid.uuid4().hex[:8]}"
        self._step("make staging")
        with self._writing():
            path.mkdir(parents=True)
        return path

    def commit(self, state: TableState, start: Offsets, end: Offsets, staging: Path, files: Sequence[WrittenFile]) -> TableState:
        """Make ``files`` of ``staging`` the next batch and return the table with it. On any error the table is as it was.

        Raises TableDamaged when a file is missing or has another size, as when a worker wrote to its own disk, TableBusy when the batch
        exists already, and TableNotWritable.
        """
        number = state.batches[-1].number + 1 if state.batches else 1
        with self._writing():
            made = self._assemble(staging, files, number=number, first=number, start=start, end=end)
            target = self.root / made.directory.name
            self._step("commit batch")
            try:
                made.directory.rename(target)
            except OSError as e:
                if target.is_dir():
                    raise TableBusy(self.root, f"{target.name} appeared meanwhile") from e
                raise
            self._sync_directory(self.root)
        self._discard(staging)
        return TableState(self.root, state.spec, (*state.batches, replace(made, directory=target)))

    def swap_in(self, state: TableState, old: Sequence[LandedBatch], staging: Path, files: Sequence[WrittenFile]) -> TableState:
        """Replace the neighbouring batches ``old`` by one batch of ``files`` and return the new table.

        The rows must be the same. An error before the swap file is written leaves the table as it was; then the new batch counts.
        Raises TableDamaged when the number of rows differs, TableNotWritable.
        """
        rows, were = sum(file.rows for file in files), sum(batch.rows for batch in old)
        if rows != were:
            raise TableDamaged(self.root, f"compaction made {rows} rows of {were}")
        last = old[-1]
        with self._writing():
            made = self._assemble(staging, files, number=last.number, first=old[0].first, start=old[0].start, end=last.end)
            swap = {
                "old": [batch.directory.name for batch in old],
                "new": made.directory.name,
                "staged": made.directory.relative_to(self.root).as_posix(),
            }
            self._step("note swap")
            self._write_json(self._hidden / "swap.json", swap)
            self._finish_swap(swap)
        self._discard(staging)
        merged = replace(made, directory=self.root / made.directory.name)
        gone = {batch.number for batch in old}
        kept = [batch for batch in state.batches if batch.number not in gone]
        return TableState(self.root, state.spec, tuple(sorted([*kept, merged], key=lambda batch: batch.number)))

    # --- steps of a commit ---

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise TableNotWritable(self.root, e) from e

    def _assemble(
        self, staging: Path, files: Sequence[WrittenFile], *, number: int, first: int, start: Offsets, end: Offsets
    ) -> LandedBatch:
        """Collect the files of the successful tasks in a directory of their own, with the manifest.

        Failed and duplicate attempts cannot add to it, even when they go on writing: they do not know its path.
        """
        directory = _made(staging) / f"batch={number:08d}"
        self._step("make batch directory")
        directory.mkdir(parents=True)
        placed = []
        for i, file in enumerate(files):
            name = f"part-{i:05d}-{self._run}.parquet"
            path = f"{file.partition}/{name}" if file.partition else name
            source, target = staging / file.name, directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            self._step("place file")
            try:
                source.rename(target)
                size = target.stat().st_size
            except FileNotFoundError:
                size = -1
            if size != file.bytes:
                raise TableDamaged(
                    source,
                    f"a worker wrote {file.bytes} bytes there and this process finds {'nothing' if size < 0 else size}:"
                    " the table must lie on a file system that the driver and all workers share",
                )
            placed.append(DataFile(path, file.rows, file.bytes))
        batch = LandedBatch(number, first, start, end, tuple(placed), directory)
        manifest = {
            "v": FORMAT_VERSION,
            "batch": number,
            "first": first,
            "committed_ms": int(time.time() * 1000),
            "rows": batch.rows,
            "bytes": batch.bytes,
            "start": start,
            "end": end,
            "files": [asdict(file) for file in placed],
        }
        self._step("write manifest")
        self._write_json(directory / MANIFEST, manifest)
        for sub in {(directory / file.path).parent for file in placed}:
            self._sync_directory(sub)
        return batch

    def _finish_swap(self, swap: Mapping[str, Any]) -> None:
        """Move old directories out and the new one in. Every step may have been done before."""
        staged = self.root / swap["staged"]
        out = self._staging / "replaced"
        out.mkdir(parents=True, exist_ok=True)
        # Until the new directory is in place, a directory of its name is still the old one.
        if staged.is_dir():
            for name in swap["old"]:
                path = self.root / name
                if path.is_dir():
                    self._step("move replaced batch")
                    path.rename(out / f"{uuid.uuid4().hex[:8]}-{name}")
            self._step("move compacted batch")
            staged.rename(self.root / swap["new"])
        self._sync_directory(self.root)
        self._step("forget swap")
        (self._hidden / "swap.json").unlink()
        self._step("remove replaced batches")
        shutil.rmtree(out, ignore_errors=True)

    def _recover(self) -> None:
        """Finish a committed swap, then remove everything in staging: nothing there is part of the table."""
        swap = read_swap(self.root)
        if swap is not None:
            self._finish_swap(swap)
        if self._staging.is_dir():
            self._step("clean staging")
            shutil.rmtree(self._staging, ignore_errors=True)
        for leftover in self._hidden.glob("*.tmp"):
            leftover.unlink()

    def _discard(self, staging: Path) -> None:
        """Remove what is left of a batch in staging. The next writer removes what a straggling task still writes there."""
        self._step("remove staging")
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(_made(staging), ignore_errors=True)

    def _write_json(self, path: Path, value: Any) -> None:
        """Write a small file atomically."""
        temporary = path.with_name(f"{path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, indent=1)
            file.flush()
            if self._sync:
                os.fsync(file.fileno())
        self._step(f"name {path.name}")
        temporary.rename(path)
        self._sync_directory(path.parent)

    def _sync_directory(self, path: Path) -> None:
        if self._sync:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _made(staging: Path) -> Path:
    """Return the directory in which the batch of a staging directory is assembled; no task knows it."""
    return staging.with_name(f"{staging.name}-made")
