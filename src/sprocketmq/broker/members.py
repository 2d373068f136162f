"""Requests of tools that the broker forwards to members of a group: report state, consume a message (codes 223, 307, 309)."""

import asyncio
from collections.abc import Callable

from sprocketmq.broker.clients import ClientRegistry
from sprocketmq.broker.query import QueryHandlers
from sprocketmq.errors import ProtocolError, RemoteProtocolError, RetriableError
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.bodies import ConsumerStatus
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.credentials import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from sprocketmq.protocol.headers import ConsumeDirectly, ConsumerStatusRequest, RunningInfoRequest
from sprocketmq.protocol.ids import parse_offset_msg_id
from sprocketmq.security.requirements import SUB

# How long a member may take to answer.
MEMBER_TIMEOUT_S = 5.0
LOGIN_FIELDS = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})


class MemberHandlers:
    """Forwards requests to online members of a group, and returns their answers."""

    def __init__(self, clients: ClientRegistry, queries: QueryHandlers, background: Background) -> None:
        self._clients = clients
        self._queries = queries
        self._background = background

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def _member(self, group: str, client_id: str) -> ServerConnection | None:
        online = self._clients.consumers.get(group)
        members = online.members.items() if online is not None else ()
        return next((conn for conn, member in members if member.client_id == client_id), None)

    def consumer_status(self, conn: ServerConnection, command: Command) -> None:
        """Answer 223: the position of each member of a group, by asking all of them, or one."""
        request = command.header(ConsumerStatusRequest)
        online = self._clients.consumers.get(request.group)
        if online is None:
            remark = f"the consumer group[{request.group}] not online"
            conn.respond(command, ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
            return
        wanted = request.client_addr
        members = {c: member.client_id for c, member in online.members.items() if not wanted or member.client_id == wanted}
        command.body = b""
        self._background.spawn(self._collect_status(conn, command, request, members), "the states of a group's members")

    async def _collect_status(
        self, conn: ServerConnection, command: Command, request: ConsumerStatusRequest, members: dict[ServerConnection, str]
    ) -> None:
        ext = {"topic": request.topic, "group": request.group}
        asked = [m.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext=ext, timeout_s=MEMBER_TIMEOUT_S) for m in members]
        body = ConsumerStatus()
        for client_id, answer in zip(members.values(), await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS and answer.body:
                try:
                    body.consumer_table[client_id] = ConsumerStatus.decode(answer.body).message_queue_table
                except ProtocolError:
                    continue  # the others' answers count all the same
        conn.respond(command, ResponseCode.SUCCESS, body=body.encode())

    def running_info(self, conn: ServerConnection, command: Command) -> None:
        """Answer 307: the state that a member reports."""
        request = command.header(RunningInfoRequest)
        self._pass_on(conn, command, request.consumer_group, request.client_id)

    def consume_directly(self, conn: ServerConnection, command: Command) -> None:
        """Answer 309: ask a member to consume a stored message now, and return the outcome."""
        request = command.header(ConsumeDirectly)
        try:
            _, _, log_offset = parse_offset_msg_id(request.msg_id or "")
        except RemoteProtocolError as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(e))
            return
        messages = self._queries.messages_at(log_offset, lambda topic: self._queries.may_see(conn, command, topic, SUB))
        if not messages:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {log_offset}")
            return
        self._pass_on(conn, command, request.consumer_group, request.client_id or "", bytes(messages[0]))

    def _pass_on(self, conn: ServerConnection, command: Command, group: str, client_id: str, body: bytes = b"") -> None:
        member = self._member(group, client_id)
        if member is None:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"The Consumer <{group}> <{client_id}> not online")
            return
        command.body = b""
        # A member could use the login of the request for itself.
        ext = {name: value for name, value in command.ext.items() if name not in LOGIN_FIELDS}

        async def ask() -> None:
            try:
                answer = await member.request(command.code, ext=ext, body=body, timeout_s=MEMBER_TIMEOUT_S)
            except RetriableError as e:
                conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"consumer <{group}> <{client_id}> does not answer: {e}")
            else:
                conn.respond(command, answer.code, ext=answer.ext or None, remark=answer.remark, body=bytes(answer.body))

        self._background.spawn(ask(), "a member's answer")
