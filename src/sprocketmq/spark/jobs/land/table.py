"""The layout of a landed table on disk, and how it is read while others write. ``table_writer.py`` writes it.

::

    TABLE/
      batch=00000001/                       one landing: assembled in staging, put here by one rename
        _manifest.json                      the offsets it begins and ends at, its files and their rows
        topic=orders/date=2026-11-21/part-00000-5f0c2a91.parquet
      batch=00000002/ ...
      _sprocketmq/
        table.json                          topics, columns, partitions and first offsets of the table
        lock                                held by the writing process
        swap.json                           exists only while a compacted directory replaces others
        staging/                            files that are not part of the table, or not yet

A batch directory and its manifest appear together, by one rename, so data and offsets can never differ: ``end`` in the newest manifest is
where the next batch begins. Spark and Arrow skip names that begin with an underscore, so any reader of plain Parquet sees exactly what is
committed.

Compaction replaces several directories by one, which no single rename can do. It is committed by writing ``swap.json``: from then on
``read_table`` reads the new directory instead of the old ones, wherever they are, and the next writer finishes the moves.
"""

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sprocketmq.spark.jobs.land.table_errors import NotALandingTable, TableDamaged, TableNotWritable

FORMAT_VERSION = 1
HIDDEN = "_sprocketmq"
MANIFEST = "_manifest.json"
PARTITIONS = ("topic", "date")

_BATCH = re.compile(r"batch=(\d{8,})")
# Attempts of a reader while a compaction moves directories.
_ATTEMPTS = 50
_ATTEMPT_PAUSE_S = 0.02

Offsets = dict[str, Any]  # as the source writes them: {"v": 1, "topics": {...}}


@dataclass(frozen=True)
class TableSpec:
    """What never changes in a table: ``start`` are the offsets of its first batch, ``columns`` those of the rows without partitions."""

    topics: tuple[str, ...]
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    start: Offsets


@dataclass(frozen=True)
class DataFile:
    """A file of a batch: its path in the batch directory, rows and bytes."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class LandedBatch:
    """One batch ``directory``. It holds the landings ``first`` to ``number``, several after compaction."""

    number: int
    first: int
    start: Offsets
    end: Offsets
    files: tuple[DataFile, ...]
    directory: Path

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    def paths(self) -> list[str]:
        """Return the full paths of its files."""
        return [str(self.directory / file.path) for file in self.files]


@dataclass(frozen=True)
class TableState:
    """A table at one moment: its batches, oldest first."""

    path: Path
    spec: TableSpec
    batches: tuple[LandedBatch, ...]

    @property
    def end(self) -> Offsets:
        """The offsets at which the next batch begins."""
        return self.batches[-1].end if self.batches else self.spec.start

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return sum(batch.rows for batch in self.batches)

    def paths(self) -> list[str]:
        """Return the full paths of all its files, in order."""
        return [path for batch in self.batches for path in batch.paths()]


def read_table(path: str | os.PathLike[str]) -> TableState:
    """Return the committed table, also while another process writes. Raises NotALandingTable, TableDamaged."""
    root = Path(path).absolute()
    spec = _read_spec(root)
    for attempt in range(_ATTEMPTS):
        directories = _live(root)
        try:
            batches = tuple(_read_batch(directory) for _, directory in sorted(directories.items()))
        except FileNotFoundError as e:
            # A compaction has moved it since it was listed.
            if attempt == _ATTEMPTS - 1:
                raise TableDamaged(str(e.filename), "the batch has no manifest") from None
            time.sleep(_ATTEMPT_PAUSE_S)
        else:
            break
    return TableState(root, spec, batches)


def landed_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the Parquet files of a landed table, each row in exactly one of them, also while a writer or a compaction runs.

    For readers that take a list: ``pyarrow.dataset.dataset(landed_files(path))``, ``spark.read.parquet(*landed_files(path))``. Raises
    NotALandingTable, TableDamaged.
    """
    return read_whole_table(path).paths()


def read_whole_table(path: str | os.PathLike[str]) -> TableState:
    """Return the committed table after checking that all its files exist. Raises NotALandingTable, TableDamaged."""
    missing = ""
    for _ in range(_ATTEMPTS):
        state = read_table(path)
        missing = next((file for file in state.paths() if not Path(file).is_file()), "")
        if not missing:
            return state
        # A compaction may have removed it since the manifests were read.
        time.sleep(_ATTEMPT_PAUSE_S)
    raise TableDamaged(missing, "the file is missing")


def is_table(path: str | os.PathLike[str]) -> bool:
    """Return whether the directory is a landed table."""
    return Path(path, HIDDEN, "table.json").is_file()


def check_place(path: str | os.PathLike[str]) -> None:
    """Raise NotALandingTable for a file or a directory with other contents, TableNotWritable for one that cannot be listed."""
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
    """Return the directory of every batch by its number. Reads until two attempts agree, as a swap may be under way."""
    before = None
    for _ in range(_ATTEMPTS):
        swap = read_swap(root)
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


def read_swap(root: Path) -> dict[str, Any] | None:
    """Return the swap of a compaction that is committed but not finished, None when there is none."""
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


def _read_batch(directory: Path) -> LandedBatch:
    path = directory / MANIFEST
    try:
        value = _read_json(path)
        files = tuple(DataFile(**file) for file in value["files"])
        return LandedBatch(value["batch"], value["first"], value["start"], value["end"], files, directory)
    except (KeyError, TypeError, json.JSONDecodeError) as e:
        raise TableDamaged(path, f"it is not a manifest ({type(e).__name__}: {e})") from None
