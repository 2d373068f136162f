"""``sprocketmq dashboard`` and ``serve --dashboard`` as processes."""

import asyncio
import ssl
import urllib.request

import pytest
from tests.ports import address_of, hold

from sprocketmq.cli.app import main
from sprocketmq.embedded import LocalCluster
from sprocketmq.security import directory
from sprocketmq.web.server import DashboardServer


def read(url, **options):
    with urllib.request.urlopen(url, timeout=60, **options) as answer:
        return answer.read().decode()


def test_the_dashboard_of_a_running_cluster(serving, mq):
    process = serving("dashboard", "--namesrv", mq.namesrv, "--port", "0")
    assert "<title>SprocketMQ</title>" in read(process.address["dashboard"])
    assert "broker-a" in read(f"{process.address['dashboard']}/api/overview")
    assert process.end()[0] == 0


def test_a_dashboard_that_ends_although_nobody_stops_it_is_a_failure(cli, mq, monkeypatch):
    class EndsAtOnce(DashboardServer):
        async def start(self):
            await super().start()
            (requests,) = [task for task in asyncio.all_tasks() if task.get_name() == "dashboard: requests"]
            requests.cancel()

    monkeypatch.setattr("sprocketmq.web.server.DashboardServer", EndsAtOnce)
    done = cli("dashboard", "--namesrv", mq.namesrv, "--port", "0")
    assert done.code == 1
    assert "answers no requests any more: cancelled by code that does not own it" in done.err.splitlines()[-1]


def test_serve_has_a_dashboard_of_its_own(serving, tmp_path):
    process = serving("serve", "--port", "0", "--namesrv-port", "0", "--store", str(tmp_path), "--dashboard", "0")
    assert "broker-a" in read(f"{process.address['dashboard']}/api/overview")
    assert process.end()[0] == 0


def test_serve_with_several_brokers_has_one(serving, tmp_path):
    process = serving("serve", "--port", "0", "--namesrv-port", "0", "--brokers", "2", "--store", str(tmp_path), "--dashboard", "0")
    shown = read(f"{process.address['dashboard']}/api/overview")
    assert "broker-a" in shown
    assert "broker-b" in shown
    assert process.end()[0] == 0


def test_beyond_loopback_it_wants_https_and_a_login(serving, tmp_path):
    root = tmp_path / "secure"
    directory.create(root)
    serve = serving("serve", "--port", "0", "--namesrv-port", "0", "--store", str(tmp_path / "store"), "--secure", str(root))
    process = serving("dashboard", "--namesrv", serve.address["namesrv"], "--port", "0", "--host", "0.0.0.0", "--secure", str(root))
    url = process.address["dashboard"].replace("0.0.0.0", "127.0.0.1")
    assert url.startswith("https://")
    assert '"login":true' in read(f"{url}/api/session", context=ssl.create_default_context(cafile=root / "ca.pem"))
    assert process.end()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "would be sent in plain text: add --https-cert FILE and --https-key FILE"),
        (("--https-cert", "c.pem"), "--https-cert and --https-key belong together"),
        (("--https-cert", "nothing.pem", "--https-key", "nothing.key"), "HTTPS with nothing.pem"),
        (("--tls-ca", "ca.pem", "--no-tls"), "--no-tls and --tls-ca exclude each other"),
    ],
)
def test_options_that_cannot_be_are_explained(mq, capfd, arguments, words):
    assert main(["dashboard", "--namesrv", mq.namesrv, "--port", "0", *arguments]) == 2
    assert words in capfd.readouterr().err


def test_a_cluster_without_access_control_is_not_shown_to_other_machines(mq, capfd, authority):
    pair = authority.issue("server")
    arguments = ["--host", "0.0.0.0", "--https-cert", pair.cert_file, "--https-key", pair.key_file]
    assert main(["dashboard", "--namesrv", mq.namesrv, "--port", "0", *arguments]) == 2
    assert "has no access control, so that everybody could change it" in capfd.readouterr().err


def test_a_port_that_is_taken_is_explained(mq, capfd):
    with hold() as held:
        held.listen()
        assert main(["dashboard", "--namesrv", mq.namesrv, "--port", address_of(held).rpartition(":")[2]]) == 1
    assert "choose another port (0 means any free port)" in capfd.readouterr().err


@pytest.mark.parametrize("place", ["x", "70000", "host:", ""])
def test_a_place_that_cannot_be_is_explained(capfd, tmp_path, place):
    assert main(["serve", "--port", "0", "--namesrv-port", "0", "--store", str(tmp_path), "--dashboard", place]) == 2
    assert "--dashboard takes a port, or HOST:PORT" in capfd.readouterr().err


def test_a_cluster_that_is_away_does_not_keep_it_from_starting(serving):
    with hold() as held:
        process = serving("dashboard", "--namesrv", address_of(held), "--port", "0")
        assert "no nameserver answered" in read(f"{process.address['dashboard']}/api/overview")
        assert process.end()[0] == 0


def test_it_stays_when_its_cluster_ends(serving):
    with LocalCluster() as cluster:
        process = serving("dashboard", "--namesrv", cluster.namesrv, "--port", "0")
        assert "broker-a" in read(f"{process.address['dashboard']}/api/overview")
    assert "<title>SprocketMQ</title>" in read(process.address["dashboard"])
    assert process.end()[0] == 0
