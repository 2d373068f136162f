"""Settings of the serving verbs, from a TOML file and ``--set``: an allow-list of typed keys."""

import re
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sprocketmq.errors import ConfigError
from sprocketmq.net.address import advertise_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOPBACK_HOST = "127.0.0.1"


@dataclass
class Settings:
    """The settings of ``serve``, ``broker`` and ``namesrv``. The names are the keys of a configuration file and of ``--set``.

    docs/guide/broker-settings.md describes each.
    """

    host: str = LOOPBACK_HOST
    advertise: str = ""
    port: int = 10911
    namesrv_port: int = 9876
    namesrv: str = ""
    store: str = ""
    cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    region: str = "DefaultRegion"
    log_level: str = "warning"

    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: int = 8
    max_message_bytes: int = 4 << 20
    max_transfer_count: int = 4096
    max_transfer_bytes: int = 4 << 20
    max_filter_units: int = 800
    max_connections: int = 10_000
    max_held_pulls: int = 100_000
    register_interval_s: float = 30.0
    save_offsets_interval_s: float = 5.0
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    flush_disk_type: str = "ASYNC_FLUSH"
    flush_interval_s: float = 0.5
    sync_flush_timeout_s: float = 5.0
    max_waiting_sends: int = 10_000
    max_waiting_bytes: int = 64 << 20
    os_page_cache_busy_timeout_ms: int = 1000
    read_uncommitted: bool = False

    commitlog_segment_bytes: int = 1 << 30
    consumequeue_segment_bytes: int = 300_000 * 20
    batchqueue_segment_bytes: int = 300_000 * 46
    preallocate: bool = True
    message_index_enable: bool = True
    max_hash_slots: int = 5_000_000
    max_index_entries: int = 20_000_000
    enable_build_consume_queue_concurrently: bool = True
    pipeline_workers: int = 0

    file_reserved_hours: float = 72.0
    delete_when: str = "04"
    clean_interval_s: float = 10.0
    disk_max_used_ratio: float = 0.75
    disk_clean_forcibly_ratio: float = 0.85
    disk_warning_ratio: float = 0.90
    clean_file_forcibly: bool = True

    explicit: set[str] = field(default_factory=set, repr=False)

    def put(self, key: str, value: Any, source: str) -> None:
        """Set one key. Raises ConfigError for an unknown key or a value of another type; ``source`` names its origin in errors."""
        if key not in KEYS:
            raise ConfigError(f"{source}: unknown key {key!r}; {_closest(key)}")
        wanted = KEYS[key]
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            raise ConfigError(f"{source}: {key} must be {_TYPE_NAMES[wanted]}, not {value!r}")
        if key in ("port", "namesrv_port") and value not in range(65536):
            raise ConfigError(f"{source}: {key} must be from 0 (any free port) to 65535, not {value}")
        if key == "log_level":
            value = str(given := value).lower()
            if value not in LOG_LEVELS:
                raise ConfigError(f"{source}: log_level must be one of {', '.join(LOG_LEVELS)}, not {given!r}")
        if key == "advertise" and value and (problem := advertise_problem(value)):
            raise ConfigError(f"{source}: {value!r} cannot be advertised: {problem}")
        setattr(self, key, value)
        self.explicit.add(key)

    def put_text(self, assignment: str, source: str) -> None:
        """Set ``KEY=VALUE`` written as text."""
        key, equals, text = assignment.partition("=")
        key, text = key.strip(), text.strip()
        if not equals or not key:
            raise ConfigError(f"{source}: write KEY=VALUE, not {assignment!r}")
        self.put(key, _from_text(KEYS.get(key, str), text), source)

    def put_file(self, path: Path) -> None:
        """Set the keys of a TOML file. Raises ConfigError when it cannot be read, is not TOML, or has tables or unknown keys."""
        import tomllib

        try:
            text = path.read_text(encoding="utf-8")
        except OSError as e:
            raise ConfigError(f"cannot read configuration file {path}: {e.strerror or e}") from None
        except UnicodeDecodeError as e:
            raise ConfigError(f"configuration file {path} is not UTF-8 text (byte {e.start})") from None
        try:
            table: Mapping[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            raise ConfigError(f"configuration file {path} is not valid TOML: {e}") from None
        for key, value in table.items():
            self.put(key, value, f"configuration file {path}")


KEYS: dict[str, type] = {f.name: type(f.default) for f in fields(Settings) if f.name != "explicit"}
_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
# The names of these settings in Apache's broker.conf and namesrv.conf, where they differ by more than spelling.
APACHE_NAMES = {
    "brokerIP1": "advertise",
    "listenPort": "port",
    "namesrvAddr": "namesrv",
    "storePathRootDir": "store",
    "kvConfigPath": "store",
    "brokerClusterName": "cluster_name",
    "regionId": "region",
    "autoCreateTopicEnable": "auto_create_topic",
    "autoCreateSubscriptionGroup": "auto_create_group",
    "defaultTopicQueueNums": "default_topic_queues",
    "maxMessageSize": "max_message_bytes",
    "maxTransferCountOnMessageInMemory": "max_transfer_count",
    "maxTransferBytesOnMessageInMemory": "max_transfer_bytes",
    "maxFilterMessageSize": "max_filter_units",
    "pullThreadPoolQueueCapacity": "max_held_pulls",
    "registerNameServerPeriod": "register_interval_s",
    "flushConsumerOffsetInterval": "save_offsets_interval_s",
    "flushDelayOffsetInterval": "save_offsets_interval_s",
    "flushIntervalCommitLog": "flush_interval_s",
    "syncFlushTimeout": "sync_flush_timeout_s",
    "sendThreadPoolQueueCapacity": "max_waiting_sends",
    "osPageCacheBusyTimeOutMills": "os_page_cache_busy_timeout_ms",
    "readUnCommitted": "read_uncommitted",
    "mappedFileSizeCommitLog": "commitlog_segment_bytes",
    "mappedFileSizeConsumeQueue": "consumequeue_segment_bytes",
    "mapperFileSizeBatchConsumeQueue": "batchqueue_segment_bytes",
    "maxHashSlotNum": "max_hash_slots",
    "maxIndexNum": "max_index_entries",
    "batchDispatchRequestThreadPoolNums": "pipeline_workers",
    "fileReservedTime": "file_reserved_hours",
    "cleanResourceInterval": "clean_interval_s",
    "diskMaxUsedSpaceRatio": "disk_max_used_ratio",
    "diskSpaceCleanForciblyRatio": "disk_clean_forcibly_ratio",
    "diskSpaceWarningLevelRatio": "disk_warning_ratio",
    "cleanFileForciblyEnable": "clean_file_forcibly",
}
LOG_LEVELS = ("debug", "info", "warning", "error")


def _closest(key: str) -> str:
    """Return a hint for an unknown key: the setting of this Apache name, one that is spelled alike, or the list of all."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", key).lower()
    if found := APACHE_NAMES.get(key) or (snake if snake in KEYS else ""):
        return f"it is called {found} here (units may differ: docs/guide/broker-settings.md)" if key in APACHE_NAMES else f"write {found}"
    import difflib

    if alike := difflib.get_close_matches(snake, KEYS, n=1, cutoff=0.7):
        return f"did you mean {alike[0]}?"
    return f"the keys are: {', '.join(KEYS)}"


def _from_text(wanted: type, text: str) -> Any:
    if wanted is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if wanted in (int, float):
        try:
            return wanted(text)
        except ValueError:
            return text
    return text


def data_directory() -> Path:
    """Return the default parent of stores: ``$XDG_DATA_HOME/sprocketmq`` or ``~/.local/share/sprocketmq`` (macOS: its own)."""
    import os

    if base := os.environ.get("XDG_DATA_HOME"):
        return Path(base).absolute() / "sprocketmq"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "sprocketmq"
    return Path.home() / ".local" / "share" / "sprocketmq"
