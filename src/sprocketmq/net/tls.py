"""TLS of outgoing connections: the settings of a client, the ``ssl`` context they make, and the reasons of failed handshakes."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from sprocketmq.errors import ConfigError, TlsFailed
from sprocketmq.protocol.credentials import Secret

log = logging.getLogger(__name__)

# Numbers of OpenSSL's verification errors (X509_V_ERR_...).
_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_NAMES = (62, 64)
# OpenSSL's reasons when the first bytes of the peer are not TLS.
_PLAIN_TEXT = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL")
_CLOSED = ("UNEXPECTED_EOF_WHILE_READING",)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How a client encrypts its connections to nameservers and brokers: TLS 1.2 or later.

    ``ca_file`` holds the certificates of the authorities to trust (PEM); None: those of the system. ``cert_file`` and ``key_file`` are the
    client's own certificate, for servers that want one, and ``key_password`` that of its key. The server's certificate must name the host
    of the address, or ``server_name`` where that is given: for all servers. ``verify=False`` accepts any certificate, also an attacker's;
    it is only for servers with certificates made at each start, such as Apache's brokers in TLS test mode.
    """

    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None
    key_password: str | Secret | None = None
    server_name: str | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.key_password, str):
            object.__setattr__(self, "key_password", Secret(self.key_password))
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("key_file is set without cert_file: set both, or none")
        if not isinstance(self.verify, bool):
            raise ConfigError(f"verify must be True or False, not {self.verify!r}")
        if self.server_name is not None and not self.server_name:
            raise ConfigError("server_name must not be empty: leave it out to expect the host of each address")


def client_context(tls: "bool | TlsConfig | None") -> ssl.SSLContext | None:
    """Return the context for a client's connections, None without TLS (None or False). True means ``TlsConfig()``.

    Raises ConfigError, naming the file, for files that cannot be read, or are not matching certificates and keys. Logs a warning
    when certificates are not verified.
    """
    if tls is None or tls is False:
        return None
    config = TlsConfig() if tls is True else tls
    if not isinstance(config, TlsConfig):
        raise ConfigError(f"tls must be True, False or a TlsConfig, not {type(config).__name__}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not config.verify:
        log.warning("TLS certificates of servers are not verified (verify=False): anyone on the way can read and change what is sent")
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.ca_file is not None:
        try:
            context.load_verify_locations(str(config.ca_file))
        except OSError as e:
            raise _bad_file("ca_file", config.ca_file, e) from None
    elif config.verify:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if config.cert_file is not None:
        _load_certificate(context, config)
    return context


def _load_certificate(context: ssl.SSLContext, config: TlsConfig) -> None:
    cert_file, key_file = str(config.cert_file), str(config.key_file or config.cert_file)
    for name, path in (("cert_file", cert_file), ("key_file", key_file)):
        try:
            Path(path).read_bytes()
        except OSError as e:
            raise _bad_file(name, path, e) from None
    password = config.key_password
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(cert_file, key_file, password=password.reveal() if isinstance(password, Secret) else "")
    except ssl.SSLError as e:
        if e.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"the key in {key_file} is not that of the certificate in {cert_file}: name the files of one pair") from None
        raise ConfigError(
            f"cannot use the certificate in {cert_file} with the key in {key_file}: {e.reason or e};"
            " both must be PEM, and an encrypted key needs its key_password"
        ) from None


def _bad_file(name: str, path: object, error: OSError) -> ConfigError:
    if isinstance(error, ssl.SSLError):
        return ConfigError(f"{name} {path} holds no certificate in PEM format ({error.reason or error})")
    return ConfigError(f"{name} {path} cannot be read: {error.strerror or error}")


def handshake_failure(address: str, expected: str, error: OSError) -> TlsFailed:
    """Return the typed error of a TLS connection to ``address`` that ended with ``error`` before anything was received."""
    if isinstance(error, ssl.SSLCertVerificationError):
        detail = error.verify_message
        if error.verify_code == _EXPIRED:
            return TlsFailed(address, expected, "expired", detail)
        if error.verify_code == _NOT_YET_VALID:
            return TlsFailed(address, expected, "not yet valid", detail)
        if error.verify_code in _WRONG_NAMES or not error.verify_code:
            return TlsFailed(address, expected, "host name", detail)
        return TlsFailed(address, expected, "untrusted", detail)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if reason in _PLAIN_TEXT:
            return TlsFailed(address, expected, "plain text")
        if reason in _CLOSED or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return TlsFailed(address, expected, "closed")
        if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
            return TlsFailed(address, expected, "client certificate", reason)
        return TlsFailed(address, expected, "other", reason)
    return TlsFailed(address, expected, "closed")
