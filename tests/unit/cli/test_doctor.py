"""``doctor``: what it finds wrong, and that it finds nothing wrong with a cluster that is well."""

import asyncio
import errno
import re
from dataclasses import replace

import pytest
from tests.ports import address_of, hold

from sprocketmq.cli.diagnosis import (
    HA,
    METRICS,
    BrokerFacts,
    GroupFacts,
    Level,
    NamesrvFacts,
    Port,
    announced_ports,
    check_broker,
    check_brokers,
    check_groups,
    check_machine,
    check_namesrvs,
    check_ports,
    check_routes,
    clock_skew,
)
from sprocketmq.client.admin import BrokerState
from sprocketmq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRoute

MASTER = BrokerState("broker-a", 0, "10.0.0.1:10911", "c", "ASYNC_MASTER", "V5_5_0")
SYNC_MASTER, TWO_COPIES = replace(MASTER, role="SYNC_MASTER"), {"inSyncReplicas": "2"}
SLAVE = BrokerState("broker-a", 1, "10.0.0.2:10911", "c", "SLAVE", "V5_5_0", following="following", behind_bytes=7, in_sync=True)


def worse_than_ok(findings):
    return [(one.level, one.subject, one.text) for one in findings if one.level is not Level.OK]


def registered(**addresses):
    return ClusterInfo({"broker-a": BrokerData("c", "broker-a", {int(name[1:]): address for name, address in addresses.items()})})


def test_a_cluster_is_examined_and_the_exit_code_tells_of_failures(cli, mq):
    cli("topic", "create", "examined")
    done = cli("doctor")
    assert done.err == ""
    # The disk and the limits of the machine that runs the tests may deserve a word of their own.
    assert done.code == any(line.startswith("failure") for line in done.out.splitlines())
    assert f"ok       nameserver {mq.namesrv}: answered in" in done.out
    assert f" broker broker-a 0 at {mq.brokers[0]}: " in done.out
    assert "ok       topics: all " in done.out
    assert " failure" in done.out.splitlines()[-1]
    found = cli("doctor", "--json").json
    assert found["versions"]["python"]
    assert {finding["subject"] for finding in found["findings"]} >= {f"nameserver {mq.namesrv}", "topics", "groups"}


def test_a_group_left_behind_is_a_warning(cli, mq):
    cli("produce", "left", stdin=b"1\n2\n3\n")
    cli("consume", "left", "--group", "left_behind", "--from", "first", "--count", "1")
    assert "warning  group left_behind: 2 messages behind, and no member is online" in cli("doctor").out


def test_a_nameserver_that_is_away_is_a_failure_beside_one_that_answers(cli, mq):
    with hold() as held:
        away = address_of(held)
        done = cli("doctor", "--namesrv", f"{mq.namesrv};{away}")
    assert done.code == 1
    assert f"failure  nameserver {away}: no nameserver answered" in done.out
    assert f" nameserver {mq.namesrv}: answered in" in done.out


def test_nameservers_that_know_different_brokers_are_told_apart():
    one, two = registered(b0="10.0.0.1:10911", b1="10.0.0.2:10911"), registered(b0="10.0.0.9:10911")
    found = worse_than_ok(check_namesrvs([NamesrvFacts("n1", one), NamesrvFacts("n2", two)]))
    assert found == [
        (
            Level.FAILURE,
            "broker broker-a 0",
            "two brokers have this name: 10.0.0.1:10911 at nameserver n1, 10.0.0.9:10911 at nameserver n2",
        ),
        (Level.WARNING, "broker broker-a 1", "nameserver n2 does not know it, others do"),
    ]


def test_a_nameserver_that_refuses_the_login_is_not_to_be_started():
    stopped, refusing = NamesrvFacts("n1", problem="connection refused"), NamesrvFacts("n2", problem="code 16", refused=True)
    steps = [one.next_step for one in check_namesrvs([stopped, refusing])]
    assert steps == ["start it, or correct --namesrv", "give this command a login that it takes (--secure DIR)"]


def test_a_nameserver_without_brokers_and_a_slow_one_are_named():
    found = worse_than_ok(check_namesrvs([NamesrvFacts("n1"), NamesrvFacts("n2", answered_s=3.0)]))
    assert [(level, text) for level, _, text in found] == [
        (Level.FAILURE, "no broker is registered"),
        (Level.WARNING, "answered in 3000 ms, knows 0 brokers"),
        (Level.FAILURE, "no broker is registered"),
    ]


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (BrokerFacts(replace(MASTER, problem="no answer")), Level.FAILURE, "no answer"),
        (BrokerFacts(MASTER, {}, {"brokerName": "broker-b"}), Level.FAILURE, "answers as broker broker-b"),
        (BrokerFacts(MASTER, skew_s=-61.2), Level.WARNING, "its clock is 61 s behind this machine's"),
        (BrokerFacts(MASTER, skew_s=4.9), Level.OK, ""),
        (BrokerFacts(MASTER, {"commitLogDiskRatio": "0.8"}), Level.WARNING, "its disk is 80% full"),
        (BrokerFacts(MASTER, {"commitLogDiskRatio": "0.95"}), Level.FAILURE, "its disk is 95% full"),
        (BrokerFacts(MASTER, {"commitLogDiskRatio": "unknown"}), Level.OK, ""),
        (BrokerFacts(MASTER, {"diskWritable": "false"}), Level.FAILURE, "sends are refused"),
        (BrokerFacts(MASTER, {"dispatchBehindBytes": str(1 << 30)}), Level.WARNING, "1,073,741,824 bytes behind the log"),
        (BrokerFacts(MASTER, {"sendThreadPoolQueueHeadWaitTimeMills": "2500"}), Level.WARNING, "its oldest send waits for 2.5 s"),
        (BrokerFacts(MASTER, {}, {"brokerPermission": "4"}), Level.WARNING, "it is read-only"),
        (BrokerFacts(replace(SYNC_MASTER, in_sync_slaves=0), {}, TWO_COPIES), Level.WARNING, "slaves in sync: 0, and sends wait for 1"),
        (BrokerFacts(replace(SYNC_MASTER, in_sync_slaves=1), {}, TWO_COPIES), Level.OK, ""),
        (BrokerFacts(SLAVE), Level.OK, ""),
        (BrokerFacts(replace(SLAVE, in_sync=False)), Level.WARNING, "lacks 7 bytes of its master's log and is not in sync"),
        (BrokerFacts(replace(SLAVE, following="diverged")), Level.FAILURE, "does not follow its master: diverged"),
    ],
)
def test_each_trouble_of_a_broker_is_named_with_a_next_step(facts, level, words):
    worst = max(check_broker(facts), key=lambda one: list(Level).index(one.level))
    assert (worst.level, bool(worst.next_step)) == (level, level is not Level.OK)
    assert words in worst.text


def test_brokers_are_compared_with_each_other():
    twice = replace(MASTER, broker_name="broker-b")
    well = BrokerFacts(MASTER, ports=[Port(HA, "10.0.0.1:10912")])
    found = worse_than_ok(check_brokers([well, BrokerFacts(twice), BrokerFacts(replace(SLAVE, version="V5_3_0"))]))
    assert found == [
        (Level.WARNING, "brokers", "different versions: V5_3_0, V5_5_0"),
        (Level.FAILURE, "address 10.0.0.1:10911", "registered as broker-a 0 and as broker-b 0"),
    ]
    found = worse_than_ok(check_brokers([BrokerFacts(replace(MASTER, problem="gone")), BrokerFacts(SLAVE)]))
    assert (Level.FAILURE, "broker broker-a", "no master answers: messages can be read from its slaves, and none can be sent") in found


SCRAPED = {"metricsExporterType": "PROM", "metricsPromExporterPort": "5557"}


@pytest.mark.parametrize(
    ("state", "runtime", "settings", "ports"),
    [
        (MASTER, {"haAddress": "10.0.0.1:10912"}, {"haListenPort": "0"}, [Port(HA, "10.0.0.1:10912")]),
        (MASTER, {"haAddress": ""}, {"haListenPort": "10912"}, []),
        (MASTER, {"haAddress": "anywhere"}, {}, []),
        (MASTER, {}, {"haListenPort": "10912"}, [Port(HA, "10.0.0.1:10912")]),  # Apache's
        (MASTER, {}, {"haListenPort": "10912", "brokerIP2": "10.1.0.1"}, [Port(HA, "10.1.0.1:10912")]),
        (MASTER, {}, {"haListenPort": "99999999"}, []),
        (SLAVE, {"haAddress": "10.0.0.2:10912"}, {}, []),
        (MASTER, {}, {**SCRAPED, "metricsPromExporterHost": ""}, [Port(METRICS, "10.0.0.1:5557")]),
        (MASTER, {}, {**SCRAPED, "metricsPromExporterHost": "0.0.0.0"}, [Port(METRICS, "10.0.0.1:5557")]),
        (MASTER, {}, {**SCRAPED, "metricsPromExporterHost": "[fd00::1]"}, [Port(METRICS, "[fd00::1]:5557")]),
        (SLAVE, {}, {**SCRAPED, "metricsPromExporterHost": "10.9.0.2"}, [Port(METRICS, "10.9.0.2:5557")]),
        (MASTER, {}, {**SCRAPED, "metricsPromExporterHost": "127.0.0.1"}, []),  # that of its own machine, not of this one
        (MASTER, {}, {**SCRAPED, "metricsPromExporterPort": "0"}, []),
        (MASTER, {}, {**SCRAPED, "metricsExporterType": "DISABLE"}, []),
        (
            replace(MASTER, address="127.0.0.1:1"),
            {},
            {**SCRAPED, "metricsPromExporterHost": "127.0.0.1"},
            [Port(METRICS, "127.0.0.1:5557")],
        ),
    ],
)
def test_the_ports_that_a_broker_announces(state, runtime, settings, ports):
    assert announced_ports(state, runtime, settings) == ports


@pytest.mark.parametrize(
    ("state", "ports", "has_slaves", "level", "words"),
    [
        (MASTER, [Port(HA, "h:1")], True, Level.OK, "HA port h:1 takes connections"),
        (MASTER, [Port(HA, "h:1", "Connection refused")], True, Level.FAILURE, "HA port h:1 is not reached from here: Connection refused"),
        (replace(MASTER, slaves=["one"]), [Port(HA, "h:1", "no answer")], True, Level.WARNING, "HA port h:1 is not reached from here"),
        (MASTER, [], True, Level.FAILURE, "it announces no HA port"),
        (replace(MASTER, role="SYNC_MASTER"), [], False, Level.FAILURE, "it announces no HA port"),
        (MASTER, [Port(METRICS, "h:2", "no answer")], False, Level.WARNING, "metrics port h:2 is not reached from here: no answer"),
        (SLAVE, [Port(METRICS, "h:2")], True, Level.OK, "metrics port h:2 takes connections"),
    ],
)
def test_each_port_is_named_with_what_is_wrong_with_it(state, ports, has_slaves, level, words):
    (found,) = check_ports(BrokerFacts(state, ports=ports), has_slaves=has_slaves)
    assert (found.level, bool(found.next_step)) == (level, level is not Level.OK)
    assert found.text.startswith(words)


def test_a_port_for_slaves_that_nobody_needs_is_no_trouble():
    assert not list(check_ports(BrokerFacts(MASTER, ports=[Port(HA, "h:1", "Connection refused")]), has_slaves=False))
    assert not list(check_ports(BrokerFacts(MASTER), has_slaves=False))
    assert not list(check_ports(BrokerFacts(replace(MASTER, problem="no answer")), has_slaves=True))
    found = check_brokers([BrokerFacts(MASTER), BrokerFacts(SLAVE)])
    assert "it announces no HA port, so that no slave can follow it" in [one.text for one in found]


def test_the_port_for_slaves_of_a_master_that_waits_for_them_is_tried(cli, serving, tmp_path, monkeypatch):
    server = serving(
        *("serve", "--port", "0", "--namesrv-port", "0", "--store", str(tmp_path / "mq")),
        *("--set", "role=SYNC_MASTER", "--set", "ha_port=0"),
    )
    namesrv, broker = server.address["namesrv"], server.address["broker"]
    reached = re.compile(rf"^ok +broker broker-a 0 at {broker}: HA port 127\.0\.0\.1:\d+ takes connections$", re.MULTILINE)
    assert reached.search(cli("doctor", "--namesrv", namesrv).out)

    async def refused(*_):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")

    monkeypatch.setattr(asyncio, "open_connection", refused)
    done = cli("doctor", "--namesrv", namesrv)
    assert done.code == 1
    assert re.search(r"^failure  broker .*: HA port 127\.0\.0\.1:\d+ is not reached from here: Connection refused$", done.out, re.MULTILINE)


def test_topics_that_nobody_can_send_to_are_named():
    data = [BrokerData("c", "broker-a", {1: "10.0.0.2:10911"})]
    routes = {
        "fine": TopicRoute([BrokerData("c", "broker-a", {0: "10.0.0.1:10911"})], [QueueData("broker-a", 4, 4, 6)]),
        "no_master": TopicRoute(data, [QueueData("broker-a", 4, 4, 6)]),
        "read_only": TopicRoute(data, [QueueData("broker-a", 4, 4, 4)]),
    }
    assert worse_than_ok(check_routes(routes, 3, 3)) == [
        (Level.FAILURE, "topic no_master", "none of its brokers has a master"),
        (Level.WARNING, "topic read_only", "no broker has writable queues of it"),
    ]
    (fine,) = check_routes({"fine": routes["fine"]}, 1, 5)
    assert fine.text == "1 of 5 looked at, each can be sent to"


def test_groups_with_members_may_lag_and_dead_letters_are_counted():
    found = worse_than_ok(check_groups([GroupFacts("busy", 10, 2, 0), GroupFacts("left", 1, 0, 3)], 2))
    assert found == [
        (Level.WARNING, "group left", "1 message behind, and no member is online"),
        (Level.WARNING, "group left", "3 dead letters"),
    ]


def test_few_open_files_are_a_warning():
    assert worse_than_ok(check_machine(1024)) == [(Level.WARNING, "this machine", "a server may have 1,024 open files")]
    assert list(check_machine(65536)) == list(check_machine(0)) == []


def test_the_clock_of_a_broker_is_its_start_and_the_time_it_has_been_up():
    runtime = {"bootTimestamp": "1000000", "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"}
    up_ms = ((24 + 2) * 3600 + 3 * 60 + 4) * 1000
    assert clock_skew(runtime, 1_000_000 + up_ms) == pytest.approx(0.5)
    assert clock_skew(runtime, 1_000_000 + up_ms - 60_000) == pytest.approx(60.5)
    assert clock_skew({}, 0) is clock_skew({"bootTimestamp": "1", "runtime": "some time"}, 0) is None
