"""``cluster``: what the nameserver and its brokers say of themselves."""

from dataclasses import replace

from sprocketmq.cli.cluster import COLUMNS, facts, row
from sprocketmq.client.admin import BrokerState
from sprocketmq.protocol.bodies import HaConnectionInfo


def test_a_broker_without_slaves_has_a_line(cli, mq):
    done = cli("cluster")
    assert (done.code, done.err) == (0, "")
    columns, line = done.out.splitlines()
    assert columns.split("\t") == list(COLUMNS)
    assert line.split("\t")[:5] == ["broker-a", "0", "ASYNC_MASTER", mq.brokers[0], "V5_5_0"]
    (found,) = cli("cluster", "--json").json
    assert (found["role"], found["address"], found["slaves"], found["problem"]) == ("ASYNC_MASTER", mq.brokers[0], [], None)


MASTER = BrokerState(
    "broker-a",
    0,
    "10.0.0.1:10911",
    "c",
    "SYNC_MASTER",
    "V5_5_0",
    log_end=1000,
    epoch=2,
    in_sync_slaves=1,
    slaves=(HaConnectionInfo("10.0.0.2:40000", 900, 100, True), HaConnectionInfo("10.0.0.3:40000", 0, 1000)),
)
SLAVE = BrokerState("broker-a", 1, "10.0.0.2:10911", "c", "SLAVE", "V5_5_0", 900, 2, "following", 100, 3, True)


def test_a_master_tells_how_many_of_its_slaves_are_in_sync_and_a_slave_how_far_it_is_behind():
    assert row(MASTER) == ("broker-a", 0, "SYNC_MASTER", "10.0.0.1:10911", "V5_5_0", 2, "1,000", "-", "-", "1 of 2")
    assert row(SLAVE) == ("broker-a", 1, "SLAVE", "10.0.0.2:10911", "V5_5_0", 2, "900", "100", "3", "yes")
    assert facts(MASTER)["slaves"][0] == {"address": "10.0.0.2:40000", "acknowledged": 900, "behind_bytes": 100, "in_sync": True}


def test_a_slave_that_does_not_follow_says_what_it_does():
    assert row(replace(SLAVE, following="diverged", in_sync=False))[-1] == "no (diverged)"


def test_a_broker_that_does_not_answer_is_unknown():
    state = BrokerState("broker-a", 1, "10.0.0.2:10911", "c", problem="no answer")
    assert row(state)[2:] == ("?", "10.0.0.2:10911", "?", "-", "-", "-", "-", "?")
    assert facts(state)["problem"] == "no answer"
    assert facts(state)["role"] is None


def test_settings_are_shown_and_changed(cli, mq):
    done = cli("cluster", "config", "set", "broker-a", "slaveReadEnable=false", "max_connections=900")
    assert (done.code, done.out) == (0, f"{mq.brokers[0]}: slaveReadEnable=false, max_connections=900\n")
    done = cli("cluster", "config", "get", "broker-a", "slaveReadEnable", "max_connections")
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert rows == [
        ["address", "setting", "value"],
        *([mq.brokers[0], *row] for row in (["slaveReadEnable", "false"], ["max_connections", "900"])),
    ]
    everything = cli("cluster", "config", "get", mq.brokers[0], "--json").json
    assert everything[mq.brokers[0]]["brokerName"] == "broker-a"
    changed = cli("cluster", "config", "set", "namesrv", "max_connections=800", "--json").json
    assert changed == {mq.namesrv: {"max_connections": "800"}}
    assert cli("cluster", "config", "get", "namesrv", "max_connections").out.endswith("max_connections\t800\n")


def test_what_is_wrong_with_a_change_is_said(cli):
    for arguments, said in (
        (("set", "broker-a", "fileReservedTime=1"), "'fileReservedTime' cannot be changed while the broker runs; nothing was changed"),
        (("set", "broker-a", "brokerPermission=3"), "brokerPermission must be one of 2, 4, 6, not '3'; nothing was changed"),
        (("set", "broker-a", "brokerPermission"), "write KEY=VALUE, not 'brokerPermission'"),
        (("get", "nosuch"), "no broker 'nosuch' is registered (brokers: broker-a)"),
        (("get", "broker-a", "nosuch"), "broker-a has no setting 'nosuch': `sprocketmq cluster config get broker-a` shows all"),
    ):
        done = cli("cluster", "config", *arguments)
        assert done.code != 0
        assert said in done.err
