"""A store's directory for tools that only read: its segments, queues, index files and small files."""

import contextlib
from collections.abc import Iterator
from typing import Any

from sprocketmq.errors import SprocketError
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.fs import REAL_FS, Entry, FileSystem
from sprocketmq.storage.index.index_format import is_file_name
from sprocketmq.storage.inspect.items import NotAStoreFile
from sprocketmq.storage.inspect.json_items import MAX_JSON_BYTES
from sprocketmq.storage.log.segments import segment_entries, segment_size_of


class StoreDirectory:
    """The files of one store directory, for reading only. Raises NotAStoreFile when the directory is not a store."""

    def __init__(self, root: str, fs: FileSystem = REAL_FS) -> None:
        self.root = root.rstrip("/") or "/"
        self.fs = fs
        self.entries = {entry.name: entry for entry in fs.list(self.root)}
        if not any(name in self.entries for name in ("commitlog", "consumequeue", "batchconsumequeue")):
            hint = ""
            parent = self.root.rpartition("/")[0]
            for _ in range(3):
                if parent and fs.exists(f"{parent}/commitlog"):
                    hint = f"; it is a part of the store {parent}: name that, or a file in here"
                    break
                parent = parent.rpartition("/")[0]
            raise NotAStoreFile(self.root, f"there is no store in this directory (no commitlog in it){hint}")
        self.segments = segment_entries(self.files_in("commitlog"))
        self.segment_bytes = segment_size_of(self.segments) or 0

    def files_in(self, name: str) -> list[Entry]:
        """Return the entries of a directory inside the store; none when it is missing or a file."""
        try:
            return self.fs.list(f"{self.root}/{name}")
        except NotADirectoryError:
            return []

    def queues(self, kind: str) -> Iterator[tuple[str, int, str]]:
        """Yield topic, queue id and directory of every queue under ``consumequeue`` or ``batchconsumequeue``."""
        for topic in self.files_in(kind):
            if topic.is_dir:
                for queue in self.files_in(f"{kind}/{topic.name}"):
                    if queue.is_dir and queue.name.isascii() and queue.name.isdigit() and len(queue.name) < 10:
                        yield topic.name, int(queue.name), f"{self.root}/{kind}/{topic.name}/{queue.name}"

    def index_files(self) -> list[Entry]:
        """Return the index files, the oldest first."""
        return [e for e in self.files_in("index") if not e.is_dir and is_file_name(e.name)]

    def small(self, name: str, limit: int = MAX_JSON_BYTES) -> bytes | None:
        """Return the content of a small file, None when it is missing, unreadable or longer than ``limit``."""
        try:
            with FileView(self.fs, f"{self.root}/{name}") as view:
                return view.read_all(limit)
        except OSError:
            return None

    def config(self, name: str) -> dict[Any, Any]:
        """Return the object of a configuration file or of its ``.bak``, empty when neither can be read."""
        for path in (f"config/{name}", f"config/{name}.bak"):
            data = self.small(path)
            if data is not None:
                with contextlib.suppress(SprocketError):
                    value = loads(data)
                    if isinstance(value, dict):
                        return value
        return {}

    def segment_at(self, log_offset: int) -> tuple[int, Entry] | None:
        """Return the segment that contains a log offset."""
        size = self.segment_bytes
        return next((s for s in self.segments if size and s[0] <= log_offset < s[0] + size), None)
