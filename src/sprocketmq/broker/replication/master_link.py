"""A slave's connection to the HA port of its master: proves the secret, receives into one buffer, reports."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import cast

from sprocketmq.clock import Clock
from sprocketmq.errors import SecretMismatch
from sprocketmq.net.sockets import send_at_once
from sprocketmq.protocol.replication import (
    CHALLENGE_BYTES,
    MASTER_PROOF_BYTES,
    SlaveHandshake,
    TransferReader,
    encode_report,
)


class MasterLink(asyncio.BufferedProtocol):
    """One connection. ``ready`` is set when the master has proven the secret, at once without one; ``ended`` when the connection is gone.

    ``took`` gets each piece of log, a view that is valid during the call; ``read`` is called after the last piece of a read of the socket.
    When either raises, the connection ends with that error. ``reader`` is shared: one connection uses it at a time.
    """

    def __init__(
        self,
        reader: TransferReader,
        *,
        secret: str | None,
        took: Callable[[int, memoryview], None],
        read: Callable[[], None],
        clock: Clock,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.error: BaseException | None = None
        self._reader = reader
        self._handshake = SlaveHandshake(secret) if secret is not None else None
        self._wanted = CHALLENGE_BYTES
        self._greeting = bytearray()
        self._took = took
        self._read = read
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self.paused = False
        self.reported = -1
        self.reported_at = self.received_at = clock.monotonic()

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        send_at_once(transport)
        if self._handshake is None:
            self.ready.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        buffer = self._reader.get_buffer()
        # During the handshake only its own bytes are read: what follows is for the reader.
        return buffer if self._handshake is None else buffer[: self._wanted - len(self._greeting)]

    def buffer_updated(self, nbytes: int) -> None:
        self.received_at = self._clock.monotonic()
        if self.error is not None:
            return
        try:
            if self._handshake is not None:
                self._greet(bytes(self._reader.get_buffer()[:nbytes]))
                return
            for log_offset, data in self._reader.received(nbytes):
                self._took(log_offset, data)
            self._read()
        except Exception as e:  # noqa: BLE001 - the follower raises it where it waits
            self.fail(e)

    def eof_received(self) -> bool:
        return False  # closes the transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.error is None:
            refused = self._wanted > CHALLENGE_BYTES and self._handshake is not None
            self.error = (
                SecretMismatch("the master refuses the shared secret: give it the same ha_secret or inner_credentials") if refused else exc
            )
        for future in (self.ready, self.ended):
            if not future.done():
                future.set_result(None)

    # --- the secret ---

    def _greet(self, data: bytes) -> None:
        assert self._handshake is not None
        assert self._transport is not None
        self._greeting += data
        if len(self._greeting) < self._wanted:
            return
        if self._wanted == CHALLENGE_BYTES:
            self._transport.write(self._handshake.prove(bytes(self._greeting)))
            self._wanted = CHALLENGE_BYTES + MASTER_PROOF_BYTES
            return
        self._handshake.check(bytes(self._greeting[CHALLENGE_BYTES:]))
        self._handshake = None
        self.ready.set_result(None)

    # --- for the follower ---

    def report(self, log_offset: int) -> None:
        """Acknowledge the log up to ``log_offset``; also a sign of life. Acknowledgements never go back."""
        if self._transport is not None:
            self.reported = max(log_offset, self.reported)
            self.reported_at = self._clock.monotonic()
            self._transport.write(encode_report(self.reported))

    def pause(self) -> None:
        """Pause reading until ``resume``; the master has to wait."""
        if not self.paused and not self.closed and self._transport is not None:
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        if self.paused:
            self.paused = False
            self.received_at = self._clock.monotonic()
            if not self.closed and self._transport is not None:
                self._transport.resume_reading()

    @property
    def closed(self) -> bool:
        """Whether the connection is gone or ends."""
        return self._transport is None or self._transport.is_closing()

    def fail(self, error: BaseException) -> None:
        """Close the connection at once because of ``error``."""
        if self.error is None:
            self.error = error
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._transport.abort()
