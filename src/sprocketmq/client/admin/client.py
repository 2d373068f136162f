"""The client for administration."""

import os
from collections.abc import Sequence

from sprocketmq.client.admin.search import MessageSearch
from sprocketmq.client.admin.security import SecurityAdmin
from sprocketmq.client.admin.traces import TraceQueries
from sprocketmq.client.arguments import check_number
from sprocketmq.client.consume.offsets import OffsetRequests
from sprocketmq.client.credentials import CredentialsArgument, resolve
from sprocketmq.client.instance import Instance
from sprocketmq.client.message_lookup import Lookup
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.net.tls import TlsConfig

ADMIN_TIMEOUT_S = 5.0


class AdminClient(SecurityAdmin, MessageSearch, TraceQueries):
    """Creates, shows and deletes topics and consumer groups; shows routes, brokers, progress, messages and traces; resets offsets.

    ``namesrv`` as for Producer. Use ``async with``. Methods raise BrokerError when a server refuses, BrokerBusy when it cannot now,
    NameserverUnavailable, ConnectFailed, ConnectionLost or RequestTimeout when it does not answer.

    It also shows and changes users and policies. ``credentials``, ``tls`` and ``secure`` as for Producer.
    """

    def __init__(
        self,
        *,
        namesrv: str | Sequence[str] | None = None,
        timeout_s: float = ADMIN_TIMEOUT_S,
        credentials: CredentialsArgument | None = None,
        tls: bool | TlsConfig | None = None,
        secure: str | os.PathLike[str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_number("timeout_s", timeout_s, over=0)
        security = resolve(credentials=credentials, tls=tls, secure=secure)
        self._instance = Instance(namesrv, kind="AdminClient", security=security, clock=clock)
        self._offsets = OffsetRequests(self._instance)
        self._lookup = Lookup(self._instance, self._offsets, clock)
        self._timeout_s = timeout_s

    async def start(self) -> None:
        """Find a nameserver. Raises NameserverUnavailable or NotRocketMQ, naming the address, when there is none."""
        self._instance.check_loop()
        async with self._instance.changing:
            await self._instance.start()

    async def close(self) -> None:
        """Disconnect. Harmless when closed already."""
        self._instance.check_loop()
        async with self._instance.changing:
            await self._instance.close()
