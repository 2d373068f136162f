"""Settings of the serving verbs, from a configuration file and ``--set``: an allow-list of typed keys."""

import json
import os
import re
import shlex
import stat
import sys
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sprocketmq.directories import home_directory
from sprocketmq.errors import ConfigError, SecretFileExposed
from sprocketmq.net.address import advertise_problem
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.protocol.settings import SETTING_VARIABLE

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
    log_format: str = "text"
    log_file: str = ""
    log_max_bytes: int = 64 << 20
    log_backups: int = 5

    broker_permission: int = 6
    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: int = 8
    trace_topic_enable: bool = False
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    max_message_bytes: int = 4 << 20
    max_transfer_count_on_message_in_memory: int = 4096
    max_transfer_bytes_on_message_in_memory: int = 4 << 20
    max_transfer_count_on_message_in_disk: int = 1024
    max_transfer_bytes_on_message_in_disk: int = 256 << 10
    max_filter_units: int = 800
    max_connections: int = 10_000
    max_held_pulls: int = 100_000
    enable_property_filter: bool = True
    register_interval_s: float = 30.0
    save_offsets_interval_s: float = 5.0
    recall_message_enable: bool = True
    transaction_timeout_s: float = 6.0
    transaction_check_interval_s: float = 30.0
    transaction_check_max: int = 15
    reject_transactions: bool = False
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

    role: str = "ASYNC_MASTER"
    broker_id: int = 0
    ha_port: int | None = None
    ha_secret_file: str = ""
    ha_master_address: str = ""
    in_sync_replicas: int | None = None
    slave_timeout_s: float = 2.5
    slave_read_enable: bool = True
    access_message_in_memory_max_ratio: int = 40
    ha_max_gap_not_in_sync: int = 256 << 20
    ha_heartbeat_s: float = 5.0
    ha_housekeeping_s: float = 20.0
    ha_batch_bytes: int = 1 << 20
    ha_max_bytes_per_s: int | None = None
    fast_port_enable: bool = False

    metrics_exporter: str = "disable"
    metrics_host: str = LOOPBACK_HOST
    metrics_port: int = 5557
    metrics_label: str = ""
    metrics_max_series: int = 50_000

    tls_mode: str = "disabled"
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_key_password_file: str = ""
    tls_ca_file: str = ""
    tls_client_auth: str = "none"
    authentication_enabled: bool = False
    authorization_enabled: bool = False
    users_file: str = ""
    inner_credentials_file: str = ""

    # Not settings: the origins of given settings; the directory of --secure, and the users with their secrets in Apache's file.
    explicit: set[str] = field(default_factory=set, repr=False)
    sources: dict[str, str] = field(default_factory=dict, repr=False)
    secure: Path | None = None
    initial_users: tuple[Credentials, ...] = ()
    inner_credentials: Credentials | None = None

    def put(self, key: str, value: Any, source: str) -> None:
        """Set one key. Raises ConfigError for an unknown key or a value of another type; ``source`` names its origin in errors."""
        if key in _OLD_LIMITS:
            if type(value) is not int:
                raise ConfigError(f"{source}: {key} must be a whole number, not {value!r}")
            self.put(f"{key}_on_message_in_memory", value, source)
            in_disk = f"{key}_on_message_in_disk"
            self.put(in_disk, min(value, getattr(self, in_disk)), source)
            return
        if key not in KEYS:
            raise ConfigError(f"{source}: unknown key {key!r}; {_closest(key)}")
        wanted = KEYS[key]
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            raise ConfigError(f"{source}: {key} must be {_TYPE_NAMES[wanted]}, not {value!r}")
        if key in ("port", "namesrv_port", "ha_port", "metrics_port") and value not in range(65536):
            raise ConfigError(f"{source}: {key} must be from 0 (any free port) to 65535, not {value}")
        if key in _CHOICES:
            value = str(given := value).lower()
            if value not in _CHOICES[key]:
                raise ConfigError(f"{source}: {key} must be one of {', '.join(_CHOICES[key])}, not {given!r}")
        if key in ("log_max_bytes", "log_backups") and value < 0:
            raise ConfigError(f"{source}: {key} must be 0 or more, not {value}")
        if key == "advertise" and value and (problem := advertise_problem(value)):
            raise ConfigError(f"{source}: {value!r} cannot be advertised: {problem}")
        setattr(self, key, value)
        self.explicit.add(key)
        self.sources[key] = source

    def put_text(self, assignment: str, source: str) -> None:
        """Set ``KEY=VALUE`` written as text. The key may be one of Apache's names, with the value in its unit."""
        key, equals, text = assignment.partition("=")
        key, text = key.strip(), text.strip()
        if key in _OLD_LIMITS:
            self.put(key, _from_text(int, text), source)
            return
        if not equals or not key:
            raise ConfigError(f"{source}: write KEY=VALUE, not {assignment!r}")
        if key not in KEYS:
            from sprocketmq.cli.broker_conf import is_known, read_assignment

            if is_known(key):
                if (given := read_assignment(key, text, source)) is not None:
                    self.put(*given)
                return
        self.put(key, _from_text(KEYS.get(key, str), text), source)

    def put_environment(self, environ: "Mapping[str, str]") -> None:
        """Set keys from variables ``SPROCKETMQ_SET_KEY``, as ``--set`` does. Raises ConfigError, naming the variable."""
        for name in sorted(environ):
            if name.startswith(SETTING_VARIABLE):
                self.put_text(f"{name.removeprefix(SETTING_VARIABLE).lower()}={environ[name]}", name)

    def put_file(self, path: Path, *, for_namesrv: bool = False) -> None:
        """Set the keys of a TOML file or of an Apache broker's ``broker.conf``; ``for_namesrv`` if that is a nameserver's.

        Raises ConfigError when it cannot be read, has another format or tables, or keys that are unknown or have no effect.
        """
        from sprocketmq.cli.broker_conf import SECRETS, is_broker_conf, read_broker_conf

        text = _file_text(path)
        source = f"configuration file {path}"
        if is_broker_conf(path, text):
            for given in read_broker_conf(text, source, for_namesrv=for_namesrv):
                if given.setting in SECRETS:
                    self._put_secret(path, given.setting, given.value)
                else:
                    self.put(*given)
            return
        for key, value in _table(text, source).items():
            self.put(key, value, source)

    def put_secure(self, directory: Path) -> None:
        """Set what ``settings.toml`` in a directory of ``secure init`` says: a configuration file and ``--set`` come later, and win.

        Raises ConfigError for a directory without it, for other settings than those of security, and for files that are not there.
        """
        self.secure = root = directory.expanduser().absolute()
        path = root / "settings.toml"
        if not path.is_file():
            if (root / "credentials.json").is_file():
                raise ConfigError(f"--secure {directory} is for clients: servers need the directory that `sprocketmq secure init` made")
            made = f"`sprocketmq secure init {shlex.quote(str(directory))}` makes such a directory"
            raise ConfigError(f"--secure {directory}: {path} does not exist; {made}")
        source = f"settings file {path}"
        before = set(self.explicit)
        for key, value in _table(_file_text(path), source).items():
            if key in KEYS and key not in SECURITY_KEYS:
                raise ConfigError(f"{source}: {key} is not a setting of TLS or access control; put it into a file for --config")
            self.put(key, value, source)
            if key.endswith("_file") and value:
                setattr(self, key, str(_inside(root, value, f"{source}: {key}")))
        self.explicit = before

    def _put_secret(self, path: Path, key: str, credentials: Credentials) -> None:
        """Keep a user of Apache's file, which only its owner may read then. Raises SecretFileExposed."""
        mode = stat.S_IMODE(path.stat().st_mode)
        if os.name == "posix" and mode & 0o077:
            raise SecretFileExposed(str(path), mode)
        self.initial_users += (credentials,)
        if key == "innerClientAuthenticationCredentials":
            self.inner_credentials = credentials

    def changes(self) -> str:
        """Return the settings that differ from their defaults, as ``KEY=VALUE KEY=VALUE``. No setting is a secret."""
        usual = Settings()
        changed = {key: value for key in KEYS if (value := getattr(self, key)) != getattr(usual, key)}
        return " ".join(f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changed.items())

    def as_toml(self) -> str:
        """Return all settings as a file for ``--config``, with where each value comes from. No setting is a secret."""
        return "".join(f"{_toml(key, getattr(self, key))}  # {self.sources.get(key, 'default')}\n" for key in KEYS)

    @property
    def store_root(self) -> Path:
        """The directory of the broker's store."""
        if self.store:
            return Path(self.store).expanduser().absolute()
        return data_directory() / (self.broker_name + (f"-{self.broker_id}" if self.broker_id else ""))


def _toml(key: str, value: Any) -> str:
    if value is None:
        return f"# {key} is not set"
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def _file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"cannot read configuration file {path}: {e.strerror or e}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"configuration file {path} is not UTF-8 text (byte {e.start})") from None


def _table(text: str, source: str) -> "Mapping[str, Any]":
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{source} is not valid TOML: {e}") from None


def _inside(root: Path, name: str, what: str) -> Path:
    """Return a file of a directory. Raises ConfigError for one elsewhere, and for one that does not exist."""
    path = Path(os.path.normpath(root / name))
    if root not in path.parents:
        raise ConfigError(f"{what} is {name!r}, which is outside of {root}: copy the file there, or set it with --set or --config")
    if not path.is_file():
        raise ConfigError(f"{what}: {path} does not exist; copy it there, or make a new directory with `sprocketmq secure init`")
    return path


def _kind(setting: "Field[Any]") -> type:
    """Return the type of a setting's values; None stands for a number that is not set."""
    return int if setting.default is None else type(setting.default)


_NO_SETTINGS = ("explicit", "sources", "secure", "initial_users", "inner_credentials")
KEYS: dict[str, type] = {f.name: _kind(f) for f in fields(Settings) if f.name not in _NO_SETTINGS}
SECURITY_KEYS = tuple(KEYS)[tuple(KEYS).index("tls_mode") :]
_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
# The limits of a pull until 0.2, which hold for all messages.
_OLD_LIMITS = ("max_transfer_count", "max_transfer_bytes")
_CHOICES = {
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("text", "json"),
    "metrics_exporter": ("disable", "prom"),
    "tls_mode": ("disabled", "permissive", "enforcing"),
    "tls_client_auth": ("none", "optional", "required"),
}


def _closest(key: str) -> str:
    """Return a hint for an unknown key: the setting of this Apache name, one that is spelled alike, or the list of all."""
    from sprocketmq.cli.apache_names import SETTINGS
    from sprocketmq.cli.broker_conf import closest

    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", key).lower()
    if snake in KEYS:
        return f"write {snake}"
    if key in SETTINGS:
        return f"it is called {SETTINGS[key].name} here (units may differ: docs/guide/broker-settings.md)"
    import difflib

    if alike := difflib.get_close_matches(snake, KEYS, n=1, cutoff=0.7):
        return f"did you mean {alike[0]}?"
    if hint := closest(key):
        return hint
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
    """Return the default parent of stores: ``$XDG_DATA_HOME/sprocketmq`` or ``~/.local/share/sprocketmq`` (macOS: its own).

    Raises ConfigError for a user without a home directory.
    """
    if base := os.environ.get("XDG_DATA_HOME"):
        return Path(base).absolute() / "sprocketmq"
    home = home_directory()
    if home is None:
        raise ConfigError("this user has no home directory: name a directory (--store DIR), or set XDG_DATA_HOME")
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "sprocketmq"
    return home / ".local" / "share" / "sprocketmq"
