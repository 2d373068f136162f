"""The stream between a slave and its master's HA port: reports, transfers, and the proof of a shared secret. Layouts: ``layout.py``.

Nothing here reads or writes a socket. A slave sends reports, a master transfers; log bytes may be cut anywhere.
"""

import hmac
import secrets
from collections.abc import Iterable

from sprocketmq.errors import RemoteProtocolError, SecretMismatch
from sprocketmq.protocol.layout import (
    NONCE_BYTES,
    PROOF_BYTES,
    PROOF_LAYOUT,
    REPORT,
    TRANSFER_HEAD,
    TRANSFER_HEAD_BYTES,
)

REPORT_BYTES = REPORT.size
CHALLENGE_BYTES = TRANSFER_HEAD_BYTES + NONCE_BYTES
SLAVE_PROOF_BYTES = PROOF_LAYOUT.size
MASTER_PROOF_BYTES = TRANSFER_HEAD_BYTES + PROOF_BYTES
# The log offsets of the two transfers that carry no log.
CHALLENGE = -1
MASTER_PROOF = -2

# The size of one read: a loopback socket buffers 4 MiB, and fewer, larger writes to the log cost less.
RECEIVE_BYTES = 4 << 20

encode_report = REPORT.pack
encode_transfer_head = TRANSFER_HEAD.pack


class ReportReader:
    """Cuts what a slave sends into reports."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def received(self, data: bytes) -> list[int]:
        """Return the log offsets of the reports that ``data`` completes."""
        if self._rest:
            data = self._rest + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._rest = data[whole:]
        return [value for (value,) in REPORT.iter_unpack(data[:whole])]


class TransferReader:
    """Cuts what a master sends into pieces of log, without copying them.

    The bytes are received into ``get_buffer()``, a part of ``buffer``. The pieces that ``received`` returns are views of it and valid until
    the next call.
    """

    __slots__ = ("_body_left", "_buffer", "_log_offset", "_rest")

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = memoryview(buffer)
        self._rest = self._buffer[:0]  # an incomplete head, where it was received
        self._body_left = 0
        self._log_offset = 0

    def get_buffer(self) -> memoryview:
        """Return where the next bytes go; never empty. The pieces received before are not valid any more."""
        count = len(self._rest)
        self._buffer[:count] = self._rest.tobytes()
        self._rest = self._buffer[:count]
        return self._buffer[count:]

    def received(self, count: int) -> Iterable[tuple[int, memoryview]]:
        """Return ``(log offset, bytes)`` of each piece of log among the ``count`` bytes received; no bytes for a heartbeat.

        Raises RemoteProtocolError for a head that no master sends.
        """
        buffer = self._buffer
        filled = len(self._rest) + count
        pos = 0
        pieces: list[tuple[int, memoryview]] = []
        while True:
            if self._body_left:
                taken = min(self._body_left, filled - pos)
                if not taken:
                    break
                pieces.append((self._log_offset, buffer[pos : pos + taken]))
                self._log_offset += taken
                self._body_left -= taken
                pos += taken
                continue
            if filled - pos < TRANSFER_HEAD_BYTES:
                break
            log_offset, size = TRANSFER_HEAD.unpack_from(buffer, pos)
            pos += TRANSFER_HEAD_BYTES
            if log_offset == CHALLENGE and size == NONCE_BYTES:
                raise SecretMismatch(
                    "the master asks for a shared secret, and this slave has none: give it the same ha_secret or inner_credentials"
                )
            if log_offset < 0 or size < 0:
                raise RemoteProtocolError(f"a transfer of {size} bytes from log offset {log_offset}: this is not the HA port of a master")
            if size:
                self._log_offset, self._body_left = log_offset, size
            else:
                pieces.append((log_offset, buffer[:0]))
        self._rest = buffer[pos:filled]  # fewer than 12 bytes; moved later, as pieces may lie where it goes
        return pieces


# --- the shared secret --------------------------------------------------------------------------------------------------


def _proof(secret: str, *parts: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"".join(parts), "sha256")


class MasterHandshake:
    """The master's side of the proof that both know the secret. It does not encrypt what follows."""

    __slots__ = ("_nonce", "_secret")

    def __init__(self, secret: str, nonce: bytes | None = None) -> None:
        self._secret = secret
        self._nonce = nonce or secrets.token_bytes(NONCE_BYTES)

    def challenge(self) -> bytes:
        """Return the first bytes that the master sends."""
        return encode_transfer_head(CHALLENGE, NONCE_BYTES) + self._nonce

    def answer(self, proof: bytes) -> bytes:
        """Return the master's proof for the slave's (SLAVE_PROOF_BYTES). Raises SecretMismatch for a wrong one."""
        report, nonce, digest = PROOF_LAYOUT.struct.unpack(proof)
        if report != CHALLENGE:
            raise SecretMismatch(
                "the slave does not prove that it knows the shared secret: give it the same ha_secret or inner_credentials"
            )
        if not hmac.compare_digest(digest, _proof(self._secret, b"slave", self._nonce, nonce)):
            raise SecretMismatch("the slave has another shared secret: give it the same ha_secret or inner_credentials")
        return encode_transfer_head(MASTER_PROOF, PROOF_BYTES) + _proof(self._secret, b"master", nonce, self._nonce)


class SlaveHandshake:
    """The slave's side of the proof that both know the secret."""

    __slots__ = ("_master_nonce", "_nonce", "_secret")

    def __init__(self, secret: str, nonce: bytes | None = None) -> None:
        self._secret = secret
        self._nonce = nonce or secrets.token_bytes(NONCE_BYTES)
        self._master_nonce = b""

    def prove(self, challenge: bytes) -> bytes:
        """Return the slave's proof for the master's challenge (CHALLENGE_BYTES). Raises SecretMismatch when it is none."""
        if TRANSFER_HEAD.unpack_from(challenge) != (CHALLENGE, NONCE_BYTES):
            raise SecretMismatch("the master does not ask for the shared secret: give it the same ha_secret or inner_credentials")
        self._master_nonce = challenge[TRANSFER_HEAD_BYTES:]
        digest = _proof(self._secret, b"slave", self._master_nonce, self._nonce)
        return PROOF_LAYOUT.struct.pack(CHALLENGE, self._nonce, digest)

    def check(self, proof: bytes) -> None:
        """Check the master's proof (MASTER_PROOF_BYTES). Raises SecretMismatch for a wrong one."""
        expected = _proof(self._secret, b"master", self._nonce, self._master_nonce)
        right = hmac.compare_digest(proof[TRANSFER_HEAD_BYTES:], expected)
        if not right or TRANSFER_HEAD.unpack_from(proof) != (MASTER_PROOF, PROOF_BYTES):
            raise SecretMismatch("the master has another shared secret: give it the same ha_secret or inner_credentials")
