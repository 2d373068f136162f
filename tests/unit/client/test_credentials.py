"""Where a client's credentials and TLS settings come from, which place comes first, and what is refused."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

import sprocketmq
from sprocketmq import Credentials, TlsConfig, sync
from sprocketmq.client.credentials import ClientSecurity, access_error, read_credentials, resolve
from sprocketmq.client.instance import Instance
from sprocketmq.errors import AuthenticationFailed, AuthorizationFailed, BrokerError, ConfigError, SecretFileExposed
from sprocketmq.protocol.credentials import Secret

SECRET = "s3cret-that-must-not-show"
FILE = {"access_key": "alice", "secret_key": SECRET}


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def write_json(path: Path, **fields: object) -> Path:
    return write(path, json.dumps(fields))


@pytest.fixture
def environment(tmp_path):
    """An environment that names nothing, with an empty directory of settings."""
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def user(security: ClientSecurity) -> str | None:
    """The name of the user that a client would sign as."""
    login = security.login()
    return None if login is None else login.current.access_key


# --- which place comes first --------------------------------------------------------------------------------------------


def test_nothing_given_is_no_security(environment):
    assert resolve(environment=environment) == ClientSecurity()


def test_each_place_is_taken_when_those_before_it_have_nothing(tmp_path, environment):
    def found(**arguments: object) -> tuple[str | None, object]:
        security = resolve(environment=environment, **arguments)
        return user(security), security.tls and security.tls.ca_file

    home, named, given = tmp_path / "config" / "sprocketmq", tmp_path / "named", tmp_path / "given"
    for directory, name in ((home, "home"), (named, "named"), (given / "client", "given")):
        write_json(directory / "credentials.json", access_key=name, secret_key=SECRET)
        write(directory / "ca.pem", "a certificate")
    file = write_json(tmp_path / "file.json", access_key="file", secret_key=SECRET)
    assert found() == ("home", home / "ca.pem")
    environment["SPROCKETMQ_SECURE"] = str(named)
    assert found() == ("named", named / "ca.pem")
    environment |= {"SPROCKETMQ_ACCESS_KEY": "variables", "SPROCKETMQ_SECRET_KEY": SECRET}
    assert found() == ("variables", named / "ca.pem")
    assert found(secure=given) == ("given", given / "client" / "ca.pem")
    assert found(secure=given, credentials=file) == ("file", given / "client" / "ca.pem")
    assert found(secure=given, credentials=Credentials("argument", SECRET), tls=TlsConfig("x.pem")) == ("argument", "x.pem")
    assert found(secure=given, tls=False) == ("given", None)


def test_a_function_gives_credentials(environment):
    assert user(resolve(credentials=lambda: Credentials("function", SECRET), environment=environment)) == "function"


def test_a_directory_itself_may_hold_what_a_client_needs(tmp_path, environment):
    write_json(tmp_path / "credentials.json", **FILE)
    write(tmp_path / "ca.pem", "a certificate")
    security = resolve(secure=str(tmp_path), environment=environment)
    assert (user(security), security.tls) == ("alice", TlsConfig(tmp_path / "ca.pem"))


def test_a_token_comes_from_the_environment_too(environment):
    environment |= {"SPROCKETMQ_ACCESS_KEY": "a", "SPROCKETMQ_SECRET_KEY": SECRET, "SPROCKETMQ_SECURITY_TOKEN": "tok"}
    assert resolve(environment=environment).credentials == Credentials("a", SECRET, "tok")


def test_tls_without_an_authority_takes_that_of_the_directory(tmp_path, environment):
    authority = write(tmp_path / "config" / "sprocketmq" / "ca.pem", "a certificate")
    assert resolve(tls=True, environment=environment).tls == TlsConfig(authority)
    given = TlsConfig(server_name="broker", cert_file="c", key_file="k")
    assert resolve(tls=given, environment=environment).tls == TlsConfig(authority, "c", "k", server_name="broker")
    unverified = TlsConfig(verify=False)
    assert resolve(tls=unverified, environment=environment).tls == unverified


def test_tls_without_any_authority_trusts_those_of_the_system(environment):
    assert resolve(tls=True, environment=environment).tls == TlsConfig()


# --- files --------------------------------------------------------------------------------------------------------------


def test_a_file_of_apaches_tools_is_read_when_it_is_named(tmp_path):
    text = f"# demo\naccessKey: \"alice\"\nsecretKey: '{SECRET}'  \nsecurityToken: tok # none\n#secretKey: other\n"
    assert read_credentials(write(tmp_path / "tools.yml", text)) == Credentials("alice", SECRET, "tok")


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_that_others_may_touch_is_refused(tmp_path, mode):
    path = write(tmp_path / "credentials.json", json.dumps(FILE), mode)
    with pytest.raises(SecretFileExposed, match=re.escape(f"chmod 600 {shlex.quote(str(path))},")) as raised:
        read_credentials(path)
    assert raised.value.mode == mode


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a JSON object with access_key and secret_key"),
        ("{", "is not a JSON object"),
        ('["alice"]', "is not a JSON object"),
        ("{}", "access_key is missing"),
        (json.dumps({"access_key": "alice"}), "secret_key is missing"),
        (json.dumps({"access_key": "alice", "secret_key": ""}), "secret_key is missing or not a text"),
        (json.dumps({"access_key": 1, "secret_key": SECRET}), "access_key is missing or not a text"),
        (json.dumps({"access_key": "alice", "secret_key": f"{SECRET}\n"}), "secret_key has white space"),
        (json.dumps({**FILE, "security_token": 7}), "security_token must be a text"),
        (f'{{"secret_key": "{SECRET}"', "is not a JSON object"),
    ],
)
def test_a_wrong_file_is_refused_naming_file_and_key_and_never_the_secret(tmp_path, text, complaint):
    path = write(tmp_path / "credentials.json", text)
    with pytest.raises(ConfigError, match=complaint) as raised:
        read_credentials(path)
    assert str(path) in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_tools_file_without_keys_is_refused_by_their_names(tmp_path):
    with pytest.raises(ConfigError, match="secretKey is missing"):
        read_credentials(write(tmp_path / "tools.yaml", "accessKey: alice\nsecretKey:\n"))


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.json cannot be read: No such file"):
        read_credentials(tmp_path / "nowhere.json")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    binary.chmod(0o600)
    with pytest.raises(ConfigError, match="is not a text file"):
        read_credentials(binary)


@pytest.mark.parametrize("missing", ["ca.pem", "credentials.json"])
def test_a_named_directory_must_hold_what_is_taken_from_it(tmp_path, environment, missing):
    for name in {"ca.pem", "credentials.json"} - {missing}:
        write(tmp_path / name, json.dumps(FILE))
    with pytest.raises(ConfigError, match=f"{re.escape(str(missing))} does not exist: name a directory of 'sprocketmq secure init'"):
        resolve(secure=tmp_path, environment=environment)
    environment["SPROCKETMQ_SECURE"] = str(tmp_path)
    with pytest.raises(ConfigError, match="SPROCKETMQ_SECURE is"):
        resolve(environment=environment)


def test_one_variable_without_the_other_is_refused(environment):
    environment["SPROCKETMQ_ACCESS_KEY"] = "alice"
    with pytest.raises(ConfigError, match="SPROCKETMQ_SECRET_KEY is not set"):
        resolve(environment=environment)


@pytest.mark.parametrize("arguments", [{"credentials": 5}, {"credentials": ("alice", SECRET)}, {"tls": "ca.pem"}, {"tls": 1.5}])
def test_arguments_of_other_types_are_refused_without_showing_them(arguments, environment):
    with pytest.raises(ConfigError, match="must be") as raised:
        resolve(environment=environment, **arguments)
    assert SECRET not in str(raised.value)


def test_no_text_of_the_security_has_the_secret(tmp_path, environment):
    path = write_json(tmp_path / "credentials.json", **FILE)
    for credentials in (path, Credentials("alice", SECRET)):
        security = resolve(credentials=credentials, tls=TlsConfig(key_password=SECRET), environment=environment)
        assert SECRET not in f"{security!r} {security}"


# --- the clients --------------------------------------------------------------------------------------------------------

CLIENTS = {
    "Producer": lambda module, **arguments: module.Producer("pg", **arguments),
    "PushConsumer": lambda module, **arguments: module.PushConsumer("cg", ["t"], **arguments),
    "PullConsumer": lambda module, **arguments: module.PullConsumer("cg", **arguments),
    "AdminClient": lambda module, **arguments: module.AdminClient(**arguments),
}


@pytest.mark.parametrize("module", [sprocketmq, sync], ids=["async", "sync"])
@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
def test_every_client_takes_credentials_tls_and_a_directory(module, make, tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match=r"missing cannot be read"):
        make(module, namesrv="127.0.0.1:1", credentials=missing)
    with pytest.raises(ConfigError, match=r"ca_file .*missing cannot be read"):
        make(module, namesrv="127.0.0.1:1", tls=TlsConfig(missing))
    with pytest.raises(ConfigError, match=r"secure is .*missing"):
        make(module, namesrv="127.0.0.1:1", secure=missing)
    client = make(module, namesrv="127.0.0.1:1", credentials=Credentials("alice", SECRET), tls=TlsConfig(verify=False))
    assert SECRET not in repr(client)


# --- what an answer with code 16 means ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remark", "kind"),
    [
        ("check signature failed.", AuthenticationFailed),
        ("username cannot be null.", AuthenticationFailed),
        ("User:alice is not found.", AuthenticationFailed),
        ("User:alice not found.", AuthenticationFailed),
        ("User:alice is disabled.", AuthenticationFailed),
        ("Check signature failed for accessKey=alice", AuthenticationFailed),
        ("No accessKey is configured", AuthenticationFailed),
        ("User:u has no permission to access Topic:t from 127.0.0.1, no matched policies.", AuthorizationFailed),
        ("User:u has no permission to access Topic:t from 127.0.0.1, the decision is deny.", AuthorizationFailed),
        ("Authorization failed. Please verify your access rights and try again.", AuthorizationFailed),
        ("parse authorization context error.", AuthorizationFailed),
        ("No default permission for t", AuthorizationFailed),
        ("the broker[127.0.0.1] sending message is forbidden", BrokerError),
        ("the topic[check] pulling message is forbidden", BrokerError),
        ("subscription group no permission, cg", BrokerError),
        ("The user is existed", BrokerError),
        (None, BrokerError),
    ],
)
def test_a_refusal_is_read_from_its_remark(remark, kind):
    error = access_error(remark, "127.0.0.1:10911")
    assert type(error) is kind
    assert (error.code, error.remark, error.address) == (16, remark or "", "127.0.0.1:10911")
    assert (remark or "no reason given").rstrip(".") in str(error)


def test_the_secret_of_a_client_is_not_in_its_state():
    instance = Instance("127.0.0.1:1", kind="test", security=ClientSecurity(Credentials("alice", SECRET)))
    assert SECRET not in repr(vars(instance))
    assert Secret(SECRET).reveal() == SECRET
