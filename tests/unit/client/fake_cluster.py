"""A scripted nameserver and broker on loopback, for faults the real ones do not make on demand."""

import asyncio
import socket
from collections import defaultdict
from collections.abc import Callable
from contextlib import asynccontextmanager

from tests.ports import hold

from sprocketmq.net.server import RemotingServer, ServerConnection
from sprocketmq.protocol.batch import split_batch
from sprocketmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerIdList,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    QueueData,
    QueueRef,
    TopicRoute,
)
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import PullRequest, SendBack, SendMessageV2
from sprocketmq.protocol.ids import offset_msg_id
from sprocketmq.protocol.records import encode_record, pack_host

HOST = pack_host("127.0.0.1", 10911)

Script = Callable[[ServerConnection, Command], bool | None]


class FakeServer:
    """Answers by ``on_<CODE NAME>`` methods, unless a script for the code takes the request (returns True)."""

    kind = "server"

    def __init__(self) -> None:
        self.server = RemotingServer(self, name=self.kind)
        self.port = 0
        self._held: socket.socket | None = None
        self.seen: list[Command] = []
        self.scripts: dict[int, list[Script]] = defaultdict(list)
        self.changed = asyncio.Event()

    async def start(self, port: int = 0) -> None:
        self.port = await self.server.start("127.0.0.1", port)

    async def stop(self) -> None:
        """Listen no more; the port stays this server's until ``close``, so that no server of another test answers there."""
        await self.server.stop()
        if self._held is None and self.port:
            self._held = hold(self.port)

    async def restart(self) -> None:
        self.server = RemotingServer(self, name=self.kind)
        await self.start(self.port)

    async def close(self) -> None:
        await self.server.stop()
        if self._held is not None:
            self._held.close()
            self._held = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def script(self, code: int, *steps: Script) -> None:
        """Have the next requests of ``code`` taken by ``steps``, one each."""
        self.scripts[code].extend(steps)

    def count(self, code: int) -> int:
        return sum(command.code == code for command in self.seen)

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until ``condition`` holds; it is looked at after each request."""
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def on_connect(self, conn: ServerConnection) -> None:
        pass

    def on_disconnect(self, conn: ServerConnection) -> None:
        pass

    def on_batch_end(self, conn: ServerConnection) -> None:
        self.changed.set()

    def on_request(self, conn: ServerConnection, command: Command) -> None:
        command.body = bytes(command.body)
        self.seen.append(command)
        steps = self.scripts[command.code]
        if steps and steps.pop(0)(conn, command):
            return
        try:
            handle = getattr(self, f"on_{Q(command.code).name}")
        except (ValueError, AttributeError):
            conn.respond(command, R.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported")
        else:
            handle(conn, command)


class FakeNamesrv(FakeServer):
    kind = "nameserver"

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[str, TopicRoute] = {}

    def put(self, topic: str, *brokers: "FakeBroker", queues: int = 4, perm: int = 6) -> None:
        self.routes[topic] = TopicRoute(
            [BrokerData("c", b.name, {0: b.address}) for b in brokers], [QueueData(b.name, queues, queues, perm) for b in brokers]
        )

    def on_GET_ROUTEINFO_BY_TOPIC(self, conn: ServerConnection, command: Command) -> None:
        route = self.routes.get(command.ext["topic"])
        if route is None:
            conn.respond(command, R.TOPIC_NOT_EXIST, remark=f"No topic route info in name server for the topic: {command.ext['topic']}")
        else:
            conn.respond(command, R.SUCCESS, body=route.encode())

    def on_GET_BROKER_CLUSTER_INFO(self, conn: ServerConnection, command: Command) -> None:
        """Answer as if one broker were registered, whatever topics it has."""
        info = ClusterInfo({"broker-a": BrokerData("c", "broker-a", {0: "127.0.0.1:10911"})}, {"c": ["broker-a"]})
        conn.respond(command, R.SUCCESS, body=info.encode())


class FakeBroker(FakeServer):
    kind = "broker"

    def __init__(self, name: str = "broker-a") -> None:
        super().__init__()
        self.name = name
        self.queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.begins: dict[tuple[str, int], int] = {}  # of queues whose first messages have left the log
        self.groups: dict[str, dict[str, ServerConnection]] = defaultdict(dict)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.beats: list[HeartbeatData] = []
        self.held: list[tuple[ServerConnection, Command]] = []
        self.locks: dict[tuple[str, QueueRef], str] = {}
        # What consumers gave back, and called with each group that appears.
        self.returned: list[SendBack] = []
        self.on_group: Callable[[str], None] = lambda group: None

    # --- sends ---

    def on_SEND_MESSAGE_V2(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(SendMessageV2)
        entries = split_batch(command.body) if header.batch else [(header.flag, command.body, header.properties.encode())]
        queue = self.queues[header.topic, header.queue_id]
        first = len(queue)
        physicals = []
        for flag, body, properties in entries:
            physicals.append(len(queue) * 1000)
            queue.append(
                encode_record(
                    topic=header.topic.encode(),
                    body=body,
                    properties=properties,
                    queue_id=header.queue_id,
                    queue_offset=len(queue),
                    physical_offset=physicals[-1],
                    born_timestamp_ms=header.born_timestamp_ms,
                    born_host=HOST,
                    store_timestamp_ms=header.born_timestamp_ms,
                    store_host=HOST,
                    flag=flag,
                    sys_flag=header.sys_flag,
                    reconsume_times=header.reconsume_times or 0,
                )
            )
        ids = ",".join(offset_msg_id(HOST, physical) for physical in physicals)
        conn.respond(command, R.SUCCESS, ext={"msgId": ids, "queueId": str(header.queue_id), "queueOffset": str(first)})
        held, self.held = self.held, []
        for waiting, pull in held:
            self.on_PULL_MESSAGE(waiting, pull)

    def on_SEND_BATCH_MESSAGE(self, conn: ServerConnection, command: Command) -> None:
        self.on_SEND_MESSAGE_V2(conn, command)

    # --- consuming ---

    def on_PULL_MESSAGE(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(PullRequest)
        queue = self.queues[header.topic, header.queue_id]
        start = header.queue_offset
        if header.sys_flag & 1:
            self.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        if start == len(queue) and header.sys_flag & 2:
            self.held.append((conn, command))
            return
        found = queue[start : start + header.max_msg_nums]
        begin = self.begins.get((header.topic, header.queue_id), 0)
        code = R.SUCCESS if found else R.PULL_NOT_FOUND if start == len(queue) else R.PULL_OFFSET_MOVED
        following = start + len(found) if start <= len(queue) else len(queue)
        if start < begin:
            found, code, following = [], R.PULL_OFFSET_MOVED, begin
        ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(following), "minOffset": str(begin), "maxOffset": str(len(queue))}
        conn.respond(command, code, ext=ext, body=b"".join(found))

    def on_HEART_BEAT(self, conn: ServerConnection, command: Command) -> None:
        beat = HeartbeatData.decode(command.body)
        self.beats.append(beat)
        conn.respond(command, R.SUCCESS, ext={})
        for consumer in beat.consumer_data_set:
            members = self.groups[consumer.group_name]
            if beat.client_id not in members:
                members[beat.client_id] = conn
                if consumer.message_model == "CLUSTERING":
                    self.on_group(consumer.group_name)
                self.notify(consumer.group_name)

    def on_UNREGISTER_CLIENT(self, conn: ServerConnection, command: Command) -> None:
        conn.respond(command, R.SUCCESS)
        group = command.ext.get("consumerGroup")
        if group and self.groups[group].pop(command.ext["clientID"], None):
            self.notify(group)

    def notify(self, group: str) -> None:
        for conn in self.groups[group].values():
            conn.oneway(Q.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": group})

    def on_GET_CONSUMER_LIST_BY_GROUP(self, conn: ServerConnection, command: Command) -> None:
        conn.respond(command, R.SUCCESS, body=ConsumerIdList(list(self.groups[command.ext["consumerGroup"]])).encode())

    def on_LOCK_BATCH_MQ(self, conn: ServerConnection, command: Command) -> None:
        request = LockBatchRequest.decode(command.body)
        granted = [q for q in request.mq_set if self.locks.setdefault((request.consumer_group, q), request.client_id) == request.client_id]
        conn.respond(command, R.SUCCESS, body=LockBatchResponse(granted).encode())

    def on_UNLOCK_BATCH_MQ(self, conn: ServerConnection, command: Command) -> None:
        request = LockBatchRequest.decode(command.body)
        for queue in request.mq_set:
            if self.locks.get((request.consumer_group, queue)) == request.client_id:
                del self.locks[request.consumer_group, queue]
        conn.respond(command, R.SUCCESS)

    def on_CONSUMER_SEND_MSG_BACK(self, conn: ServerConnection, command: Command) -> None:
        self.returned.append(command.header(SendBack))
        conn.respond(command, R.SUCCESS)

    # --- offsets ---

    def on_QUERY_CONSUMER_OFFSET(self, conn: ServerConnection, command: Command) -> None:
        offset = self.offsets.get((command.ext["consumerGroup"], command.ext["topic"], int(command.ext["queueId"])))
        if offset is None:
            conn.respond(command, R.QUERY_NOT_FOUND, remark="Not found")
        else:
            conn.respond(command, R.SUCCESS, ext={"offset": str(offset)})

    def on_UPDATE_CONSUMER_OFFSET(self, conn: ServerConnection, command: Command) -> None:
        ext = command.ext
        self.offsets[ext["consumerGroup"], ext["topic"], int(ext["queueId"])] = int(ext["commitOffset"])
        conn.respond(command, R.SUCCESS)

    def on_GET_MAX_OFFSET(self, conn: ServerConnection, command: Command) -> None:
        conn.respond(command, R.SUCCESS, ext={"offset": str(len(self.queues[command.ext["topic"], int(command.ext["queueId"])]))})

    def on_GET_MIN_OFFSET(self, conn: ServerConnection, command: Command) -> None:
        conn.respond(command, R.SUCCESS, ext={"offset": "0"})

    def on_SEARCH_OFFSET_BY_TIMESTAMP(self, conn: ServerConnection, command: Command) -> None:
        behind = int(command.ext["timestamp"]) == 2**63 - 1
        end = len(self.queues[command.ext["topic"], int(command.ext["queueId"])])
        conn.respond(command, R.SUCCESS, ext={"offset": str(end if behind else 1)})


class FakeCluster:
    def __init__(self, brokers: int = 1) -> None:
        self.namesrv = FakeNamesrv()
        self.brokers = [FakeBroker(f"broker-{chr(97 + i)}") for i in range(brokers)]
        for broker in self.brokers:
            broker.on_group = lambda group: self.put(f"%RETRY%{group}", queues=1)

    @property
    def broker(self) -> FakeBroker:
        return self.brokers[0]

    async def start(self) -> None:
        for server in (self.namesrv, *self.brokers):
            await server.start()

    async def stop(self) -> None:
        for server in (*self.brokers, self.namesrv):
            await server.close()

    def put(self, topic: str, queues: int = 4) -> None:
        self.namesrv.put(topic, *self.brokers, queues=queues)


@asynccontextmanager
async def fake_cluster(brokers: int = 1, *topics: str):
    cluster = FakeCluster(brokers)
    await cluster.start()
    for topic in topics:
        cluster.put(topic)
    try:
        yield cluster
    finally:
        await cluster.stop()


def answer(code: int, remark: str = "", body: bytes = b"") -> Script:
    """Answer one request with a code."""

    def step(conn: ServerConnection, command: Command) -> bool:
        conn.respond(command, code, remark=remark, body=body)
        return True

    return step


def silence(conn: ServerConnection, command: Command) -> bool:
    """Answer nothing."""
    return True


def hang_up(conn: ServerConnection, command: Command) -> bool:
    """Close the connection instead of answering."""
    conn.abort("scripted")
    return True


def half_frame(conn: ServerConnection, command: Command) -> bool:
    """Write the first bytes of an answer, then close."""
    conn.write(b'\x00\x00\x01\x00\x00\x00\x00\x40{"code":0')
    conn.flush()
    conn.close("scripted")
    return True
