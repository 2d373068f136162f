"""Masters and slaves: their state, epochs, and the tables that slaves ask for."""

from typing import Any

from msgspec import field

from sprocketmq.protocol.bodies.base import Body, DataVersion
from sprocketmq.protocol.bodies.groups import RequestMode
from sprocketmq.protocol.ranges import Int32, Int64


class DelayOffsets(Body):
    """How many delayed messages of each level were delivered (45).

    ``log_offset`` and ``timers`` are this project's own: the end of the log that the table refers to, and the content of timers.json, for
    slaves that ask for it.
    """

    offset_table: dict[int, Int64] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()
    log_offset: Int64 | None = None
    timers: dict[str, Any] | None = None


class TimerMetrics(Body):
    """How many messages of each topic wait in Apache's timer wheel (61)."""

    timing_count: dict[str, Any] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class MessageRequestModes(Body):
    """The request modes of groups, by topic and group (402)."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = field(default_factory=dict)


class HaConnectionInfo(Body):
    """The state of one slave as its master reports it: ``diff`` is the number of bytes of log it lacks."""

    addr: str
    slave_ack_offset: Int64 = 0
    diff: Int64 = 0
    in_sync: bool = False
    transferred_byte_in_second: Int64 = 0
    transfer_from_where: Int64 = 0


class HaClientInfo(Body):
    """The state that a slave reports itself; times are wall-clock milliseconds."""

    master_addr: str | None = None
    max_offset: Int64 = 0
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_flush_offset: Int64 = 0
    transferred_byte_in_second: Int64 = 0
    is_activated: bool | None = None


class HaStatus(Body):
    """The state of replication on one broker (907)."""

    master: bool = False
    master_commit_log_max_offset: Int64 = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: list[HaConnectionInfo] = field(default_factory=list)
    ha_client_runtime_info: HaClientInfo = field(default_factory=HaClientInfo)


# --- replication: epochs ---


class EpochEntry(Body):
    """A part of a log that one master wrote; the last one has no end."""

    epoch: Int32 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = (1 << 63) - 1


class EpochCache(Body):
    """The epochs of a broker's log, oldest first, and where it ends (1007)."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = 0
    epoch_list: list[EpochEntry] = field(default_factory=list)
    max_offset: Int64 = 0
