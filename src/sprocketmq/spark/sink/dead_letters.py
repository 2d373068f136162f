"""Rows that are too large for a broker, kept complete in a Parquet file for each task that has any."""

import os
import threading
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyarrow import fs, parquet

from sprocketmq.errors import FatalError

REASON = "deadLetterReason"


class DeadLetters:
    """Writes refused rows with their reasons to ``part-NAME.parquet`` in a directory: the columns of the write, and `deadLetterReason`.

    The file gets its name in one step when the task succeeds, so a task that runs again replaces its earlier file. Without rows there is
    no file. ``directory`` is a path or a URI that pyarrow supports (s3://, hdfs://); with None no rows may be added.
    """

    def __init__(self, directory: str | None, name: str) -> None:
        self._directory = directory
        self._name = f"part-{name}.parquet"
        self._lock = threading.Lock()
        self._files: Any = None
        self._writer: Any = None
        self._temporary = ""
        self.path = ""
        self.rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer is None:
            return
        self._writer.close()
        if kind is None:
            self._files.move(self._temporary, self.path)
        else:
            self._files.delete_file(self._temporary)

    def add(self, rows: pa.RecordBatch, reasons: list[str]) -> None:
        """Add rows, each with its reason. Called by the task and by the sending thread."""
        batch = rows.append_column(REASON, pa.array(reasons, pa.string()))
        with self._lock:
            if self._writer is None:
                self._open(batch.schema)
            self._writer.write_batch(batch)
            self.rows += rows.num_rows

    def _open(self, schema: pa.Schema) -> None:
        assert self._directory is not None, "rows may be added only with a directory"
        try:
            if "://" in self._directory:
                self._files, directory = fs.FileSystem.from_uri(self._directory)
            else:
                self._files, directory = fs.LocalFileSystem(), self._directory
            self._files.create_dir(directory)
            self.path = f"{directory}/{self._name}"
            # Readers of Parquet directories skip names that begin with an underscore.
            self._temporary = f"{directory}/_{self._name}.{os.getpid()}.tmp"
            self._writer = parquet.ParquetWriter(self._temporary, schema, filesystem=self._files, use_dictionary=False)
        except (OSError, ValueError) as e:
            raise FatalError(f"rows too large cannot be put aside in {self._directory} (deadLetterPath): {e}") from e
