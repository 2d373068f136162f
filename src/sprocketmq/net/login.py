"""The credentials a client signs with now, and how it gets others after a refusal."""

import logging
import math
from collections.abc import Mapping

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ConfigError, SprocketError
from sprocketmq.protocol.credentials import Body, Credentials, CredentialsSource

log = logging.getLogger(__name__)

# Minimum interval between two requests for other credentials.
ASK_AGAIN_S = 1.0


class Login:
    """Signs the requests of one client.

    ``credentials`` are fixed, or a function that returns them: it is called here, and again after a server has refused a request, at most
    once a second, on the client's event loop; so it must not block for long. ``current`` is another object after it returned others.
    """

    __slots__ = ("_asked_at", "_clock", "_source", "current")

    def __init__(self, credentials: Credentials | CredentialsSource, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._source: CredentialsSource | None = None if isinstance(credentials, Credentials) else credentials
        self.current: Credentials = credentials if isinstance(credentials, Credentials) else _asked(credentials)
        self._asked_at = -math.inf

    def sign(self, ext: Mapping[str, str] | bytes | None, body: Body) -> Mapping[str, str] | bytes:
        """Return the fields of a request with those of the login added: as JSON text when they are given as JSON text."""
        if type(ext) is bytes:
            return self.current.sign_json(ext, body)
        return self.current.sign(ext or {}, body)  # type: ignore[arg-type]

    def refused(self) -> None:
        """Ask for other credentials, as a server has refused a request. The old ones stay when there are none."""
        now = self._clock.monotonic()
        if self._source is None or now < self._asked_at + ASK_AGAIN_S:
            return
        self._asked_at = now
        try:
            found = _asked(self._source)
        except Exception as e:  # noqa: BLE001 - the source is the user's, and the requests of others go on
            # The text of an exception of unknown origin may hold a secret.
            reason = str(e) if isinstance(e, SprocketError) else type(e).__name__
            log.warning("cannot renew the credentials after a refusal, keeping the old ones: %s", reason)
            return
        if found != self.current:
            self.current = found


def _asked(source: CredentialsSource) -> Credentials:
    found = source()
    if not isinstance(found, Credentials):
        raise ConfigError(f"the function given as credentials must return Credentials, not {type(found).__name__}")
    return found
