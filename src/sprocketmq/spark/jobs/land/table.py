"""A landed table on disk: what makes a batch part of it, and what is left behind when its writer dies.

::

    TABLE/
      batch=00000001/                       one landing: made in staging, put here by one rename
        _manifest.json                      the offsets it begins and ends at, its files and their rows
        topic=orders/date=2026-11-21/part-00000-5f0c2a91.parquet
      batch=00000002/ ...
      _sprocketmq/
        table.json                          what the table is: topics, columns, partitions, where it began
        lock                                held by the process that writes
        swap.json                           there only while a compacted directory takes the place of others
        staging/                            what is not part of the table (yet)

A batch directory appears whole or not at all, its manifest with it, so the data and how far it goes can never differ: the newest
manifest's ``end`` is where the next batch begins. Nothing else is kept. Spark and Arrow pass over names that begin with an underscore,
so any reader of plain Parquet sees what is committed and nothing more.

Compaction puts one directory in the place of several, which no single rename can do. ``swap.json`` is the moment it counts: from then
on ``read_table`` takes the new directory for the old ones, wherever they are, and a writer that finds the file finishes the moves.
"""

import contextlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sprocketmq.errors import ConfigError, FatalError, StoreLocked
from sprocketmq.storage.fs import RealFileSystem
from sprocketmq.storage.lock import DirectoryLock

FORMAT_VERSION = 1
HIDDEN = "_sprocketmq"
MANIFEST = "_manifest.json"
PARTITIONS = ("topic", "date")

_BATCH = re.compile(r"batch=(\d{8,})")
# How often a reader looks again when a compaction moved directories under its eyes.
_LOOKS = 50
_LOOK_PAUSE_S = 0.02

Offsets = dict[str, Any]  # as the source writes them: {"v": 1, "topics": {...}}
Step = Callable[[str], None]


def no_step(name: str) -> None:
    """Stand where tests put something that fails."""


class NotALandingTable(ConfigError):
    """A path that cannot be landed to, or read as a landed table."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        reason: str,
        next_step: str = "name a directory that is empty or not there yet, or one landed to before",
    ) -> None:
        super().__init__(f"{path} is not a landed table: {reason}; {next_step}")
        self.path = os.fspath(path)
        self.reason = reason


class TableMismatch(ConfigError):
    """A landing that wants other topics, columns or partitions than its table has."""

    def __init__(self, path: str | os.PathLike[str], what: str, has: Sequence[str], wanted: Sequence[str]) -> None:
        super().__init__(
            f"the table {path} was made with {what} {', '.join(has) or 'none'}, not {', '.join(wanted) or 'none'}:"
            f" land with what it has, or into another directory"
        )
        self.path = os.fspath(path)
        self.what = what
        self.has = tuple(has)
        self.wanted = tuple(wanted)


class TableBusy(FatalError):
    """Another process writes to the table."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"the table {path} is being written by another process ({reason}): wait for it, or stop it")
        self.path = os.fspath(path)
        self.reason = reason


class TableNotWritable(FatalError):
    """The table's directory cannot be made or written."""

    def __init__(self, path: str | os.PathLike[str], error: OSError) -> None:
        super().__init__(
            f"cannot write to {path}: {error.strerror or error}; make room there or change its permissions, or land into another directory"
        )
        self.path = os.fspath(path)
        self.reason = error.strerror or str(error)


class TableDamaged(FatalError):
    """A file of the table is missing or not as its manifest says."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{path}: {reason}; restore it from a copy, or remove the table and land again")
        self.path = os.fspath(path)
        self.reason = reason


@dataclass(frozen=True)
class TableSpec:
    """What a table is, for good. ``start`` are the offsets its first batch begins at, ``columns`` those the rows have, without partitions."""

    topics: tuple[str, ...]
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    start: Offsets


@dataclass(frozen=True)
class WrittenFile:
    """A file in staging: its name there, the partition directory it belongs to ("" for none), rows and bytes."""

    name: str
    partition: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class DataFile:
    """A file of a batch: its path in the batch directory, rows and bytes."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Batch:
    """One batch directory: ``first`` to ``number`` are the landings in it, more than one after compaction; ``directory`` is where it lies."""

    number: int
    first: int
    start: Offsets
    end: Offsets
    files: tuple[DataFile, ...]
    directory: Path

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def paths(self) -> list[str]:
        """Return the full paths of its files."""
        return [str(self.directory / file.path) for file in self.files]


@dataclass(frozen=True)
class TableState:
    """A table at one moment: its batches, oldest first."""

    path: Path
    spec: TableSpec
    batches: tuple[Batch, ...]

    @property
    def end(self) -> Offsets:
        """The offsets that the next batch begins at."""
        return self.batches[-1].end if self.batches else self.spec.start

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    def paths(self) -> list[str]:
        """Return the full paths of all its files, in order."""
        return [path for batch in self.batches for path in batch.paths()]


# --- reading ------------------------------------------------------------------------------------------------------------


def read_table(path: str | os.PathLike[str]) -> TableState:
    """Return what is committed, also while others write. Raises NotALandingTable, TableDamaged."""
    root = Path(path).absolute()
    spec = _read_spec(root)
    for look in range(_LOOKS):
        directories = _live(root)
        try:
            batches = tuple(_read_batch(directory) for _, directory in sorted(directories.items()))
        except FileNotFoundError as e:
            # A compaction moved it since it was listed.
            if look == _LOOKS - 1:
                raise TableDamaged(str(e.filename), "the batch has no manifest") from None
            time.sleep(_LOOK_PAUSE_S)
        else:
            break
    return TableState(root, spec, batches)


def landed_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the Parquet files of a landed table, each row in exactly one of them, whatever a writer or a compaction is doing.

    For readers that take a list: ``pyarrow.dataset.dataset(landed_files(path))``, ``spark.read.parquet(*landed_files(path))``. Raises
    NotALandingTable, TableDamaged.
    """
    return read_whole_table(path).paths()


def read_whole_table(path: str | os.PathLike[str]) -> TableState:
    """Return what is committed when all its files are there. Raises NotALandingTable, TableDamaged."""
    missing = ""
    for _ in range(_LOOKS):
        state = read_table(path)
        missing = next((file for file in state.paths() if not Path(file).is_file()), "")
        if not missing:
            return state
        # A compaction may have removed it since the manifests were read.
        time.sleep(_LOOK_PAUSE_S)
    raise TableDamaged(missing, "the file is missing")


def is_table(path: str | os.PathLike[str]) -> bool:
    """Tell whether the directory was landed to."""
    return Path(path, HIDDEN, "table.json").is_file()


def check_place(path: str | os.PathLike[str]) -> None:
    """Raise NotALandingTable for a file, or a directory that holds something else, TableNotWritable when it cannot be looked into."""
    root = Path(path).absolute()
    try:
        if root.exists() and not root.is_dir():
            raise NotALandingTable(root, "it is a file")
        others = sorted({entry.name for entry in root.iterdir()} - {HIDDEN}) if root.exists() else []
    except OSError as e:
        raise TableNotWritable(root, e) from e
    if others and not is_table(root):
        raise NotALandingTable(root, f"it holds other things ({', '.join(others[:3])})")


def _live(root: Path) -> dict[int, Path]:
    """Return the directory of every batch by its number. Looks until two looks agree: a swap may be under way."""
    before = None
    for _ in range(_LOOKS):
        swap = _read_swap(root)
        found = {}
        for entry in root.iterdir():
            match = _BATCH.fullmatch(entry.name)
            if match and not (swap and entry.name in swap["old"]):
                found[int(match[1])] = entry
        if swap:
            staged = root / swap["staged"]
            found[int(swap["new"].partition("=")[2])] = staged if staged.is_dir() else root / swap["new"]
        if (swap, found) == before:
            break
        before = swap, found
    return found


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _read_swap(root: Path) -> dict[str, Any] | None:
    try:
        return dict(_read_json(root / HIDDEN / "swap.json"))
    except FileNotFoundError:
        return None


def _read_spec(root: Path) -> TableSpec:
    path = root / HIDDEN / "table.json"
    try:
        value = _read_json(path)
        if value["v"] != FORMAT_VERSION:
            raise NotALandingTable(root, f"it is of version {value['v']}, this SprocketMQ reads version {FORMAT_VERSION}")
        return TableSpec(tuple(value["topics"]), tuple(value["columns"]), tuple(value["partition_by"]), value["start"])
    except (FileNotFoundError, NotADirectoryError):
        raise NotALandingTable(root, f"it has no {HIDDEN}/table.json", "name a directory that was landed to") from None
    except (KeyError, TypeError, json.JSONDecodeError) as e:
        raise TableDamaged(path, f"it does not describe a table ({type(e).__name__}: {e})") from None


def _read_batch(directory: Path) -> Batch:
    path = directory / MANIFEST
    try:
        value = _read_json(path)
        files = tuple(DataFile(**file) for file in value["files"])
        return Batch(value["batch"], value["first"], value["start"], value["end"], files, directory)
    except (KeyError, TypeError, json.JSONDecodeError) as e:
        raise TableDamaged(path, f"it is no manifest ({type(e).__name__}: {e})") from None


# --- writing ------------------------------------------------------------------------------------------------------------


class TableWriter:
    """The one writer of a table, from ``open`` to ``close``; as a context manager it cleans up after an error.

    ``sync`` has every commit reach the disk before it counts, for machines that lose power; a killed process loses nothing without.
    ``step`` is called with a name before each change on disk.
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
        """Take the lock, finish or remove what a dead writer left, and return the table; None when there is none yet.

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
        """Let others write. What is in staging is the next writer's to remove."""
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
        """Make the table that ``open`` did not find. Raises TableNotWritable."""
        self._step("describe table")
        with self._writing():
            self._write_json(self._hidden / "table.json", {"v": FORMAT_VERSION, **asdict(spec)})
        return TableState(self.root, spec, ())

    def staging(self) -> Path:
        """Return a new empty directory for the files of one batch. Names in it must be unlike for any two attempts at a task.

        Raises TableNotWritable.
        """
        path = self._staging / f"{self._run}-{uuid.uuid4().hex[:8]}"
        self._step("make staging")
        with self._writing():
            path.mkdir(parents=True)
        return path

    def commit(self, state: TableState, start: Offsets, end: Offsets, staging: Path, files: Sequence[WrittenFile]) -> TableState:
        """Make ``files`` of ``staging`` the next batch and return the table with it. On any error the table is as it was.

        Raises TableDamaged when a file is not there or has another size, as when a worker wrote to a disk of its own, TableBusy when the
        batch is there already, and TableNotWritable.
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

    def swap_in(self, state: TableState, old: Sequence[Batch], staging: Path, files: Sequence[WrittenFile]) -> TableState:
        """Put one batch of ``files`` in the place of the neighbouring batches ``old`` and return the table with it.

        The rows must be the same ones. On any error before the swap counts the table is as it was; after it, it has the new batch.
        Raises TableDamaged when the rows are not as many, TableNotWritable.
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

    # --- the parts ---

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise TableNotWritable(self.root, e) from e

    def _assemble(self, staging: Path, files: Sequence[WrittenFile], *, number: int, first: int, start: Offsets, end: Offsets) -> Batch:
        """Gather the files of the tasks that succeeded in a directory of their own, with the manifest.

        Of failed and doubled attempts nothing is taken, also when they go on writing: they know no path into this directory.
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
        batch = Batch(number, first, start, end, tuple(placed), directory)
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
        """Move old directories out and the new one in; each step may have been done before."""
        staged = self.root / swap["staged"]
        out = self._staging / "replaced"
        out.mkdir(parents=True, exist_ok=True)
        # While the new directory is not in its place, one of its name is still the old one.
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
        """Finish a swap that counts, then remove whatever is in staging: nothing there is part of the table."""
        swap = _read_swap(self.root)
        if swap is not None:
            self._finish_swap(swap)
        if self._staging.is_dir():
            self._step("clean staging")
            shutil.rmtree(self._staging, ignore_errors=True)
        for leftover in self._hidden.glob("*.tmp"):
            leftover.unlink()

    def _discard(self, staging: Path) -> None:
        """Remove what is left of a batch in staging; what a straggling task still writes there is the next writer's to remove."""
        self._step("remove staging")
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(_made(staging), ignore_errors=True)

    def _write_json(self, path: Path, value: Any) -> None:
        """Write a small file so that it is there whole or not at all."""
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
    """Return where the batch of a staging directory is put together; no task knows it."""
    return staging.with_name(f"{staging.name}-made")
