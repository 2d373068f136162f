"""Keeping nameservers informed: all topics at the start and every 30 seconds, changed topics at once, goodbye at the end."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from sprocketmq.errors import SprocketError
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.hashing import crc32
from sprocketmq.protocol.headers import BrokerIdentity, RegisterBroker

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0
GOODBYE_TIMEOUT_S = 1.0
FIRST_RETRY_S = 0.5
# A lost connection means a nameserver that may have forgotten us; it is looked for this often, not only every 30 seconds.
CHECK_INTERVAL_S = 0.5


class Registrar:
    """Register one broker at its nameservers.

    ``table`` returns the topics to tell: all of them for None, else the given ones. ``missed`` is called before a nameserver that
    missed a change is told everything: it advances the data version, as a nameserver skips a table whose version it knows.
    """

    def __init__(
        self,
        nameservers: Sequence[str],
        *,
        cluster_name: str,
        broker_name: str,
        broker_id: int,
        interval_s: float,
        table: Callable[[list[TopicConfig] | None], TopicConfigTable],
        missed: Callable[[], None],
    ) -> None:
        self._nameservers = tuple(nameservers)
        self._cluster_name = cluster_name
        self._broker_name = broker_name
        self._broker_id = broker_id
        self._interval_s = interval_s
        self._table = table
        self._missed = missed
        self._address = self._ha_address = ""
        self._pool = ConnectionPool(expected="nameserver")
        self._reached: dict[str, bool] = {}
        self._task: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._changed: dict[str, TopicConfig] = {}
        self._started = False

    @property
    def registered(self) -> tuple[str, ...]:
        """The nameservers that took the last registration."""
        return tuple(address for address, reached in self._reached.items() if reached)

    async def start(self, address: str, ha_address: str) -> None:
        """Register everywhere, once, and keep doing so. An unreachable nameserver is logged and tried again, soon at first."""
        self._address, self._ha_address = address, ha_address
        self._started = True
        if not self._nameservers:
            return
        await self._tell(None, self._nameservers)
        self._task = asyncio.get_running_loop().create_task(self._keep_registered())

    async def stop(self) -> None:
        """Unregister from the nameservers that know the broker and close the connections."""
        self._started = False
        for task in (self._task, self._announcing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        ext = to_ext(BrokerIdentity(self._broker_name, self._address, self._cluster_name, self._broker_id))
        goodbyes = [
            conn.request(RequestCode.UNREGISTER_BROKER, ext=ext, timeout_s=GOODBYE_TIMEOUT_S)
            for address in self.registered
            if (conn := self._pool.peek(address)) is not None
        ]
        await asyncio.gather(*goodbyes, return_exceptions=True)
        await self._pool.close()

    def abort(self) -> None:
        """Drop the connections without a word, as a killed process does."""
        self._started = False
        for task in (self._task, self._announcing):
            if task is not None:
                task.cancel()
        for conn in self._pool.open_connections():
            conn.abort("broker aborted")

    def announce(self, topics: list[TopicConfig]) -> "asyncio.Task[None] | None":
        """Tell every nameserver about changed topics; several changes in a row travel together.

        Returns the task that ends when all reachable nameservers have answered, or None when there is nobody to tell yet.
        """
        if not self._started or not self._nameservers:
            return None  # the first registration tells everything
        self._changed.update((topic.topic_name, topic) for topic in topics)
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.get_running_loop().create_task(self._announce())
        return self._announcing

    async def _announce(self) -> None:
        while self._changed:
            topics, self._changed = list(self._changed.values()), {}
            # Who is not reached gets everything later; a part would pass for the whole there.
            await self._tell(topics, [address for address in self._nameservers if self._is_connected(address)])

    def _is_connected(self, address: str) -> bool:
        return bool(self._reached.get(address)) and self._pool.peek(address) is not None

    async def _keep_registered(self) -> None:
        loop = asyncio.get_running_loop()
        retry_s = FIRST_RETRY_S
        retry_at, full_at = 0.0, loop.time() + self._interval_s
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            lost = [address for address in self._nameservers if not self._is_connected(address)]
            if lost and loop.time() >= retry_at:
                self._missed()
                await self._tell(None, lost)
                recovered = all(self._reached[address] for address in lost)
                retry_s = FIRST_RETRY_S if recovered else min(retry_s * 2, self._interval_s)
                retry_at = loop.time() + retry_s
            if loop.time() >= full_at:
                full_at = loop.time() + self._interval_s
                await self._tell(None, [address for address in self._nameservers if address not in lost])

    async def _tell(self, topics: list[TopicConfig] | None, nameservers: Sequence[str]) -> None:
        body = RegisterBrokerBody(self._table(topics)).encode()
        header = RegisterBroker(
            broker_name=self._broker_name,
            broker_addr=self._address,
            cluster_name=self._cluster_name,
            ha_server_addr=self._ha_address,
            broker_id=self._broker_id,
            enable_acting_master=False,
            compressed=False,
            body_crc32=crc32(body),
        )
        ext = to_ext(header)
        await asyncio.gather(*(self._tell_one(address, ext, body) for address in nameservers))

    async def _tell_one(self, address: str, ext: dict[str, str], body: bytes) -> None:
        try:
            conn = await self._pool.get(address, timeout_s=TIMEOUT_S)
            answer = await conn.request(RequestCode.REGISTER_BROKER, ext=ext, body=body, timeout_s=TIMEOUT_S)
        except SprocketError as e:
            problem = str(e)
        else:
            problem = "" if answer.code == ResponseCode.SUCCESS else f"{address} refused: {answer.remark}"
        before = self._reached.get(address)
        self._reached[address] = not problem
        if problem and before is not False:
            log.warning("broker %s is not registered: %s", self._broker_name, problem)
        elif not problem and before is False:
            log.info("broker %s is registered at %s again", self._broker_name, address)
