"""Messages whose invisible time the endpoint prolongs while their client works on them (``auto_renew``)."""

import logging
from typing import NamedTuple

from sprocketmq.clock import Clock
from sprocketmq.errors import SprocketError
from sprocketmq.events import event
from sprocketmq.proxy.clients import Clients, Identity
from sprocketmq.proxy.codes import Code, Refused
from sprocketmq.proxy.receipts import Receipt
from sprocketmq.proxy.receiving import Receiver
from sprocketmq.proxy.upstream import Upstream

log = logging.getLogger(__name__)

# The invisible time of renewed messages, the time left at which they are renewed, and the longest total.
INVISIBLE_S = 60.0
RENEW_BEFORE_S = 20.0
LONGEST_S = 3 * 3600.0
SWEEP_S = 5.0
MAX_RENEWED = 100_000


class _Held(NamedTuple):
    identity: Identity
    upstream: Upstream
    group: str
    topic: str
    receipt: Receipt
    until_ms: int


class Renewals:
    """The messages that consumers hold, by the receipt handle that clients know: the first one."""

    def __init__(self, receiver: Receiver, clients: Clients, clock: Clock) -> None:
        self._receiver = receiver
        self._clients = clients
        self._clock = clock
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def check_room(self) -> None:
        """Raise Refused when no more messages can be held."""
        if len(self._held) >= MAX_RENEWED:
            raise Refused(Code.TOO_MANY_REQUESTS, f"{MAX_RENEWED} messages are being worked on, the limit of this endpoint")

    def hold(self, identity: Identity, upstream: Upstream, group: str, topic: str, receipt: Receipt) -> None:
        """Prolong the invisible time of a message until it is released."""
        until = self._clock.time_ms() + round(LONGEST_S * 1000)
        self._held[str(receipt)] = _Held(identity, upstream, group, topic, receipt, until)

    def release(self, handle: str) -> Receipt:
        """Stop prolonging, and return the receipt that is valid now. Raises Refused for an invalid handle."""
        held = self._held.pop(handle, None)
        return Receipt.parse(handle) if held is None else held.receipt

    async def sweep(self) -> None:
        """Renew messages that are due; forget those of clients that are gone or held them too long: they become visible by themselves."""
        now = self._clock.time_ms()
        for handle, held in list(self._held.items()):
            if self._clients.get(held.identity) is None or held.until_ms < now:
                self._held.pop(handle, None)
            elif held.receipt.expires_ms < now + RENEW_BEFORE_S * 1000:
                try:
                    receipt = await self._receiver.change(held.upstream, held.group, held.topic, held.receipt, INVISIBLE_S)
                except Refused:
                    self._held.pop(handle, None)  # it has become visible
                except SprocketError as e:
                    event(log, logging.WARNING, "renewal_failed", topic=held.topic, group=held.group, reason=e)
                else:
                    if handle in self._held:  # not acknowledged meanwhile
                        self._held[handle] = held._replace(receipt=receipt)
