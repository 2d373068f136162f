"""The TLS settings of a port and the context they make: what is refused at the start, and what holds when files change."""

import os
import ssl
from datetime import timedelta
from pathlib import Path
from shutil import copy

import pytest
from tests.certificates import DAY, Authority, Pair

from sprocketmq.errors import CertificateRefused, ConfigError, SecretFileExposed
from sprocketmq.events import quoted
from sprocketmq.net.server_tls import ServerContext, ServerTls, TlsMode
from sprocketmq.protocol.credentials import Secret


@pytest.fixture
def pair(server_certificate):
    return server_certificate


def context_of(pair: Pair, **settings) -> ssl.SSLContext:
    return ServerContext(ServerTls(TlsMode.ENFORCING, pair.cert_file, pair.key_file, **settings), name="broker").context


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "on"}, "tls_mode is 'on', it must be one of disabled, permissive, enforcing"),
        ({"mode": "enforcing"}, "tls_mode is enforcing, which needs tls_cert_file"),
        ({"mode": "permissive", "cert_file": "a.pem"}, "which needs tls_key_file"),
        ({"mode": "disabled", "client_auth": "want"}, "tls_client_auth is 'want', it must be one of none, optional, required"),
        ({"mode": "enforcing", "cert_file": "a.pem", "key_file": "a.key", "client_auth": "required"}, "which needs tls_ca_file"),
    ],
)
def test_settings_that_do_not_work_together_are_refused(settings, text):
    with pytest.raises(ConfigError, match=text):
        ServerTls(**settings)


def test_tls_is_off_unless_asked_for():
    assert not ServerTls().enabled
    assert ServerTls("permissive", "a.pem", "a.key").mode is TlsMode.PERMISSIVE


def test_the_password_of_a_key_is_not_shown():
    assert "opensesame" not in repr(ServerTls("enforcing", "a.pem", "a.key", key_password="opensesame"))


def test_a_context_has_no_old_protocol_no_renegotiation_and_no_tickets(pair):
    context = context_of(pair)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_TICKET
    assert context.num_tickets == 0
    assert context.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(("client_auth", "mode"), [("optional", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)])
def test_certificates_of_clients_are_asked_for(authority, pair, client_auth, mode):
    assert context_of(pair, ca_file=authority.ca_file, client_auth=client_auth).verify_mode == mode


def refused(pair: Pair, path: str, text: str, error: type[ConfigError] = CertificateRefused, **settings) -> None:
    with pytest.raises(error, match=text) as caught:
        context_of(pair, **settings)
    assert caught.value.path == path
    assert path in str(caught.value)


def test_files_that_are_not_there_are_named(authority, pair):
    refused(Pair("/no/server.pem", pair.key_file), "/no/server.pem", "cannot be read: No such file or directory")
    refused(Pair(pair.cert_file, "/no/server.key"), "/no/server.key", "cannot be read: No such file or directory")
    refused(pair, "/no/ca.pem", "cannot be read: No such file", ca_file="/no/ca.pem", client_auth="optional")


def test_files_that_are_not_pem_are_named(pair, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"\xff\x00 nothing of that kind")
    other.chmod(0o600)
    refused(Pair(str(other), pair.key_file), str(other), "no certificate in PEM format")
    refused(Pair(pair.cert_file, str(other)), str(other), "no key in PEM format")
    refused(pair, str(other), "no certificate in PEM format", ca_file=str(other), client_auth="optional")
    refused(Pair(pair.key_file, pair.key_file), pair.key_file, "no certificate in PEM format")


def test_a_key_of_another_certificate_is_refused(authority, pair):
    other = authority.issue("other")
    refused(Pair(pair.cert_file, other.key_file), other.key_file, f"not the key of the certificate in {pair.cert_file}")


def test_an_expired_certificate_is_refused(authority):
    expired = authority.issue("expired", begins=-30 * DAY, ends=-DAY)
    refused(expired, expired.cert_file, "it expired on .* UTC: renew it")


def test_a_certificate_that_soon_expires_or_is_not_valid_yet_is_warned_of(authority, caplog):
    context_of(authority.issue("short", ends=3 * DAY))
    context_of(authority.issue("early", begins=timedelta(hours=1)))
    expires, begins = caplog.messages
    assert "certificate_expires" in expires
    assert "short.pem" in expires
    assert "certificate_not_valid_yet" in begins
    assert "early.pem" in begins


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602])
def test_a_key_that_others_may_read_is_refused(pair, tmp_path, mode):
    key = tmp_path / "server.key"
    copy(pair.key_file, key)
    key.chmod(mode)
    refused(Pair(pair.cert_file, str(key)), str(key), f"mode {mode:04o}", SecretFileExposed)


def test_the_group_may_read_a_key_of_root_only(pair, tmp_path):
    key = tmp_path / "server.key"
    copy(pair.key_file, key)
    key.chmod(0o640)
    if os.getuid():
        refused(Pair(pair.cert_file, str(key)), str(key), "mode 0640", SecretFileExposed)
    else:
        assert context_of(Pair(pair.cert_file, str(key)))


def test_an_encrypted_key_needs_its_password(authority):
    pair = authority.issue("encrypted", password="opensesame")
    assert context_of(pair, key_password="opensesame")
    assert context_of(pair, key_password=Secret("opensesame"))
    refused(pair, pair.key_file, "it is encrypted: give its password")
    refused(pair, pair.key_file, "the password is wrong", key_password="guess")


def test_a_password_for_a_key_that_has_none_is_refused(pair):
    refused(pair, pair.key_file, "not encrypted", key_password="opensesame")


class Changing:
    """A context whose files change."""

    def __init__(self, authority: Authority, directory: Path) -> None:
        self.authority = authority
        self.pair = Pair(str(directory / "now.pem"), str(directory / "now.key"))
        self.put("first")
        self.context = ServerContext(ServerTls("enforcing", self.pair.cert_file, self.pair.key_file), name="broker")
        self.before = self.context.context

    def put(self, name: str, *, cert: bool = True, key: bool = True) -> None:
        made = self.authority.issue(name)
        for source, target, wanted in ((made.cert_file, self.pair.cert_file, cert), (made.key_file, self.pair.key_file, key)):
            if wanted:
                copy(source, f"{target}.new")
                Path(f"{target}.new").replace(target)


@pytest.fixture
def changing(authority, tmp_path):
    return Changing(authority, tmp_path)


def test_files_that_did_not_change_are_not_read_again(changing):
    changing.context.refresh()
    assert changing.context.context is changing.before


def test_changed_files_make_a_new_context(changing, said):
    changing.put("second")
    changing.context.refresh()
    assert changing.context.context is not changing.before
    assert said("certificates_reloaded") == [f"certificates_reloaded server=broker path={quoted(changing.pair.cert_file)}"]


def test_a_pair_that_does_not_match_is_logged_once_and_the_old_one_stays_until_the_other_file_came(changing, said):
    changing.put("second", key=False)
    for _ in range(3):
        changing.context.refresh()
    assert changing.context.context is changing.before
    (message,) = said("certificates_refused")
    assert message.startswith("certificates_refused server=broker reason=")
    assert "new connections get the certificate from before" in message
    assert "is not the key of the certificate" in message
    changing.put("third")
    changing.context.refresh()
    assert changing.context.context is not changing.before


@pytest.mark.parametrize("damage", ["removed", "empty", "exposed"])
def test_files_that_can_no_longer_be_used_change_nothing(changing, damage, caplog):
    key = Path(changing.pair.key_file)
    if damage == "removed":
        key.unlink()
    elif damage == "empty":
        key.write_bytes(b"")
    else:
        copy(key, f"{key}.new")
        Path(f"{key}.new").chmod(0o644)
        Path(f"{key}.new").replace(key)
    for _ in range(2):
        changing.context.refresh()
    assert changing.context.context is changing.before
    assert len(caplog.messages) == 1
