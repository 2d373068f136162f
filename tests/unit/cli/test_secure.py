"""``secure init`` and ``secure renew`` as commands, and the options for credentials and TLS that every client verb has."""

import json
import re
import shlex

import pytest

from sprocketmq.cli.commands import app
from sprocketmq.cli.target import Target
from sprocketmq.errors import ConfigError
from sprocketmq.net.tls import TlsConfig

SHARED = {"--secure", "--access-key-file", "--tls", "--tls-ca"}


def test_init_says_what_it_made_and_how_to_use_it(command, tmp_path):
    root = tmp_path / "secure"
    code, out, err = command("secure", "init", root, "--host", "mq.example.com", "--days", 30)
    assert (code, err) == (0, "")
    first, servers, clients = out.splitlines()
    assert re.fullmatch(
        rf"{re.escape(str(root))}: a server certificate for localhost, 127\.0\.0\.1, ::1, .*mq\.example\.com, valid until \d{{4}}-\d\d-\d\d",
        first,
    )
    assert servers == f"servers:  sprocketmq serve --secure {shlex.quote(str(root))}"
    assert clients.startswith(f"clients:  sprocketmq cluster --secure {shlex.quote(str(root))} ")
    secrets = re.findall(r'"([\w-]{43})"', (root / "users.json").read_text())
    assert len(secrets) == 2
    assert not any(secret in out for secret in secrets)
    code, out, err = command("secure", "renew", root, "--host", "10.0.0.9")
    assert (code, err) == (0, "")
    assert "10.0.0.9" in out
    code, out, err = command("secure", "renew", root, "--json")
    assert "10.0.0.9" in json.loads(out)["hosts"]


def test_init_refuses_what_is_there(command, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = command("secure", "init", tmp_path)
    assert (code, out) == (2, "")
    assert err == f"sprocketmq: {tmp_path} is not empty (file is in it): name a new directory\n"
    assert command("secure", "renew", tmp_path)[0] == 2


def commands(group, path=()):
    for one in group.registered_commands:
        yield (*path, one.name), one.callback
    for sub in group.registered_groups:
        inside = (*path, sub.typer_instance.info.name)
        if sub.typer_instance.info.invoke_without_command is True:
            yield inside, sub.typer_instance.registered_callback.callback
        yield from commands(sub.typer_instance, inside)


NAMES = sorted(" ".join(path) for path, callback in commands(app) if "namesrv" in callback.__annotations__ and path[0] != "pipeline")


def test_every_client_verb_takes_a_target():
    assert {"produce", "consume", "query", "cluster", "failover", "bench batch", "topic list", "group reset"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_client_verb_has_the_options_for_security(command, name):
    code, out, _ = command(*name.split(), "--help")
    assert code == 0
    assert set(re.findall(r"--[\w-]+", out)) >= SHARED


def test_a_target_gives_clients_their_arguments(tmp_path):
    assert Target("a:1").options == {"namesrv": "a:1", "credentials": None, "tls": None, "secure": None}
    full = Target("a:1", tmp_path, tmp_path / "key.json", tls_ca=tmp_path / "ca.pem")
    assert full.options["tls"] == TlsConfig(ca_file=tmp_path / "ca.pem")
    assert (full.options["secure"], full.options["credentials"]) == (tmp_path, tmp_path / "key.json")
    assert Target("a:1", tls=False).options["tls"] is False
    with pytest.raises(ConfigError, match="--no-tls and --tls-ca"):
        Target("a:1", tls=False, tls_ca=tmp_path)


def test_a_directory_without_credentials_is_refused(cli, tmp_path):
    done = cli("topic", "list", "--secure", str(tmp_path))
    assert done.code == 2
    assert "does not exist: name a directory of 'sprocketmq secure init'" in done.err


def test_credentials_need_a_broker_that_runs_already(cli, tmp_path):
    done = cli("bench", "batch", "--secure", str(tmp_path))
    assert (done.code, done.err.count("--namesrv")) == (2, 1)
