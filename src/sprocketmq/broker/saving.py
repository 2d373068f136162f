"""Configuration files saved off the event loop: one writer per file, at most one save under way and one pending."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from sprocketmq.net.tasks import Background, share
from sprocketmq.storage.config import ConfigFile

log = logging.getLogger(__name__)


class SavedFile:
    """One file that follows a table in memory.

    ``touch`` records a change; the file is written soon, in a thread, with everything that has changed until then.
    """

    def __init__(self, file: ConfigFile, snapshot: Callable[[], dict[Any, Any]], *, threads: Executor, background: Background) -> None:
        self._file = file
        self._snapshot = snapshot
        self._threads = threads
        self._writing = threading.Lock()
        self._background = background
        self._wanted = 0
        self._written = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._file.path

    def load(self) -> dict[Any, Any] | None:
        """Return the file's content, None when there is none or it is damaged; damaged files are renamed and logged. Blocks.

        Raises OSError.
        """
        tree, aside = self._file.load_or_set_aside()
        for path in aside:
            taken = "its .bak is used instead" if tree is not None else "there is no good .bak, so the broker starts without its content"
            log.error("%s is damaged and kept as %s; %s", self.path, path, taken)
        return tree

    @property
    def dirty(self) -> bool:
        """Whether something changed since the last save."""
        return self._written < self._wanted

    def note(self) -> None:
        """Record a change that may wait for the next ``touch`` or ``saved``."""
        self._wanted += 1

    def touch(self) -> "asyncio.Task[None]":
        """Record a change and return the task that ends when it is on disk.

        The task raises OSError when the file cannot be written; the next ``touch`` tries again.
        """
        self._wanted += 1
        if (task := self.save_under_way) is None:
            task = self._task = self._background.spawn(self._save(), f"save of {self.path}", awaited=True)
            task.add_done_callback(self._report)
        return task

    @property
    def save_under_way(self) -> "asyncio.Task[None] | None":
        """The task of a save that has not ended yet."""
        return self._task if self._task is not None and not self._task.done() else None

    def saving(self) -> "asyncio.Task[None]":
        """Return the task that ends when all changes so far are on disk."""
        return self.save_under_way or self.touch()

    async def saved(self) -> None:
        """Write what has changed, if anything, and wait for it. Raises OSError. Cancelling the caller does not cancel the save."""
        if self.dirty:
            await share(self.saving(), lambda: OSError(f"the save of {self.path} was cancelled"))

    async def _save(self) -> None:
        loop = asyncio.get_running_loop()
        while self._written < self._wanted:
            version = self._wanted
            await loop.run_in_executor(self._threads, self._write, self._snapshot())
            self._written = version

    def _write(self, tree: dict[Any, Any]) -> None:
        with self._writing:  # a save that was cancelled may still be at work in its thread
            self._file.save(tree)

    def _report(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            if self._background.closed:
                return
            log.error("the save of %s was cancelled; the next save includes its changes", self.path)
        elif (error := task.exception()) is not None:
            expected = isinstance(error, OSError)
            log.error("cannot save %s: %s", self.path, error if expected else repr(error), exc_info=None if expected else error)
