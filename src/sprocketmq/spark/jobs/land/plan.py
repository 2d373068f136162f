"""The arguments of a landing, checked, and its summary."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sprocketmq.errors import ConfigError
from sprocketmq.spark.jobs.land.table import PARTITIONS
from sprocketmq.spark.jobs.tasks import tasks_at_a_time
from sprocketmq.spark.source.options import ReadOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("parquet", "delta", "iceberg")
# Options of the source that are arguments of a landing, by the name of the argument: given both ways, one would be ignored.
_OWN_ARGUMENTS = {"nameserver": "nameserver", "subscribe": "topics", "columns": "columns", "maxoffsetspertrigger": "batch_messages"}


@dataclass(frozen=True)
class LandSummary:
    """The result of a landing. ``files``, ``bytes`` and ``messages_in_table`` are None with Spark's writer."""

    table: str
    format: str
    writer: str
    topics: tuple[str, ...]
    messages: int
    batches: int
    files: int | None
    bytes: int | None
    messages_in_table: int | None
    elapsed_s: float

    def rows(self) -> list[tuple[str, str]]:
        rate = f" ({self.messages / self.elapsed_s:,.0f}/s)" if self.messages and self.elapsed_s else ""
        rows = [
            ("table", self.table),
            ("format", f"{self.format}, written by {'the reading tasks' if self.writer == 'direct' else 'Spark'}"),
            ("topics", ", ".join(self.topics)),
            ("messages landed", f"{self.messages:,}{rate}"),
            ("batches", f"{self.batches:,}"),
        ]
        if self.files is not None and self.bytes is not None:
            rows.append(("files", f"{self.files:,}, {self.bytes / (1 << 20):,.1f} MiB"))
        if self.messages_in_table is not None:
            rows.append(("messages in table", f"{self.messages_in_table:,}"))
        return [*rows, ("time", f"{self.elapsed_s:.1f} s")]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Wanted:
    """The arguments of a landing, and the source options that follow from them."""

    topics: tuple[str, ...]
    to: str
    nameserver: str
    format: str
    columns: tuple[str, ...] | None
    partition_by: tuple[str, ...] | None
    batch_messages: int
    options: dict[str, str]

    def check(self) -> None:
        """Raise ConfigError for invalid arguments, OptionError for invalid options of the source."""
        for name in self.options:
            if name.lower() in _OWN_ARGUMENTS:
                raise ConfigError(f"option {name!r} has an argument of its own: {_OWN_ARGUMENTS[name.lower()]}")
        if not self.topics:
            raise ConfigError("no topic to land: name at least one")
        for name in self.partition_by or ():
            one_of("partition_by", name, PARTITIONS)
        if len(set(self.partition_by or ())) < len(self.partition_by or ()):
            raise ConfigError("partition_by names a partition twice")
        one_of("format", self.format, FORMATS)
        at_least("batch_messages", self.batch_messages, 1)
        self.read_options(self.columns or ())

    def writer(self, asked: str | None) -> str:
        """Return "direct" or "spark". Raises ConfigError when direct landing was requested and is impossible."""
        possible = self.format == "parquet" and "://" not in self.to
        if asked is None:
            return "direct" if possible else "spark"
        if one_of("writer", asked, ("direct", "spark")) == "direct" and not possible:
            what = f"format {self.format}" if self.format != "parquet" else f"{self.to}, which is not a directory of a file system"
            raise ConfigError(f"writer=direct cannot do {what}: use writer=spark")
        return asked

    def with_tasks(self, spark: "SparkSession") -> "Wanted":
        """Return a copy with as many partitions as the session runs tasks at a time, unless the options set a number."""
        if any(name.lower() == "maxpartitions" for name in self.options):
            return self
        return replace(self, options={"maxPartitions": str(tasks_at_a_time(spark)), **self.options})

    def read_columns(self, columns: Sequence[str], partition_by: Sequence[str]) -> tuple[str, ...]:
        """Return ``columns`` and those needed to compute the partitions."""
        return tuple(dict.fromkeys((*columns, *("topic" if name == "topic" else "storeTimestamp" for name in partition_by))))

    def read_options(self, columns: Sequence[str]) -> ReadOptions:
        """Return the parsed ``source_options``. Raises OptionError."""
        return parse_options(self.source_options(columns), streaming=True)

    def source_options(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the options of the `rocketmq` format that read ``columns`` (empty: the default columns)."""
        starts = any(name.lower().startswith("starting") for name in self.options)
        return {
            **({} if starts else {"startingOffsets": "earliest"}),
            **self.options,
            "nameserver": self.nameserver,
            "subscribe": ",".join(self.topics),
            "maxOffsetsPerTrigger": str(self.batch_messages),
            **({"columns": ",".join(columns)} if columns else {}),
        }


def names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return names given as a sequence, or as one comma-separated text."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else tuple(value)


def one_of(name: str, value: str, choices: Sequence[str]) -> str:
    """Return ``value``. Raises ConfigError when it is not one of ``choices``."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}, and must be one of {', '.join(choices)}")
    return value


def at_least(name: str, value: float | None, least: float) -> None:
    """Raise ConfigError for a number below ``least``; None is allowed."""
    if value is not None and not value >= least:  # NaN is not
        raise ConfigError(f"{name} is {value}, and must be at least {least}")
