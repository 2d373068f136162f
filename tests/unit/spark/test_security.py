"""Credentials and TLS as options: references that are resolved where they are used, and never a secret."""

import json
import pickle
import re
import socket

import pytest
from tests.certificates import Authority

from sprocketmq.cli.pipeline import security_of
from sprocketmq.cli.target import Target
from sprocketmq.errors import AuthenticationFailed, AuthorizationFailed, ConfigError
from sprocketmq.net.tls import TlsConfig
from sprocketmq.protocol.codes import ResponseCode
from sprocketmq.spark.errors import find_cause
from sprocketmq.spark.jobs.lag import LagReader
from sprocketmq.spark.jobs.land import plan_landing
from sprocketmq.spark.jobs.replay import check_request
from sprocketmq.spark.option_values import OptionError, Values
from sprocketmq.spark.security import (
    NO_OPTIONS,
    SECURITY_NAMES,
    SecurityOptions,
    UserRefused,
    parse_secure,
    parse_security,
    security_options,
)
from sprocketmq.spark.sink.options import parse_sink_options
from sprocketmq.spark.source.options import parse_options
from sprocketmq.spark.store.options import parse_store_options

SECRET = "Tq7-never-to-be-seen-in-a-plan"
READ = {"nameserver": "127.0.0.1:9876", "subscribe": "Orders"}
WRITE = {"nameserver": "127.0.0.1:9876", "topic": "Orders"}


@pytest.fixture(autouse=True)
def no_credentials_of_this_machine(monkeypatch, tmp_path):
    """Keep the credentials of whoever runs the tests out of them."""
    for name in ("SPROCKETMQ_ACCESS_KEY", "SPROCKETMQ_SECRET_KEY", "SPROCKETMQ_SECURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))


def parsed(**options):
    return parse_security(Values(options, SECURITY_NAMES))


def credentials_file(directory, user="reader", secret=SECRET):
    path = directory / "credentials.json"
    path.write_text(json.dumps({"access_key": user, "secret_key": secret}))
    path.chmod(0o600)
    return path


def asked(security):
    """Return the user and the secret that ``security`` signs with."""
    source = security.credentials
    found = source() if callable(source) else source
    return found.access_key, found.secret_key.reveal()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "accessKey",
            "access.key",
            "secretKey",
            "secret.key",
            "secret_key",
            "SECRET",
            "securityToken",
            "password",
            "credentials",
            "token",
        ),
        *("rocketmq.client.accessKey", "rocketmq.client.secretKey", "credentials.secret", "aclSecret"),
    ],
)
def test_an_option_with_the_secret_itself_is_refused_without_showing_it(name):
    for parse in (
        lambda more: parse_options({**READ, **more}, streaming=None),
        lambda more: parse_sink_options({**WRITE, **more}, {"body": 0}),
    ):
        with pytest.raises(OptionError, match=r"name it with option credentials\.file, or name environment variables") as refused:
            parse({name: SECRET})
        assert refused.value.option == name
        assert SECRET not in str(refused.value)


def test_the_store_format_has_no_credentials_and_does_not_recommend_them():
    with pytest.raises(OptionError, match="there is no such option") as refused:
        parse_store_options({"path": "store", "accessKey": SECRET})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "option", "says"),
    [
        ({"tls": "false", "tls.ca.file": "ca.pem"}, "tls.ca.file", "cannot be given together with tls=false"),
        ({"tls": "false", "tls.cert.file": "c.pem"}, "tls.cert.file", "cannot be given together with tls=false"),
        ({"tls": "false", "tls.verify": "false"}, "tls.verify", "cannot be given together with tls=false"),
        ({"tls.key.file": "key.pem"}, "tls.key.file", "it goes with tls.cert.file"),
        ({"tls.key.password.file": "password"}, "tls.key.password.file", "it goes with tls.cert.file"),
        ({"tls.key.password": SECRET}, "tls.key.password", "write it to a file, and name that with option tls.key.password.file"),
        ({"tls.verify": "false", "tls.ca.file": "ca.pem"}, "tls.ca.file", "no certificate is verified"),
        (
            {"credentials.file": "c.json", "credentials.env": "ORDERS"},
            "credentials.env",
            "cannot be given together with 'credentials.file'",
        ),
        ({"tls": "maybe"}, "tls", "neither true nor false"),
        ({"tls.file": "ca.pem"}, "tls.file", "did you mean"),
        ({"secure": " "}, "secure", "it is empty"),
        ({"credentials.env": f"secret={SECRET}"}, "credentials.env", "ORDERS_ACCESS_KEY"),
        ({"credentials.file": json.dumps({"secret_key": SECRET})}, "credentials.file", "the name of a file, not what is in the file"),
        ({"tls.ca.file": f"-----BEGIN CERTIFICATE-----\n{SECRET}"}, "tls.ca.file", "the name of a file, not what is in the file"),
    ],
)
def test_wrong_options_are_refused_by_name_without_their_value(options, option, says):
    with pytest.raises(OptionError) as refused:
        parsed(**options)
    assert refused.value.option == option
    assert says in str(refused.value)
    assert SECRET not in str(refused.value)


def test_source_and_sink_take_the_same_options_in_any_case():
    options = {"Credentials.File": "/secrets/reader.json", "TLS": "true", "tls.CA.file": "/secrets/ca.pem"}
    expected = SecurityOptions(credentials_file="/secrets/reader.json", tls=True, ca_file="/secrets/ca.pem")
    assert parse_options({**READ, **options}, streaming=True).security == expected
    assert parse_sink_options({**WRITE, **options}, {"body": 0}).security == expected
    assert parse_options(READ, streaming=True).security == NO_OPTIONS


def test_options_are_parsed_without_the_files_and_pickled_without_the_secret(tmp_path):
    path = credentials_file(tmp_path)
    options = parse_options({**READ, "credentials.file": str(path)}, streaming=False)
    options.security.resolve()
    assert SECRET.encode() not in pickle.dumps(options)
    assert SECRET not in repr(options)
    assert parse_options({**READ, "secure": "/not/here"}, streaming=False).security.secure == "/not/here"


def test_credentials_come_from_the_file_that_is_named(tmp_path):
    assert asked(parsed(**{"credentials.file": str(credentials_file(tmp_path))}).resolve()) == ("reader", SECRET)


def test_credentials_come_from_environment_variables_by_their_prefix(monkeypatch):
    security = parsed(**{"credentials.env": "ORDERS"})
    monkeypatch.setenv("ORDERS_ACCESS_KEY", "reader")
    with pytest.raises(OptionError, match=r"'credentials\.env'.*variable ORDERS_SECRET_KEY is not set") as missing:
        security.resolve()
    assert socket.gethostname() in str(missing.value)
    monkeypatch.setenv("ORDERS_SECRET_KEY", SECRET)
    assert asked(security.resolve()) == ("reader", SECRET)
    monkeypatch.setenv("ORDERS_SECRET_KEY", f"{SECRET}\n")
    with pytest.raises(OptionError, match=r"environment variables ORDERS_\.\.\.: secret_key has white space") as spoilt:
        security.resolve()
    assert SECRET not in str(spoilt.value)


def test_a_directory_gives_credentials_and_the_authority_and_options_go_before_it(tmp_path):
    (tmp_path / "client").mkdir()
    credentials_file(tmp_path / "client")
    (tmp_path / "client" / "ca.pem").touch()
    with pytest.raises(OptionError, match=r"option 'secure' .*ca\.pem holds no certificate"):
        parsed(secure=str(tmp_path)).resolve()
    plain = parsed(secure=str(tmp_path), tls="false").resolve()
    assert (asked(plain), plain.tls) == (("reader", SECRET), None)
    other = credentials_file(tmp_path, "writer")
    found = parsed(secure=str(tmp_path), **{"credentials.file": str(other), "tls.verify": "false"}).resolve()
    assert asked(found)[0] == "writer"
    assert found.tls == TlsConfig(verify=False)


def test_without_options_the_environment_of_the_process_counts(monkeypatch):
    assert NO_OPTIONS.resolve().credentials is None
    monkeypatch.setenv("SPROCKETMQ_ACCESS_KEY", "reader")
    monkeypatch.setenv("SPROCKETMQ_SECRET_KEY", SECRET)
    assert asked(NO_OPTIONS.resolve()) == ("reader", SECRET)


@pytest.mark.parametrize("option", ["credentials.file", "tls.ca.file", "secure"])
def test_what_is_missing_on_a_machine_is_named_with_the_machine(tmp_path, option):
    path = str(tmp_path / "missing")
    with pytest.raises(OptionError) as missing:
        parsed(**{option: path}).resolve()
    assert missing.value.option == option
    assert f"on driver host {socket.gethostname()}, " in str(missing.value)
    assert path in str(missing.value)


def test_the_password_of_an_encrypted_key_comes_from_a_file(tmp_path):
    pair = Authority(tmp_path).issue("reader", password=SECRET)
    password = tmp_path / "password"
    password.write_text(f"{SECRET}\n")
    password.chmod(0o600)
    security = parsed(**{"tls.cert.file": pair.cert_file, "tls.key.file": pair.key_file, "tls.key.password.file": str(password)})
    assert SECRET.encode() not in pickle.dumps(security)
    assert security.resolve().tls.key_password.reveal() == SECRET
    password.write_text("\n")
    with pytest.raises(OptionError, match=r"'tls\.key\.password\.file'.* is empty: write the password") as empty:
        security.resolve()
    assert empty.value.option == "tls.key.password.file"
    password.chmod(0o644)
    with pytest.raises(OptionError, match=r"'tls\.key\.password\.file'.*others may read it"):
        security.resolve()


def test_a_file_that_others_may_read_is_refused(tmp_path):
    path = credentials_file(tmp_path)
    path.chmod(0o644)
    with pytest.raises(
        OptionError, match=rf"credentials\.file.*{re.escape(str(path))} holds a secret and others may read it.*chmod 600"
    ) as exposed:
        parsed(**{"credentials.file": str(path)}).resolve()
    assert SECRET not in str(exposed.value)


def test_a_refusal_names_the_user_and_the_option(tmp_path, monkeypatch):
    security = parsed(**{"credentials.file": str(credentials_file(tmp_path))})
    error = security.refused(AuthenticationFailed(ResponseCode.NO_PERMISSION, "check signature failed.", address="10.0.0.1:10911"))
    assert str(error) == (
        "10.0.0.1:10911 refused user 'reader' of option credentials.file: check signature failed;"
        " check the secret there, and that the user exists and is enabled"
    )
    remark = "User:reader has no permission to access Topic:Orders from 10.0.0.2, no matched policies."
    denied = security.refused(AuthorizationFailed(ResponseCode.NO_PERMISSION, remark, address="10.0.0.1:10911"))
    assert "access Topic:Orders from 10.0.0.2, no matched policies; have the right granted (sprocketmq acl grant)" in str(denied)
    nobody = NO_OPTIONS.refused(AuthenticationFailed(ResponseCode.NO_PERMISSION, "username cannot be null.", address="10.0.0.1:10911"))
    assert "refused a client without credentials: username cannot be null; name the credentials of a user with option" in str(nobody)
    monkeypatch.setenv("SPROCKETMQ_ACCESS_KEY", "reader")
    monkeypatch.setenv("SPROCKETMQ_SECRET_KEY", SECRET)
    assert "refused user 'reader' of the environment: " in str(NO_OPTIONS.refused(AuthenticationFailed(16, "check signature failed.")))


def test_a_refusal_survives_pickling_and_is_found_in_the_text_of_a_worker():
    error = UserRefused("reader", "of option secure", "10.0.0.1:10911", "check signature failed.", "check the secret")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.user) == (str(error), "reader")

    class FromWorker(Exception):
        __module__ = "pyspark.errors.exceptions.captured"

    text = f"Traceback (most recent call last):\n  File x\n{UserRefused.__module__}.UserRefused: {error}\n\n\tat org.apache.spark"
    cause = find_cause(FromWorker(text))
    assert (cause.sentence, cause.error) == (str(error), UserRefused)


def test_jobs_take_a_directory_or_options_as_one_argument(tmp_path):
    assert security_options(None) == {}
    assert security_options(tmp_path) == {"secure": str(tmp_path)}
    assert parse_secure({"credentials.env": "ORDERS"}).credentials_env == "ORDERS"
    with pytest.raises(OptionError, match="name it with option"):
        security_options({"accessKey": SECRET})
    with pytest.raises(OptionError, match="there is no such option"):
        security_options({"subscribe": "Orders"})
    landing = plan_landing("Orders", tmp_path / "table", nameserver="h:1", secure={"credentials.env": "ORDERS"})
    assert landing.wanted.source_options(())["credentials.env"] == "ORDERS"
    with pytest.raises(ConfigError, match=r"'secure' is given, and so is the argument secure"):
        plan_landing("Orders", tmp_path / "table", nameserver="h:1", secure=tmp_path, options={"Secure": "elsewhere"})
    with pytest.raises(ConfigError, match="settled by the job itself"):
        check_request("Orders", to="Copies", options={"credentials.file": "c.json"})
    with pytest.raises(OptionError, match=r"cannot be given together with tls=false"):
        LagReader("h:1", group="g", secure={"tls": "false", "tls.verify": "false"})


def test_the_options_of_the_command_line_become_absolute_references(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = Target("h:1", access_key_file=(tmp_path / "c.json").relative_to(tmp_path), tls=True, tls_ca=tmp_path / "ca.pem")
    assert security_of(target) == {"credentials.file": str(tmp_path / "c.json"), "tls.ca.file": str(tmp_path / "ca.pem"), "tls": "true"}
    assert security_of(Target("h:1")) == {}
