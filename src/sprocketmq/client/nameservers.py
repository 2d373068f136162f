"""The nameservers of a client: one is used while it answers, the next when it does not."""

import asyncio
import os
import random
from collections.abc import Mapping, Sequence

from sprocketmq.client.timers import Timers
from sprocketmq.errors import (
    BrokerBusy,
    ConfigError,
    ConnectionLost,
    NameserverUnavailable,
    NotRocketMQ,
    OtherServer,
    RequestTimeout,
    RetriableError,
    SprocketError,
    TlsFailed,
)
from sprocketmq.net.address import parse_addresses
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command

NAMESRV_VARIABLE = "NAMESRV_ADDR"

REQUEST_TIMEOUT_S = 3.0
# Time for one request to the nameservers, all addresses and rounds together.
NAMESRV_BUDGET_S = 5.0
NAMESRV_ROUNDS = 3
NAMESRV_PAUSE_S = 0.2


def namesrv_addresses(namesrv: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the nameserver addresses of an argument: text with ``;`` or a sequence; None reads the variable NAMESRV_ADDR.

    Raises ConfigError when there is none or one is invalid.
    """
    if namesrv is None:
        namesrv = os.environ.get(NAMESRV_VARIABLE, "")
        if not namesrv.strip():
            raise ConfigError(f"no nameserver address given: pass namesrv='HOST:PORT' or set {NAMESRV_VARIABLE}")
    if isinstance(namesrv, str):
        return parse_addresses(namesrv)
    try:
        return parse_addresses(";".join(namesrv))
    except TypeError:
        raise ConfigError(f"namesrv must be 'HOST:PORT' or a list of such addresses, not {namesrv!r}") from None


class Nameservers:
    """A list of nameservers, of which one is used at a time, starting with a random one."""

    def __init__(self, addresses: Sequence[str], timers: Timers, pool: ConnectionPool) -> None:
        self.addresses: tuple[str, ...] = tuple(addresses)
        self.pool = pool
        self._timers = timers
        self._current = random.randrange(len(self.addresses))

    async def request(self, code: int, *, ext: Mapping[str, str] | None = None, budget_s: float = NAMESRV_BUDGET_S) -> Command:
        """Send a request until one nameserver answers: three rounds through the list with pauses between them, within ``budget_s``.

        Raises NotRocketMQ when every address is something else, TlsFailed when TLS fails with all of them, NameserverUnavailable when none
        answered.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + budget_s
        # Addresses for which a retry will not help.
        useless: set[str] = set()
        cause: SprocketError | None = None
        for attempt in range(NAMESRV_ROUNDS * len(self.addresses)):
            remaining = deadline - loop.time()
            if remaining <= 0:
                break
            address = self.addresses[self._current]
            try:
                return await self._ask(address, code, ext, min(remaining, REQUEST_TIMEOUT_S))
            except (NotRocketMQ, TlsFailed) as e:
                cause = e
                if not isinstance(e, TlsFailed) or e.problem != "closed":  # a server that is stopping also closes connections
                    useless.add(address)
            except RetriableError as e:
                cause = e
            if len(useless) == len(self.addresses):
                break
            self._current = (self._current + 1) % len(self.addresses)
            if (attempt + 1) % len(self.addresses) == 0:
                pause = NAMESRV_PAUSE_S * ((attempt + 1) // len(self.addresses))
                await self._timers.sleep(min(pause, max(0.0, deadline - loop.time())))
        if isinstance(cause, NotRocketMQ | TlsFailed):
            raise cause
        raise NameserverUnavailable(self.addresses, cause) from cause

    async def _ask(self, address: str, code: int, ext: Mapping[str, str] | None, timeout_s: float) -> Command:
        conn = await self.pool.get(address, timeout_s=timeout_s)
        try:
            response = await conn.ask(code, ext=ext, timeout_s=timeout_s)
        except RequestTimeout:
            silent = not conn.received_bytes
            self.pool.drop(address)
            if silent:
                reason = f"no byte received for {timeout_s:.1f} s; expected a RocketMQ nameserver there, is the port right?"
                raise ConnectionLost(address, reason) from None
            raise
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise OtherServer(address, "nameserver", f"it says:{response.remark or ''}")
        if response.code == ResponseCode.SYSTEM_ERROR and "not ready" in (response.remark or ""):
            raise BrokerBusy(response.code, response.remark, address=address)
        return response

    @property
    def local_ip(self) -> str:
        """The local address of the nameserver connection."""
        for conn in self.pool.open_connections():
            name = conn.extra_info("sockname")
            if name:
                return str(name[0])
        return "127.0.0.1"
