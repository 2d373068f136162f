"""The file ``config/replicationRole.json``: the role of a broker after a promotion or fencing, and its master's mode.

A broker without the file, or without a role in it, has the role of its configuration.
"""

import logging
from threading import Lock
from typing import Any

from sprocketmq.broker.replication.roles import MASTER_ID, BrokerRole, Role
from sprocketmq.errors import ConfigError
from sprocketmq.storage.config import ConfigFile

log = logging.getLogger(__name__)


class RoleFile:
    """The file of one broker. ``copies`` are those that it is configured to wait for as master; None: as many as the file says."""

    def __init__(self, file: ConfigFile, *, broker_name: str, copies: int | None) -> None:
        self._file = file
        self._broker_name = broker_name
        self._copies = copies
        self._tree: dict[str, Any] = {}
        self._lock = Lock()

    def load(self, role: BrokerRole) -> None:
        """Set ``role`` from the file, if there is one. Raises ConfigError when it cannot be read."""
        try:
            tree, _ = self._file.load_or_set_aside()
        except OSError as e:
            raise ConfigError(f"{self._file.path} cannot be read: {e.strerror or e}") from None
        if tree is None:
            return
        self._tree = tree
        broker_id, epoch, copies = tree.get("brokerId"), tree.get("epoch"), tree.get("inSyncReplicas")
        if self._copies is None and type(copies) is int and copies > 0:
            role.copies = copies
        if broker_id is None and copies is not None:
            return
        if type(broker_id) is not int or type(epoch) is not int or broker_id < 0:
            raise ConfigError(f"{self._file.path} does not tell a role: remove it, and the broker has the role of its configuration")
        saved = role.as_master if broker_id == MASTER_ID else Role.SLAVE
        if saved is not role.role or broker_id != role.broker_id:
            log.warning(
                "broker %s: starts as %s with broker id %d, which it has been since epoch %d, not as %s: remove %s to go back to the"
                " configured role",
                self._broker_name,
                saved,
                broker_id,
                epoch,
                role.role,
                self._file.path,
            )
        role.take(saved, broker_id)
        role.epoch = epoch

    def save(self, role: Role, broker_id: int, epoch: int, copies: int) -> None:
        """Write a role; on the disk when this returns. Raises OSError."""
        self._write({"brokerId": broker_id, "epoch": epoch, "inSyncReplicas": copies, "role": str(role)})

    def save_copies(self, copies: int) -> None:
        """Write how many copies the master waits for. Raises OSError."""
        self._write({"inSyncReplicas": copies})

    def _write(self, news: dict[str, Any]) -> None:
        with self._lock:  # a thread may still write what a slave has learned when the slave is promoted
            self._tree |= news
            self._file.save(self._tree)
