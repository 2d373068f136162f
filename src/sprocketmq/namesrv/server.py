"""The nameserver: answers brokers that register and clients that ask for routes (docs/internals/requests.md#nameserver)."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.events import event
from sprocketmq.namesrv.kvconfig import KvKeeper, KvRefused, TableFile
from sprocketmq.namesrv.routes import RegistrationRefused, RouteTables
from sprocketmq.net.address import bind_host, format_address
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server import RemotingServer, ServerConnection
from sprocketmq.net.server_tls import ServerTls
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.bodies import BrokerData, DataVersion, KvTable, RegisterBrokerBody, RuntimeInfo, TopicList, TopicRoute
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.headers import (
    BrokerHeartbeat,
    BrokerIdentity,
    BrokerMemberGroup,
    BrokerNameRequest,
    ClusterRequest,
    DeleteTopicInNamesrv,
    KvConfig,
    KvNamespace,
    RegisterBroker,
    RouteRequest,
    TopicRequest,
)
from sprocketmq.protocol.settings import MASKED, ChangeRefused, Kind, Whole, encode_settings, read_changes, to_text
from sprocketmq.security.config import SecurityConfig
from sprocketmq.security.guard import SecurityGuard
from sprocketmq.security.requests import SecurityRequests

log = logging.getLogger(__name__)

SCAN_INTERVAL_S = 5.0
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
SETTINGS_PAGE = "docs/guide/broker-settings.md"
# The settings that requests may change while it runs: attributes of the RemotingServer.
CHANGEABLE: Mapping[str, Kind] = {"max_connections": Whole(1, 1 << 20)}
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
# Clients from release 4.9.4 on read standard JSON only; older ones expect bare integer keys.
STANDARD_JSON_VERSION = 401


@dataclass(frozen=True)
class NameServerConfig:
    """Where a nameserver listens (port 0: any free one), how many connections it takes, and whether they are encrypted.

    ``security`` is its access control; None: everybody may use it. ``cluster_name`` is for policies only: requests about the cluster as a
    whole need access to the one of that name.
    """

    host: str = "127.0.0.1"
    port: int = 9876
    max_connections: int = 10_000
    tls: ServerTls | None = None
    security: SecurityConfig | None = None
    cluster_name: str = "DefaultCluster"


class NameServer:
    """One nameserver.

    Brokers and topics are in memory, as brokers register again every 30 seconds; the key-value configuration is saved in ``kv_file``,
    if one is given.
    """

    def __init__(self, config: NameServerConfig | None = None, *, kv_file: TableFile | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config or NameServerConfig()
        self.routes = RouteTables()
        self._clock = clock
        self._broker_log = PeerLog(log, clock.monotonic, level=logging.INFO)
        self._background = Background("nameserver")
        self._kv = KvKeeper(kv_file, self._background)
        self.guard = self._make_guard()
        self._server = RemotingServer(
            self, name="nameserver", max_connections=self.config.max_connections, tls=self.config.tls, guard=self.guard
        )
        self._port = self.config.port
        code = RequestCode
        self._handlers: Mapping[int, Callable[[ServerConnection, Command], None]] = {
            code.REGISTER_BROKER: self._register,
            code.UNREGISTER_BROKER: self._unregister,
            code.QUERY_DATA_VERSION: self._query_data_version,
            code.BROKER_HEARTBEAT: self._broker_heartbeat,
            code.GET_ROUTEINFO_BY_TOPIC: self._route,
            code.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            code.GET_BROKER_MEMBER_GROUP: self._member_group,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
            code.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            code.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            code.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            code.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            code.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            code.PUT_KV_CONFIG: self._kv_put,
            code.GET_KV_CONFIG: self._kv_get,
            code.DELETE_KV_CONFIG: self._kv_delete,
            code.GET_KVLIST_BY_NAMESPACE: self._kv_list,
            code.GET_NAMESRV_CONFIG: self._get_config,
            code.UPDATE_NAMESRV_CONFIG: self._change_config,
            code.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            **(SecurityRequests(self.guard, self._background).handlers() if self.guard is not None else {}),
        }

    @property
    def address(self) -> str:
        """``host:port`` as it listens; the configured port before ``start``."""
        return format_address(bind_host(self.config.host), self._port)

    def _make_guard(self) -> SecurityGuard | None:
        security = self.config.security
        if security is None or not security.authentication_enabled:
            return None
        return SecurityGuard(security, name="nameserver", cluster=self.config.cluster_name)

    async def start(self) -> None:
        """Listen. Raises PortInUse when the address cannot be had, ConfigError when a file that it needs cannot be used."""
        if self.guard is not None:
            await asyncio.to_thread(self.guard.open)
        await self._kv.load()
        self._port = await self._server.start(self.config.host, self.config.port)
        self._background.closed = False  # for a restart after a stop
        self._background.every(SCAN_INTERVAL_S, self.expire_brokers, "scan for silent brokers")
        if self.guard is not None:
            self.guard.start(self._background)

    async def stop(self) -> None:
        """Close all connections and stop listening; may be called twice."""
        await self._background.drain()
        await self._background.close()
        await self._server.stop()

    def expire_brokers(self) -> None:
        """Drop brokers that were silent for too long, with their connections."""
        self._broker_log.sweep()
        for live in self.routes.expire(self._clock.monotonic()):
            event(log, logging.WARNING, "broker_expired", broker=live.broker_name, address=live.address, silent_s=live.timeout_s)
            if isinstance(live.owner, ServerConnection):
                live.owner.close("silent broker")

    # --- called by the server ---

    def on_connect(self, conn: ServerConnection) -> None:
        """Nothing is kept per connection until a broker registers over it."""

    def on_batch_end(self, conn: ServerConnection) -> None:
        """No request is finished later than in ``on_request``."""

    def on_disconnect(self, conn: ServerConnection) -> None:
        for live in self.routes.drop_owner(conn):
            self._server.peer_log.event(
                f"broker {live.broker_name}", "broker_gone", broker=live.broker_name, address=live.address, reason=conn.close_reason
            )

    def on_request(self, conn: ServerConnection, command: Command) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            conn.respond(command, code, remark=f" request type {command.code} not supported")
        else:
            handler(conn, command)

    # --- brokers ---

    def _register(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(RegisterBroker)
        if header.body_crc32 and crc32(command.body) != header.body_crc32:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
            return
        if not command.body:
            body = RegisterBrokerBody()
        elif header.compressed:
            body = RegisterBrokerBody.decode_compressed(command.body, command.version)
        else:
            body = RegisterBrokerBody.decode(command.body)
        is_new = self.routes.data_version(header.cluster_name, header.broker_addr) is None
        try:
            result = self.routes.register(header, body, owner=conn, now=self._clock.monotonic())
        except RegistrationRefused as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(e))
            return
        if is_new:
            self._broker_log.event(
                header.broker_addr,
                "broker_registered",
                broker=header.broker_name,
                broker_id=header.broker_id,
                address=header.broker_addr,
                cluster=header.cluster_name,
            )
        ext = {}
        if result.master_address is not None and result.ha_address is not None:
            ext = {"haServerAddr": result.ha_address, "masterAddr": result.master_address}
        order_topics = self._kv.namespace(ORDER_TOPIC_NAMESPACE)
        conn.respond(command, ResponseCode.SUCCESS, ext=ext, body=KvTable(dict(order_topics)).encode() if order_topics else b"")

    def _unregister(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(BrokerIdentity)
        self.routes.unregister(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        self._broker_log.event(
            header.broker_addr, "broker_unregistered", broker=header.broker_name, address=header.broker_addr, peer=conn.peer
        )
        conn.respond(command, ResponseCode.SUCCESS)

    def _query_data_version(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(BrokerIdentity)
        theirs = DataVersion.decode(command.body) if command.body else None
        self.routes.heard(header.cluster_name, header.broker_addr, self._clock.monotonic())
        ours = self.routes.data_version(header.cluster_name, header.broker_addr)
        changed = "false" if ours is not None and ours == theirs else "true"
        conn.respond(command, ResponseCode.SUCCESS, ext={"changed": changed}, body=ours.encode() if ours is not None else b"")

    def _broker_heartbeat(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(BrokerHeartbeat)
        self.routes.heard(header.cluster_name, header.broker_addr, self._clock.monotonic())
        conn.respond(command, ResponseCode.SUCCESS)

    # --- routes and lists ---

    def _route(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(RouteRequest)
        route = self.routes.route(header.topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {header.topic}{FAQ}"
            conn.respond(command, ResponseCode.TOPIC_NOT_EXIST, remark=remark)
            return
        standard = command.version >= STANDARD_JSON_VERSION or header.accept_standard_json_only
        conn.respond(command, ResponseCode.SUCCESS, body=_standard_json(route.encode()) if standard else _dialect_route(route))

    def _cluster_info(self, conn: ServerConnection, command: Command) -> None:
        info = self.routes.clusters()
        brokers = _object((name, _dialect_broker(broker)) for name, broker in info.broker_addr_table.items())
        body = b'{"brokerAddrTable":%b,"clusterAddrTable":%b}' % (brokers, msgspec.json.encode(info.cluster_addr_table))
        conn.respond(command, ResponseCode.SUCCESS, body=body)

    def _member_group(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(BrokerMemberGroup)
        broker = self.routes.broker(header.broker_name)
        if broker is None:
            broker = BrokerData(cluster=header.cluster_name or "", broker_name=header.broker_name)
        fields = (_addresses(broker), _text(broker.broker_name), _text(broker.cluster))
        conn.respond(command, ResponseCode.SUCCESS, body=b'{"brokerMemberGroup":{"brokerAddrs":%b,"brokerName":%b,"cluster":%b}}' % fields)

    def _topic_list(self, conn: ServerConnection, command: Command) -> None:
        conn.respond(command, ResponseCode.SUCCESS, body=TopicList(self.routes.topics()).encode())

    def _topics_by_cluster(self, conn: ServerConnection, command: Command) -> None:
        topics = self.routes.topics_of_cluster(command.header(ClusterRequest).cluster)
        conn.respond(command, ResponseCode.SUCCESS, body=TopicList(topics).encode())

    def _system_topics(self, conn: ServerConnection, command: Command) -> None:
        names, address = self.routes.system_names()
        conn.respond(command, ResponseCode.SUCCESS, body=TopicList(names, address).encode())

    def _delete_topic(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(DeleteTopicInNamesrv)
        self.routes.delete_topic(header.topic, header.cluster_name or None)
        event(log, logging.INFO, "route_deleted", topic=header.topic, by=conn.user, peer=conn.peer)
        conn.respond(command, ResponseCode.SUCCESS)

    def _register_topic(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(TopicRequest)
        if command.body:
            self.routes.register_topic(header.topic, TopicRoute.decode(command.body).queue_datas)
        conn.respond(command, ResponseCode.SUCCESS)

    def _wipe_write_perm(self, conn: ServerConnection, command: Command) -> None:
        broker = command.header(BrokerNameRequest).broker_name
        count = self.routes.wipe_write_perm(broker)
        event(log, logging.INFO, "write_permission_removed", broker=broker, topics=count, by=conn.user, peer=conn.peer)
        conn.respond(command, ResponseCode.SUCCESS, ext={"wipeTopicCount": str(count)})

    def _add_write_perm(self, conn: ServerConnection, command: Command) -> None:
        broker = command.header(BrokerNameRequest).broker_name
        count = self.routes.add_write_perm(broker)
        event(log, logging.INFO, "write_permission_added", broker=broker, topics=count, by=conn.user, peer=conn.peer)
        conn.respond(command, ResponseCode.SUCCESS, ext={"addTopicCount": str(count)})

    # --- key-value configuration ---

    def _kv_put(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(KvConfig)
        try:
            self._kv.put(header.namespace, header.key, header.value)
        except KvRefused as e:
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(e))
            return
        event(log, logging.INFO, "kv_changed", namespace=header.namespace, key=header.key, by=conn.user, peer=conn.peer)
        self._answer_when_kept(conn, command)

    def _answer_when_kept(self, conn: ServerConnection, command: Command) -> None:
        if self._kv.kept:
            conn.respond(command, ResponseCode.SUCCESS)
            return
        command.body = b""
        self._background.spawn(self._keep(conn, command), "answer when the key-value configuration is saved")

    async def _keep(self, conn: ServerConnection, command: Command) -> None:
        try:
            await self._kv.save()
        except OSError as e:
            log.error("the key-value configuration cannot be saved: %s", e)  # noqa: TRY400 - the reason says all
            remark = f"done, but lost when this nameserver stops: the key-value configuration cannot be saved: {e}"
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark)
        else:
            conn.respond(command, ResponseCode.SUCCESS)

    def _kv_get(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(KvConfig)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            conn.respond(command, ResponseCode.QUERY_NOT_FOUND, ext={}, remark=remark)
        else:
            conn.respond(command, ResponseCode.SUCCESS, ext={"value": value})

    def _kv_delete(self, conn: ServerConnection, command: Command) -> None:
        header = command.header(KvConfig)
        self._kv.delete(header.namespace, header.key)
        event(log, logging.INFO, "kv_deleted", namespace=header.namespace, key=header.key, by=conn.user, peer=conn.peer)
        self._answer_when_kept(conn, command)

    def _kv_list(self, conn: ServerConnection, command: Command) -> None:
        namespace = command.header(KvNamespace).namespace
        items = self._kv.namespace(namespace)
        if items is None:
            conn.respond(command, ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}")
        else:
            conn.respond(command, ResponseCode.SUCCESS, body=KvTable(dict(items)).encode())

    def _get_config(self, conn: ServerConnection, command: Command) -> None:
        """Answer 319: Apache's names where it has them, ours for the rest; secrets are masked."""
        config, security, tls = self.config, self.config.security, self.config.tls
        settings: dict[str, object] = {
            "bindAddress": config.host,
            "listenPort": self._port,
            "max_connections": self._server.max_connections,
            "kvConfigPath": self._kv.path,
            "tls_mode": tls.mode if tls is not None else "disabled",
            "tls_client_auth": tls.client_auth if tls is not None else "none",
            "authenticationEnabled": security is not None and security.authentication_enabled,
            "authorizationEnabled": security is not None and security.authorization_enabled,
            "users_file": (security.users_file if security is not None else None) or "",
        }
        if security is not None and security.inner_credentials is not None:
            settings["innerClientAuthenticationCredentials"] = MASKED
        conn.respond(command, ResponseCode.SUCCESS, body=encode_settings(settings))

    def _change_config(self, conn: ServerConnection, command: Command) -> None:
        """Answer 318: all changes of the request, or none. They last until this nameserver stops."""
        try:
            changes = read_changes(command.body, CHANGEABLE, server="nameserver", page=SETTINGS_PAGE)
        except ChangeRefused as e:
            conn.respond(command, e.code, remark=e.remark)
            return
        for key, value in changes.items():
            setattr(self._server, key, value)
            event(log, logging.INFO, "setting_changed", setting=key, now=to_text(value), by=conn.user, peer=conn.peer)
        conn.respond(command, ResponseCode.SUCCESS)

    def _runtime_info(self, conn: ServerConnection, command: Command) -> None:
        conn.respond(command, ResponseCode.SUCCESS, body=RuntimeInfo(self._server.counters()).encode())


# --- the reference's JSON: broker ids as bare integer keys -----------------------------------------------------------------

_text = msgspec.json.encode


def _addresses(broker: BrokerData) -> bytes:
    return b"{%b}" % b",".join([b"%d:%b" % (broker_id, _text(address)) for broker_id, address in sorted(broker.broker_addrs.items())])


def _dialect_broker(broker: BrokerData) -> bytes:
    acting = b"true" if broker.enable_acting_master else b"false"
    fields = (_addresses(broker), _text(broker.broker_name), _text(broker.cluster), acting)
    return b'{"brokerAddrs":%b,"brokerName":%b,"cluster":%b,"enableActingMaster":%b}' % fields


def _object(items: Iterable[tuple[str, bytes]]) -> bytes:
    return b"{%b}" % b",".join([b"%b:%b" % (_text(name), value) for name, value in items])


def _dialect_route(route: TopicRoute) -> bytes:
    brokers = b",".join([_dialect_broker(broker) for broker in route.broker_datas])
    queues = b",".join([queue.encode() for queue in route.queue_datas])
    return b'{"brokerDatas":[%b],"filterServerTable":{},"queueDatas":[%b]}' % (brokers, queues)


def _standard_json(body: bytes) -> bytes:
    # Strict clients get ASCII only, as the reference escapes everything else.
    return body if body.isascii() else json.dumps(json.loads(body), separators=(",", ":")).encode()
