"""The brokers of a cluster on one machine: their names, ids and directories."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sprocketmq.errors import ConfigError, StoreNotWritable

MAX_BROKERS = 26
# The offset of a master's HA port from its port.
MAX_REPLICAS = 16
# Brokers get ports at this distance; the next port after a broker's is its HA port.
PORT_STEP = 10


@dataclass(frozen=True)
class Member:
    """One broker: a master (``broker_id`` 0), or a slave of the master with the same ``broker_name``.

    ``name`` is unique in the cluster: ``broker-a`` of a master, ``broker-a-1`` of its slave with id 1.
    """

    name: str
    broker_name: str
    broker_id: int

    @property
    def is_master(self) -> bool:
        """Whether it starts as the master."""
        return self.broker_id == 0

    def store(self, root: Path) -> Path:
        """Return the directory of its store among those of a cluster."""
        return root / self.name


def members_of(brokers: int, replicas: int, first_name: str = "broker-a") -> tuple[Member, ...]:
    """Return ``brokers`` masters, each followed by its ``replicas`` slaves.

    They are ``broker-a``, ``broker-b`` and so on; a single master has ``first_name``. Raises ConfigError for impossible numbers.
    """
    if type(brokers) is not int or not 1 <= brokers <= MAX_BROKERS:
        raise ConfigError(f"brokers must be a whole number from 1 to {MAX_BROKERS}, not {brokers!r}")
    if type(replicas) is not int or not 0 <= replicas <= MAX_REPLICAS:
        raise ConfigError(f"replicas must be a whole number from 0 to {MAX_REPLICAS}, not {replicas!r}")
    names = [first_name] if brokers == 1 else [f"broker-{chr(ord('a') + i)}" for i in range(brokers)]
    return tuple(Member(name if i == 0 else f"{name}-{i}", name, i) for name in names for i in range(replicas + 1))


def check_arrangement(root: Path, members: Sequence[Member]) -> None:
    """Raise ConfigError when ``root`` has stores, but not where ``members`` would look: they would silently start empty.

    The store of a lone member is ``root`` itself; several have theirs in directories of it. Raises StoreNotWritable when ``root`` is hidden
    from this user.
    """
    try:
        alone = (root / "commitlog").is_dir()
    except PermissionError as e:
        raise StoreNotWritable(str(root), e.strerror or str(e)) from e
    if len(members) > 1 and alone:
        where = members[0].store(root)
        raise ConfigError(
            f"{root} is the store of a single broker, and {len(members)} have theirs in directories of it: move it to {where}"
        )
    if len(members) == 1 and not alone:
        inside = sorted(log.parent.name for log in root.glob("*/commitlog"))
        if inside:
            raise ConfigError(f"{root} holds the stores of several brokers ({', '.join(inside)}): start as many again, or name one of them")
