"""TLS and access control of ``serve``, ``broker`` and ``namesrv``: settings, what is refused, and servers that run with them."""

import json
import re
import shlex
import ssl
from pathlib import Path

import pytest

from sprocketmq.cli.app import main
from sprocketmq.cli.config import KEYS, SECURITY_KEYS, Settings
from sprocketmq.cli.logs import LogOptions
from sprocketmq.cli.serving_many import ManyServers
from sprocketmq.cli.serving_options import broker_config, check_reach, parser, read_settings
from sprocketmq.cli.serving_security import add_initial_users, ready_fields, security_of, warn_of_names
from sprocketmq.errors import ConfigError, SecretFileExposed
from sprocketmq.net.server_tls import TlsMode
from sprocketmq.security import certificates
from sprocketmq.security.directory import SecureDirectory, create, renew
from sprocketmq.security.user_file import read_users_file
from sprocketmq.testing import wait_until

FREE = ("--port", "0", "--namesrv-port", "0")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A directory that no test changes."""
    root = tmp_path_factory.mktemp("secure") / "secure"
    create(root)
    return SecureDirectory(root)


@pytest.fixture
def own(tmp_path):
    """A directory for one test."""
    create(tmp_path / "secure")
    return SecureDirectory(tmp_path / "secure")


def settings_of(verb, *arguments):
    return read_settings(verb, parser(verb).parse_args([str(one) for one in arguments]))


# --- settings -----------------------------------------------------------------------------------------------------------


def test_a_secure_directory_is_tls_and_access_control(shared):
    config = broker_config(settings_of("serve", "--secure", shared.root))
    assert (config.tls.mode, config.tls.cert_file, config.tls.key_file) == (TlsMode.ENFORCING, shared.certificate, shared.key)
    assert config.tls_client.ca_file == shared.authority
    assert (config.security.users_file, config.security.authorization_enabled) == (shared.users, True)
    assert config.security.inner_credentials.access_key == "inner"


def test_without_it_everything_is_as_before():
    config = broker_config(Settings())
    assert (config.tls, config.tls_client, config.security) == (None, None, None)
    assert ready_fields(Settings()) == ""


def test_other_settings_win_over_the_directory(shared, tmp_path):
    (tmp_path / "broker.toml").write_text('tls_mode = "permissive"\nport = 0\n')
    settings = settings_of("serve", "--secure", shared.root, "--config", tmp_path / "broker.toml", "--set", "authorizationEnabled=false")
    assert (settings.tls_mode, settings.authentication_enabled, settings.authorization_enabled) == ("permissive", True, False)
    assert ready_fields(settings) == " tls=permissive access_control=logins-only"
    assert security_of(settings).tls_client is None  # a nameserver may speak plain text still


def test_the_settings_of_a_directory_are_not_passed_on_one_by_one(shared):
    assert set(SECURITY_KEYS) & settings_of("serve", "--secure", shared.root).explicit == set()


def test_a_server_shows_its_certificate_where_clients_have_to(own):
    config = broker_config(settings_of("serve", "--secure", own.root, "--set", "tls_client_auth=required"))
    assert (config.tls.client_auth, config.tls.ca_file) == ("required", own.authority)
    assert (config.tls_client.cert_file, config.tls_client.key_file) == (own.certificate, own.key)


def test_the_password_of_a_key_is_read_from_its_file(own, tmp_path):
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    password.chmod(0o600)
    config = broker_config(settings_of("serve", "--secure", own.root, "--set", f"tls_key_password_file={password}"))
    assert "open sesame" not in repr(config)
    password.write_text("\n")
    with pytest.raises(ConfigError, match="password is empty"):
        broker_config(settings_of("serve", "--secure", own.root, "--set", f"tls_key_password_file={password}"))
    password.chmod(0o644)
    with pytest.raises(SecretFileExposed):
        broker_config(settings_of("serve", "--secure", own.root, "--set", f"tls_key_password_file={password}"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('users_file = "../users.json"', r"users_file is '\.\./users\.json', which is outside of"),
        ('users_file = "/etc/passwd"', "which is outside of"),
        ('tls_key_file = "other.key"', r"other\.key does not exist; copy it there"),
        ("port = 1", "port is not a setting of TLS or access control"),
        ("prot = 1", "unknown key 'prot'"),
        ('tls_mode = "enforced"', "tls_mode must be one of disabled, permissive, enforcing"),
        ('tls_client_auth = "maybe"', "tls_client_auth must be one of none, optional, required"),
        ("authentication_enabled = 1", "must be true or false"),
        ("tls_mode =", "is not valid TOML"),
    ],
)
def test_a_settings_file_that_cannot_be_is_explained(own, line, words):
    own.settings.write_text(line)
    with pytest.raises(ConfigError, match=words) as failure:
        settings_of("serve", "--secure", own.root)
    assert str(own.settings) in str(failure.value)


def test_a_directory_that_is_none_is_explained(own, tmp_path):
    with pytest.raises(ConfigError, match=r"settings\.toml does not exist; `sprocketmq secure init"):
        settings_of("serve", "--secure", tmp_path / "nothing")
    with pytest.raises(ConfigError, match="is for clients: servers need the directory"):
        settings_of("serve", "--secure", own.client)


def test_what_would_protect_nothing_is_refused(own, capfd):
    def refused(*arguments):
        assert main(["serve", *FREE, "--store", str(own.root / "store"), *map(str, arguments)]) == 2
        return capfd.readouterr().err

    assert "authorization_enabled without authentication_enabled" in refused("--set", "authorization_enabled=true")
    assert "sprocketmq secure init DIR" in refused("--set", "authentication_enabled=true")
    assert "nobody has to log in" in refused("--set", f"users_file={own.users}")
    assert "which needs tls_cert_file" in refused("--set", "tls_mode=enforcing")
    own.users.chmod(0o644)
    assert f"chmod 600 {shlex.quote(str(own.users))}" in refused("--secure", own.root)
    own.users.chmod(0o600)
    own.users.write_text('{"users": [], "policies": []}')
    assert "no enabled Super user" in refused("--secure", own.root)
    own.inner_credentials.chmod(0o604)
    assert f"chmod 600 {shlex.quote(str(own.inner_credentials))}" in refused("--secure", own.root)


# --- reach --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ((), None),
        (("tls_mode=permissive",), "connections need not be encrypted"),
        (("tls_mode=disabled",), "connections need not be encrypted"),
        (("authentication_enabled=false", "authorization_enabled=false", "users_file="), "nobody has to log in"),
        (
            ("tls_mode=disabled", "authentication_enabled=false", "authorization_enabled=false", "users_file="),
            "neither encryption nor login",
        ),
    ],
)
def test_other_machines_get_in_only_with_tls_and_logins(shared, changed, words):
    options = [part for one in changed for part in ("--set", one)]
    settings = settings_of("serve", "--secure", shared.root, "--host", "0.0.0.0", *options)
    if words is None:
        check_reach(settings, insecure=False)
        return
    with pytest.raises(ConfigError, match=words) as refusal:
        check_reach(settings, insecure=False)
    assert "--secure DIR" in str(refusal.value)
    settings.secure = None
    check_reach(settings, insecure=True)


def test_secure_and_insecure_exclude_each_other(shared):
    with pytest.raises(ConfigError, match="--secure and --insecure exclude each other"):
        check_reach(settings_of("serve", "--secure", shared.root), insecure=True)


def test_a_certificate_for_another_host_is_warned_of(shared, caplog):
    settings = settings_of("serve", "--secure", shared.root)
    warn_of_names(settings, "127.0.0.1")
    assert caplog.text == ""
    warn_of_names(settings, "mq.example.com")
    assert f"`sprocketmq secure renew {shlex.quote(str(shared.root))} --host mq.example.com`" in caplog.text


# --- Apache's broker.conf -----------------------------------------------------------------------------------------------

CONF = """\
authenticationEnabled = true
authorizationEnabled = true
authenticationProvider = org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider
authorizationMetadataProvider = org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider
initAuthenticationUser = {"username":"rocketmq","password":"a secret of the old days"}
innerClientAuthenticationCredentials = {"accessKey":"brokers","secretKey":"another secret of these"}
"""


def conf(tmp_path, text=CONF):
    path = tmp_path / "broker.conf"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_users_of_apaches_file_become_super_users(tmp_path):
    settings = settings_of("serve", "--config", conf(tmp_path), "--store", tmp_path / "mq")
    assert "old days" not in repr(settings)
    for _ in range(2):  # also when they exist
        add_initial_users(settings)
        access = security_of(settings).access
        assert access.inner_credentials.access_key == "brokers"
        assert access.users_file == tmp_path / "mq" / "config" / "users.json"
        users = read_users_file(access.users_file).users
        assert {name: user.is_super for name, user in users.items()} == {"rocketmq": True, "brokers": True}
    with pytest.raises(ConfigError, match="do not reach the processes of several brokers"):
        ManyServers(settings, brokers=2, replicas=0, insecure=False, logs=LogOptions(), put=print, beside=[])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("initAuthenticationUser = rocketmq", 'must be JSON like {"username": "...", "password": "..."}'),
        ('initAuthenticationUser = {"username":"only"}', "must be JSON like"),
        ('innerClientAuthenticationCredentials = {"accessKey":"a","secretKey":""}', "secret_key must be"),
        ("aclEnable = true", "set authenticationEnabled and authorizationEnabled"),
        ("migrateAuthFromV1Enabled = true", "files of ACL 1.0 are not imported"),
        ("authorizationWhitelist = 10", "every request is checked"),
        ("authenticationStrategy = org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy", "can only be"),
        ("authorizationProvider = com.example.Mine", "can only be"),
        ("userCacheMaxNum = 5", "users and policies are read from users_file"),
    ],
)
def test_what_apaches_file_cannot_say_is_refused_without_showing_secrets(tmp_path, line, words):
    with pytest.raises(ConfigError) as refusal:
        settings_of("serve", "--config", conf(tmp_path, f"brokerName = a\n{line}\n"))
    assert words in str(refusal.value)


def test_a_short_secret_of_apaches_file_is_refused(tmp_path):
    text = 'authenticationEnabled=true\ninitAuthenticationUser = {"username":"rocketmq","password":"12345678"}\n'
    settings = settings_of("serve", "--config", conf(tmp_path, text), "--store", tmp_path / "mq")
    with pytest.raises(ConfigError, match="a secret of 8 characters can be guessed") as refusal:
        add_initial_users(settings)
    assert "12345678" not in str(refusal.value)


def test_secrets_are_not_for_command_lines_nor_for_files_that_others_read(tmp_path):
    with pytest.raises(ConfigError, match="every user of the machine sees command lines") as refusal:
        settings_of("serve", "--set", 'initAuthenticationUser={"username":"a","password":"b"}')
    assert '"b"' not in str(refusal.value)
    path = conf(tmp_path)
    path.chmod(0o640)
    with pytest.raises(SecretFileExposed):
        settings_of("serve", "--config", path)


def test_no_setting_holds_a_secret():
    assert [key for key in KEYS if re.search("secret|password|credential", key) and not key.endswith("_file")] == []


# --- servers that run ---------------------------------------------------------------------------------------------------


def command_lines():
    """The command lines of all processes of this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().decode(errors="replace")
        except OSError:
            continue


def secrets_in(text):
    return re.findall(r'"([\w-]{43})"', text)


def test_a_secured_server_serves_its_users_and_nobody_else(serving, command, own, tmp_path, monkeypatch):
    server = serving("serve", *FREE, "--store", str(tmp_path / "mq"), "--secure", str(own.root))
    assert server.ready.split()[3:5] == ["tls=enforcing", "access_control=on"]
    namesrv = server.address["namesrv"]
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    assert command("produce", "orders", "--file", lines, "--secure", own.root)[0] == 0
    code, out, _ = command("consume", "orders", "--from", "first", "--count", "2", "--secure", own.client)
    assert (code, sorted(out.split())) == (0, ["one", "two"])
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out, err = command("topic", "list", "--no-tls", "--access-key-file", own.client / "credentials.json")
    assert (code, out) == (1, "")
    assert "(on the command line: --secure DIR, or --tls-ca FILE)" in err
    code, out, err = command("topic", "list", "--tls-ca", own.authority)
    assert (code, out) == (1, "")
    assert "refused with code 16: check signature failed" in err
    assert "(on the command line: --secure DIR, or --access-key-file FILE)" in err
    code, out, err = command("topic", "list", "--tls", "--access-key-file", own.client / "credentials.json")
    assert (code, out) == (1, "")
    assert "(on the command line: --tls-ca FILE)" in err
    create(tmp_path / "other")
    assert command("topic", "list", "--secure", tmp_path / "other")[0] == 1
    monkeypatch.setenv("SPROCKETMQ_SECURE", str(own.client))
    assert command("topic", "list")[0] == 0


def test_a_renewed_certificate_is_used_without_a_restart(serving, own, tmp_path):
    server = serving("namesrv", "--port", "0", "--store", str(tmp_path / "mq"), "--secure", str(own.root))
    port = int(server.address["namesrv"].rpartition(":")[2])

    def shown():
        return ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(own.authority), timeout=30).strip()

    assert shown() == own.certificate.read_text().strip()
    renew(own.root, ["mq.example.com"])
    wait_until(lambda: shown() == own.certificate.read_text().strip(), what="the new certificate")


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks at processes in /proc")
def test_brokers_with_slaves_are_secured_without_a_secret_on_a_command_line(serving, command, own, tmp_path):
    server = serving("serve", *FREE, "--replicas", "1", "--role", "SYNC_MASTER", "--store", str(tmp_path / "mq"), "--secure", str(own.root))
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    where = ("--namesrv", server.address["namesrv"], "--secure", own.root)
    code, out, _ = command("produce", "orders", "--file", lines, "--json", *where)
    assert (code, json.loads(out)["messages"]) == (0, 2)
    _, out, _ = command("cluster", "--json", *where)
    assert {one["following"] for one in json.loads(out)} == {None, "following"}
    secrets = secrets_in(own.users.read_text())
    assert len(secrets) == 2
    found = [line for line in command_lines() if str(own.root) in line]
    assert len(found) >= 4  # parent, nameserver, master, slave
    assert not any(secret in line for line in found for secret in secrets)


def test_an_expired_certificate_is_refused_at_the_start(own, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(certificates, "CLOCK_TOLERANCE", certificates.timedelta(days=400))
    now = certificates.datetime.now(certificates.UTC)

    class LongAgo(certificates.datetime):
        @classmethod
        def now(cls, tz=None):
            return now - certificates.timedelta(days=100)

    with monkeypatch.context() as patch:
        patch.setattr(certificates, "datetime", LongAgo)
        renew(own.root, days=30)
    assert main(["serve", *FREE, "--store", str(tmp_path / "mq"), "--secure", str(own.root)]) == 2
    assert "expired" in capfd.readouterr().err
