"""What a streaming query has done, read from its checkpoint and its table without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from sprocketmq.protocol.message import MessageQueue
from sprocketmq.spark.source.offsets import decode_offsets


def last_number(directory: Path) -> int:
    """Return the number of the last entry of one of Spark's logs, which are directories with a file for each batch; -1 of none."""
    try:
        names = [path.name.partition(".")[0] for path in directory.iterdir()]
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def planned(checkpoint: Path) -> int:
    """Return the number of the last micro-batch whose offsets were noted."""
    return last_number(checkpoint / "offsets")


def committed(checkpoint: Path) -> int:
    """Return the number of the last micro-batch that is done."""
    return last_number(checkpoint / "commits")


def committed_offsets(checkpoint: Path) -> dict[MessageQueue, int]:
    """Return where the last micro-batch that is done ended in each queue."""
    number = committed(checkpoint)
    if number < 0:
        return {}
    return decode_offsets(json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1]))


def committed_files(table: Path) -> list[Path]:
    """Return the files of a table that its file sink has committed, by the log it keeps; what killed tasks left behind is not in it.

    The log has one entry for each micro-batch, and now and then one that stands for all before it.
    """
    entries: dict[int, Path] = {}
    compact = -1
    for path in (table / "_spark_metadata").iterdir():
        number, _, kind = path.name.partition(".")
        if number.isdecimal() and kind in ("", "compact"):
            if kind == "compact":
                compact = max(compact, int(number))
            if kind == "compact" or int(number) not in entries:
                entries[int(number)] = path
    files = []
    for number in sorted(number for number in entries if number >= compact):
        version, *lines = entries[number].read_text().splitlines()
        assert version == "v1", f"{entries[number]} is not what this reads"
        for entry in map(json.loads, lines):
            assert entry["action"] == "add"
            files.append(Path(unquote(urlsplit(entry["path"]).path)))
    return files


def committed_rows(table: Path) -> Iterator[tuple[MessageQueue, int, bytes]]:
    """Yield queue, offset and body of every row of the table."""
    columns = ["topic", "brokerName", "queueId", "queueOffset", "body"]
    for path in committed_files(table):
        # A table for each file: read_table() would take the directory's name for a partition.
        with pq.ParquetFile(path) as file:
            found = file.read(columns=columns).to_pydict()
        for topic, broker, queue_id, offset, body in zip(*(found[name] for name in columns), strict=True):
            yield MessageQueue(topic, broker, queue_id), offset, body
