"""The brokers of a cluster on one machine: their names, ids and directories."""

from dataclasses import dataclass
from pathlib import Path

from sprocketmq.errors import ConfigError

MAX_BROKERS = 26
# What a master's HA port takes.
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
