"""Workload files: the YAML keys of the OpenMessaging benchmark, checked, and the workloads that come with the package."""

import difflib
import logging
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from sprocketmq.errors import ConfigError
from sprocketmq.omb.plan import STAMP_BYTES

log = logging.getLogger(__name__)

GIB = 1 << 30
MAX_MESSAGE_BYTES = 4 << 20
MAX_QUEUES = 1_000_000
MAX_MEMBERS = 100_000
# Payloads travel to the workers on one line, and stay in memory.
MAX_POOL_BYTES = 32 << 20
# OMB's producers take turns with this many keys.
KEYS = 10_000
# Distinct bodies of a workload with mixed sizes that does not say how many.
MIXED_POOL = 1_000

Distributor = Literal["NO_KEY", "KEY_ROUND_ROBIN", "RANDOM_NANO"]


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A workload. Fields have OMB's names in snake case; ``message_size_max`` and ``tags`` are ours."""

    name: str = ""
    topics: int = 1
    partitions_per_topic: int = 1
    key_distributor: Distributor = "NO_KEY"
    message_size: int
    payload_file: str | None = None
    use_randomized_payloads: bool = False
    random_bytes_ratio: float = 0.5
    randomized_payload_pool_size: int = 1000
    subscriptions_per_topic: int = 1
    producers_per_topic: int = 1
    consumer_per_subscription: int = 1
    producer_rate: float = 0
    consumer_backlog_size_gb: float = msgspec.field(default=0, name="consumerBacklogSizeGB")
    backlog_drain_ratio: float = 1.0
    test_duration_minutes: float = 5
    warmup_duration_minutes: float = 1
    # Bodies of messageSize to messageSizeMax bytes instead of messageSize.
    message_size_max: int | None = None
    # Tags that messages take in turns; they are RocketMQ's, other systems ignore them.
    tags: tuple[str, ...] = ()

    @property
    def mean_bytes(self) -> float:
        """The mean length of the bodies."""
        return self.message_size if self.message_size_max is None else (self.message_size + self.message_size_max) / 2

    @property
    def measured_s(self) -> float:
        return self.test_duration_minutes * 60

    @property
    def warm_up_s(self) -> float:
        return self.warmup_duration_minutes * 60

    @property
    def backlog_messages(self) -> int:
        """Messages that pile up before consumers begin."""
        return int(self.consumer_backlog_size_gb * GIB / self.mean_bytes)


# What a whole number may be: the least and the most.
_BOUNDS: dict[str, tuple[float, float]] = {
    "topics": (1, MAX_QUEUES),
    "partitions_per_topic": (1, MAX_QUEUES),
    "message_size": (STAMP_BYTES, MAX_MESSAGE_BYTES),
    "message_size_max": (STAMP_BYTES, MAX_MESSAGE_BYTES),
    "random_bytes_ratio": (0, 1),
    "randomized_payload_pool_size": (1, 1_000_000),
    "subscriptions_per_topic": (0, MAX_MEMBERS),
    "producers_per_topic": (0, MAX_MEMBERS),
    "consumer_per_subscription": (0, MAX_MEMBERS),
    "producer_rate": (0, 1e9),
    "consumer_backlog_size_gb": (0, 1 << 20),
    "backlog_drain_ratio": (0, 1),
    "test_duration_minutes": (0, 60 * 24 * 7),
    "warmup_duration_minutes": (0, 60 * 24 * 7),
}
# Keys of OMB's that have no effect here, and why: a warning names them.
_NO_SEARCH = "no rate is searched for; producerRate 0 is the maximum"
_WITHOUT_EFFECT = {
    "logClientTrace": "clients write no trace to a log",
    "producerStartRate": _NO_SEARCH,
    "acceptableBacklog": _NO_SEARCH,
}
_NAMES = dict(zip(Workload.__struct_fields__, Workload.__struct_encode_fields__, strict=True))


def packaged() -> list[str]:
    """Return the names of the workloads that come with the package."""
    names = (file.name for file in files("sprocketmq.omb").joinpath("workloads").iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load(name_or_path: str) -> tuple[str, Workload]:
    """Return the short name of a workload (what its result file is called) and the workload.

    ``name_or_path`` is a file, or a name of ``packaged()``. Raises ConfigError.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml") and not path.is_file():
        known = packaged()
        if name_or_path not in known:
            near = difflib.get_close_matches(name_or_path, known, 1)
            hint = f"did you mean {near[0]}?" if near else "sprocketmq bench omb --list shows those that come with the package"
            raise ConfigError(f"there is no workload {name_or_path!r}: {hint}; a file's name ends with .yaml")
        return name_or_path, read(files("sprocketmq.omb").joinpath("workloads", f"{name_or_path}.yaml").read_bytes(), name_or_path)
    try:
        data = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}: give the path of a workload file, or a name that --list shows") from None
    return path.stem, read(data, str(path))


def read(data: bytes, where: str) -> Workload:
    """Return the workload in the YAML text ``data``; ``where`` names it in errors. Raises ConfigError."""
    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as e:
        raise ConfigError(f"{where} is not YAML: {' '.join(str(e).split())}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where} is not a workload: it must be lines such as 'messageSize: 1024'")
    values = {str(key): value for key, value in found.items()}
    for key in values.keys() & _WITHOUT_EFFECT.keys():
        if values.pop(key):
            log.warning("%s: %s has no effect: %s", where, key, _WITHOUT_EFFECT[key])
    for key in values:
        if key not in _NAMES.values():
            near = difflib.get_close_matches(key, _NAMES.values(), 1)
            raise ConfigError(f"{where}: there is no key {key!r}" + (f": did you mean {near[0]}?" if near else ": remove it"))
    if "messageSize" not in values:
        raise ConfigError(f"{where}: messageSize is missing: add the length of each body in bytes, such as 'messageSize: 1024'")
    try:
        workload = msgspec.convert(values, Workload)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{where}: {str(e).replace('`', '').replace('$.', '')}: correct the value") from None
    check(workload, where)
    return workload


def check(workload: Workload, where: str) -> None:
    """Raise ConfigError for values that are impossible, alone or together."""
    for name, (least, most) in _BOUNDS.items():
        value = getattr(workload, name)
        if value is not None and not least <= value <= most:  # not a number is outside, too
            raise ConfigError(f"{where}: {_NAMES[name]} must be from {least:,} to {most:,}, not {value:,}")
    if not workload.producers_per_topic:
        raise ConfigError(f"{where}: producersPerTopic is 0: nothing would be sent; give it 1 or more")
    queues = workload.topics * workload.partitions_per_topic
    if queues > MAX_QUEUES:
        raise ConfigError(f"{where}: topics x partitionsPerTopic is {queues:,}: at most {MAX_QUEUES:,} are possible")
    members = workload.topics * (workload.producers_per_topic + workload.subscriptions_per_topic * workload.consumer_per_subscription)
    if members > MAX_MEMBERS:
        raise ConfigError(
            f"{where}: {members:,} producers and consumers do not fit one machine: at most {MAX_MEMBERS:,}; lower their numbers"
        )
    largest = workload.message_size_max
    if largest is not None and largest < workload.message_size:
        raise ConfigError(f"{where}: messageSizeMax {largest:,} is less than messageSize {workload.message_size:,}: exchange them")
    pool = workload.randomized_payload_pool_size if workload.use_randomized_payloads else 0
    size = int(pool * workload.mean_bytes)
    if size > MAX_POOL_BYTES:
        fitting = max(1, int(MAX_POOL_BYTES / workload.mean_bytes))
        raise ConfigError(
            f"{where}: randomizedPayloadPoolSize {pool:,} needs {size / (1 << 20):,.0f} MiB of memory in each worker, and at most"
            f" {MAX_POOL_BYTES >> 20} MiB are possible: set it to {fitting:,} or less"
        )
    if workload.consumer_backlog_size_gb and not (workload.subscriptions_per_topic and workload.consumer_per_subscription):
        raise ConfigError(
            f"{where}: consumerBacklogSizeGB needs consumers to drain the backlog: set subscriptionsPerTopic and consumerPerSubscription"
        )
