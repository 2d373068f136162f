"""The table of handlers: which part of a broker answers which request."""

import asyncio
from collections.abc import Callable, Mapping

from sprocketmq.broker.admin import AdminHandlers
from sprocketmq.broker.clients import ClientHandlers
from sprocketmq.broker.cold_reads import ColdRecords
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.config_requests import ConfigHandlers
from sprocketmq.broker.groups import ForbiddingHandlers
from sprocketmq.broker.locks import LockHandlers
from sprocketmq.broker.members import MemberHandlers
from sprocketmq.broker.metrics.counters import TopicCounters
from sprocketmq.broker.metrics.view_stats import ViewStatsHandlers
from sprocketmq.broker.offset_resets import ResetHandlers
from sprocketmq.broker.offsets import OffsetHandlers
from sprocketmq.broker.parts import BrokerParts
from sprocketmq.broker.pop.assignments import AssignmentHandlers
from sprocketmq.broker.query import QueryHandlers
from sprocketmq.broker.queue_offsets import QueueOffsetHandlers
from sprocketmq.broker.recall import RecallHandlers
from sprocketmq.broker.replication.metadata_answers import MetadataAnswers
from sprocketmq.broker.replication.status import StatusHandlers
from sprocketmq.broker.replies.handlers import ReplyHandlers
from sprocketmq.broker.retry import RetryHandlers
from sprocketmq.broker.runtime import RuntimeHandlers
from sprocketmq.broker.store_times import StoreTimes
from sprocketmq.broker.time_spans import TimeSpanHandlers
from sprocketmq.broker.transactions.handlers import TransactionHandlers
from sprocketmq.net.server import RemotingServer, ServerConnection
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.command import Command
from sprocketmq.security.guard import SecurityGuard
from sprocketmq.security.requests import SecurityRequests, handlers_without_users

ANNOUNCE_TIMEOUT_S = 5.0

Handler = Callable[[ServerConnection, Command], None]


class RequestTable:
    """The handlers of a broker's requests by code. ``clients`` is told of connections that end.

    ``server`` is the listener whose connections are counted, ``guard`` checks requests (None without access control); ``take_settings``
    applies a configuration that requests have changed.
    """

    def __init__(
        self, parts: BrokerParts, *, server: RemotingServer, guard: SecurityGuard | None, take_settings: Callable[[BrokerConfig], None]
    ) -> None:
        self._parts = parts
        config, clock = parts.config, parts.clock
        allows = guard.allows if guard is not None else None
        self.clients = ClientHandlers(parts.clients, parts.groups, parts.topics, filters=config.enable_property_filter)
        status = StatusHandlers(
            parts.store,
            parts.role,
            parts.replication,
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            address=lambda: parts.address,
        )
        times = StoreTimes(parts.store, parts.disk_reads)
        admin = AdminHandlers(
            config.broker_name,
            parts.store,
            parts.topics,
            parts.groups,
            parts.clients,
            parts.offsets,
            parts.windows,
            times,
            address=lambda: parts.address,
            sends=parts.staged,
            pulls=parts.pulls,
            pops=parts.pops,
            topics_settled=self._topic_changes_settled,
            background=parts.background,
            clock=clock,
        )
        runtime = RuntimeHandlers(
            config,
            parts.store,
            parts.stats,
            server=server,
            sends=parts.staged,
            pulls=parts.pulls,
            acks=parts.acks,
            flusher=parts.flusher,
            delays=parts.delays,
            cleaning=parts.cleaning,
            replication=status.table,
            dispatch_lag=lambda: parts.replication.dispatch_lag,
            fs=parts.fs,
            clock=clock,
        )
        settings = ConfigHandlers(
            parts.settings,
            parts.files.settings,
            parts.topics,
            parts.role,
            address=lambda: parts.address,
            apply=take_settings,
            register=self._register_again,
            background=parts.background,
        )
        cold = ColdRecords(parts.store, parts.disk_reads, settle=parts.staged.finish)
        queries = QueryHandlers(
            parts.store,
            parts.topics,
            parts.clients,
            cold,
            parts.disk_reads,
            background=parts.background,
            allows=allows,
            clock=clock,
        )
        offset_handlers = OffsetHandlers(parts.offsets, parts.topics, parts.groups, parts.clients, parts.store, parts.disk_reads)
        self._to_slaves = MetadataAnswers(
            parts.delays,
            {
                RequestCode.GET_ALL_TOPIC_CONFIG: (lambda: parts.topics.data_version, admin.all_topics),
                RequestCode.GET_ALL_CONSUMER_OFFSET: (parts.offsets.advance_version, offset_handlers.all),
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (lambda: parts.groups.data_version, admin.all_groups),
            },
        )
        self.handlers: Mapping[int, Handler] = {
            **parts.sends.handlers(),
            **parts.pulls.handlers(),
            **parts.pops.handlers(),
            **AssignmentHandlers(
                config.broker_name,
                parts.topics,
                parts.groups,
                parts.clients,
                parts.modes,
                parts.files.modes,
                route=parts.registrar.route_of,
                background=parts.background,
            ).handlers(),
            **self.clients.handlers(),
            **offset_handlers.handlers(),
            **ResetHandlers(
                config.broker_name, parts.store, parts.topics, parts.groups, parts.offsets, parts.pulls, parts.disk_reads
            ).handlers(),
            **LockHandlers(parts.locks, parts.topics).handlers(),
            **admin.handlers(),
            **QueueOffsetHandlers(parts.store, parts.topics, times, parts.disk_reads).handlers(),
            **TimeSpanHandlers(config.broker_name, parts.store, parts.topics, parts.offsets, times, clock=clock).handlers(),
            **MemberHandlers(parts.clients, queries, parts.background).handlers(),
            **runtime.handlers(),
            **ViewStatsHandlers(config.cluster_name, parts.counters, parts.windows, self._counters_of).handlers(),
            **settings.handlers(),
            **ForbiddingHandlers(parts.groups, told=parts.pulls.reading_forbidden).handlers(),
            **queries.handlers(),
            **parts.cleaning.handlers(),
            **RetryHandlers(
                parts.store,
                parts.topics,
                parts.retry_rules,
                parts.staged,
                parts.delays,
                parts.offsets,
                parts.copies,
                parts.counters,
                cold,
                allows=allows,
            ).handlers(),
            **RecallHandlers(config, parts.store, parts.topics, parts.delays, parts.staged).handlers(),
            **TransactionHandlers(parts.transactions, parts.staged, cold, clock=clock, allows=allows).handlers(),
            **ReplyHandlers(
                config, parts.topics, parts.clients, parts.counters, parts.background, address=lambda: parts.address, clock=clock
            ).handlers(),
            **self._to_slaves.handlers(),
            **status.handlers(),
            **parts.replication.promotion.handlers(),
            **(SecurityRequests(guard, parts.background).handlers() if guard is not None else handlers_without_users()),
        }

    def _counters_of(self, name: str) -> TopicCounters | None:
        topic = self._parts.topics.get(name)
        return topic.counters if topic is not None else None

    def _register_again(self) -> asyncio.Task[None]:
        return self._parts.background.spawn(self._parts.registrar.register(), "registration of changed permissions")

    async def _topic_changes_settled(self) -> None:
        """Wait until changed topics are saved and the nameservers that answer know them. Raises OSError when they cannot be saved.

        Slaves have to know topics with batch queues, as their records do not say to which kind of queue they belong.
        """
        await self._parts.files.topics.saved()
        if self._parts.slaves_must_know:
            await self._to_slaves.topics_told(ANNOUNCE_TIMEOUT_S)
            self._parts.slaves_must_know = False
        announcing = self._parts.registrar.announce([])
        if announcing is not None:
            await asyncio.wait([announcing], timeout=ANNOUNCE_TIMEOUT_S)
