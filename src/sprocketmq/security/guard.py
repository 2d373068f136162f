"""The guard of a server: every request is authenticated, then authorised, before its handler sees it.

Refusals say no more than they have to: an unknown user, a disabled one and a wrong signature get the same answer after the same work. The
log ``sprocketmq.security`` has who, what, from where and why; it never has secrets or signatures.
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial

from sprocketmq.errors import ConfigError, ProtocolError
from sprocketmq.net.address import parse_address
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.credentials import ACCESS_KEY, SIGNATURE, SigningKey
from sprocketmq.security.config import SecurityConfig
from sprocketmq.security.login_limits import DELAY_S, LoginLimits, Penalty
from sprocketmq.security.policies import Context, Policy, PolicyIndex, Verdict, source_address
from sprocketmq.security.requirements import MissingResource, contexts_of
from sprocketmq.security.tables import AccessTables
from sprocketmq.security.user_file import UserStore
from sprocketmq.security.users import MAX_SECRETS, User, UserType

log = logging.getLogger(__name__)
audit = logging.getLogger("sprocketmq.security")

CHECK_FAILED = "check signature failed."
REFUSED = "Authorization failed. Please verify your access rights and try again."
UNREADABLE = "parse authorization context error."

RELOAD_INTERVAL_S = 0.25
# Decisions that are kept; when there are more, all are forgotten.
MAX_DECISIONS = 20_000
MAX_KEPT_NAME = 255
MAX_LOGGED_NAME = 64
# Clients up to 4.9.3 do not sign this field.
LAST_VERSION_WITHOUT_UNIQUE_KEY_QUERY = 399
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"

# Compared against when there is no such user, so that a refusal takes the same time; the key is random.
_DECOY = SigningKey(secrets.token_bytes(32))
_NO_SIGNATURE = "the request is not signed"


class _Account:
    """A user as requests are checked against it: keys for signatures, policies ordered for lookups."""

    __slots__ = ("keys", "policies", "user")

    def __init__(self, user: User, policies: Iterable[Policy]) -> None:
        self.user = user
        keys = [SigningKey(secret.reveal().encode()) for secret in user.secrets]
        self.keys = [*keys, *[_DECOY] * (MAX_SECRETS - len(keys))]
        self.policies = PolicyIndex(policies)


_NOBODY_KEYS = [_DECOY] * MAX_SECRETS


class SecurityGuard:
    """Admits the requests of one server; ``cluster`` is the name of its cluster, ``name`` its own in log lines.

    ``changed`` is called with the names of users whose secrets, type, status or policies changed, when that already holds.
    """

    def __init__(
        self,
        config: SecurityConfig,
        *,
        name: str,
        cluster: str,
        changed: Callable[[set[str]], None] = lambda _: None,
        time: Callable[[], float] = time.monotonic,
    ) -> None:
        if config.users_file is None:
            raise ConfigError("a guard needs a file of users: set users_file")
        self._name = name
        self._cluster = cluster
        self._authorises = config.authorization_enabled
        self._changed = changed
        inner = config.inner_credentials
        self._inner = None if inner is None else User(inner.access_key, (inner.secret_key,), UserType.SUPER)
        self.store = UserStore(config.users_file, self._tables_changed)
        self._accounts: dict[str, _Account] = {}
        self._time = time
        self._decisions: dict[tuple[str, str, Context], Verdict] = {}
        self._limits = LoginLimits(time)
        # Two, so that failing logins do not use up the log lines of refused users.
        self._login_log = PeerLog(audit, time)
        self._refusal_log = PeerLog(audit, time)

    # --- life ---

    def open(self) -> None:
        """Read the file of users; blocks. Raises ConfigError when it cannot be used, or contradicts the inner credentials."""
        self.store.open()
        if self._inner is not None:
            listed = self.store.tables.users.get(self._inner.username)
            if listed is not None and not (listed.is_super and listed.enabled and self._inner.secrets[0] in listed.secrets):
                raise ConfigError(
                    f"the inner credentials name the user {listed.username}, who is in {self.store.path} with another secret, disabled,"
                    " or not as a Super user: make both agree, or choose another user name for the inner credentials"
                )

    def start(self, background: Background) -> None:
        """Watch the file of users from now on, as a task of ``background``."""
        background.every(RELOAD_INTERVAL_S, self.reload_if_changed, "reload of users")

    async def reload_if_changed(self) -> None:
        """Take over a file of users that was replaced."""
        self._login_log.sweep()
        self._refusal_log.sweep()
        if self.store.is_stale:
            await self.store.reload()

    async def change(self, change: Callable[[AccessTables], AccessTables]) -> None:
        """Change users or policies, in the file and here. Raises what ``change`` raises, ConfigError, and OSError from writing."""
        await self.store.change(change)

    def _tables_changed(self, names: set[str]) -> None:
        for name in names:
            self._accounts.pop(name, None)
        self._decisions.clear()
        self._changed(names)

    # --- net's Guard ---

    def connected(self, conn: ServerConnection) -> None:
        """Nothing is kept for a connection before its first request."""

    def disconnected(self, conn: ServerConnection) -> None:
        """Nothing is kept for a connection."""

    def admits(self, conn: ServerConnection, command: Command) -> bool:
        """Return whether the handler may see a request; one that it may not is answered, or its connection closed, already."""
        if conn.closed:
            return False
        try:
            account, reason = self._authenticate(command)
            if account is None:
                self._login_failed(conn, command, reason)
                return False
            if conn.user != account.user.username:
                conn.user, conn.authenticated_at = account.user.username, self._time()
            refusal = self._forbidden(account, conn, command)
        except Exception:  # after an unexpected error here, the request is refused
            log.exception("%s: a request %d from %s cannot be checked and is refused", self._name, command.code, conn.peer)
            refusal = REFUSED
        if refusal:
            conn.respond(command, ResponseCode.NO_PERMISSION, remark=refusal)
        return not refusal

    def refusal_of(self, conn: ServerConnection, command: Command) -> str:
        """Return why a previously admitted request without a body would be refused now, "" when it would not."""
        try:
            account, _ = self._authenticate(command)
            return CHECK_FAILED if account is None else self._forbidden(account, conn, command)
        except Exception:  # as for ``admits``
            log.exception("%s: a request %d from %s cannot be checked and is refused", self._name, command.code, conn.peer)
            return REFUSED

    def allows(self, conn: ServerConnection, command: Command, context: Context) -> bool:
        """Return whether the user of an admitted request may do something more, which shows only while it is handled."""
        return self._may(command.ext.get(ACCESS_KEY, ""), conn, context)

    def allows_user(self, conn: ServerConnection, context: Context) -> bool:
        """Return whether the user who made the last request on a connection may do something that the server does on its own."""
        return self._may(conn.user or "", conn, context)

    def _may(self, username: str, conn: ServerConnection, context: Context) -> bool:
        account = self._account(username)
        if account is None:
            return False
        return not self._authorises or account.user.is_super or self._verdict(account, _host(conn), context) is Verdict.ALLOWED

    def user(self, name: str | None) -> User | None:
        """Return a user of the file, or the one of the inner credentials."""
        account = self._account(name) if name else None
        return account.user if account is not None else None

    # --- authentication ---

    def _account(self, name: str) -> _Account | None:
        account = self._accounts.get(name)
        if account is None:
            tables = self.store.tables
            user = tables.users.get(name)
            if user is None and self._inner is not None and name == self._inner.username:
                user = self._inner
            if user is None:
                return None
            account = self._accounts[name] = _Account(user, tables.policies.get(name, ()))
        return account

    def _authenticate(self, command: Command) -> tuple[_Account | None, str]:
        """Return the account that signed a request, or None and the reason for the log."""
        try:
            fields = command.ext
        except ProtocolError as e:
            return None, f"its fields cannot be read: {e}"
        name, given = fields.get(ACCESS_KEY), fields.get(SIGNATURE)
        if not name or not given:
            return None, _NO_SIGNATURE
        if command.version <= LAST_VERSION_WITHOUT_UNIQUE_KEY_QUERY and UNIQUE_KEY_QUERY in fields:
            fields = {field: value for field, value in fields.items() if field != UNIQUE_KEY_QUERY}
        account = self._account(name)
        # A refusal costs MAX_SECRETS signatures, whoever was named and however many secrets that user has.
        for key in _NOBODY_KEYS if account is None else account.keys:
            if _equal(key.signature(fields, command.body), given) and account is not None and key is not _DECOY:
                return (account, "") if account.user.enabled else (None, "the user is disabled")
        return None, "no user has that name" if account is None else "the signature is wrong"

    def _login_failed(self, conn: ServerConnection, command: Command, reason: str) -> None:
        host = _host(conn)
        user = _named(command)
        self._login_log.event(host, "login_refused", server=self._name, code=command.code, peer=conn.peer, user=user, reason=reason)
        penalty = self._limits.failed(host)
        if penalty is Penalty.DELAY:
            # Only what the answer needs is kept of the request.
            later = Command(command.code, opaque=command.opaque, flag=command.flag)
            asyncio.get_running_loop().call_later(DELAY_S, partial(self._answer_late, conn, later))
            return
        conn.respond(command, ResponseCode.NO_PERMISSION, remark=CHECK_FAILED)
        if penalty is Penalty.CLOSE:
            conn.close("too many requests were not signed by a known user")

    def _answer_late(self, conn: ServerConnection, command: Command) -> None:
        self._limits.answered()
        conn.respond(command, ResponseCode.NO_PERMISSION, remark=CHECK_FAILED)

    # --- authorisation ---

    def _forbidden(self, account: _Account, conn: ServerConnection, command: Command) -> str:
        """Return why the user may not have a request handled, "" when it may."""
        if not self._authorises or account.user.is_super:
            return ""
        username = account.user.username
        try:
            contexts = contexts_of(command, self._cluster)
        except MissingResource as e:
            return self._log_refusal(conn, command, username, str(e), REFUSED)
        except ProtocolError as e:
            return self._log_refusal(conn, command, username, str(e), UNREADABLE)
        if contexts is None:
            return self._log_refusal(conn, command, username, "only a Super user may make this request", REFUSED)
        host = _host(conn) if account.policies.asks_source else ""
        for context in contexts:
            verdict = self._verdict(account, host, context)
            if verdict is not Verdict.ALLOWED:
                why = f"no permission to access {context.resource} ({' or '.join(sorted(context.actions))}), {verdict.value}"
                source = _host(conn)
                remark = f"User:{username} has no permission to access {context.resource} from {source}, {verdict.value}."
                return self._log_refusal(conn, command, username, why, remark)
        return ""

    def _verdict(self, account: _Account, host: str, context: Context) -> Verdict:
        if len(context.name) > MAX_KEPT_NAME:  # no such resource: caching these decisions would fill the memory
            return account.policies.decide(context, source_address(host))
        key = (account.user.username, host, context)
        verdict = self._decisions.get(key)
        if verdict is None:
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            verdict = self._decisions[key] = account.policies.decide(context, source_address(host))
        return verdict

    def _log_refusal(self, conn: ServerConnection, command: Command, username: str, why: str, remark: str) -> str:
        self._refusal_log.event(
            f"user {username}", "request_refused", server=self._name, code=command.code, peer=conn.peer, user=username, reason=why
        )
        return remark


def _equal(expected: str, given: str) -> bool:
    """Compare signatures in a time that does not depend on where they differ; the length of a right one is no secret."""
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


def _host(conn: ServerConnection) -> str:
    return parse_address(conn.peer)[0]


def _named(command: Command) -> str | None:
    """Return the user name that a request states, for the log: it may hold anything."""
    try:
        name = command.ext.get(ACCESS_KEY)
    except ProtocolError:
        return "unreadable"
    return None if name is None else name[:MAX_LOGGED_NAME]
