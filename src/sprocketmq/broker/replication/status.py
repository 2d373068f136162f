"""What a broker tells of replication: its state, and the addresses of a master (907, 906)."""

from collections.abc import Callable

from sprocketmq.broker.replication.roles import BrokerRole
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import HaStatus
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import HaInfo
from sprocketmq.storage.store import MessageStore


class StatusHandlers:
    """Requests about replication. ``address`` returns the broker's own."""

    def __init__(self, store: MessageStore, role: BrokerRole, *, address: Callable[[], str]) -> None:
        self._store = store
        self._role = role
        self._address = address

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.ha_info,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
        }

    def ha_info(self, conn: ServerConnection, command: Command) -> None:
        """Answer 906: the addresses of the master, as far as they are known here."""
        role = self._role
        if role.is_slave:
            info = HaInfo(role.master_address, role.master_ha_address)
        else:
            info = HaInfo(self._address(), "", self._store.commitlog_flushed_offset)
        conn.respond(command, ResponseCode.SUCCESS, ext=to_ext(info))

    def ha_status(self, conn: ServerConnection, command: Command) -> None:
        """Answer 907: of a master its slaves, of a slave how it follows."""
        body = HaStatus(master=not self._role.is_slave, master_commit_log_max_offset=self._store.commitlog_max_offset)
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())
