"""A certificate authority for one cluster, and the certificates that it signs: elliptic curve P-256, as PEM texts.

``cryptography`` is imported when one is made, which takes 60 ms and 18 MB; servers and clients use ``ssl`` only.
"""

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from sprocketmq.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName, KeyUsage, Name

AUTHORITY_DAYS = 3650
MAX_DAYS = 36_500
# Machines whose clocks are a little late accept new certificates as well.
CLOCK_TOLERANCE = timedelta(hours=1)
MAX_HOST_LENGTH = 253


class KeyPair(NamedTuple):
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


def make_authority(days: int = AUTHORITY_DAYS) -> KeyPair:
    """Return a new authority, valid for ``days``, which can sign certificates of servers and nothing else."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities need two names, or a client that trusts both could take one for the other.
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"SprocketMQ cluster {secrets.token_hex(4)}")])
    builder = _builder(name, name, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _signed(builder, key, key)


def issue(authority: KeyPair, hosts: Sequence[str], days: int) -> KeyPair:
    """Return a certificate for ``hosts`` (names and IP addresses), signed by ``authority``. Raises ConfigError for what cannot be one."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    check_days(days)
    signer, signer_key = _loaded(authority)
    if signer.not_valid_after_utc < datetime.now(UTC) + timedelta(days=days):
        raise ConfigError(
            f"the certificate authority is valid until {signer.not_valid_after_utc:%Y-%m-%d} only: choose fewer --days, or make a new"
            " directory with `sprocketmq secure init`"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "SprocketMQ server")])
    builder = _builder(name, signer.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_general_name, hosts))), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key())
    return _signed(builder.add_extension(identifier, critical=False), key, signer_key)


def hosts_of(certificate: bytes) -> list[str]:
    """Return the names and addresses that a certificate is for. Raises ConfigError for other PEM."""
    from cryptography import x509

    try:
        names = _certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def covers(hosts: Iterable[str], host: str) -> bool:
    """Return whether a certificate for ``hosts`` is one for ``host``; ``*.example.com`` stands for every name with one more label."""
    host = host.strip("[]").lower()
    _, dot, parent = host.partition(".")
    return any(one.lower() in (host, f"*.{parent}" if dot else host) for one in hosts)


def valid_until(certificate: bytes) -> datetime:
    """Return when a certificate expires. Raises ConfigError for other PEM."""
    return _certificate(certificate).not_valid_after_utc


def check_days(days: int) -> int:
    """Return ``days`` when a certificate can be valid for so long. Raises ConfigError."""
    if not 1 <= days <= MAX_DAYS:
        raise ConfigError(f"a certificate cannot be valid for {days} days: use 1 to {MAX_DAYS:,}")
    return days


def check_host(host: str) -> str:
    """Return ``host`` when a certificate can name it. Raises ConfigError."""
    _general_name(host)
    return host


def _general_name(host: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        ascii_name = host.encode("idna").decode()
    except UnicodeError:
        ascii_name = ""
    labels = ascii_name.removeprefix("*.").split(".")
    if len(ascii_name) > MAX_HOST_LENGTH or not all(label.replace("-", "a").replace("_", "a").isalnum() for label in labels):
        raise ConfigError(f"{host!r} is neither a host name nor an IP address: write it without a port, such as mq.example.com or 10.0.0.1")
    return x509.DNSName(ascii_name)


def _builder(subject: "Name", issuer: "Name", key: "EllipticCurvePrivateKey", days: int) -> "CertificateBuilder":
    from cryptography import x509

    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - CLOCK_TOLERANCE).not_valid_after(now + timedelta(days=days, minutes=1))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(*, signs_certificates: bool) -> "KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: "CertificateBuilder", key: "EllipticCurvePrivateKey", signer: "EllipticCurvePrivateKey") -> KeyPair:
    from cryptography.hazmat.primitives import hashes, serialization

    certificate = builder.sign(signer, hashes.SHA256())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private)


def _loaded(pair: KeyPair) -> "tuple[Certificate, EllipticCurvePrivateKey]":
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    certificate = _certificate(pair.certificate)
    try:
        key = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError):
        raise ConfigError("the key of the certificate authority is not a PEM key without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError("the key of the certificate authority does not belong to its certificate")
    return certificate, key


def _certificate(pem: bytes) -> "Certificate":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise ConfigError("it is not a certificate in PEM") from None
