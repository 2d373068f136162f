"""Changing the master: the request that does it (1008), and the messages between masters of one name.

Of two masters the one with the higher epoch is the master; the other is fenced: it acknowledges nothing more, and follows as a slave. ::

    1008, its own address, epoch 2000      ---> slave: begins epoch 2000, becomes the master, and informs the old one:
    1008, address of the new one, 2000     ---> old master, other slaves: follow the new one

Nothing else promotes a broker. Epochs never go back: a request with an epoch that is not higher than the known ones is refused.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from sprocketmq.broker.outgoing import Outgoing
from sprocketmq.broker.replication.roles import BrokerRole
from sprocketmq.errors import FatalError, RequestTimeout, SprocketError
from sprocketmq.events import event
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.bodies import EpochCache
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.headers import NotifyRoleChanged

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
# Pauses between attempts to reach a master that was replaced.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class RoleRefused(FatalError):
    """A change of roles that cannot be made; the text says why."""


class Stage(Protocol):
    """A broker whose role can be changed."""

    async def promote(self, epoch: int) -> None:
        """Become the master from ``epoch`` on. Raises SprocketError."""
        ...

    def step_down(self, master_address: str, epoch: int) -> None:
        """Stop acknowledging now, and follow the master of ``epoch`` soon."""
        ...


async def epoch_of(outgoing: Outgoing, address: str, broker_name: str) -> int | None:
    """Return the epoch of the broker at ``address``, None when it has none, is a broker of another name, or does not answer."""
    cache = await epochs_of(outgoing, address, broker_name)
    return cache.epoch_list[-1].epoch if cache is not None else None


async def epochs_of(outgoing: Outgoing, address: str, broker_name: str) -> EpochCache | None:
    """Return the epochs and the end of the log of the broker at ``address``, None as for ``epoch_of``."""
    pool = outgoing.pool("broker")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            conn = await pool.get(address, timeout_s=TIMEOUT_S)
            answer = await conn.request(RequestCode.GET_BROKER_EPOCH_CACHE, timeout_s=TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            return None
        cache = EpochCache.decode(answer.body)
    except (SprocketError, TimeoutError):
        return None
    finally:
        await pool.close()
    if cache.broker_name != broker_name or not cache.epoch_list:
        return None
    return cache


async def tell(outgoing: Outgoing, address: str, master_address: str, epoch: int, *, timeout_s: float = TIMEOUT_S) -> str:
    """Inform the broker at ``address`` of the master; return "" when it follows, else its refusal. Raises SprocketError."""
    pool = outgoing.pool("broker")
    try:
        async with asyncio.timeout(timeout_s):
            conn = await pool.get(address, timeout_s=timeout_s)
            ext = to_ext(NotifyRoleChanged(epoch, master_address))
            answer = await conn.request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext=ext, timeout_s=timeout_s)
    except TimeoutError:
        raise RequestTimeout(address, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, round(timeout_s * 1000)) from None
    finally:
        await pool.close()
    return "" if answer.code == ResponseCode.SUCCESS else answer.remark or f"code {answer.code}"


class Promotion:
    """Answers 1008 for one broker, and talks to other masters. ``address`` returns the broker's own, ``epoch`` its newest epoch.

    ``enabled`` is whether the broker replicates at all. ``fenced`` is called when a former master follows.
    """

    def __init__(
        self,
        role: BrokerRole,
        stage: Stage,
        outgoing: Outgoing,
        *,
        broker_name: str,
        enabled: bool,
        address: Callable[[], str],
        epoch: Callable[[], int],
        fenced: Callable[[], None],
        background: Background,
    ) -> None:
        self._role = role
        self._stage = stage
        self._outgoing = outgoing
        self._broker_name = broker_name
        self._enabled = enabled
        self._address = address
        self._epoch = epoch
        self._fenced = fenced
        self._background = background

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed}

    def role_changed(self, conn: ServerConnection, command: Command) -> None:
        """Answer 1008 once the broker is master and registered, or has stopped acknowledging."""
        header = command.header(NotifyRoleChanged)
        command.body = b""
        self._background.spawn(self._answer(conn, command, header), "a change of roles")

    async def _answer(self, conn: ServerConnection, command: Command, header: NotifyRoleChanged) -> None:
        try:
            await self.change(header.master_address, header.master_epoch)
        except (SprocketError, OSError) as e:
            event(
                log,
                logging.WARNING,
                "promotion_refused",
                broker=self._broker_name,
                master=header.master_address,
                epoch=header.master_epoch,
                peer=conn.peer,
                by=conn.user,
                reason=e,
            )
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(e))
        else:
            conn.respond(command, ResponseCode.SUCCESS)

    async def change(self, master_address: str, epoch: int) -> None:
        """Take the role that follows from the broker at ``master_address`` being master from ``epoch`` on. Raises RoleRefused."""
        role, known = self._role, max(self._role.epoch, self._epoch())
        if not self._enabled:
            raise RoleRefused(f"broker {self._broker_name} does not replicate: give it ha_port, or the role SLAVE")
        is_master_asked = bool(master_address) and master_address == self._address()
        if epoch == known and is_master_asked != role.is_slave:
            return  # a repeated request
        if epoch <= known:
            raise RoleRefused(f"epoch {epoch} is not higher than {known}, which broker {self._broker_name} knows: ask for a higher one")
        if is_master_asked:
            await self._stage.promote(epoch)
        else:
            self._stage.step_down(master_address, epoch)

    # --- other masters ---

    async def outranks(self, rival: str) -> bool | None:
        """Return whether this master has a higher epoch than the one at ``rival``, which is fenced then; None when epochs do not decide."""
        if self._role.is_slave or not self._enabled or not self._epoch():
            return None
        theirs, ours = await epoch_of(self._outgoing, rival, self._broker_name), self._epoch()
        if theirs is None or theirs == ours or self._role.is_slave:
            return None
        if theirs < ours:
            self.fence(rival)
            return True
        return False

    def outranked(self, rival: str) -> None:
        """Step down: the live master at ``rival`` has a higher epoch."""
        self._background.spawn(self._give_way(rival), f"giving way to {rival}")

    async def _give_way(self, rival: str) -> None:
        epoch = await epoch_of(self._outgoing, rival, self._broker_name)
        if epoch is not None and epoch > self._epoch() and not self._role.is_slave:
            self._stage.step_down(rival, epoch)

    def fence(self, rival: str) -> None:
        """Inform the master at ``rival`` that it was replaced; repeat until it answers."""
        self._background.spawn(self._fence(rival), f"news for the former master at {rival}")

    async def _fence(self, rival: str) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._role.is_slave:
            try:
                refusal = await tell(self._outgoing, rival, self._address(), self._epoch())
            except SprocketError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            if refusal:
                log.warning("broker %s: the former master at %s does not follow: %s", self._broker_name, rival, refusal)
            else:
                log.info("broker %s: the former master at %s follows", self._broker_name, rival)
                self._fenced()
            return
