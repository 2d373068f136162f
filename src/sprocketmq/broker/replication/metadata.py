"""The tables that a slave copies from its master: topics, groups, consumer offsets, the progress of delayed and timed messages.

::

    every second, for each table:    known version ---> master
                                     unchanged, or the whole table <---

    consumer offsets    here newer?  ---> committed at the master, as its clients would do (#merge of OffsetTable says what is newer)
    delayed messages    progress that refers to log up to X is taken when the log here reaches X

Apache's master does not know the field for the version, and sends every table each time; it is asked less often.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sprocketmq.broker.delay_progress import DelayProgress
from sprocketmq.broker.groups import GroupTable
from sprocketmq.broker.offsets import HANDED_OVER, SEPARATOR, OffsetTable
from sprocketmq.broker.outgoing import Outgoing
from sprocketmq.broker.replication.metadata_answers import KNOWN_VERSION, UNCHANGED, WITH_TIMERS, version_text
from sprocketmq.broker.replication.roles import BrokerRole
from sprocketmq.broker.request_modes import RequestModeTable
from sprocketmq.broker.topics import Topic, TopicTable
from sprocketmq.errors import RemoteProtocolError, SprocketError
from sprocketmq.net.client import Connection
from sprocketmq.net.tasks import Background, Kept, settled
from sprocketmq.protocol.bodies import (
    ConsumerOffsets,
    DataVersion,
    DelayOffsets,
    MessageRequestModes,
    RuntimeInfo,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
# Interval for a master that sends whole tables each time.
FULL_INTERVAL_S = 3.0
TIMEOUT_S = 3.0
# Offsets handed over per request.
MAX_UNDER_WAY = 64


class MetadataSync:
    """Copies the tables of ``role``'s master into this broker's.

    ``reached`` tells whether the log here reaches a log offset, ``master_end`` returns the end of the master's log as far as it is known.
    ``topic_gone`` is called with topics that the master no longer has, ``progress_taken`` when the delays have new progress to be saved.
    """

    def __init__(
        self,
        role: BrokerRole,
        topics: TopicTable,
        groups: GroupTable,
        modes: RequestModeTable,
        offsets: OffsetTable,
        progress: DelayProgress,
        outgoing: Outgoing,
        *,
        broker_name: str,
        reached: Callable[[int], bool],
        master_end: Callable[[], int],
        topic_gone: Callable[[Topic], None],
        progress_taken: Callable[[], None],
        background: Background,
    ) -> None:
        self._role = role
        self._topics = topics
        self._groups = groups
        self._modes = modes
        self._offsets = offsets
        self._progress = progress
        self._broker_name = broker_name
        self._reached = reached
        self._master_end = master_end
        self._topic_gone = topic_gone
        self._progress_taken = progress_taken
        self._background = background
        self._outgoing = outgoing
        self._pool = outgoing.pool("broker")
        self._task: Kept | None = None
        self._wake = asyncio.Event()
        # Of the master that was asked last: its address, the connection, when it was started, whether it compares versions.
        self._master = ""
        self._conn: Connection | None = None
        self._boot = ""
        self._compares = True
        self._problem = ""
        # Progress that refers to log which is not here yet: the end of that log, and the content for both files.
        self._awaited: tuple[int, dict[str, Any], dict[str, Any]] | None = None
        self.synced = 0

    # --- life ---

    def start(self) -> None:
        """Copy now and periodically."""
        if self._task is None:
            self._pool = self._outgoing.pool("broker")
            self._wake.set()
            self._task = self._background.keep("metadata of the master", self._run)

    async def stop(self) -> None:
        """Stop copying; may be called twice."""
        if self._task is not None and self._task.stop():
            await settled(self._task.task)
        self._task = self._conn = self._awaited = None
        await self._pool.close()

    def soon(self) -> None:
        """Copy now: the master is connected again, or another one."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(INTERVAL_S if self._compares else FULL_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self.attempt()

    async def attempt(self) -> None:
        """Copy everything once, if there is a master. A failure is logged, once until it works again."""
        try:
            if self._role.master_address:
                await self.sync(self._role.master_address)
        except SprocketError as e:
            self._conn = None
            if not self._problem:
                log.warning("slave %s: metadata is not copied from master %s: %s", self._broker_name, self._role.master_address, e)
            self._problem = str(e)

    # --- one round ---

    async def sync(self, master: str) -> None:
        """Copy everything from ``master``. Raises SprocketError when it cannot be asked, or refuses."""
        conn = await self._pool.get(master, timeout_s=TIMEOUT_S)
        rewound = await self._is_rewound(conn, master) if conn is not self._conn else False
        await self._copy_topics(conn)
        if (body := await self._changed(conn, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._groups.data_version)) is not None:
            groups = SubscriptionGroupTable.decode(body)
            if groups.data_version != self._groups.data_version:
                self._groups.replace(groups)
        answer = await self._ask(conn, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {}, or_code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if answer.code == ResponseCode.SUCCESS:  # Apache's broker has modes since 5.0
            self._modes.replace(MessageRequestModes.decode(answer.body))
        # What clients committed here has to be compared also when the master's table is the same; and a former master may have the same
        # version with offsets that it alone took.
        known = self._offsets.data_version if conn is self._conn and not self._offsets.own else DataVersion(-1)
        if (body := await self._changed(conn, RequestCode.GET_ALL_CONSUMER_OFFSET, known)) is not None:
            await self._hand_over(conn, self._offsets.merge(ConsumerOffsets.decode(body), rewound=rewound))
        await self._copy_progress(conn)
        self._conn = conn
        if self._problem or not self.synced or master != self._master:
            log.info(
                "slave %s: metadata copied from master %s: topics=%d groups=%d offsets=%d",
                self._broker_name,
                master,
                len(self._topics),
                len(self._groups.table().subscription_group_table),
                sum(1 for _ in self._offsets),
            )
        self._master = master
        self._problem = ""
        self.synced += 1

    async def copy_topics(self, master: str) -> None:
        """Copy the topics, before any of the log is: its records do not say what queues their topics have. Raises SprocketError."""
        await self._copy_topics(await self._pool.get(master, timeout_s=TIMEOUT_S))

    async def _copy_topics(self, conn: Connection) -> None:
        if (body := await self._changed(conn, RequestCode.GET_ALL_TOPIC_CONFIG, self._topics.data_version)) is not None:
            topics = TopicConfigTable.decode(body)
            if topics.data_version != self._topics.data_version:
                for topic in self._topics.replace(topics):
                    self._topic_gone(topic)

    async def _is_rewound(self, conn: Connection, master: str) -> bool:
        """Return whether the master was restarted since it was last asked: it may know less than it reported before."""
        answer = await self._ask(conn, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        boot = RuntimeInfo.decode(answer.body).table.get("bootTimestamp", "")
        rewound = bool(self._boot) and boot != self._boot and master == self._master
        self._boot = boot
        return rewound

    async def _ask(self, conn: Connection, code: int, ext: Mapping[str, str], *, or_code: int = ResponseCode.SUCCESS) -> Command:
        answer = await conn.request(code, ext=ext, timeout_s=TIMEOUT_S)
        if answer.code not in (ResponseCode.SUCCESS, or_code):
            raise RemoteProtocolError(f"{conn.address} answers request {code} with {answer.code}: {answer.remark}")
        return answer

    async def _changed(self, conn: Connection, code: int, version: DataVersion, **ext: str) -> bytes | None:
        """Return the body of a table, None when the master has it in the same version."""
        answer = await self._ask(conn, code, {KNOWN_VERSION: version_text(version), **ext})
        if UNCHANGED in answer.ext:
            self._compares = True
            return None
        if code == RequestCode.GET_ALL_TOPIC_CONFIG:
            self._compares = TopicConfigTable.decode(answer.body).data_version != version
        return bytes(answer.body)

    # --- consumer offsets ---

    async def _hand_over(self, conn: Connection, newer: list[tuple[str, int, int]]) -> None:
        """Commit offsets at the master. It refuses offsets of groups and topics that it does not have; they are dropped."""
        for begin in range(0, len(newer), MAX_UNDER_WAY):
            part = newer[begin : begin + MAX_UNDER_WAY]
            answers = await asyncio.gather(*(self._commit(conn, *one) for one in part))
            for (key, queue_id, offset), answer in zip(part, answers, strict=True):
                self._offsets.handed_over(key, queue_id, offset)
                if answer.code != ResponseCode.SUCCESS:
                    log.warning(
                        "slave %s: the master refuses offset %d of %s, queue %d: %s",
                        self._broker_name,
                        offset,
                        key,
                        queue_id,
                        answer.remark,
                    )
        if newer:
            log.info("slave %s: %d consumer offsets handed over to master %s", self._broker_name, len(newer), conn.address)

    def _commit(self, conn: Connection, key: str, queue_id: int, offset: int) -> "asyncio.Future[Command]":
        topic, _, group = key.partition(SEPARATOR)
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset), HANDED_OVER: "true"}
        return conn.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext, timeout_s=TIMEOUT_S)

    # --- delayed and timed messages ---

    async def _copy_progress(self, conn: Connection) -> None:
        self.take_progress()
        if self._awaited is not None:
            return  # newer progress would refer to even later log
        body = await self._changed(conn, RequestCode.GET_ALL_DELAY_OFFSET, self._progress.saved_version, **{WITH_TIMERS: "true"})
        if body is None:
            return
        delays = DelayOffsets.decode(body)
        tree = {"dataVersion": msgspec.to_builtins(delays.data_version), "offsetTable": delays.offset_table}
        if delays.log_offset is not None:
            tree["logOffset"] = delays.log_offset
        end = delays.log_offset if delays.log_offset is not None else self._master_end()
        self._awaited = (end, tree, delays.timers or {})
        self.take_progress()

    def take_progress(self) -> None:
        """Apply waiting progress once the log that it refers to is here."""
        if self._awaited is not None and self._reached(self._awaited[0]):
            self._progress.adopt(self._awaited[1], self._awaited[2])
            self._awaited = None
            self._progress_taken()
