"""TLS of a listening port: its settings, and the context for new connections, which follows the certificate files."""

import logging
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from sprocketmq.errors import CertificateRefused, ConfigError, SecretFileExposed
from sprocketmq.events import event
from sprocketmq.protocol.credentials import Secret

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

log = logging.getLogger(__name__)

# A certificate that expires within this time is warned of at the start and when it is reloaded.
EXPIRES_SOON = timedelta(days=14)

_VERIFY_MODES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsMode(StrEnum):
    """Which connections a port takes: plain ones, both kinds, or encrypted ones."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS of a listening port, on the same port as plain text: TLS 1.2 or later, without renegotiation.

    ``cert_file`` is the server's certificate followed by those of its authorities, ``key_file`` its key, both PEM. ``client_auth`` is
    ``none``, ``optional`` (a client certificate is verified when there is one) or ``required``; ``ca_file`` holds the certificates of the
    authorities that sign those of clients. ``alpn`` are the application protocols that the port offers. Changed files hold for new
    connections, within RELOAD_INTERVAL_S of the listener.

    Raises ConfigError for settings that cannot work together; the files are read when a port is opened.
    """

    mode: TlsMode = TlsMode.DISABLED
    cert_file: str | Path | None = None
    key_file: str | Path | None = None
    key_password: str | Secret | None = field(default=None, repr=False)
    ca_file: str | Path | None = None
    client_auth: str = "none"
    alpn: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "mode", TlsMode(self.mode))
        except ValueError:
            raise ConfigError(f"tls_mode is {self.mode!r}, it must be one of {', '.join(TlsMode)}") from None
        if self.client_auth not in _VERIFY_MODES:
            raise ConfigError(f"tls_client_auth is {self.client_auth!r}, it must be one of {', '.join(_VERIFY_MODES)}")
        if self.mode is TlsMode.DISABLED:
            return
        for name, path in (("tls_cert_file", self.cert_file), ("tls_key_file", self.key_file)):
            if path is None:
                raise ConfigError(f"tls_mode is {self.mode}, which needs {name}; `sprocketmq secure init DIR` makes certificates")
        if self.client_auth != "none" and self.ca_file is None:
            raise ConfigError(f"tls_client_auth is {self.client_auth}, which needs tls_ca_file: the authority of the clients' certificates")

    @property
    def enabled(self) -> bool:
        """Whether the port takes encrypted connections at all."""
        return self.mode is not TlsMode.DISABLED


class ServerContext:
    """The context of one port. Raises CertificateRefused or SecretFileExposed when its files cannot be used; reads them at once.

    ``name`` is the port's in log lines, ``now`` the wall clock.
    """

    def __init__(self, tls: ServerTls, *, name: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._tls = tls
        self._name = name
        self._now = now
        self._seen = self._look()
        self.context = self._load()

    def refresh(self) -> None:
        """Load the files again if one of them has changed; files that cannot be used are logged once, and change nothing."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.context = self._load()
        except ConfigError as e:
            reason = f"new connections get the certificate from before: {e}"
            event(log, logging.ERROR, "certificates_refused", server=self._name, reason=reason)
        else:
            event(log, logging.INFO, "certificates_reloaded", server=self._name, path=self._tls.cert_file)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return a fingerprint that changes with the file, None for a missing file."""
        found = []
        for path in (self._tls.cert_file, self._tls.key_file, self._tls.ca_file):
            try:
                state = Path(path).stat() if path is not None else None
            except OSError:
                state = None
            found.append((state.st_mtime_ns, state.st_size, state.st_ino) if state is not None else None)
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        tls = self._tls
        cert_file, key_file = str(tls.cert_file), str(tls.key_file)
        certificate = _certificate(cert_file)
        self._check_dates(certificate, cert_file)
        password = tls.key_password.reveal() if isinstance(tls.key_password, Secret) else tls.key_password
        _check_key(key_file, password, certificate, cert_file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Without tickets no key outlives a connection, and none is resumed under a context that was replaced.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(cert_file, key_file, password=password or "")
        except (OSError, ssl.SSLError) as e:
            raise CertificateRefused(cert_file, f"OpenSSL does not take it: {_reason(e)}") from None
        if tls.alpn:
            context.set_alpn_protocols(list(tls.alpn))
        if tls.client_auth != "none":
            try:
                context.load_verify_locations(str(tls.ca_file))
            except ssl.SSLError:
                raise CertificateRefused(str(tls.ca_file), "there is no certificate in PEM format in it") from None
            except OSError as e:
                raise CertificateRefused(str(tls.ca_file), f"it cannot be read: {e.strerror or e}") from None
            context.verify_mode = _VERIFY_MODES[tls.client_auth]
        return context

    def _check_dates(self, certificate: "Certificate", path: str) -> None:
        now, end = self._now(), certificate.not_valid_after_utc
        if end <= now:
            raise CertificateRefused(path, f"it expired on {end:%Y-%m-%d %H:%M} UTC: renew it, or check the clock of this machine")
        if certificate.not_valid_before_utc > now:
            start = certificate.not_valid_before_utc
            event(log, logging.WARNING, "certificate_not_valid_yet", server=self._name, path=path, begins=f"{start:%Y-%m-%d %H:%M} UTC")
        elif end - now < EXPIRES_SOON:
            event(log, logging.WARNING, "certificate_expires", server=self._name, path=path, ends=f"{end:%Y-%m-%d %H:%M} UTC")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise CertificateRefused(path, f"it cannot be read: {e.strerror or e}") from None


def _certificate(path: str) -> "Certificate":
    """Return the first certificate of a file."""
    from cryptography import x509

    data = _read(path)
    try:
        return x509.load_pem_x509_certificates(data)[0]
    except ValueError:
        raise CertificateRefused(path, "there is no certificate in PEM format in it") from None


def _check_key(path: str, password: str | None, certificate: "Certificate", cert_file: str) -> None:
    """Check that a key file is for its owner only, holds a key and that the key is the certificate's."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    data = _read(path)
    state = Path(path).stat()
    # A key of root may be readable by a group, as distributions and Kubernetes set them up.
    if state.st_mode & (stat.S_IRWXO | (stat.S_IRWXG if state.st_uid else stat.S_IWGRP)):
        raise SecretFileExposed(path, stat.S_IMODE(state.st_mode))
    try:
        key = load_pem_private_key(data, password.encode() if password else None)
    except TypeError as e:
        needed = "it is encrypted: give its password (tls_key_password_file)" if password is None else str(e)
        raise CertificateRefused(path, needed) from None
    except (ValueError, UnsupportedAlgorithm):
        reason = "there is no key in PEM format in it" if password is None else "it holds no key in PEM format, or the password is wrong"
        raise CertificateRefused(path, reason) from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise CertificateRefused(path, f"it is not the key of the certificate in {cert_file}: name the two files of one pair")


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)
