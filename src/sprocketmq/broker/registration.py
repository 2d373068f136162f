"""Registration at nameservers: all topics at the start and every 30 seconds, changed topics at once, unregistration at the end.

Nameservers keep one address for a broker's name and id, the last one that registered. Two masters of one name would take the routes from
each other, and messages would go to two stores. A broker therefore looks before it registers: where another one of its name and id is
registered and answers, it does not start, and one that runs already gives way to the other. Masters that replicate compare their epochs
instead: the higher one registers, the other becomes its slave.

A slave learns its master from the answers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from sprocketmq.broker.outgoing import Outgoing
from sprocketmq.broker.replication.roles import MASTER_ID, BrokerRole
from sprocketmq.errors import BrokerNameTaken, NameserverUnavailable, SprocketError
from sprocketmq.events import event
from sprocketmq.net.tasks import Background, Kept, all_of, settled
from sprocketmq.protocol.bodies import ClusterInfo, RegisterBrokerBody, TopicConfig, TopicConfigTable, TopicRoute
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.headers import BrokerIdentity, RegisterBroker, RegisterBrokerResponse, RouteRequest

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0
# Timeout for asking a nameserver about a broker of the same name, and for that broker to answer.
LOOK_TIMEOUT_S = 1.0
GOODBYE_TIMEOUT_S = 1.0
FIRST_RETRY_S = 0.5
# A nameserver whose connection was lost may have forgotten this broker: interval of the check for lost connections.
CHECK_INTERVAL_S = 0.5


class Registrar:
    """Register one broker at its nameservers, under the id of its ``role``.

    ``table`` returns the topics to register: all of them for None, else the given ones. ``missed`` is called before a nameserver that
    missed a change is sent everything: it advances the data version, as a nameserver skips a table whose version it knows.
    ``ha_address`` returns where this broker listens for slaves, "" when it does not. ``outranks`` tells of another live master's address
    whether this master has the higher epoch; None when the epochs do not decide, or both are slaves. ``outranked`` is called when a
    running master finds one with a higher epoch, ``give_up_id`` when another live broker has this one's id: True when it has another one
    now. ``learned`` is called when a nameserver has told a slave who its master is.
    """

    def __init__(
        self,
        nameservers: Sequence[str],
        outgoing: Outgoing,
        *,
        cluster_name: str,
        broker_name: str,
        role: BrokerRole,
        interval_s: float,
        take_over: bool,
        table: Callable[[list[TopicConfig] | None], TopicConfigTable],
        missed: Callable[[], None],
        ha_address: Callable[[], str] = lambda: "",
        outranks: Callable[[str], Awaitable[bool | None]] | None = None,
        outranked: Callable[[str], None] = lambda _: None,
        give_up_id: Callable[[], Awaitable[bool]] | None = None,
        learned: Callable[[], None] = lambda: None,
        background: Background,
    ) -> None:
        self._nameservers = tuple(nameservers)
        self._outgoing = outgoing
        self._cluster_name = cluster_name
        self._broker_name = broker_name
        self._role = role
        self._interval_s = interval_s
        self._take_over = take_over
        self._table = table
        self._missed = missed
        self._ha_address = ha_address
        self._outranks = outranks
        self._outranked = outranked
        self._give_up_id = give_up_id
        self._learned = learned
        self._full_at = 0.0
        self._address = ""
        self.pool = outgoing.pool("nameserver")
        self._reached: dict[str, bool] = {}
        # The address of another broker of this name, by the nameserver that knows it: each is logged once.
        self._rivals: dict[str, str] = {}
        self._background = background
        self._registration: Kept | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._changed: dict[str, TopicConfig] = {}
        self._started = False

    @property
    def registered(self) -> tuple[str, ...]:
        """The nameservers that took the last registration."""
        return tuple(address for address, reached in self._reached.items() if reached)

    async def look(self, address: str) -> str:
        """Return the address of a live master that has a higher epoch than this one, "" without one.

        Raises BrokerNameTaken when another live broker of this name and id is registered anywhere with another address than ``address``,
        unless this one has the higher epoch.
        """
        self._address = address
        return await self._refuse_rivals(self._nameservers)

    async def register(self) -> None:
        """Register everything at all nameservers now: the role has changed."""
        if self._started:
            await self._tell(None, self._nameservers)

    def renew(self) -> None:
        """Register everything at all nameservers within half a second: they may know more about the master than this broker, or less."""
        self._full_at = 0.0

    async def free_id(self, *preferred: int) -> int:
        """Return an id from 1 on under which the nameservers know no other broker of this name: a preferred one, else the lowest."""
        taken: set[int] = set()
        for nameserver in self._nameservers:
            known = await self._known_brokers(nameserver)
            taken.update(broker_id for broker_id, address in known.items() if address != self._address)
        wanted: list[int] = [*preferred, *range(1, len(taken) + 2)]
        return next(broker_id for broker_id in wanted if broker_id > 0 and broker_id not in taken)

    async def members(self) -> dict[str, int]:
        """Return the addresses of all brokers of this name that nameservers know, with their ids. Raises NameserverUnavailable."""
        known = [brokers for nameserver in self._nameservers if (brokers := await self._ask_brokers(nameserver)) is not None]
        if self._nameservers and not known:
            raise NameserverUnavailable(self._nameservers)
        return {address: broker_id for brokers in known for broker_id, address in brokers.items()}

    async def master_address(self) -> str:
        """Return the address of the master that a nameserver knows, "" without one."""
        for nameserver in self._nameservers:
            known = await self._known_brokers(nameserver)
            if MASTER_ID in known:
                return known[MASTER_ID]
        return ""

    async def route_of(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic at the first nameserver that has one; None when none has it, or none answers."""
        for nameserver in self._nameservers:
            try:
                async with asyncio.timeout(LOOK_TIMEOUT_S):
                    conn = await self.pool.get(nameserver, timeout_s=LOOK_TIMEOUT_S)
                    ext = to_ext(RouteRequest(topic))
                    answer = await conn.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ext, timeout_s=LOOK_TIMEOUT_S)
                if answer.code == ResponseCode.SUCCESS:
                    return TopicRoute.decode(answer.body)
            except (SprocketError, TimeoutError):
                continue  # the registration reports the problem
        return None

    async def start(self, address: str, broker_id: int) -> None:
        """Register everywhere, once, and keep doing so. An unreachable nameserver is logged and tried again, soon at first.

        Raises BrokerNameTaken when another broker of this name and ``broker_id`` registered meanwhile. A master that has another id by now
        was fenced, and looks for a free one by itself.
        """
        self._address = address
        self._started = True
        if not self._nameservers:
            return
        await self._tell(None, self._nameservers)
        try:
            await self._refuse_rivals(
                [nameserver for nameserver in self._nameservers if self._reached[nameserver] or nameserver in self._rivals]
            )
        except BrokerNameTaken:
            if self._role.broker_id == broker_id:
                raise
        self._registration = self._background.keep("registration", self._keep_registered)

    async def stop(self) -> None:
        """Unregister from the nameservers that know the broker and close the connections."""
        self._started = False
        if self._registration is not None and self._registration.stop():
            await settled(self._registration.task)
        await self._background.end(self._announcing)
        ext = to_ext(BrokerIdentity(self._broker_name, self._address, self._cluster_name, self._role.broker_id))
        goodbyes = [
            conn.request(RequestCode.UNREGISTER_BROKER, ext=ext, timeout_s=GOODBYE_TIMEOUT_S)
            for address in self.registered
            if (conn := self.pool.peek(address)) is not None
        ]
        await asyncio.gather(*goodbyes, return_exceptions=True)
        await self.pool.close()

    def abort(self) -> None:
        """Drop the connections without unregistering, as a killed process does. The tasks are cancelled already, with ``background``."""
        self._started = False
        for conn in self.pool.open_connections():
            conn.abort("broker aborted")

    def announce(self, topics: list[TopicConfig]) -> "asyncio.Task[None] | None":
        """Send changed topics to every nameserver; changes made meanwhile travel together.

        Returns the task that ends when all reachable nameservers have answered, or None when there is no nameserver to inform yet.
        """
        if not self._started or not self._nameservers:
            return None  # the first registration includes everything
        self._changed.update((topic.topic_name, topic) for topic in topics)
        if self._announcing is None or self._announcing.done():
            self._announcing = self._background.spawn(self._announce(), "news of changed topics")
        return self._announcing

    async def _announce(self) -> None:
        while self._changed:
            topics, self._changed = list(self._changed.values()), {}
            # An unreachable nameserver gets the whole table later: it would take a part for the whole.
            told = [address for address in self._nameservers if self._is_connected(address)]
            try:
                await self._tell(topics, told)
            except BaseException:
                self._reached.update(dict.fromkeys(told, False))  # these nameservers get everything within half a second
                raise

    def _is_connected(self, address: str) -> bool:
        return bool(self._reached.get(address)) and self.pool.peek(address) is not None

    async def _keep_registered(self) -> None:
        loop = asyncio.get_running_loop()
        retry_s = FIRST_RETRY_S
        retry_at = 0.0
        self._full_at = loop.time() + self._interval_s
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            lost = [address for address in self._nameservers if not self._is_connected(address)]
            if lost and loop.time() >= retry_at:
                self._missed()
                await self._tell(None, lost)
                recovered = all(self._reached[address] for address in lost)
                retry_s = FIRST_RETRY_S if recovered else min(retry_s * 2, self._interval_s)
                retry_at = loop.time() + retry_s
            if loop.time() >= self._full_at:
                self._full_at = loop.time() + self._interval_s
                await self._tell(None, [address for address in self._nameservers if address not in lost])

    async def _tell(self, topics: list[TopicConfig] | None, nameservers: Sequence[str]) -> None:
        body = RegisterBrokerBody(self._table(topics)).encode()
        answers = await all_of(self._tell_one(address, body, whole=topics is None) for address in nameservers)
        self._take_master([answer for answer in answers if answer is not None])

    def _take_master(self, answers: list[Command]) -> None:
        """Record the master that nameservers reported; the answer "none" counts only when no nameserver knows a master."""
        if not self._role.is_slave or not answers:
            return
        masters = [answer.header(RegisterBrokerResponse) for answer in answers]
        found = next((master for master in masters if master.master_addr), masters[0])
        if (found.master_addr, found.ha_server_addr) != (self._role.master_address, self._role.master_ha_address):
            self._role.follow(found.master_addr, found.ha_server_addr)
            self._learned()

    async def _tell_one(self, address: str, body: bytes, *, whole: bool) -> Command | None:
        """Register at one nameserver and return its answer, None when it did not take the registration."""
        if not self._role.has_id:
            self._reached[address] = False  # it gets everything once the id is known
            return None
        if whole and not await self._may_register(address):
            self._reached[address] = False
            return None
        answer = None
        try:
            conn = await self.pool.get(address, timeout_s=TIMEOUT_S)
            # Nothing is awaited in between: a broker that was fenced a moment ago must not register as the master that it was.
            answer = await conn.request(RequestCode.REGISTER_BROKER, ext=self._identity(body), body=body, timeout_s=TIMEOUT_S)
        except SprocketError as e:
            problem = str(e)
        else:
            problem = "" if answer.code == ResponseCode.SUCCESS else f"{address} refused: {answer.remark}"
            if answer.code == ResponseCode.NO_PERMISSION:
                problem += " Give broker and nameserver the same inner_credentials, or the broker those of a Super user there."
        before = self._reached.get(address)
        self._reached[address] = not problem
        if problem and before is not False:
            event(log, logging.WARNING, "registration_lost", broker=self._broker_name, nameserver=address, reason=problem)
        elif not problem and not before:
            event(log, logging.INFO, "registered", broker=self._broker_name, nameserver=address, again=before is False)
        return None if problem else answer

    def _identity(self, body: bytes) -> dict[str, str]:
        """Return the fields of a registration with the role that the broker has now."""
        return to_ext(
            RegisterBroker(
                broker_name=self._broker_name,
                broker_addr=self._address,
                cluster_name=self._cluster_name,
                ha_server_addr=self._ha_address(),  # required even when nothing listens for slaves
                broker_id=self._role.broker_id,
                enable_acting_master=False,
                compressed=False,
                body_crc32=crc32(body),
            )
        )

    async def _refuse_rivals(self, nameservers: Sequence[str]) -> str:
        if self._take_over:
            return ""
        rivals = await asyncio.gather(*(self._rival(nameserver) for nameserver in nameservers))
        for nameserver, rival in zip(nameservers, rivals, strict=True):
            if rival is None:
                continue
            outranks = await self._outranks(rival) if self._outranks is not None else None
            if outranks is False:
                return rival
            if outranks is None:
                self._reached.pop(nameserver, None)  # the other broker is registered there, and stays
                raise BrokerNameTaken(self._broker_name, rival, nameserver, self._role.broker_id)
        return ""

    async def _may_register(self, nameserver: str) -> bool:
        """Return whether this broker may register at ``nameserver``; log when another live broker takes or gives up its name."""
        rival = await self._rival(nameserver)
        before = self._rivals.get(nameserver)
        if rival is not None and self._outranks is not None and (outranks := await self._outranks(rival)) is not None:
            if not outranks:
                self._outranked(rival)
            return outranks
        if rival is not None and self._give_up_id is not None and await self._give_up_id():
            return True
        if rival is None:
            self._rivals.pop(nameserver, None)
        elif rival != before:
            self._rivals[nameserver] = rival
            outcome = "it is replaced by this one" if self._take_over else "this one no longer registers, and clients send to the other"
            event(
                log,
                logging.WARNING if self._take_over else logging.ERROR,
                "broker_name_taken",
                broker=self._broker_name,
                nameserver=nameserver,
                rival=rival,
                reason=f"another broker of this name answers: {outcome}; stop one of them, or give it another name (--name)",
            )
        return rival is None or self._take_over

    async def _rival(self, nameserver: str) -> str | None:
        """Return the address of another live broker of this name and id that ``nameserver`` knows, or None."""
        address = (await self._known_brokers(nameserver)).get(self._role.broker_id)
        if address is None or address == self._address:
            return None
        return address if await _is_live(self._outgoing, address, self._broker_name) else None

    async def _known_brokers(self, nameserver: str) -> dict[int, str]:
        """Return the addresses of the brokers of this name that ``nameserver`` knows, by id; none when it cannot be asked."""
        return await self._ask_brokers(nameserver) or {}

    async def _ask_brokers(self, nameserver: str) -> dict[int, str] | None:
        """Return what ``_known_brokers`` does, but None when the nameserver cannot be asked."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                conn = await self.pool.get(nameserver, timeout_s=LOOK_TIMEOUT_S)
                answer = await conn.request(RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=LOOK_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                return None
            broker = ClusterInfo.decode(answer.body).broker_addr_table.get(self._broker_name)
        except (SprocketError, TimeoutError):
            return None  # registering will report the problem
        return broker.broker_addrs if broker is not None else {}


async def _is_live(outgoing: Outgoing, address: str, broker_name: str) -> bool:
    """Return whether a broker of that name answers at ``address``: the port of a dead broker may belong to another one now."""
    pool = outgoing.pool("broker")
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            conn = await pool.get(address, timeout_s=LOOK_TIMEOUT_S)
            answer = await conn.request(RequestCode.GET_BROKER_CONFIG, timeout_s=LOOK_TIMEOUT_S)
    except (SprocketError, TimeoutError):
        return False
    finally:
        await pool.close()
    if answer.code != ResponseCode.SUCCESS:
        return True  # it answers, but gives strangers no information about itself
    lines = bytes(answer.body).decode("utf-8", "replace").splitlines()
    return f"brokerName={broker_name}" in lines
