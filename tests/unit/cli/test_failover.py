"""``failover``: which slave becomes the master, what is lost, and that it happens."""

from dataclasses import replace

import pytest

from sprocketmq import Message, sync
from sprocketmq.cli.failover import loss_told, plan_failover
from sprocketmq.client.admin import BrokerState
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError, FatalError, SprocketError
from sprocketmq.protocol.message import SendStatus
from sprocketmq.testing import wait_until

MASTER = BrokerState("broker-a", 0, "10.0.0.1:1", "c", "ASYNC_MASTER", "V5_5_0", 1000, 3)
NEAR = BrokerState("broker-a", 1, "10.0.0.2:1", "c", "SLAVE", "V5_5_0", 900, 3, "following", 100, 2, in_sync=True)
FAR = replace(NEAR, broker_id=2, address="10.0.0.3:1", log_end=500, behind_bytes=500)
GONE = replace(MASTER, role="", log_end=None, epoch=None, problem="no answer")


def test_the_slave_with_most_of_the_log_becomes_the_master_with_an_epoch_above_all():
    plan = plan_failover("broker-a", [MASTER, FAR, NEAR])
    assert (plan.slave, plan.former, plan.former_answers) == (NEAR, MASTER, True)
    assert plan.epoch == 1000
    assert plan.lost_bytes == 100
    assert plan_failover("broker-a", [replace(MASTER, epoch=1000), FAR, NEAR]).epoch == 2000


def test_a_newer_epoch_counts_more_than_a_longer_log():
    newer = replace(FAR, epoch=4)
    assert plan_failover("broker-a", [GONE, NEAR, newer]).slave == newer


def test_a_slave_can_be_named():
    plan = plan_failover("broker-a", [MASTER, FAR, NEAR], to=2)
    assert (plan.slave, plan.lost_bytes) == (FAR, 500)


def test_without_its_master_a_slave_knows_what_it_lacks():
    plan = plan_failover("broker-a", [GONE, replace(NEAR, behind_bytes=7)])
    assert (plan.lost_bytes, plan.former_answers) == (7, False)
    assert plan_failover("broker-a", [replace(NEAR, behind_bytes=0)]).former is None


def test_a_slave_with_another_log_counts_for_nothing():
    diverged = replace(NEAR, log_end=5000, following="diverged")
    plan = plan_failover("broker-a", [MASTER, diverged, FAR])
    assert (plan.slave, plan.lost_bytes) == (FAR, 500)


@pytest.mark.parametrize(
    ("states", "options", "error", "words"),
    [
        ([MASTER], {"broker_name": "broker-b"}, ConfigError, r"no broker 'broker-b' is registered \(brokers there: broker-a\)"),
        ([MASTER], {}, FatalError, "broker broker-a has no slave that could be promoted$"),
        ([MASTER, NEAR], {"to": 7}, ConfigError, r"broker broker-a has no slave 7 \(its slaves: 1\)"),
        ([MASTER, replace(NEAR, problem="no answer")], {}, FatalError, r"no slave that could be promoted \(slave 1: no answer\)"),
        ([MASTER, FAR, replace(NEAR, following="diverged")], {"to": 1}, FatalError, r"slave 1: its log is not its master's \(diverged\)"),
        ([MASTER, replace(NEAR, epoch=None)], {}, FatalError, "slave 1: it has no epochs: it is Apache's, or has followed no master yet"),
    ],
)
def test_what_cannot_be_promoted_is_said(states, options, error, words):
    with pytest.raises(error, match=words):
        plan_failover(**{"broker_name": "broker-a", "states": states} | options)


def test_what_may_be_lost_is_said():
    assert "100 bytes of the former master's log are lost; what an ASYNC_MASTER acknowledged in this moment" in loss_told(
        plan_failover("broker-a", [MASTER, NEAR])
    )
    nothing = loss_told(plan_failover("broker-a", [GONE, replace(NEAR, behind_bytes=0)]))
    assert nothing.startswith("nothing is known to be lost")
    assert "after its last word to a slave" in nothing


def test_a_killed_masters_slave_takes_over_and_the_former_master_follows(cli):
    with LocalCluster(replicas=2, role="SYNC_MASTER", in_process=False) as mq:
        follow(mq, 2)
        mq.create_topic("orders", queues=1)
        with sync.Producer("pg", namesrv=mq.namesrv) as producer:
            assert producer.send(Message("orders", b"before")).status == SendStatus.SEND_OK
        former = mq.address("broker-a")
        mq.kill_broker("broker-a")
        dry = cli("failover", "broker-a", "--namesrv", mq.namesrv, "--dry-run", "--json").json
        assert (dry["epoch"], dry["lost_bytes"], dry["dry_run"]) == (1000, 0, True)
        done = cli("failover", "broker-a", "--namesrv", mq.namesrv, "--json")
        assert (done.code, done.json["master"], done.json["lost_bytes"]) == (0, dry["master"], 0)
        follow(mq, 1)
        with sync.Producer("pg", namesrv=mq.namesrv) as producer:
            assert producer.send(Message("orders", b"after")).status == SendStatus.SEND_OK
        mq.start_broker("broker-a")
        assert {state.address for state in follow(mq, 2) if state.is_master} == {done.json["master"]}
        assert former in {state.address for state in follow(mq, 2) if not state.is_master}
        assert [message.body for message in mq.messages("orders", count=2)] == [b"before", b"after"]


def follow(mq, slaves):
    """Wait until so many slaves follow the master, and return all brokers."""

    def states():
        with sync.AdminClient(namesrv=mq.namesrv) as admin:
            try:
                found = admin.brokers()
            except SprocketError:
                return None
        following = [state for state in found if state.following == "following" and state.in_sync]
        return found if len(following) == slaves and any(state.is_master and not state.problem for state in found) else None

    return wait_until(states, what=f"{slaves} slaves that follow")


def test_a_live_master_steps_down(cli):
    with LocalCluster(replicas=1, in_process=False) as mq:
        follow(mq, 1)
        done = cli("failover", "broker-a", "--to", "1", "--namesrv", mq.namesrv)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"broker-a: {mq.address('broker-a-1')}, slave 1 so far, is the master since epoch 1000 (")
        assert "what an ASYNC_MASTER acknowledged in this moment may be lost as well" in done.out
        master, slave = follow(mq, 1)
        shown, _ = cli("cluster", "--namesrv", mq.namesrv, "--json").json
        assert shown["epochs"] == [{"epoch": 1000, "start": 0}]
        assert (master.address, slave.address) == (mq.address("broker-a-1"), mq.address("broker-a"))


def test_a_loss_has_to_be_accepted(cli, monkeypatch):
    monkeypatch.setattr(sync.AdminClient, "brokers", lambda _: [GONE, NEAR])
    refused = cli("failover", "broker-a")
    assert refused.code == 1
    assert "slave 1 of broker-a (10.0.0.2:1) lacks 100 bytes of its master's log" in refused.err
    assert "give them up with --accept-loss 100" in refused.err
    accepted = cli("failover", "broker-a", "--accept-loss", "100", "--dry-run")
    assert (accepted.code, accepted.err) == (0, "")
    assert accepted.out.splitlines()[0] == "broker-a: slave 1 (10.0.0.2:1) would become the master, with epoch 1000"


def test_the_slave_of_a_living_master_has_a_moment_to_catch_up(cli, monkeypatch):
    looks = iter([[MASTER, NEAR], [MASTER, NEAR], [replace(MASTER, log_end=1200), replace(NEAR, log_end=1000, behind_bytes=200)]])
    monkeypatch.setattr(sync.AdminClient, "brokers", lambda *_: next(looks))
    done = cli("failover", "broker-a", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert "nothing is known to be lost" in done.out


def test_a_broker_without_slaves_cannot_fail_over(cli):
    done = cli("failover", "broker-a")
    assert (done.code, done.out) == (1, "")
    assert done.err == "sprocketmq: broker broker-a has no slave that could be promoted\n"
