"""``serve --brokers``: several brokers in supervised processes."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from tests.scraping import scrape
from tests.waiting import freeze

from sprocketmq import Message, sync
from sprocketmq.cli.app import main
from sprocketmq.errors import SprocketError
from sprocketmq.events import quoted
from sprocketmq.protocol.message import SendStatus
from sprocketmq.testing import wait_until

FREE = ("--port", "0", "--namesrv-port", "0")


def addresses(namesrv):
    with sync.AdminClient(namesrv=namesrv) as admin:
        try:
            return {name: data.broker_addrs[0] for name, data in admin.cluster().broker_addr_table.items()}
        except SprocketError:
            return {}


def children(pid):
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline") as cmdline:
                if int(stat.read().rpartition(")")[2].split()[1]) == pid:
                    words = cmdline.read().split("\0")
                    found[Path(words[words.index("--store") + 1]).name if "--name" in words else "namesrv"] = int(entry)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_the_ready_line_names_all_brokers_which_share_a_topics_queues(serving, tmp_path):
    server = serving("serve", "--brokers", "2", *FREE, "--store", str(tmp_path), "--set", "default_topic_queues=2")
    assert re.fullmatch(rf"ready namesrv=\S+ broker-a=\S+ broker-b=\S+ store={re.escape(quoted(tmp_path))}\n", server.ready)
    namesrv = server.address["namesrv"]
    assert addresses(namesrv) == {name: server.address[name] for name in ("broker-a", "broker-b")}
    with sync.AdminClient(namesrv=namesrv) as admin:
        admin.create_topic("orders", queues=2)
    with sync.Producer("pg", namesrv=namesrv) as producer:
        assert {producer.send(Message("orders", b"x")).broker_name for _ in range(8)} == {"broker-a", "broker-b"}
    assert {path.name for path in tmp_path.iterdir()} >= {"broker-a", "broker-b"}
    pids = children(server.process.pid)
    assert server.end() == (0, "")
    assert pids.keys() == {"namesrv", "broker-a", "broker-b"}
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids.values())
    assert not (tmp_path / "broker-a" / "abort").exists()


def test_a_broker_that_dies_comes_back_where_it_was(serving, tmp_path):
    server = serving("serve", "--brokers", "2", *FREE, "--store", str(tmp_path))
    namesrv, pids = server.address["namesrv"], children(server.process.pid)
    os.kill(pids["broker-b"], signal.SIGKILL)
    wait_until(lambda: children(server.process.pid).get("broker-b", pids["broker-b"]) != pids["broker-b"])
    wait_until(lambda: addresses(namesrv) == {name: server.address[name] for name in ("broker-a", "broker-b")})
    code, err = server.end(signal.SIGINT)
    assert code == 0
    (line,) = [line for line in err.splitlines() if "supervisor" in line]
    assert line.endswith(f'process_ended child=broker-b pid={pids["broker-b"]} reason="was ended by SIGKILL" restart_in_s=0.25')


def page(address):
    return asyncio.run(scrape(address))


def test_one_page_has_the_metrics_of_all_processes(serving, tmp_path):
    options = ("--brokers", "2", "--replicas", "1", *FREE, "--metrics", "0", "--store", str(tmp_path), "--set", "metrics_label=env:test")
    server = serving("serve", *options)
    found = page(server.address["metrics"])
    names = {"broker-a", "broker-a-1", "broker-b", "broker-b-1"}
    assert found.values("rocketmq_topic_number", "process", env="test").keys() == {(name,) for name in names}
    assert found.values("rocketmq_topic_number", "process", node_id="broker-a").keys() == {("broker-a",), ("broker-a-1",)}
    up = found.values("sprocketmq_process_up", "process", env="test", cluster="DefaultCluster")
    assert up == {(name,): 1 for name in names | {"namesrv", "serve"}}
    for metric in ("sprocketmq_process_cpu_seconds_total", "sprocketmq_process_resident_bytes"):
        assert all(found.value(metric, process=name) > 0 for (name,) in up)
    samples = [(name, tuple(sorted(labels.items()))) for name, labels, _ in found.samples]
    assert len(set(samples)) == len(samples)
    assert server.end(signal.SIGINT)[0] == 0


def test_the_page_leaves_out_a_broker_that_does_not_answer_and_shows_it_as_down(serving, tmp_path):
    server = serving("serve", "--brokers", "2", *FREE, "--metrics", "0", "--store", str(tmp_path))
    address, pid = server.address["metrics"], children(server.process.pid)["broker-b"]
    freeze(pid)
    try:
        found = page(address)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert found.values("rocketmq_topic_number", "process").keys() == {("broker-a",)}
    assert found.values("sprocketmq_process_up", "process")["broker-b",] == 0
    assert found.values("sprocketmq_process_up", "process")["broker-a",] == 1
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: page(address).values("sprocketmq_process_restarts_total", "process")["broker-b",] == 1)
    wait_until(lambda: page(address).values("sprocketmq_process_up", "process")["broker-b",] == 1)
    assert page(address).values("rocketmq_topic_number", "process").keys() == {("broker-a",), ("broker-b",)}
    assert server.end(signal.SIGINT)[0] == 0


def test_the_children_go_when_the_server_is_killed(serving, tmp_path):
    server = serving("serve", "--brokers", "2", *FREE, "--store", str(tmp_path))
    pids = children(server.process.pid)
    server.end(signal.SIGKILL)
    wait_until(lambda: not any(is_running(pid) for pid in pids.values()))
    assert not (tmp_path / "broker-a" / "abort").exists()


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_ends_with_its_standard_input(serving, tmp_path):
    server = serving("serve", "--brokers", "2", *FREE, "--store", str(tmp_path), "--stop-with-stdin")
    server.process.stdin.close()
    server.process.stdin = None
    assert server.wait() == (0, "")


def test_a_broker_that_cannot_start_ends_all_with_its_reason(tmp_path, capfd):
    (tmp_path / "broker-b").write_text("no directory")
    assert main(["serve", "--brokers", "2", *FREE, "--store", str(tmp_path)]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith(f"sprocketmq: broker-b: ended with exit code 1: store {tmp_path}/broker-b is not writable")


def test_a_store_in_use_ends_all_with_its_reason(serving, tmp_path, capfd):
    serving("serve", *FREE, "--store", str(tmp_path / "broker-a"))
    assert main(["serve", "--brokers", "2", *FREE, "--store", str(tmp_path)]) == 1
    assert "sprocketmq: broker-a: ended with exit code 1: store" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--brokers", "0"), "'0' is not a number of brokers: write 1 or more"),
        (("--brokers", "27"), "brokers must be a whole number from 1 to 26"),
        (("--brokers", "2", "--name", "b"), "leave their name out (--name)"),
        (("--brokers", "9", "--port", "65500"), "port 65500: 9 brokers need ports up to 65580"),
        (("--brokers", "2", *FREE, "--set", "default_topic_queues=0"), "default_topic_queues is 0"),
        (("--replicas", "17"), "replicas must be a whole number from 0 to 16"),
        (("--replicas", "1", "--set", "broker_id=1"), "the brokers that are started are masters, each with its slaves"),
        (("--brokers", "2", "--role", "SYNC_MASTER"), "a SYNC_MASTER waits for slaves: say how many it has (--replicas)"),
        (("--replicas", "1", "--role", "SYNC_MASTER", "--in-sync-replicas", "3"), "a master and its slaves are 2"),
        (("--replicas", "1", *FREE, "--role", "MASTER"), "role must be one of ASYNC_MASTER, SYNC_MASTER, SLAVE, not 'MASTER'"),
        (("--role", "SYNC_MASTER"), "SYNC_MASTER waits for slaves, which need a port: give ha_port"),
        (("--role", "SLAVE"), "where a SLAVE finds no master: run `sprocketmq broker`"),
        (("--brokers", "2", "--host", "0.0.0.0"), "or add --insecure if only machines you trust can reach it"),
    ],
)
def test_settings_that_cannot_be_are_wrong_usage(arguments, words, tmp_path, capfd):
    assert main(["serve", *arguments, "--store", str(tmp_path)]) == 2
    assert words in capfd.readouterr().err


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_masters_have_slaves_that_follow(serving, tmp_path, role):
    server = serving("serve", "--brokers", "2", "--replicas", "1", "--role", role, *FREE, "--store", str(tmp_path))
    assert list(server.address) == ["namesrv", "broker-a", "broker-a-1", "broker-b", "broker-b-1", "store"]
    with sync.AdminClient(namesrv=server.address["namesrv"]) as admin:
        wait_until(lambda: [state.in_sync for state in admin.brokers() if not state.is_master] == [True, True])
        assert [(state.broker_name, state.broker_id, state.role) for state in admin.brokers()] == [
            ("broker-a", 0, role),
            ("broker-a", 1, "SLAVE"),
            ("broker-b", 0, role),
            ("broker-b", 1, "SLAVE"),
        ]
        assert [state.address for state in admin.brokers("broker-b")] == [server.address["broker-b"], server.address["broker-b-1"]]
    with sync.Producer("pg", namesrv=server.address["namesrv"]) as producer:
        assert producer.send(Message("orders", b"x")).status == SendStatus.SEND_OK
    code, err = server.end()
    assert (code, [line for line in err.splitlines() if "supervisor" in line]) == (0, [])


def test_master_and_slave_run_as_brokers_of_one_nameserver_and_share_a_secret(serving, tmp_path):
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    (tmp_path / "slave.conf").write_text(f"brokerRole=SLAVE\nbrokerId=1\nlistenPort=0\nstorePathRootDir={tmp_path}/slave\n")
    namesrv = serving("namesrv", "--port", "0").address["namesrv"]
    common = ("broker", "--namesrv", namesrv, "--ha-secret-file", str(tmp_path / "secret"))
    master = serving(*common, "--role", "SYNC_MASTER", "--ha-port", "0", "--port", "0", "--store", str(tmp_path / "master"))
    slave = serving(*common, "--config", str(tmp_path / "slave.conf"))
    stranger = serving(
        "broker", "--namesrv", namesrv, "--role", "SLAVE", "--broker-id", "2", "--port", "0", "--store", str(tmp_path / "third")
    )
    with sync.AdminClient(namesrv=namesrv) as admin:
        wait_until(lambda: [state.in_sync for state in admin.brokers()] == [None, True, False])
        assert [state.following for state in admin.brokers()][1] == "following"
    with sync.Producer("pg", namesrv=namesrv) as producer:
        assert producer.send(Message("orders", b"x")).status == SendStatus.SEND_OK
    for one in (stranger, slave, master):
        assert one.end()[0] == 0


@pytest.mark.parametrize(("content", "words"), [(None, "No such file or directory"), ("\n", "is empty: write the secret")])
def test_a_secret_that_cannot_be_read_is_told(tmp_path, capfd, content, words):
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
    assert main(["serve", *FREE, "--store", str(tmp_path / "s"), "--ha-port", "0", "--ha-secret-file", str(path)]) == 2
    assert words in capfd.readouterr().err


def test_brokers_that_have_changed_roles_keep_them_when_they_are_killed_and_started_again(serving, tmp_path):
    command = ("serve", "--replicas", "1", "--role", "SYNC_MASTER", *FREE, "--store", str(tmp_path))
    server = serving(*command)
    namesrv = server.address["namesrv"]
    with sync.AdminClient(namesrv=namesrv) as admin:
        promoted = server.address["broker-a-1"]
        admin.change_master(promoted, promoted, 1000)
        assert_follows(admin, promoted)
        pids = children(server.process.pid)
        for name in ("broker-a", "broker-a-1"):
            os.kill(pids[name], signal.SIGKILL)
        assert_follows(admin, promoted)
    with sync.Producer("pg", namesrv=namesrv) as producer:
        assert producer.send(Message("orders", b"x")).status == SendStatus.SEND_OK
    assert server.end()[0] == 0
    server = serving(*command)
    with sync.AdminClient(namesrv=server.address["namesrv"]) as admin:
        assert_follows(admin, server.address["broker-a-1"])
    assert server.end()[0] == 0


def assert_follows(admin, master):
    """Wait until the broker at ``master`` is the master, and the other one follows it."""

    def follows():
        found = admin.brokers("broker-a")
        return len(found) == 2 and found[0].address == master and found[0].is_master and found[1].in_sync

    wait_until(follows)
