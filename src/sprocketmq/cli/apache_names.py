"""The settings of Apache's ``broker.conf`` and ``namesrv.conf``: the corresponding ones of ours, and why others have none.

Each line of such a file takes effect or is refused. Three tables decide, in this order: ``SETTINGS`` have a setting of ours, ``FIXED`` are
accepted only with the value by which this broker works, ``REFUSED`` has the reasons why others have no counterpart. The names are those of
5.5.0. docs/guide/broker-settings.md describes them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

BATCH_UNIT_BYTES = 46
QUEUE_UNIT_BYTES = 20


class Setting(NamedTuple):
    """The setting of ours that one of Apache's stands for. ``read`` makes its value from the text, or raises ValueError."""

    name: str
    read: Callable[[str], Any]


def text(value: str) -> str:
    """Return the text itself."""
    return value


def switch(value: str) -> bool:
    """Return a boolean. Java takes any other word for false."""
    try:
        return {"true": True, "false": False}[value.lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def whole(value: str) -> int:
    """Return a whole number."""
    try:
        return int(value)
    except ValueError:
        raise ValueError("must be a whole number") from None


def seconds(value: str) -> float:
    """Return milliseconds as seconds."""
    return whole(value) / 1000


def percent(value: str) -> float:
    """Return a percentage as a ratio."""
    return whole(value) / 100


def exporter(value: str) -> str:
    """Return how metrics are exported. Apache takes names and numbers."""
    try:
        return {"DISABLE": "disable", "0": "disable", "PROM": "prom", "2": "prom"}[value.upper()]
    except KeyError:
        raise ValueError("must be PROM or DISABLE: this broker exports metrics to Prometheus only") from None


def hours(value: str) -> float:
    """Return a number of hours."""
    return float(whole(value))


def queue_units(value: str) -> int:
    """Return bytes of queue units as their number."""
    return whole(value) // QUEUE_UNIT_BYTES


def queue_file(value: str) -> int:
    """Return a size rounded up to whole units, as Apache does."""
    return -(-whole(value) // QUEUE_UNIT_BYTES) * QUEUE_UNIT_BYTES


def batch_queue_file(value: str) -> int:
    """Return a size rounded up to whole units."""
    return -(-whole(value) // BATCH_UNIT_BYTES) * BATCH_UNIT_BYTES


SETTINGS = {
    "bindAddress": Setting("host", text),
    "brokerIP1": Setting("advertise", text),
    "listenPort": Setting("port", whole),
    "namesrvAddr": Setting("namesrv", text),
    "storePathRootDir": Setting("store", text),
    "brokerClusterName": Setting("cluster_name", text),
    "brokerName": Setting("broker_name", text),
    "regionId": Setting("region", text),
    "brokerPermission": Setting("broker_permission", whole),
    "autoCreateTopicEnable": Setting("auto_create_topic", switch),
    "autoCreateSubscriptionGroup": Setting("auto_create_group", switch),
    "defaultTopicQueueNums": Setting("default_topic_queues", whole),
    "traceTopicEnable": Setting("trace_topic_enable", switch),
    "msgTraceTopicName": Setting("trace_topic", text),
    "maxMessageSize": Setting("max_message_bytes", whole),
    "maxTransferCountOnMessageInMemory": Setting("max_transfer_count_on_message_in_memory", whole),
    "maxTransferBytesOnMessageInMemory": Setting("max_transfer_bytes_on_message_in_memory", whole),
    "maxTransferCountOnMessageInDisk": Setting("max_transfer_count_on_message_in_disk", whole),
    "maxTransferBytesOnMessageInDisk": Setting("max_transfer_bytes_on_message_in_disk", whole),
    "maxFilterMessageSize": Setting("max_filter_units", queue_units),
    "enablePropertyFilter": Setting("enable_property_filter", switch),
    "pullThreadPoolQueueCapacity": Setting("max_held_pulls", whole),
    "registerNameServerPeriod": Setting("register_interval_s", seconds),
    "flushConsumerOffsetInterval": Setting("save_offsets_interval_s", seconds),
    "flushDelayOffsetInterval": Setting("save_offsets_interval_s", seconds),
    "recallMessageEnable": Setting("recall_message_enable", switch),
    "transactionTimeOut": Setting("transaction_timeout_s", seconds),
    "transactionCheckInterval": Setting("transaction_check_interval_s", seconds),
    "transactionCheckMax": Setting("transaction_check_max", whole),
    "rejectTransactionMessage": Setting("reject_transactions", switch),
    "messageDelayLevel": Setting("message_delay_level", text),
    "flushDiskType": Setting("flush_disk_type", text),
    "flushIntervalCommitLog": Setting("flush_interval_s", seconds),
    "syncFlushTimeout": Setting("sync_flush_timeout_s", seconds),
    "sendThreadPoolQueueCapacity": Setting("max_waiting_sends", whole),
    "osPageCacheBusyTimeOutMills": Setting("os_page_cache_busy_timeout_ms", whole),
    "readUnCommitted": Setting("read_uncommitted", switch),
    "mappedFileSizeCommitLog": Setting("commitlog_segment_bytes", whole),
    "mappedFileSizeConsumeQueue": Setting("consumequeue_segment_bytes", queue_file),
    "mapperFileSizeBatchConsumeQueue": Setting("batchqueue_segment_bytes", batch_queue_file),
    "messageIndexEnable": Setting("message_index_enable", switch),
    "maxHashSlotNum": Setting("max_hash_slots", whole),
    "maxIndexNum": Setting("max_index_entries", whole),
    "enableBuildConsumeQueueConcurrently": Setting("enable_build_consume_queue_concurrently", switch),
    "batchDispatchRequestThreadPoolNums": Setting("pipeline_workers", whole),
    "fileReservedTime": Setting("file_reserved_hours", hours),
    "deleteWhen": Setting("delete_when", text),
    "cleanResourceInterval": Setting("clean_interval_s", seconds),
    "diskMaxUsedSpaceRatio": Setting("disk_max_used_ratio", percent),
    "diskSpaceCleanForciblyRatio": Setting("disk_clean_forcibly_ratio", percent),
    "diskSpaceWarningLevelRatio": Setting("disk_warning_ratio", percent),
    "cleanFileForciblyEnable": Setting("clean_file_forcibly", switch),
    "brokerRole": Setting("role", text),
    "brokerId": Setting("broker_id", whole),
    "haListenPort": Setting("ha_port", whole),
    "haMasterAddress": Setting("ha_master_address", text),
    "inSyncReplicas": Setting("in_sync_replicas", whole),
    "slaveTimeout": Setting("slave_timeout_s", seconds),
    "slaveReadEnable": Setting("slave_read_enable", switch),
    "accessMessageInMemoryMaxRatio": Setting("access_message_in_memory_max_ratio", whole),
    "haMaxGapNotInSync": Setting("ha_max_gap_not_in_sync", whole),
    "haSendHeartbeatInterval": Setting("ha_heartbeat_s", seconds),
    "haHousekeepingInterval": Setting("ha_housekeeping_s", seconds),
    "haTransferBatchSize": Setting("ha_batch_bytes", whole),
    "maxHaTransferByteInSecond": Setting("ha_max_bytes_per_s", whole),
    "metricsExporterType": Setting("metrics_exporter", exporter),
    "metricsPromExporterHost": Setting("metrics_host", text),
    "metricsPromExporterPort": Setting("metrics_port", whole),
    "metricsLabel": Setting("metrics_label", text),
    "metricsOtelCardinalityLimit": Setting("metrics_max_series", whole),
    "authenticationEnabled": Setting("authentication_enabled", switch),
    "authorizationEnabled": Setting("authorization_enabled", switch),
}
# Apache's nameserver has its own file, with the same name for its port.
NAMESRV_SETTINGS = {"bindAddress": Setting("host", text), "listenPort": Setting("namesrv_port", whole)}

_AUTH = "org.apache.rocketmq.auth"
FIXED = {
    "longPollingEnable": ("true", "a pull without a message waits for one"),
    "traceOn": ("true", "messages say that they may be traced"),
    "brokerTopicEnable": ("true", "the topic named after the broker is always there"),
    "clusterTopicEnable": ("true", "the topic named after the cluster is always there"),
    "enableControllerMode": ("false", "there is no controller and no election: `sprocketmq failover` promotes a slave"),
    "enableDLegerCommitLog": ("false", "there is no controller and no election: `sprocketmq failover` promotes a slave"),
    "duplicationEnable": ("false", "replicas follow their master"),
    "enableSlaveActingMaster": ("false", "a slave does not act for its master"),
    "allAckInSyncStateSet": ("false", "there is no controller"),
    "aclEnable": ("false", "Apache's broker has no ACL 1.0 any more either: set authenticationEnabled and authorizationEnabled"),
    "migrateAuthFromV1Enabled": ("false", "files of ACL 1.0 are not imported: `sprocketmq user create` and `sprocketmq acl grant` do it"),
    "authenticationProvider": (f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider", "logins are signatures"),
    "authorizationProvider": (f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider", "rights are policies"),
    "authenticationMetadataProvider": (f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider", "users are in users_file"),
    "authorizationMetadataProvider": (f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider", "policies are in users_file"),
    "authenticationStrategy": (f"{_AUTH}.authentication.strategy.StatelessAuthenticationStrategy", "every request is checked"),
    "authorizationStrategy": (f"{_AUTH}.authorization.strategy.StatelessAuthorizationStrategy", "every request is checked"),
    "useTLS": ("false", "tls_mode says whether connections are encrypted"),
    "storeType": ("default", "queues are files, not RocksDB"),
    "transientStorePoolEnable": ("false", "messages are written to the page cache at once"),
    "checkCRCOnRecover": ("true", "a recovery checks every record"),
    "enableConsumeQueueExt": ("false", "queues have no extension files"),
    "enabledAppendPropCRC": ("false", "the body has a checksum, the record has none"),
    "forceVerifyPropCRC": ("false", "the body has a checksum, the record has none"),
    "autoMessageVersionOnTopicLen": ("true", "only a topic longer than 127 bytes gets a record of version 2"),
    "maxTopicLength": ("127", "this is the length that names are checked for"),
    "indexFileReadEnable": ("true", "the index is read where there is one"),
    "indexFileWriteEnable": ("true", "message_index_enable (messageIndexEnable) switches the index off"),
    "timerWheelEnable": ("true", "messages may be delayed to any time"),
    "timerMaxDelaySec": ("259200", "messages are delayed by at most three days"),
    "enableLmq": ("false", "there are no light queues"),
    "enableMultiDispatch": ("false", "there are no light queues"),
    "enableCompaction": ("false", "there are no compaction topics"),
    "coldDataFlowControlEnable": ("false", "readers of old messages are not throttled"),
    "warmMapedFileEnable": ("false", "files are not written through memory maps"),
    "compressedRegister": ("false", "registrations are not compressed"),
    "offsetCheckInSlave": ("false", "a slave leaves the offsets of readers as they are"),
    "rejectPullConsumerEnable": ("false", "consumers may pull"),
    "inBrokerContainer": ("false", "a process runs one broker"),
    "disableConsumeIfConsumerReadSlowly": ("false", "slow consumers are not shut out"),
    "needWaitForService": ("false", "a nameserver answers from its start"),
    "clusterTest": ("false", "a nameserver asks no other one"),
    "fetchNamesrvAddrByAddressServer": ("false", "nameservers are given by namesrvAddr"),
    "fetchNameSrvAddrByDnsLookup": ("false", "nameservers are given by namesrvAddr"),
}

_REASONS = {
    "users and policies are read from users_file, and kept in memory": """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath userCacheExpiredSecond userCacheMaxNum
        userCacheRefreshSecond
    """,
    "every request is checked": """
        authenticationWhitelist authorizationWhitelist statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
    """,
    "there is no controller and no election: `sprocketmq failover` promotes a slave": """
        asyncLearner brokerElectionPriority checkSyncStateSetPeriod controllerAddr controllerHeartBeatTimeoutMills dLegerGroup
        dLegerPeers dLegerSelfId enableAutoInSyncReplicas enableControllerInNamesrv fetchControllerAddrByDnsLookup
        haMaxTimeSlaveNotCatchup maxChecksumRange maxSlaveResendLength minInSyncReplicas preferredLeaderId replicasPerDiskPartition
        storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile syncBrokerMetadataPeriod syncControllerMetadataPeriod
        syncFromLastFile syncMasterFlushOffsetWhenStartup totalReplicas
    """,
    "a slave does not act for its master": """
        brokerHeartbeatInterval brokerNotActiveTimeoutMillis enableRemoteEscape lockInStrictMode notifyMinBrokerIdChanged
        sendHeartbeatTimeoutMillis skipPreOnline supportActingMaster syncBrokerMemberGroupPeriod
    """,
    "queues, index and tables are files, not RocksDB": """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin combineAssignOffsetCQType
        combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType
        combineCQUseRocksdbForLmq configManagerVersion enableRocksDBLog indexRocksDBEnable iteratorWhenUseRocksdbConsumeQueue
        maxRocksDBIndexQueryDays memTableFlushIntervalMs persistConsumerOffsetIncrementally popConsumerKVServiceEnable
        popConsumerKVServiceInit popConsumerKVServiceLog realTimePersistRocksDBConfig recheckReputOffsetFromCq
        rocksdbCQDoubleWriteEnable rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold
        statRocksDBCQIntervalSec timerRocksDBEnable timerRocksDBPrecisionMs timerRocksDBRollIntervalHours timerRocksDBRollMaxTps
        timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps transRocksDBEnable
        transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity
        useSeparateStorePathForRocksdbCQ useSingleRocksDBForAllConfigs
    """,
    "metrics_exporter (metricsExporterType) exports all metrics, for Prometheus only": """
        enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics enablePopMetrics enableRemotingMetrics
        enableRequestMetrics enableStatsMetrics enableTransactionMetrics estimateAccumulation liteLagCountMetricsEnable
        liteLagLatencyMetricsEnable metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
        metricLoggingExporterIntervalInMills metricsExportBatchMaxDataPoints metricsGrpcExporterHeader metricsGrpcExporterTarget
        metricsInDelta
        timerEnableCheckMetrics timerMetricSmallThreshold transactionMetricFlushInterval
    """,
    "the outcome of a transaction is stored at once, with its message": """
        endTransactionPoolQueueCapacity endTransactionThreadPoolNums transWriteOriginTransHalfEnable
        transactionOpBatchInterval transactionOpMsgMaxSize waitTimeMillsInTransactionQueue
    """,
    "pops are kept in one journal with fixed limits, without check points, a revive topic and retry topics": """
        appendAckAsync appendCkAsync enableLitePopLog enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag
        enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMessageThreshold enableRetryTopicV2 enableSkipLongAwaitingAck
        initPopOffsetByCheckMsgInMem maxMessageFilterNumForNotification maxPopPollingSize popCkMaxBufferSize popCkOffsetMaxQueueSize
        popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit popFromRetryProbability
        popInflightMessageThreshold popLongPollingForceNotifyInterval
        popPollingMapExpireTimeSeconds popPollingMapSize popPollingSize popResponseReturnActualRetryTopic popReviveConcurrency
        popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent retrieveMessageFromPopRetryTopicV1
        reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime
        skipWhenCKRePutReachMaxTimes useMessageFilterForNotification useSeparateRetryQueue
    """,
    "pops of a priority topic begin at the highest queue, as often as the group's attribute priority.factor says": """
        popFromRetryProbabilityForPriority priorityOrderAsc
    """,
    "consumers pull unless `mqadmin setConsumeMode` has set something else, and a broker always divides queues when it is asked": """
        defaultMessageRequestMode defaultPopShareQueueNum serverLoadBalancerEnable
    """,
    "there are no light topics": """
        enableLiteEventMode enableLmqQuota enableLmqStats liteEventCheckInterval liteEventFullDispatchDelayTime
        liteEventFullDispatchDelayTimeForWildcardGroup liteLagLatencyCollectEnable liteLagLatencyTopK liteSubscriptionCheckInterval
        liteSubscriptionCheckTimeoutMills liteTtlCheckInterval maxClientEventCount maxLiteSubscriptionCount maxLmqConsumeQueueNum
        minLiteTTl
    """,
    "there are no compaction topics": """
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum maxOffsetMapSize
    """,
    "readers of old messages are not throttled": """
        cgColdReadThreshold coldCtrStrategyEnable coldDataScanEnable globalColdReadThreshold timerColdDataCheckIntervalMs
        usePIDColdCtrStrategy
    """,
    "delayed messages have no timer wheel files": """
        allowRecallWhenBrokerNotWriteable appendTopicForTimerDeleteKey mappedFileSizeTimerLog
        timerCongestNumEachSlot timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum timerInterceptDelayLevel
        timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum timerRecallToTimeWheelEnable
        timerRecallToTimelineEnable timerReputServiceCorePoolSize timerReputServiceMaxPoolSize timerReputServiceQueueCapacity
        timerRollWindowSlot timerSkipUnknownError timerStopEnqueue timerWheelSnapshotFlush timerWheelSnapshotIntervalMs
    """,
    "requests are handled on one event loop, without thread pools and locks": """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity waitTimeMillsInAckQueue
        adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity asyncSendEnable brokerFastFailureEnable
        clientCallbackExecutorThreads clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clientRequestThreadPoolNums
        clientRequestThreadPoolQueueCapacity clientWorkerThreads consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
        debugLockEnable defaultThreadPoolNums defaultThreadPoolQueueCapacity dispatchCqCacheNum dispatchCqThreads
        dispatchFromSenderThread enableAsyncReput enableBatchPush enableFastChannelEventProcess enableScheduleAsyncDeliver
        heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode isolateLogEnable litePullMessageEnable
        litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity loadBalanceProcessorThreadPoolNums
        loadBalanceThreadPoolQueueCapacity maxAsyncPutMessageRequests processReplyMessageThreadPoolNums pullMessageThreadPoolNums
        putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater putThreadPoolQueueCapacity queryMessageThreadPoolNums
        queryThreadPoolQueueCapacity recoverConcurrently recoverThreadPoolNums replyThreadPoolQueueCapacity
        scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked sendMessageThreadPoolNums
        serverCallbackExecutorThreads serverSelectorThreads serverWorkerThreads spinLockCollisionRetreatOptimalDegree
        topicQueueLockNum unRegisterBrokerQueueCapacity useABSLock useReentrantLockWhenPutMessage waitTimeMillsInAdminBrokerQueue
        waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
    """,
    "a flush writes all there is, every flush_interval_s (flushIntervalCommitLog)": """
        commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog enableRunningFlagsInFlush
        flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
        flushConsumeQueueThoroughInterval flushIntervalConsumeQueue wakeCommitWhenPutMessage wakeFlushWhenPutMessage
    """,
    "files are written by system calls, not through memory maps": """
        accessMessageInMemoryHotRatio bitMapLengthConsumeQueueExt cleanSwapedMapInterval commitLogForceSwapMapInterval
        commitLogSwapMapInterval commitLogSwapMapReserveFileNum dataReadAheadEnable destroyMapedFileIntervalForcibly
        fastFailIfNoBufferInStorePool flushLeastPagesWhenWarmMapedFile logicQueueForceSwapMapInterval logicQueueSwapMapInterval
        logicQueueSwapMapReserveFileNum mappedFileSizeConsumeQueueExt mappedFileSwapEnable putConsumeQueueDataByFileChannel
        redeleteHangedFileInterval sharedByteBufferNum transferMsgByHeap transientStorePoolSize writeWithoutMmap
    """,
    "this is a setting of Netty, the network library of Java": """
        channelExpiredTimeout channelNotActiveInterval clientAsyncSemaphoreValue clientChannelMaxIdleTimeSeconds
        clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize
        clientSocketSndBufSize connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup enableReconnectForGoAway
        enableShutdownGracefully maxReconnectIntervalTimeSeconds scanAvailableNameSrv serverAsyncSemaphoreValue
        serverChannelMaxIdleTimeSeconds serverNettyWorkerGroupEnable serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable
        serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize shutdownWaitTimeSeconds socksProxyConfig
        useEpollNativeSelector writeBufferHighWaterMark writeBufferLowWaterMark
    """,
    "expired files are deleted at once, without pauses": """
        correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval deleteCommitLogFilesInterval
        deleteConsumeQueueFilesInterval deleteFileBatchMax deleteTopicWithBrokerRegistration enableCleanExpiredOffset
        logicalDiskSpaceCleanForciblyThreshold maxBatchDeleteFilesNum
    """,
    "SQL92 conditions are evaluated when a message is read, and not on retry topics": """
        enableCalcFilterBitMap expectConsumerNumUseFilter filterDataCleanTimeSpan filterSupportRetry maxErrorRateOfBloomFilter
    """,
    "what is counted is fixed": """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats commercialBaseCount commercialSizePerMsg
        enableDetailStat enableScheduleMessageStats maxStatsIdleTimeInMinutes useStaticSubscription
    """,
    "a broker registers whole, every register_interval_s (registerNameServerPeriod)": """
        compatibleWithOldNameSrv enableSingleTopicRegister enableSplitMetadata enableSplitRegistration fetchNamesrvAddrInterval
        forceRegister loadBalancePollNameServerInterval registerBrokerTimeoutMills splitMetadataSize splitRegistrationSize
        updateNameServerAddrPeriod
    """,
    "this broker has no counterpart": """
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond brokerConfigPath checkCommitLogOffsetOnRecover
        cleanOfflineBrokerInterval clearRetryTopicWhenDeleteTopic clusterName commitLogRecoverMaxNum configBlackList configStorePath
        consumerFallbehindThreshold consumerOffsetUpdateVersionStep defaultQueryMaxNum delayOffsetUpdateVersionStep
        configName disappearTimeAfterStart diskFallRecorded enableAcceleratedRecovery enableAllTopicList enableBroadcastOffsetStore
        enableCreateSysGroup enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMixedMessageType enableNetWorkFlowControl
        enableRegisterProducer enableTopicList flushConsumerOffsetHistoryInterval forwardTimeout maxConsumeQueueScan maxMsgsNumBatch
        maxRecoveryCommitlogFiles messageIndexSafe messageStorePlugIn notifyConsumerIdsChangedEnable
        orderMessageEnable printChannelGroups printChannelGroupsMinNum productEnvName pullBatchMaxMessageCount
        readOnlyCommitLogStorePaths realTimeNotifyConsumerChange returnOrderTopicConfigToBroker rocketmqHome sampleCountThreshold
        sampleSteps scanNotActiveBrokerInterval searchBcqByCacheEnable shortPollingTimeMills startAcceptSendRequestTimeStamp
        storeReplyMessageEnable subscriptionExpiredTimeout travelCqFileNumWhenGetMessage useServerSideResetOffset
        validateSystemTopicWhenUpdateTopic waitSecondsForService
    """,
}
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}
