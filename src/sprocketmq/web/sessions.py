"""The viewers of the dashboard: sessions with clients that sign as their viewer, and the check of logins.

Without credentials of its own, and as long as the cluster asks for none, the dashboard has a single session for everybody. Otherwise a
viewer gives the access key and the secret key of a user of the cluster. They are checked by a signed request, kept in memory, and
forgotten with the session. A cookie names the session; it holds nothing else.
"""

import asyncio
import contextlib
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sprocketmq.client.admin import AdminClient
from sprocketmq.client.consume.pull import PullConsumer
from sprocketmq.client.lifecycle import Client
from sprocketmq.client.send.producer import Producer
from sprocketmq.clock import Clock
from sprocketmq.errors import AuthenticationFailed, AuthorizationFailed, ConfigError, SprocketError
from sprocketmq.net.tasks import Background, share
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.web.failures import Refused
from sprocketmq.web.target import ClientArguments

GROUP = "sprocketmq-dashboard"
ADMIN_TIMEOUT_S = 5.0

MAX_SESSIONS = 64
SESSION_S = 12 * 3600.0
# An unused session ends earlier.
UNUSED_S = 2 * 3600.0
MAX_CACHED = 64

# Failed logins in FAILURES_S: of one access key, and of all of them.
FAILURES_S = 60.0
MAX_FAILURES_OF_KEY = 5
MAX_FAILURES = 50

# How long the finding that the cluster refuses unknown users is cached.
PROOF_S = 300.0

_T = TypeVar("_T")
_C = TypeVar("_C", bound=Client)


class Session:
    """The clients of one viewer, which are made when they are needed. ``user`` is "" where logins are not required."""

    def __init__(self, target: ClientArguments, user: str, clock: Clock) -> None:
        self.id = secrets.token_urlsafe(32)
        self.csrf = secrets.token_urlsafe(32)
        self.user = user
        self.closed = False
        self.started = self.used = clock.monotonic()
        self._target = target
        self._clock = clock
        self._clients: dict[type[Client], Client] = {}
        self._starting = asyncio.Lock()
        self._cache: OrderedDict[str, tuple[float, asyncio.Task[Any]]] = OrderedDict()
        self._background = Background("dashboard session")

    async def admin(self) -> AdminClient:
        """Return the AdminClient. Raises NameserverUnavailable when no nameserver answers."""
        return await self._client(AdminClient, lambda: AdminClient(timeout_s=ADMIN_TIMEOUT_S, **self._target))

    async def producer(self) -> Producer:
        """Return the Producer."""
        return await self._client(Producer, lambda: Producer(GROUP, timeout_s=ADMIN_TIMEOUT_S, **self._target))

    async def puller(self) -> PullConsumer:
        """Return the PullConsumer, which commits nothing."""
        return await self._client(PullConsumer, lambda: PullConsumer(GROUP, auto_commit=False, **self._target))

    async def _client(self, kind: type[_C], make: Callable[[], _C]) -> _C:
        async with self._starting:
            client = self._clients.get(kind)
            if client is None:
                if self.closed:
                    raise Refused(401, "LoggedOut", "this session has ended: log in again")
                client = make()
                await client.start()
                self._clients[kind] = client
            assert isinstance(client, kind)
            return client

    async def cached(self, name: str, max_age_s: float, load: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return what ``load`` returned at most ``max_age_s`` ago under ``name``; callers at the same time share one load."""
        now = self._clock.monotonic()
        entry = self._cache.get(name)
        if entry is None or (entry[1].done() and (now - entry[0] > max_age_s or entry[1].cancelled() or entry[1].exception() is not None)):
            entry = now, self._background.spawn(load(), name, awaited=True)
            self._cache[name] = entry
            if len(self._cache) > MAX_CACHED:
                _, (_, dropped) = self._cache.popitem(last=False)
                dropped.cancel()
        return await share(entry[1], lambda: Refused(503, "Superseded", "too many lists are requested at once: try again"))

    async def close(self) -> None:
        """Forget the credentials and disconnect."""
        self.closed = True
        self._cache.clear()
        await self._background.close()
        async with self._starting:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.close()


class Sessions:
    """All sessions of a dashboard. At most MAX_SESSIONS: a new login ends the one that was unused for longest."""

    def __init__(self, target: ClientArguments, clock: Clock) -> None:
        self._target = target
        self._clock = clock
        self._login_needed = target["credentials"] is not None
        self._everybody = Session(target, "", clock)
        self._by_id: OrderedDict[str, Session] = OrderedDict()
        self._proved_until = -PROOF_S
        self._failures: deque[tuple[float, str]] = deque(maxlen=MAX_FAILURES)

    @property
    def login_needed(self) -> bool:
        """Whether viewers must log in."""
        return self._login_needed

    def need_login(self) -> None:
        """Record that the cluster has refused a request without a signature."""
        self._login_needed = True

    async def find(self, session_id: str | None) -> Session | None:
        """Return the session of a request, None when the viewer has to log in."""
        await self._end_old()
        if not self._login_needed:
            return self._everybody
        session = self._by_id.get(session_id or "")
        if session is not None:
            session.used = self._clock.monotonic()
            self._by_id.move_to_end(session.id)
        return session

    def open(self, session: Session) -> bool:
        """Return whether a session is still valid, for answers that take long."""
        if session is self._everybody:
            return not self._login_needed
        return not session.closed and self._clock.monotonic() - session.started < SESSION_S

    async def collecting_admin(self) -> AdminClient | None:
        """Return the client that samples: the dashboard's own, or, without credentials, that of the most recent viewer, if any."""
        if not self._login_needed or self._target["credentials"] is not None:
            return await self._everybody.admin()
        session = next(reversed(self._by_id.values()), None)
        return None if session is None else await session.admin()

    async def check_open(self) -> None:
        """Send a broker a request without a signature. Raises AuthenticationFailed when the cluster requires one."""
        admin = await self._everybody.admin()
        with contextlib.suppress(AuthorizationFailed, Refused):
            await _is_known(admin, None)

    async def login(self, access_key: str, secret_key: str) -> Session:
        """Check a login at the cluster and return its session. Raises Refused for a wrong one, and SprocketError."""
        self._check_failures(access_key)
        try:
            credentials = Credentials(access_key, secret_key)
        except ConfigError as e:
            raise Refused(400, "ConfigError", str(e)) from None
        target: ClientArguments = {**self._target, "credentials": credentials}
        try:
            now = self._clock.monotonic()
            await check_login(target, proves=now < self._proved_until)
            self._proved_until = now + PROOF_S
        except AuthenticationFailed:
            self._failures.append((self._clock.monotonic(), access_key))
            raise Refused(401, "WrongLogin", "the cluster does not accept this access key with this secret key") from None
        session = Session(target, access_key, self._clock)
        self._by_id[session.id] = session
        while len(self._by_id) > MAX_SESSIONS:
            _, oldest = self._by_id.popitem(last=False)
            await oldest.close()
        return session

    async def logout(self, session: Session) -> None:
        """End a session, unless it is the shared one."""
        if self._by_id.pop(session.id, None) is not None:
            await session.close()

    async def close(self) -> None:
        """End all sessions."""
        sessions = [*self._by_id.values(), self._everybody]
        self._by_id.clear()
        for session in sessions:
            await session.close()

    async def _end_old(self) -> None:
        now = self._clock.monotonic()
        old = [one for one in self._by_id.values() if now - one.started >= SESSION_S or now - one.used >= UNUSED_S]
        for session in old:
            await self.logout(session)

    def _check_failures(self, access_key: str) -> None:
        since = self._clock.monotonic() - FAILURES_S
        recent = [key for moment, key in self._failures if moment > since]
        if len(recent) >= MAX_FAILURES or recent.count(access_key) >= MAX_FAILURES_OF_KEY:
            raise Refused(429, "TooManyLogins", f"too many failed logins: wait {FAILURES_S:g} s and try again")


async def check_login(target: ClientArguments, *, proves: bool) -> None:
    """Check that the cluster knows the user of ``target``. Raises AuthenticationFailed, or the error of servers that do not answer.

    A cluster that accepts a random user as well has no access control, so that a login there proves nothing: Refused. With
    ``proves`` that was checked before: a cluster delays its answers after several logins that fail.
    """
    async with AdminClient(timeout_s=ADMIN_TIMEOUT_S, **target) as admin:
        if not await _is_known(admin, None) or proves:
            return
        addresses = await _addresses(admin)
    stranger: ClientArguments = {**target, "credentials": Credentials(f"nobody-{secrets.token_hex(8)}", secrets.token_hex(16))}
    try:
        async with AdminClient(timeout_s=ADMIN_TIMEOUT_S, **stranger) as admin:
            await _is_known(admin, addresses)
    except AuthenticationFailed:
        return
    raise Refused(
        409, "NoAccessControl", "this cluster accepts every user, so a login proves nothing: run the dashboard without credentials"
    )


async def _addresses(admin: AdminClient) -> list[str]:
    brokers = (await admin.cluster()).broker_addr_table
    return [address for _, broker in sorted(brokers.items()) for _, address in sorted(broker.broker_addrs.items())]


async def _is_known(admin: AdminClient, addresses: list[str] | None) -> bool:
    """Send a signed request to the first broker that answers, or to the nameserver. Raises AuthenticationFailed for an unknown user.

    Returns whether the request was allowed; if not, the user is known but lacks the right. Apache's nameservers check no users, so
    their answer alone says nothing.
    """
    try:
        if addresses is None:
            addresses = await _addresses(admin)
        failure: SprocketError | None = None
        for address in addresses[:8]:
            try:
                await admin.broker_runtime(address)
            except (AuthenticationFailed, AuthorizationFailed):
                raise
            except SprocketError as e:
                failure = e
            else:
                return True
    except AuthorizationFailed:
        return False
    raise failure or Refused(503, "NoBroker", "no broker is registered that could check the login: start one, and try again")
