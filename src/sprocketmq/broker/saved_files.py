"""The JSON files of a broker: its tables, changed settings, and the progress of delayed messages."""

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from sprocketmq.broker.config_changes import ChangedSettings
from sprocketmq.broker.delay import DelayService
from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.replication.roles import BrokerRole
from sprocketmq.broker.request_modes import RequestModeTable
from sprocketmq.broker.saving import SavedFile
from sprocketmq.broker.topics import TopicTable
from sprocketmq.errors import ConfigError, RemoteProtocolError, SprocketError
from sprocketmq.net.tasks import Background, all_of
from sprocketmq.storage.config import ConfigFile
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.store import MessageStore


class SavedFiles:
    """The files of one broker, in ``config/`` of its store. A slave keeps its master's progress of delayed messages."""

    def __init__(
        self,
        root: Path,
        fs: FileSystem,
        role: BrokerRole,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        settings: ChangedSettings,
        delays: DelayService,
        modes: RequestModeTable,
        *,
        threads: Executor,
        background: Background,
    ) -> None:
        def saved(name: str, snapshot: Callable[[], dict[Any, Any]]) -> SavedFile:
            return SavedFile(ConfigFile(f"{root}/config/{name}.json", fs), snapshot, threads=threads, background=background)

        self._role = role
        self._store = store
        self._delays = delays
        self._threads = threads
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._modes = modes
        self.topics = saved("topics", topics.snapshot)
        self.groups = saved("subscriptionGroup", groups.snapshot)
        self.modes = saved("messageRequestMode", modes.snapshot)
        self.settings = saved("changedSettings", settings.snapshot)
        self.offsets = saved("consumerOffset", offsets.snapshot)
        self.delays = saved("delayOffset", delays.progress.snapshot)
        self.timers = saved("timers", delays.progress.timers_snapshot)
        self._all = (self.topics, self.groups, self.modes, self.offsets, self.timers, self.delays, self.settings)

    def load(self, load_settings: Callable[[Mapping[Any, Any]], None]) -> None:
        """Load the files into their tables, settings by ``load_settings``. Blocks; the store is open.

        Raises ConfigError for a file that cannot be read, or has other content.
        """
        trees: list[dict[Any, Any]] = []  # the progress of timed and delayed messages, which a slave only keeps
        for file, take in (
            (self.topics, self._topics.load),
            (self.groups, self._groups.load),
            (self.modes, self._modes.load),
            (self.settings, load_settings),
            (self.offsets, self._offsets.load),
            (self.timers, self._delays.take_timers),
            (self.delays, self._delays.open),
        ):
            try:
                tree = file.load()
            except OSError as e:
                raise ConfigError(f"{file.path} cannot be read: {e.strerror or e}") from None
            if self._role.is_slave and file in (self.timers, self.delays):
                trees.append(tree or {})
            elif tree is not None or file in (self.timers, self.delays):
                try:
                    take(tree or {})
                except RemoteProtocolError as e:
                    raise ConfigError(
                        f"{file.path} is not a file as brokers write it: {e};"
                        f" `sprocketmq inspect {shlex.quote(file.path)}` shows it, mend it or remove it"
                    ) from None
        if trees:
            timers, offsets = trees
            self._delays.progress.adopt(offsets, timers)

    def save_offsets(self) -> None:
        """Save the consumer offsets, and the progress of delayed messages, where they changed."""
        if self._offsets.dirty:
            self._offsets.dirty = False
            self.offsets.touch()
        if not self._role.is_slave and self._delays.progress.note():
            self.save_delays()

    def save_delays(self) -> None:
        """Save the progress of delayed messages, and which timed messages wait."""
        self.delays.touch()
        if self._delays.timers.used:
            self.timers.touch()

    async def save_all(self) -> None:
        """Save every file that has changes, for a stop: what cannot be saved is logged."""
        await all_of(self._save(file) for file in self._all)

    async def drain(self) -> None:
        """Return when no save is under way."""
        while saves := [save for file in self._all if (save := file.save_under_way) is not None]:
            await asyncio.wait(saves)

    async def _save(self, file: SavedFile) -> None:
        if file is self.offsets and self._offsets.dirty:
            self._offsets.dirty = False
            file.note()
        is_progress = file is self.delays or (file is self.timers and self._delays.timers.used)
        if is_progress and not self._role.is_slave:
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._store.flush_log)
            except (SprocketError, OSError):
                return  # closing the store will report it; progress is recovered from the log
            self._delays.progress.finish()
            file.note()
        with contextlib.suppress(OSError):  # logged where it happened; the store still has to be closed
            await file.saved()
