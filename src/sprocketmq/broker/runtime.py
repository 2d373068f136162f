"""The runtime information of a broker (28)."""

from collections.abc import Callable
from math import inf

from sprocketmq.broker.acks import Acks
from sprocketmq.broker.cleaning import Cleaning
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.delay import DelayService
from sprocketmq.broker.flushing import Flusher
from sprocketmq.broker.metrics.counters import Histogram
from sprocketmq.broker.pull import PullHandlers
from sprocketmq.broker.staged_sends import StagedSends, Stored
from sprocketmq.broker.stats import Stats
from sprocketmq.broker.store_facts import store_facts
from sprocketmq.clock import Clock
from sprocketmq.net.server import RemotingServer, ServerConnection
from sprocketmq.protocol.bodies import RuntimeInfo
from sprocketmq.protocol.codes import PROTOCOL_VERSION, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.records import Record
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.store import MessageStore

VERSION_NAME = "V5_5_0"
# Classes of commit durations by upper bound in seconds, as tools expect them.
COMMIT_CLASSES = (
    *((0.001, "<=0ms"), (0.01, "0~10ms"), (0.05, "10~50ms"), (0.1, "50~100ms"), (0.2, "100~200ms"), (0.5, "200~500ms")),
    *((1.0, "500ms~1s"), (2.0, "1~2s"), (3.0, "2~3s"), (4.0, "3~4s"), (5.0, "4~5s"), (10.0, "5~10s"), (inf, "10s~")),
)


class RuntimeHandlers:
    """Statistics, under the names that the reference's tools expect."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        stats: Stats,
        *,
        server: RemotingServer,
        sends: StagedSends,
        pulls: PullHandlers,
        acks: Acks[Stored],
        flusher: Flusher[Stored],
        delays: DelayService,
        cleaning: Cleaning,
        replication: Callable[[], dict[str, str]],
        dispatch_lag: Callable[[], tuple[int, int]],
        fs: FileSystem,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._stats = stats
        self._server = server
        self._sends = sends
        self._pulls = pulls
        self._acks = acks
        self._flusher = flusher
        self._delays = delays
        self._cleaning = cleaning
        self._replication = replication
        self._dispatch_lag = dispatch_lag
        self._fs = fs
        self._clock = clock

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info}

    def runtime_info(self, conn: ServerConnection, command: Command) -> None:
        """Answer 28: statistics as text, under the names that tools expect."""
        conn.respond(command, ResponseCode.SUCCESS, body=RuntimeInfo(self.runtime_table()).encode())

    def runtime_table(self) -> dict[str, str]:
        """Return the runtime information; parts that only the reference has are reported as idle."""
        store, flusher, acks, delays = self._store, self._flusher, self._acks, self._delays
        now = self._clock.monotonic()
        up_s = (self._clock.time_ms() - self._stats.counters.started_ms) // 1000
        days, rest = divmod(up_s, 86400)
        hours, rest = divmod(rest, 3600)
        minutes, seconds = divmod(rest, 60)
        behind_bytes, behind_ms = self._dispatch_lag()
        total, free = self._disk_space()
        ratio = f"{1 - free / total:.4f}" if total else "-1"
        commit = self._stats.counters.commit
        table = self._stats.table()
        table.update(
            {
                "brokerActive": "true",
                "brokerVersion": str(PROTOCOL_VERSION),
                "brokerVersionDesc": VERSION_NAME,
                "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
                "commitLogMinOffset": str(store.commitlog_min_offset),
                "commitLogMaxOffset": str(store.commitlog_max_offset),
                "commitLogDirCapacity": f"Total : {total / 2**30:.1f} GiB, Free : {free / 2**30:.1f} GiB.",
                "commitLogDiskRatio": ratio,
                # Bytes of a path that are no text are shown as escapes.
                f"commitLogDiskRatio_{self._config.store.root}/commitlog".encode(errors="backslashreplace").decode(): ratio,
                "consumeQueueDiskRatio": ratio,
                "dispatchBehindBytes": str(behind_bytes),
                "dispatchBehindMs": str(behind_ms),
                "dispatchMaxBuffer": "0",
                "earliestMessageTimeStamp": str(self._earliest_message_ms()),
                "getMessageEntireTimeMax": "0",
                "pageCacheLockTimeMills": str(self._sends.busy_ms()),
                "remainHowManyDataToFlush": _bytes(flusher.unflushed),
                "putMessageDistributeTime": _classes(commit),
                "putLatency99": f"{commit.quantile(0.99) * 1000:.2f}",
                "putLatency999": f"{commit.quantile(0.999) * 1000:.2f}",
                "flushDiskType": self._config.store.flush_disk_type,
                "flushTimesTotal": str(flusher.count),
                "flushEntireTimeMax": f"{flusher.longest_s * 1000:.1f}",
                "flushTimeAverage": f"{flusher.total_s / flusher.count * 1000:.3f}" if flusher.count else "0.0",
                "diskWritable": str(self._cleaning.writable).lower(),
                "remainTransientStoreBufferNumbs": "0",
                "heldPulls": str(self._pulls.held_count),
                **self._server.counters(),
                "timedMessagesWaiting": str(delays.timers.waiting),
                "timerReadBehind": "0",
                "timerOffsetBehind": "0",
                "timerCongestNum": "0",
                "timerEnqueueTps": "0.0",
                "timerDequeueTps": "0.0",
                **store_facts(store, self._fs),
                **self._replication(),
            }
        )
        for level, (delivered, parked) in delays.offsets().items():
            table[f"scheduleMessageOffset_{level}"] = f"{delivered},{parked}"
        for queue in ("send", "pull", "litePull", "query", "ack"):
            table[f"{queue}ThreadPoolQueueSize"] = "0"
            table[f"{queue}ThreadPoolQueueHeadWaitTimeMills"] = "0"
            table[f"{queue}ThreadPoolQueueCapacity"] = "10000"
        # There are no thread pools here: these are the sends that wait for the disk (SYNC_FLUSH) or for slaves (SYNC_MASTER).
        table["sendThreadPoolQueueSize"] = str(acks.waiting)
        table["sendThreadPoolQueueHeadWaitTimeMills"] = str(round((now - acks.oldest) * 1000) if acks.oldest is not None else 0)
        table["sendThreadPoolQueueCapacity"] = str(acks.max_sends)
        table["EndTransactionQueueSize"] = "0"
        table["EndTransactionThreadPoolQueueCapacity"] = "0"
        return table

    def _disk_space(self) -> tuple[int, int]:
        """Return total and free bytes of the store's file system, zeros when the system does not say."""
        try:
            return self._fs.usage(str(self._config.store.root))
        except OSError:
            return 0, 0

    def _earliest_message_ms(self) -> int:
        """Return when the oldest record of the log was stored, in wall-clock milliseconds; -1 without one."""
        record = self._store.record_at(self._store.commitlog_min_offset)
        return Record(record, 0, len(record)).store_timestamp_ms if record is not None else -1


def _classes(commit: Histogram) -> str:
    """Return the distribution of commit durations, as the reference prints it: ``[<=0ms]:4 [0~10ms]:1 ``, ... up to ``[10s~]:0 ``."""
    counts = dict.fromkeys((name for _, name in COMMIT_CLASSES), 0)
    for bound, count in zip((*commit.bounds, inf), commit.counts, strict=True):
        counts[next(name for upper, name in COMMIT_CLASSES if bound <= upper)] += count
    return "".join(f"[{name}]:{count} " for name, count in counts.items())


def _bytes(count: int) -> str:
    """Return a number of bytes as the reference prints it: ``606 B``, ``1.2 KiB``."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB"
