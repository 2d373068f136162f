"""Errors as answers: a status, the name of the error and its sentence as JSON."""

import logging

import msgspec

from sprocketmq.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerError,
    ConfigError,
    GroupNotFound,
    ProtocolError,
    RequestTimeout,
    RetriableError,
    SprocketError,
    TopicNotFound,
)

log = logging.getLogger(__name__)

# By the first class that fits.
_STATUS: tuple[tuple[type[SprocketError], int], ...] = (
    (AuthenticationFailed, 401),
    (AuthorizationFailed, 403),
    (TopicNotFound, 404),
    (GroupNotFound, 404),
    (ConfigError, 400),
    (RequestTimeout, 504),
    (RetriableError, 503),
    (BrokerError, 502),
    (ProtocolError, 502),
)


class Failure(msgspec.Struct, frozen=True):
    """The answer to a page instead of a result: ``kind`` is the name of the error's class, ``text`` a sentence for the viewer."""

    kind: str
    text: str


class Refused(SprocketError):
    """The dashboard itself refuses a request, with the HTTP status ``status``; ``kind`` as in Failure."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


def failure_of(error: BaseException) -> tuple[int, Failure]:
    """Return the status and the failure that ``error`` becomes; an unexpected one is logged and not shown."""
    if isinstance(error, Refused):
        return error.status, Failure(error.kind, str(error))
    if isinstance(error, TimeoutError):
        return 504, Failure("Timeout", "the cluster did not answer in time: try again, or ask for less")
    if isinstance(error, SprocketError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 502)
        return status, Failure(type(error).__name__, str(error))
    log.error("dashboard: a request failed", exc_info=error)
    return 500, Failure("InternalError", "the dashboard failed to answer this; its log says why")
