"""Requests about a broker's settings: show them (26), and change those of an allow-list (25)."""

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.config_changes import CHANGEABLE, KINDS, ChangedSettings
from sprocketmq.broker.replication.roles import BrokerRole
from sprocketmq.broker.saving import SavedFile
from sprocketmq.broker.topics import TopicTable
from sprocketmq.events import event
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.settings import MASKED, ChangeRefused, Value, encode_settings, read_changes, to_text

log = logging.getLogger(__name__)

SETTINGS_PAGE = "docs/guide/broker-settings.md"
REGISTER_TIMEOUT_S = 3.0


class ConfigHandlers:
    """Answer 25 and 26. ``apply`` gives the parts of the broker their new settings; ``register`` tells nameservers about permissions."""

    def __init__(
        self,
        settings: ChangedSettings,
        file: SavedFile,
        topics: TopicTable,
        role: BrokerRole,
        *,
        address: Callable[[], str],
        apply: Callable[[BrokerConfig], None],
        register: Callable[[], "asyncio.Task[None]"],
        background: Background,
    ) -> None:
        self._settings = settings
        self._file = file
        self._topics = topics
        self._role = role
        self._address = address
        self._apply = apply
        self._register = register
        self._background = background
        self._changing = asyncio.Lock()

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.GET_BROKER_CONFIG: self.show, RequestCode.UPDATE_BROKER_CONFIG: self.change}

    def show(self, conn: ServerConnection, command: Command) -> None:
        """Answer 26: every setting under Apache's name and in its unit, those that only this broker has under ours; secrets are masked."""
        version = msgspec.json.encode(self._topics.data_version).decode()
        body = encode_settings(settings_table(self._settings.config, self._role, self._address()))
        conn.respond(command, ResponseCode.SUCCESS, ext={"version": version}, body=body)

    def change(self, conn: ServerConnection, command: Command) -> None:
        """Answer 25 when all changes of the request are in effect and saved, or none is."""
        try:
            changes = read_changes(command.body, KINDS, server="broker", page=SETTINGS_PAGE)
        except ChangeRefused as e:
            conn.respond(command, e.code, remark=e.remark)
            return
        command.body = b""
        self._background.spawn(self._change(conn, command, changes), "a change of settings")

    async def _change(self, conn: ServerConnection, command: Command, changes: Mapping[str, Value]) -> None:
        async with self._changing:
            before, permission = self._settings.changes, self._topics.permission
            shown = {key: getattr(self._settings.config, CHANGEABLE[key][0]) for key in changes}
            self._take({**before, **changes})
            try:
                await self._file.saved()
            except OSError as e:
                self._take(before)
                conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"nothing was changed, as {self._file.path} cannot be written: {e}")
                return
            for key, value in changes.items():
                if value != shown[key]:
                    was, now = to_text(shown[key]), to_text(value)
                    event(log, logging.INFO, "setting_changed", setting=key, was=was, now=now, by=conn.user, peer=conn.peer)
            if self._topics.permission != permission:
                await asyncio.wait([self._register()], timeout=REGISTER_TIMEOUT_S)
            conn.respond(command, ResponseCode.SUCCESS)

    def _take(self, changes: Mapping[str, Value]) -> None:
        self._settings.take(changes)
        self._apply(self._settings.config)
        self._file.note()


def settings_table(config: BrokerConfig, role: BrokerRole, address: str) -> dict[str, object]:
    """Return the settings of a broker at ``address``, by name. A secret shows only that there is one."""
    store, security, tls = config.store, config.security, config.tls
    host, _, port = address.rpartition(":")
    table: dict[str, object] = {
        "brokerClusterName": config.cluster_name,
        "brokerName": config.broker_name,
        "brokerId": role.broker_id,
        "brokerRole": role.role,
        "bindAddress": config.host,
        "brokerIP1": host.strip("[]"),
        "listenPort": port,
        "namesrvAddr": ";".join(config.namesrv),
        "regionId": config.region,
        "traceTopicEnable": config.trace_topic_enable,
        "msgTraceTopicName": config.trace_topic,
        "brokerPermission": config.broker_permission,
        "autoCreateTopicEnable": config.auto_create_topic,
        "autoCreateSubscriptionGroup": config.auto_create_group,
        "defaultTopicQueueNums": config.default_topic_queues,
        "maxMessageSize": config.max_message_bytes,
        "maxTransferBytesOnMessageInMemory": config.max_transfer_bytes_on_message_in_memory,
        "maxTransferCountOnMessageInMemory": config.max_transfer_count_on_message_in_memory,
        "maxTransferBytesOnMessageInDisk": config.max_transfer_bytes_on_message_in_disk,
        "maxTransferCountOnMessageInDisk": config.max_transfer_count_on_message_in_disk,
        "maxFilterMessageSize": store.max_filter_units * 20,
        "enablePropertyFilter": config.enable_property_filter,
        "accessMessageInMemoryMaxRatio": config.access_message_in_memory_max_ratio,
        "messageDelayLevel": store.message_delay_level,
        "registerNameServerPeriod": _ms(config.register_interval_s),
        "flushConsumerOffsetInterval": _ms(config.save_offsets_interval_s),
        "flushDelayOffsetInterval": _ms(config.save_offsets_interval_s),
        "recallMessageEnable": config.recall_message_enable,
        "transactionTimeOut": _ms(config.transaction_timeout_s),
        "transactionCheckInterval": _ms(config.transaction_check_interval_s),
        "transactionCheckMax": config.transaction_check_max,
        "rejectTransactionMessage": config.reject_transactions,
        "sendThreadPoolQueueCapacity": config.max_waiting_sends,
        "pullThreadPoolQueueCapacity": config.max_held_pulls,
        "osPageCacheBusyTimeOutMills": config.os_page_cache_busy_timeout_ms,
        "flushDiskType": store.flush_disk_type,
        "flushIntervalCommitLog": _ms(config.flush_interval_s),
        "syncFlushTimeout": _ms(config.sync_flush_timeout_s),
        "readUnCommitted": store.read_uncommitted,
        "storePathRootDir": store.root,
        "mappedFileSizeCommitLog": store.commitlog_segment_bytes,
        "mappedFileSizeConsumeQueue": store.consumequeue_segment_bytes,
        "mapperFileSizeBatchConsumeQueue": store.batchqueue_segment_bytes,
        "messageIndexEnable": store.message_index_enable,
        "maxHashSlotNum": store.max_hash_slots,
        "maxIndexNum": store.max_index_entries,
        "enableBuildConsumeQueueConcurrently": store.enable_build_consume_queue_concurrently,
        "batchDispatchRequestThreadPoolNums": store.pipeline_workers,
        "fileReservedTime": f"{store.file_reserved_hours:g}",
        "deleteWhen": store.delete_when,
        "cleanResourceInterval": _ms(config.clean_interval_s),
        "cleanFileForciblyEnable": store.clean_file_forcibly,
        "diskMaxUsedSpaceRatio": _percent(store.disk_max_used_ratio),
        "diskSpaceCleanForciblyRatio": _percent(store.disk_clean_forcibly_ratio),
        "diskSpaceWarningLevelRatio": _percent(store.disk_warning_ratio),
        "inSyncReplicas": role.copies,
        "slaveTimeout": _ms(config.slave_timeout_s),
        "slaveReadEnable": config.slave_read_enable,
        "haMaxGapNotInSync": config.ha_max_gap_not_in_sync,
        "haSendHeartbeatInterval": _ms(config.ha_heartbeat_s),
        "haHousekeepingInterval": _ms(config.ha_housekeeping_s),
        "haTransferBatchSize": config.ha_batch_bytes,
        "metricsExporterType": {"prom": "PROM"}.get(config.metrics_exporter, "DISABLE"),
        "metricsPromExporterHost": config.metrics_host,
        "metricsLabel": config.metrics_label,
        "metricsOtelCardinalityLimit": config.metrics_max_series,
        "authenticationEnabled": security is not None and security.authentication_enabled,
        "authorizationEnabled": security is not None and security.authorization_enabled,
        "max_connections": config.max_connections,
        "max_waiting_bytes": config.max_waiting_bytes,
        "preallocate": store.preallocate,
        "fast_port_enable": config.fast_port_enable,
        "tls_mode": tls.mode if tls is not None else "disabled",
        "tls_client_auth": tls.client_auth if tls is not None else "none",
        # mqadmin exportConfigs of releases before 5.3 fails without these.
        "traceOn": True,
        "useTLS": bool(config.tls_client),
        "filterServerNums": 0,
    }
    given: dict[str, object] = {
        "haListenPort": config.ha_port,
        "haMasterAddress": config.ha_master_address,
        "metricsPromExporterPort": config.metrics_port if config.has_metrics else None,
        "maxHaTransferByteInSecond": config.ha_max_bytes_per_s,
        "users_file": security.users_file if security is not None else None,
        "ha_secret": MASKED if config.ha_secret else None,
        "innerClientAuthenticationCredentials": MASKED if security is not None and security.inner_credentials is not None else None,
    }
    return table | {name: value for name, value in given.items() if value is not None}


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _percent(ratio: float) -> int:
    return round(ratio * 100)
