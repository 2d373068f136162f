"""The key-value configuration of a nameserver (100, 101, 102, 219): a small table that outlives a restart.

It is kept in one file in the reference's format, ``{"configTable":{namespace:{key:value}}}``. Each change writes the whole file, off the
event loop; the size of the table is limited for that reason.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sprocketmq.errors import ConfigError, FatalError
from sprocketmq.net.tasks import Background, share

log = logging.getLogger(__name__)

MAX_ITEMS = 100_000
MAX_NAME_BYTES = 1024
MAX_VALUE_BYTES = 64 << 10
MAX_TABLE_BYTES = 8 << 20

_Tree = dict[Any, Any]


class TableFile(Protocol):
    """A file that holds a table; ``sprocketmq.storage.config.ConfigFile`` is one."""

    path: str

    def load_or_set_aside(self, accepts: Callable[[_Tree], bool]) -> tuple[_Tree | None, list[str]]:
        """Return the content, None when nothing is readable, and the new names of damaged files. Raises OSError."""

    def save(self, value: _Tree) -> None:
        """Replace the content durably. Raises OSError; then the file keeps its content."""


class KvRefused(FatalError):
    """An item is too large, or there are too many."""


class KvKeeper:
    """Namespaces of keys and values, kept in ``file``; without one they last as long as the process. Saves are tasks of ``background``."""

    def __init__(self, file: TableFile | None, background: Background) -> None:
        self._file = file
        self._background = background
        self._table: dict[str, dict[str, str]] = {}
        self._bytes = 0
        self._wanted = self._written = 0
        self._saving: asyncio.Task[None] | None = None

    @property
    def path(self) -> str:
        """The path of the file, "" without one."""
        return self._file.path if self._file is not None else ""

    async def load(self) -> None:
        """Load the file; a damaged one is renamed and logged. Raises ConfigError."""
        if self._file is None:
            return
        path = self._file.path
        try:
            tree, aside = await asyncio.to_thread(self._file.load_or_set_aside, _is_table)
        except OSError as e:
            raise ConfigError(f"the key-value configuration {path} cannot be read: {e.strerror or e}") from None
        for name in aside:
            log.error("%s was damaged and is kept as %s; its values are %s", path, name, "gone" if tree is None else "those of its .bak")
        self._table = {namespace: dict(items) for namespace, items in tree["configTable"].items()} if tree is not None else {}
        self._bytes = sum(_size(namespace, *pair) for namespace, items in self._table.items() for pair in items.items())

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return the items of a namespace; None when it has none."""
        return self._table.get(namespace)

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._table.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises KvRefused."""
        before = self.get(namespace, key)
        for what, text, limit in (
            ("namespace", namespace, MAX_NAME_BYTES),
            ("key", key, MAX_NAME_BYTES),
            ("value", value, MAX_VALUE_BYTES),
        ):
            if (size := len(text.encode())) > limit:
                raise KvRefused(f"the {what} has {size} bytes, the limit is {limit}")
        if before is None and sum(map(len, self._table.values())) >= MAX_ITEMS:
            raise KvRefused(f"this nameserver holds {MAX_ITEMS} config items, its limit")
        grown = _size(namespace, key, value) - (_size(namespace, key, before) if before is not None else 0)
        if grown > 0 and self._bytes + grown > MAX_TABLE_BYTES:
            raise KvRefused(f"the config items of this nameserver would take more than {MAX_TABLE_BYTES} bytes, its limit")
        self._table.setdefault(namespace, {})[key] = value
        self._bytes += grown
        self._wanted += 1

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if there is one."""
        items = self._table.get(namespace, {})
        value = items.pop(key, None)
        if value is None:
            return
        if not items:
            del self._table[namespace]
        self._bytes -= _size(namespace, key, value)
        self._wanted += 1

    @property
    def kept(self) -> bool:
        """Whether all changes are saved; true without a file."""
        return self._file is None or self._written >= self._wanted

    async def save(self) -> None:
        """Return when all changes made until now are on the disk. Raises OSError; the next save tries again."""
        if self._file is None:
            return
        wanted = self._wanted
        while self._written < wanted:
            if self._saving is None or self._saving.done():
                self._saving = self._background.spawn(self._write(), "save of the key-value configuration", awaited=True)
            await share(self._saving, lambda: OSError("the save was cancelled"))

    async def _write(self) -> None:
        assert self._file is not None
        version = self._wanted
        tree = {"configTable": {namespace: dict(items) for namespace, items in self._table.items()}}
        await asyncio.to_thread(self._file.save, tree)
        self._written = version


def _size(namespace: str, key: str, value: str) -> int:
    return len(namespace.encode()) + len(key.encode()) + len(value.encode())


def _is_table(tree: _Tree) -> bool:
    table = tree.get("configTable")
    return isinstance(table, dict) and all(
        isinstance(namespace, str) and isinstance(items, dict) and all(isinstance(text, str) for pair in items.items() for text in pair)
        for namespace, items in table.items()
    )
