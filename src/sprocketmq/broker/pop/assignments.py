"""Server-side assignment of queues to the members of a group (400), and their request mode, pull or pop (401)."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.broker.groups import GroupRefused, GroupTable
from sprocketmq.broker.request_modes import POP, PULL, RequestModeTable
from sprocketmq.broker.saving import SavedFile
from sprocketmq.broker.topics import FAQ, OVERLOAD, TopicTable
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.bodies import Assignments, MessageQueueAssignment, QueryAssignment, RequestMode, TopicRoute
from sprocketmq.protocol.codes import PERM_READ, RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import RETRY_PREFIX
from sprocketmq.protocol.sharing import average, circle

if TYPE_CHECKING:
    import asyncio

BROADCASTING = "BROADCASTING"
# The queue id that stands for all queues of a broker.
ALL_QUEUES = -1
# Requests that may wait for a nameserver at a time; members ask again every 20 s.
MAX_ASKING = 1_000

_STRATEGIES = {"AVG": average, "AVG_BY_CIRCLE": circle}


def shared(queues: list[MessageQueue], members: list[str], me: str, strategy: str, mode: RequestMode) -> list[MessageQueue] | None:
    """Return the queues of one client, none when it is not among the members.

    None, and the client keeps what it has, when the group has no members or the strategy is not known. Members that
    pop read whole brokers, unless ``pop_share_queue_num`` says with how many others they share their queues.
    """
    share = _STRATEGIES.get(strategy)
    if share is None or not members:
        return None
    others = mode.pop_share_queue_num
    if mode.mode == POP and (others <= 0 or others >= len(members) - 1):
        names = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [MessageQueue(topic, name, ALL_QUEUES) for topic, name in names]
    if me not in members or not queues:
        return []
    if mode.mode != POP:
        return list(share(queues, members, me))
    first = members.index(me)
    if len(members) > len(queues):
        return [queues[first % len(queues)]]
    sharing = [members[(first + n) % len(members)] for n in range(others + 1)]
    return list(dict.fromkeys(queue for member in sharing for queue in share(queues, members, member)))


class AssignmentHandlers:
    """Answers the requests. ``route`` returns the route of a topic at the nameservers, None when they have none or do not answer."""

    def __init__(
        self,
        broker_name: str,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientRegistry,
        modes: RequestModeTable,
        file: SavedFile,
        *,
        route: Callable[[str], Awaitable[TopicRoute | None]],
        background: Background,
    ) -> None:
        self._broker_name = broker_name
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._modes = modes
        self._file = file
        self._route = route
        self._background = background
        self._asking = 0

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.assign,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.all_modes,
        }

    def assign(self, conn: ServerConnection, command: Command) -> None:
        """Answer 400; a nameserver is asked which queues other brokers have."""
        asked = QueryAssignment.decode(command.body)
        command.body = b""
        if self._asking >= MAX_ASKING:
            conn.respond(command, ResponseCode.SYSTEM_BUSY, remark=OVERLOAD)
            return
        self._asking += 1
        self._background.spawn(self._assign(conn, command, asked), "an assignment").add_done_callback(self._asked)

    def _asked(self, _: "asyncio.Task[None]") -> None:
        self._asking -= 1

    async def _assign(self, conn: ServerConnection, command: Command, asked: QueryAssignment) -> None:
        mode = self._modes.get(asked.topic, asked.consumer_group)
        queues = await self._queues(asked.topic)
        mine: list[MessageQueue] | None
        if queues is None or asked.message_model == BROADCASTING:
            mine = queues
        else:
            group = self._clients.consumers.get(asked.consumer_group)
            members = sorted({member.client_id for member in group.members.values()}) if group is not None else []
            mine = shared(queues, members, asked.client_id, asked.strategy_name, mode)
        assignments = None if mine is None else [MessageQueueAssignment.of(queue, mode.mode) for queue in mine]
        conn.respond(command, ResponseCode.SUCCESS, body=Assignments(assignments).encode())

    async def _queues(self, topic: str) -> list[MessageQueue] | None:
        """Return the queues of a topic that can be read, sorted; None when it is not known."""
        route = await self._route(topic)
        if route is not None:
            found = [
                MessageQueue(topic, data.broker_name, queue_id)
                for data in route.queue_datas
                if data.perm & PERM_READ
                for queue_id in range(data.read_queue_nums)
            ]
            return sorted(found)
        known = self._topics.get(topic)
        if known is None:
            return None
        return [MessageQueue(topic, self._broker_name, queue_id) for queue_id in range(known.read_queues)]

    def set_mode(self, conn: ServerConnection, command: Command) -> None:
        """Answer 401 when the mode is saved."""
        mode = RequestMode.decode(command.body)
        command.body = b""
        refusal = self._refusal(mode)
        if refusal is not None:
            conn.respond(command, refusal[0], remark=refusal[1])
            return
        self._modes.put(mode)
        self._background.spawn(self._answer_saved(conn, command), "a request mode")

    async def _answer_saved(self, conn: ServerConnection, command: Command) -> None:
        try:
            await self._file.saved()
        except OSError as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"the mode is not saved: {e.strerror or e}")
            return
        conn.respond(command, ResponseCode.SUCCESS)

    def _refusal(self, mode: RequestMode) -> tuple[int, str] | None:
        if mode.mode not in (PULL, POP):
            return ResponseCode.INVALID_PARAMETER, f"the mode {mode.mode!r} is neither PULL nor POP"
        if mode.topic.startswith(RETRY_PREFIX):
            return ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"
        if self._topics.get(mode.topic) is None:
            return ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist, apply first please! {FAQ}"
        try:
            group = self._groups.find(mode.consumer_group)
        except GroupRefused as e:
            return e.code, e.remark
        if group is None:
            return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{mode.consumer_group}] does not exist, {FAQ}"
        if self._modes.full:
            return ResponseCode.SYSTEM_ERROR, "too many modes are set: delete topics or groups that are not used"
        return None

    def all_modes(self, conn: ServerConnection, command: Command) -> None:
        """Answer 402."""
        conn.respond(command, ResponseCode.SUCCESS, body=self._modes.wire().encode())
