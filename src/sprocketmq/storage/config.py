r"""The settings of a store, and the JSON files under ``config/`` in the reference's format.

The format has tabs, no blank after the colon, and integer keys without quotes.

::

    {
    \t"offsetTable":{
    \t\t"orders@billing":{
    \t\t\t0:15,
    \t\t\t1:12
    \t\t}
    \t}
    }
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from sprocketmq.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.storage.fs import REAL_FS, FileSystem

_scalar = msgspec.json.Encoder().encode


FLUSH_MODES = ("ASYNC_FLUSH", "SYNC_FLUSH")
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_DELAY_LEVELS = 256
# Examining this many units takes 1.3 ms, during which the broker does nothing else.
MAX_FILTER_UNITS = 16_000
# Some file systems take larger files, but none is of use: a segment is deleted as a whole, and has its size from the start.
MAX_SEGMENT_BYTES = 1 << 40
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MAX_DELAY_MS = 365 * 86_400_000


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """Return the milliseconds of the delay levels from 1 on: numbers of s, m, h or d with blanks between them.

    Raises ConfigError for anything else, more than 256 levels, or one of zero or more than a year.
    """
    if not isinstance(text, str):
        raise ConfigError(f"message_delay_level must be text such as '1s 5s 1m', not {text!r}")
    levels = []
    for word in text.split():
        number, unit = word[:-1], _UNITS_MS.get(word[-1])
        if unit is None or not (number.isascii() and number.isdigit()) or not 0 < int(number[:12]) * unit <= _MAX_DELAY_MS:
            raise ConfigError(f"message_delay_level {word!r} is not a delay: write a number above 0 and s, m, h or d, at most 365d")
        levels.append(int(number) * unit)
    if not 0 < len(levels) <= MAX_DELAY_LEVELS:
        raise ConfigError(f"message_delay_level has {len(levels)} levels, it must have 1 to {MAX_DELAY_LEVELS}")
    return tuple(levels)


@dataclass(frozen=True)
class StoreConfig:
    """The settings of a store; names and defaults are the reference's. Raises ConfigError for invalid values.

    An existing store keeps the file sizes it was written with, whatever is set here. ``preallocate`` reserves disk blocks of the
    commit log ahead of the writes. A filtered read examines at most ``max_filter_units`` queue units of 20 bytes;
    units of a batch queue have 46 bytes, and their messages are counted.

    With SYNC_FLUSH readers see what is on disk, with ``read_uncommitted`` always what is written. ``pipeline_workers`` processes read the
    log when queues and index are rebuilt (0: one per core, at most 4); ``enable_build_consume_queue_concurrently`` off does it in this
    process. Segments expire ``file_reserved_hours`` after their last write, in the hours ``delete_when`` names (``"04;16"``); the ratios
    are used parts of the disk: past ``disk_max_used_ratio`` expired files go at any hour, past ``disk_clean_forcibly_ratio`` any but the
    newest go, past ``disk_warning_ratio`` messages are refused as well. ``message_delay_level`` has the delays of levels 1, 2, ..., from
    which the units of delayed messages get their delivery time.
    """

    root: Path
    commitlog_segment_bytes: int = 1 << 30
    consumequeue_segment_bytes: int = 300_000 * 20
    batchqueue_segment_bytes: int = 300_000 * 46
    max_hash_slots: int = 5_000_000
    max_index_entries: int = 20_000_000
    message_index_enable: bool = True
    max_message_bytes: int = 4 << 20
    preallocate: bool = True
    max_filter_units: int = 800
    flush_disk_type: str = "ASYNC_FLUSH"
    read_uncommitted: bool = False
    enable_build_consume_queue_concurrently: bool = True
    pipeline_workers: int = 0
    file_reserved_hours: float = 72.0
    delete_when: str = "04"
    disk_max_used_ratio: float = 0.75
    disk_clean_forcibly_ratio: float = 0.85
    disk_warning_ratio: float = 0.90
    clean_file_forcibly: bool = True
    message_delay_level: str = DELAY_LEVELS

    def __post_init__(self) -> None:
        delay_levels_ms(self.message_delay_level)
        if self.consumequeue_segment_bytes < 20 or self.consumequeue_segment_bytes % 20:
            raise ConfigError(f"consumequeue_segment_bytes must be a multiple of 20, not {self.consumequeue_segment_bytes}")
        if self.batchqueue_segment_bytes < 46 or self.batchqueue_segment_bytes % 46:
            raise ConfigError(f"batchqueue_segment_bytes must be a multiple of 46, not {self.batchqueue_segment_bytes}")
        if self.commitlog_segment_bytes < 4096:
            raise ConfigError(f"commitlog_segment_bytes must be at least 4096, not {self.commitlog_segment_bytes}")
        for name in ("commitlog_segment_bytes", "consumequeue_segment_bytes", "batchqueue_segment_bytes"):
            if getattr(self, name) > MAX_SEGMENT_BYTES:
                raise ConfigError(f"{name} must be at most {MAX_SEGMENT_BYTES}, not {getattr(self, name)}")
        if self.max_message_bytes < 1:
            raise ConfigError(f"max_message_bytes must be positive, not {self.max_message_bytes}")
        if not 1 <= self.max_filter_units <= MAX_FILTER_UNITS:
            raise ConfigError(f"max_filter_units must be from 1 to {MAX_FILTER_UNITS}, not {self.max_filter_units}")
        if not 1 <= self.max_hash_slots <= 100_000_000 or not 2 <= self.max_index_entries <= 100_000_000:
            raise ConfigError("max_hash_slots must be from 1 to 100,000,000 and max_index_entries from 2 to 100,000,000")
        if self.flush_disk_type not in FLUSH_MODES:
            raise ConfigError(f"flush_disk_type must be ASYNC_FLUSH or SYNC_FLUSH, not {self.flush_disk_type!r}")
        if not 0 <= self.pipeline_workers <= 64:
            raise ConfigError(f"pipeline_workers must be from 0 (one a core, at most 4) to 64, not {self.pipeline_workers}")
        if not 0 < self.file_reserved_hours <= 24 * 366 * 100:
            raise ConfigError(f"file_reserved_hours must be positive and at most a century, not {self.file_reserved_hours}")
        hours = self.delete_when.split(";")
        if not all(hour.isascii() and hour.isdigit() and int(hour) < 24 for hour in hours):
            raise ConfigError(f"delete_when names hours from 00 to 23 with ';' between them, not {self.delete_when!r}")
        for name in ("disk_max_used_ratio", "disk_clean_forcibly_ratio", "disk_warning_ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delays of ``message_delay_level`` in milliseconds, level 1 first."""
        return delay_levels_ms(self.message_delay_level)


# Where a nameserver keeps its key-value configuration, in the directory it is given: beside the broker's files where they share one.
KV_CONFIG_FILE = "namesrv/kvConfig.json"


class ConfigFile:
    """One file and its predecessor (``NAME.bak``).

    A save never leaves a moment without a readable file: the new text is complete and on the disk before it takes the name.
    """

    __slots__ = ("_directory", "_fs", "path")

    def __init__(self, path: str | Path, fs: FileSystem = REAL_FS) -> None:
        self.path = str(path)
        self._directory = self.path.rpartition("/")[0] or "."
        self._fs = fs

    def load(self) -> dict[Any, Any] | None:
        """Return the object of the file, of its ``.bak`` when the file is missing, empty or damaged, or None when both are.

        Integer keys come back as ``int`` when they were written without quotes, else as ``str``.
        """
        for path in (self.path, self.path + ".bak"):
            try:
                value = loads(self._fs.read(path))
            except (OSError, RemoteProtocolError):
                continue
            if isinstance(value, dict):
                return value
        return None

    def load_or_set_aside(self, accepts: Callable[[dict[Any, Any]], bool] = lambda _: True) -> tuple[dict[Any, Any] | None, list[str]]:
        """Return what ``load`` does, and the new names of files that were damaged: the next saves would take them away.

        ``accepts`` tells whether an object is what such a file should hold. Empty files are nothing to keep. Raises OSError.
        """
        aside: list[str] = []
        for path in (self.path, self.path + ".bak"):
            try:
                data = self._fs.read(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            try:
                value = loads(data)
            except RemoteProtocolError:
                value = None
            if isinstance(value, dict) and accepts(value):
                return value, aside
            if data:
                number = next(n for n in count(1) if not self._fs.exists(f"{path}.damaged-{n}"))
                aside.append(f"{path}.damaged-{number}")
                self._fs.rename(path, aside[-1])
                self._fs.fsync_dir(self._directory)
        return None, aside

    def save(self, value: dict[Any, Any]) -> None:
        """Write ``value`` durably and keep the previous text as ``.bak``. Raises OSError; the old file then still stands."""
        text = dump_pretty(value)
        temporary = self.path + ".tmp"
        self._fs.make_dirs(self._directory)
        file = self._fs.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(text, 0)
            file.fdatasync()
        finally:
            file.close()
        if self._fs.exists(self.path):
            self._fs.rename(self.path, self.path + ".bak")
        self._fs.rename(temporary, self.path)
        self._fs.fsync_dir(self._directory)


def dump_pretty(value: Any) -> bytes:
    """Return ``value`` (dicts, lists, scalars; keys are str or int) in the reference's layout, without a final newline.

    Raises LocalProtocolError for a key or value JSON has no form for.
    """
    parts: list[bytes] = []
    try:
        _write(value, parts, b"\n")
    except (TypeError, msgspec.MsgspecError, RecursionError) as e:
        raise LocalProtocolError(f"value cannot be written as JSON: {e}") from None
    return b"".join(parts)


def _write(value: Any, parts: list[bytes], line: bytes) -> None:
    if isinstance(value, dict):
        inner = line + b"\t"
        opening = b"{"
        for key, item in value.items():
            name = b"%d" % key if type(key) is int else _scalar(_text_key(key))
            parts.append(opening + inner + name + b":")
            _write(item, parts, inner)
            opening = b","
        parts.append(line + b"}" if value else b"{}")
    elif isinstance(value, list | tuple):
        inner = line + b"\t"
        opening = b"["
        for item in value:
            parts.append(opening + inner)
            _write(item, parts, inner)
            opening = b","
        parts.append(line + b"]" if value else b"[]")
    else:
        parts.append(_scalar(value))


def _text_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a {type(key).__name__} cannot be a key")
    return key
