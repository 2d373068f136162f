"""The role of a broker: the configured one and the current one."""

from enum import StrEnum

MASTER_ID = 0
# Epochs that a promotion skips. A master begins one more epoch after each unclean stop; a former master that does so alone must not
# overtake the promoted one.
PROMOTION_STEP = 1000


class Role(StrEnum):
    """The configured role of a broker, under the reference's names."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def promotion_epoch(last: int) -> int:
    """Return the epoch for a promotion when ``last`` is the newest epoch of the brokers of that name."""
    return (last // PROMOTION_STEP + 1) * PROMOTION_STEP


class BrokerRole:
    """The current role of one broker. Promotion and fencing change it; other parts only read it.

    ``role`` is a master's mode or SLAVE, ``broker_id`` the id it registers with; a master that was fenced a moment ago has no id of its own
    yet (``has_id``), and does not register: the id may be another slave's. ``epoch`` is the newest epoch that is known to belong to
    a master of this name. Of a slave's master, ``master_address`` is the address for clients and ``master_ha_address`` the one for
    slaves, both "" while no nameserver knows it; ``master_alive`` tells whether one does. ``copies`` is the number of copies that it waits
    for as master: a slave has the one of its master, unless it is configured.
    """

    __slots__ = ("broker_id", "copies", "epoch", "has_id", "is_slave", "master_address", "master_alive", "master_ha_address", "role")

    def __init__(self, role: Role, broker_id: int, copies: int = 1) -> None:
        self.epoch = 0
        self.copies = copies
        self.take(role, broker_id)

    @property
    def as_master(self) -> Role:
        """The mode of this broker as master."""
        return Role.SYNC_MASTER if self.copies > 1 else Role.ASYNC_MASTER

    def take(self, role: Role, broker_id: int, *, has_id: bool = True) -> None:
        """Become ``role`` under ``broker_id``; a slave does not know its master yet."""
        self.role = role
        self.broker_id = broker_id
        self.has_id = has_id
        self.is_slave = role is Role.SLAVE
        self.follow("", "")

    def follow(self, address: str, ha_address: str) -> None:
        """Record the master's addresses, "" when there is none."""
        self.master_address = address
        self.master_ha_address = ha_address
        self.master_alive = bool(address)

    @property
    def master(self) -> str:
        """The name of the master for log lines and refusals."""
        return f"the master at {self.master_address}" if self.master_address else "the master, which no nameserver knows at the moment"
