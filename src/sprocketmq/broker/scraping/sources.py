"""What the metrics of a broker are read from."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from sprocketmq.broker.acks import Acks
from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.delay import DelayService
from sprocketmq.broker.flushing import Flusher
from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.metrics.counters import BrokerCounters, TopicCounters
from sprocketmq.broker.metrics.latencies import Latencies
from sprocketmq.broker.metrics.loop_lag import LoopLag
from sprocketmq.broker.new_topics import NewTopics
from sprocketmq.broker.offsets import OffsetTable
from sprocketmq.broker.pull import PullHandlers
from sprocketmq.broker.replicating import Replication
from sprocketmq.broker.replication.roles import BrokerRole
from sprocketmq.broker.scraping.lags import Lag
from sprocketmq.broker.staged_sends import Stored
from sprocketmq.broker.topics import TopicTable
from sprocketmq.clock import Clock
from sprocketmq.net.server import RemotingServer
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.store import MessageStore


@dataclass(kw_only=True)
class Sources:
    """The parts of a broker. ``counted`` has its topics' counters, ``lags`` those of its groups; both are made anew for each page."""

    config: BrokerConfig
    counters: BrokerCounters
    latencies: Latencies
    loop_lag: LoopLag
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    clients: ClientRegistry
    offsets: OffsetTable
    role: BrokerRole
    servers: tuple[RemotingServer, ...]
    address: Callable[[], str]
    new_topics: NewTopics
    pulls: PullHandlers
    acks: Acks[Stored]
    flusher: Flusher[Stored]
    delays: DelayService
    replication: Replication
    fs: FileSystem
    threads: Executor
    clock: Clock
    counted: list[TopicCounters] = field(default_factory=list)
    lags: list[Lag] = field(default_factory=list)
