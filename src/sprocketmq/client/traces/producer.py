"""The producer that writes the traces of a client."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Literal

from sprocketmq.client.credentials import CredentialsArgument
from sprocketmq.client.traces.writer import TraceProducer
from sprocketmq.clock import Clock
from sprocketmq.net.tls import TlsConfig
from sprocketmq.protocol.names import MAX_GROUP_LENGTH

# Timeout of one try to write traces.
TRACE_TIMEOUT_S = 3.0
_numbers = count(1)


def trace_producer(
    producer: Callable[..., TraceProducer],
    group: str,
    role: Literal["PRODUCE", "CONSUME"],
    *,
    namesrv: str | Sequence[str] | None,
    credentials: CredentialsArgument | None,
    tls: bool | TlsConfig | None,
    secure: str | os.PathLike[str] | None,
    clock: Clock,
) -> Callable[[], TraceProducer]:
    """Return a factory of a ``producer`` (the class) for the traces of a client of ``group``, named like that of Apache's clients."""
    prefix, suffix = "_INNER_TRACE_PRODUCER-", f"-{role}-{next(_numbers)}"
    name = f"{prefix}{group[: MAX_GROUP_LENGTH - len(prefix) - len(suffix)]}{suffix}"
    return partial(
        producer,
        name,
        namesrv=namesrv,
        timeout_s=TRACE_TIMEOUT_S,
        compression=None,
        credentials=credentials,
        tls=tls,
        secure=secure,
        clock=clock,
    )
