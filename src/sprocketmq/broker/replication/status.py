"""Requests about replication: its state, its epochs, and the addresses of the master (907, 1007, 906)."""

from collections.abc import Callable, Sequence
from typing import Protocol

from sprocketmq.broker.replication.follower import Follower, FollowerState
from sprocketmq.broker.replication.master import SlaveState
from sprocketmq.broker.replication.roles import BrokerRole
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import EpochCache, EpochEntry, HaClientInfo, HaConnectionInfo, HaStatus
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import HaInfo
from sprocketmq.storage.store import MessageStore


class Parts(Protocol):
    """The replicating parts of a broker: its slaves or its follower, and its address for slaves ("" without one)."""

    @property
    def ha_address(self) -> str: ...

    @property
    def slaves(self) -> Sequence[SlaveState]: ...

    @property
    def follower(self) -> Follower | None: ...


class StatusHandlers:
    """Requests about replication. ``address`` returns the broker's own."""

    def __init__(
        self,
        store: MessageStore,
        role: BrokerRole,
        parts: Parts,
        *,
        cluster_name: str,
        broker_name: str,
        address: Callable[[], str],
    ) -> None:
        self._store = store
        self._role = role
        self._parts = parts
        self._cluster_name = cluster_name
        self._broker_name = broker_name
        self._address = address

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.ha_info,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epochs,
        }

    def ha_info(self, conn: ServerConnection, command: Command) -> None:
        """Answer 906: the known addresses of the master."""
        role = self._role
        if role.is_slave:
            info = HaInfo(role.master_address, role.master_ha_address)
        else:
            info = HaInfo(self._address(), self._parts.ha_address, self._store.commitlog_flushed_offset)
        conn.respond(command, ResponseCode.SUCCESS, ext=to_ext(info))

    def ha_status(self, conn: ServerConnection, command: Command) -> None:
        """Answer 907: the slaves of a master, or how a slave follows."""
        slaves = self._parts.slaves
        body = HaStatus(
            master=not self._role.is_slave,
            master_commit_log_max_offset=self._store.commitlog_max_offset,
            in_sync_slave_nums=sum(slave.in_sync for slave in slaves),
            ha_connection_info=[
                HaConnectionInfo(slave.address, slave.acked, slave.behind_bytes, slave.in_sync, slave.bytes_per_s, slave.sent)
                for slave in slaves
            ],
        )
        follower = self._parts.follower
        if follower is not None:
            received_ms, reported_ms = follower.exchanged_ms()
            body.ha_client_runtime_info = HaClientInfo(
                master_addr=follower.master_address,
                max_offset=self._store.commitlog_max_offset,
                last_read_timestamp=received_ms,
                last_write_timestamp=reported_ms,
                transferred_byte_in_second=follower.rate.per_second,
                is_activated=follower.state is FollowerState.FOLLOWING,
            )
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())

    def epochs(self, conn: ServerConnection, command: Command) -> None:
        """Answer 1007: the epochs of the log."""
        entries = self._store.epochs.entries
        if not entries:
            remark = "this broker has no epochs, as it does not replicate: give it ha_port, or the role SLAVE"
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark)
            return
        epochs = [EpochEntry(entry.number, entry.start) for entry in entries]
        for entry, following in zip(epochs, entries[1:], strict=False):
            entry.end_offset = following.start
        body = EpochCache(self._cluster_name, self._broker_name, self._role.broker_id, epochs, self._store.commitlog_max_offset)
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())

    def table(self) -> dict[str, str]:
        """Return the replication fields of the runtime information (28)."""
        role, follower, slaves = self._role, self._parts.follower, self._parts.slaves
        table = {
            "brokerRole": str(role.role),
            "brokerId": str(role.broker_id),
            "epoch": str(max(role.epoch, self._store.epochs.last.number)),
            "haAddress": self._parts.ha_address,
            "slaveCount": str(len(slaves)),
            "slavesInSync": str(sum(slave.in_sync for slave in slaves)),
        }
        for slave in slaves:
            table[f"slave_{slave.address}"] = f"acked={slave.acked} behindBytes={slave.behind_bytes} behindMs={slave.behind_ms}"
        if follower is not None:
            table["masterAddress"] = role.master_address
            table["replicationState"] = follower.state.value
            table["replicationReason"] = follower.reason
            table["replicationBehindBytes"] = str(follower.behind_bytes)
            table["replicationBehindMs"] = str(follower.behind_ms)
        return table
