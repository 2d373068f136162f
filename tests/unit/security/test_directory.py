"""``secure init`` and ``secure renew``: what they make, what they refuse, and that a handshake accepts it."""

import json
import os
import ssl
import stat
import tomllib
from datetime import UTC, datetime, timedelta

import pytest

from sprocketmq.client.credentials import read_credentials, resolve
from sprocketmq.errors import ConfigError, SecretFileExposed
from sprocketmq.net.tls import TlsConfig, client_context
from sprocketmq.security import directory
from sprocketmq.security.certificates import hosts_of, valid_until
from sprocketmq.security.directory import SecureDirectory, create, renew
from sprocketmq.security.user_file import read_users_file


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory that no test changes."""
    root = tmp_path_factory.mktemp("secure") / "made"
    return SecureDirectory(root), create(root, ["mq.example.com", "10.1.2.3"])


def handshake(files, host, client=None):
    """Let a client that trusts ``client`` meet a server with the certificate of ``files``, and return what the client sees."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(files.certificate, files.key)
    context = client_context(TlsConfig(ca_file=(client or files).authority))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server_context.wrap_bio(to_server, to_client, server_side=True)
    for side in (ours, theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return ours.getpeercert()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "mq.example.com", "10.1.2.3"])
def test_a_client_accepts_the_server_under_each_of_its_names(made, host):
    files, issued = made
    assert host in issued.hosts
    assert handshake(files, host)["subjectAltName"]


def test_a_client_refuses_another_name_and_another_authority(made, tmp_path):
    files, _ = made
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mq\.example\.org"):
        handshake(files, "mq.example.org")
    create(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "localhost", SecureDirectory(tmp_path / "other"))


def test_only_the_owner_reads_what_is_secret(made):
    files, _ = made
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (files.root, *files.root.rglob("*"))}
    assert modes == {
        "made": 0o700,
        "client": 0o700,
        "ca.pem": 0o644,
        "server.pem": 0o644,
        "settings.toml": 0o644,
        **dict.fromkeys(("ca.key", "server.key", "users.json", "inner.json", "credentials.json"), 0o600),
    }


def test_the_users_are_those_of_the_credentials(made):
    files, _ = made
    users = read_users_file(files.users).users
    admin, inner = read_credentials(files.client / "credentials.json"), read_credentials(files.inner_credentials)
    assert {name: user.secrets for name, user in users.items()} == {"admin": (admin.secret_key,), "inner": (inner.secret_key,)}
    assert all(user.is_super and user.enabled for user in users.values())
    assert admin.secret_key != inner.secret_key
    assert len(admin.secret_key.reveal()) == 43  # 32 bytes as Base64


def test_clients_take_the_directory_or_the_part_that_is_theirs(made, tmp_path):
    files, _ = made
    for secure in (files.root, files.client):
        security = resolve(secure=secure, environment={"HOME": str(tmp_path)})
        assert security.tls == TlsConfig(ca_file=files.client / "ca.pem")
        assert security.credentials().access_key == "admin"


def test_the_settings_name_files_of_the_directory(made):
    files, _ = made
    settings = tomllib.loads(files.settings.read_text())
    assert settings["tls_mode"] == "enforcing"
    assert all((files.root / value).is_file() for key, value in settings.items() if key.endswith("_file"))


def test_certificates_are_valid_for_the_days_asked_for(made, tmp_path):
    _, issued = made
    soon = timedelta(days=1)
    assert abs(issued.until - datetime.now(UTC) - timedelta(days=825)) < soon
    long = create(tmp_path / "long", days=5000)
    assert abs(long.until - datetime.now(UTC) - timedelta(days=5000)) < soon
    assert valid_until(SecureDirectory(tmp_path / "long").authority.read_bytes()) > long.until


def test_an_empty_directory_is_filled_and_any_other_is_left_alone(tmp_path):
    (tmp_path / "empty").mkdir(mode=0o755)
    create(tmp_path / "empty")
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o700
    before = {path: path.read_bytes() for path in (tmp_path / "empty").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="secure renew"):
        create(tmp_path / "empty")
    assert before == {path: path.read_bytes() for path in (tmp_path / "empty").rglob("*") if path.is_file()}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match=r"not empty \(notes is in it\): name a new directory"):
        create(tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        create(tmp_path / "file")


@pytest.mark.parametrize(
    ("hosts", "days", "said"),
    [
        (["mq.example.com:9876"], 825, "without a port"),
        (["two words"], 825, "neither a host name"),
        ([""], 825, "neither a host name"),
        (["a" * 254], 825, "neither a host name"),
        ([], 0, "0 days"),
        ([], 10**9, "1000000000 days"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_left(tmp_path, hosts, days, said):
    with pytest.raises(ConfigError, match=said):
        create(tmp_path / "secure", hosts, days)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory, "write_client", full)
    with pytest.raises(ConfigError, match="No space left"):
        create(tmp_path / "secure")
    assert list(tmp_path.iterdir()) == []


def test_renewing_keeps_authority_hosts_and_users(tmp_path):
    root = tmp_path / "secure"
    create(root, ["mq.example.com"], days=10)
    files = SecureDirectory(root)
    kept = {path: path.read_bytes() for path in (files.authority, files.authority_key, files.users, files.inner_credentials)}
    before = files.certificate.read_bytes(), files.key.read_bytes()
    issued = renew(root, ["10.9.8.7"], days=20)
    assert {"localhost", "mq.example.com", "10.9.8.7"} <= set(issued.hosts)
    assert set(hosts_of(files.certificate.read_bytes())) == set(issued.hosts)
    assert valid_until(files.certificate.read_bytes()) == issued.until
    assert before != (files.certificate.read_bytes(), files.key.read_bytes())
    assert kept == {path: path.read_bytes() for path in kept}
    handshake(files, "10.9.8.7")
    files.certificate.unlink()
    assert "localhost" in renew(root).hosts


def test_renewing_says_what_is_missing_and_changes_nothing(tmp_path):
    root = tmp_path / "secure"
    create(root)
    files = SecureDirectory(root)
    before = files.certificate.read_bytes()
    with pytest.raises(ConfigError, match=r"the certificate authority is valid until \d{4}-\d\d-\d\d only: choose fewer --days"):
        renew(root, days=10_000)
    key = files.authority_key.read_bytes()
    files.authority_key.write_bytes(files.key.read_bytes())
    with pytest.raises(ConfigError, match="does not belong to its certificate"):
        renew(root)
    files.authority_key.write_text("no key")
    with pytest.raises(ConfigError, match="not a PEM key"):
        renew(root)
    files.authority_key.unlink()
    with pytest.raises(ConfigError, match=r"ca\.key does not exist: name a directory of `sprocketmq secure init`"):
        renew(root)
    files.authority_key.write_bytes(key)
    assert files.certificate.read_bytes() == before
    files.certificate.write_text("damaged")
    with pytest.raises(ConfigError, match=r"server\.pem: it is not a certificate in PEM; remove it"):
        renew(root)


def test_credentials_that_others_may_read_are_refused(tmp_path):
    root = tmp_path / "secure"
    create(root)
    os.chmod(root / "client" / "credentials.json", 0o640)
    with pytest.raises(SecretFileExposed, match="chmod 600"):
        resolve(secure=root, environment={"HOME": str(tmp_path)}).credentials()


def test_credentials_are_json_with_two_texts(made):
    files, _ = made
    assert set(json.loads((files.client / "credentials.json").read_text())) == {"access_key", "secret_key"}
