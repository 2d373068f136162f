"""The role that a promotion or a fencing gave a broker: ``config/replicationRole.json``, which outlives restarts.

A broker without the file has the role of its configuration.
"""

import logging

from sprocketmq.broker.replication.roles import MASTER_ID, BrokerRole, Role
from sprocketmq.errors import ConfigError
from sprocketmq.storage.config import ConfigFile

log = logging.getLogger(__name__)


class RoleFile:
    """The file of one broker. ``master_role`` is what it is when it is a master."""

    def __init__(self, file: ConfigFile, *, broker_name: str, master_role: Role) -> None:
        self._file = file
        self._broker_name = broker_name
        self._master_role = master_role

    def load(self, role: BrokerRole) -> None:
        """Give ``role`` what the file says, if there is one. Raises ConfigError when it cannot be read."""
        try:
            tree, _ = self._file.load_or_set_aside()
        except OSError as e:
            raise ConfigError(f"{self._file.path} cannot be read: {e.strerror or e}") from None
        if tree is None:
            return
        broker_id, epoch = tree.get("brokerId"), tree.get("epoch")
        if type(broker_id) is not int or type(epoch) is not int or broker_id < 0:
            raise ConfigError(f"{self._file.path} does not tell a role: remove it, and the broker has the role of its configuration")
        saved = self._master_role if broker_id == MASTER_ID else Role.SLAVE
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

    def save(self, role: Role, broker_id: int, epoch: int) -> None:
        """Write a role; on the disk when this returns. Raises OSError."""
        self._file.save({"brokerId": broker_id, "epoch": epoch, "role": str(role)})
