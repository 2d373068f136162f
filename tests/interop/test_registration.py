"""Our broker at Apache's nameserver, and Apache's broker at ours: routes are right and both clients work through them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.compare import assert_as_sent, ours, variety
from tests.interop.ours import OurProcess
from tests.interop.reading import java_pull_all, pull_all

from sprocketmq import AdminClient, Producer
from sprocketmq.net.client import ConnectionPool

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def our_broker_at_apache(session_home: Path) -> Iterator[tuple[apache.ApacheNamesrv, OurProcess]]:
    """Apache's nameserver with our broker registered at it."""
    namesrv = apache.ApacheNamesrv(session_home / "cross-namesrv")
    store = session_home / "cross-ours" / "store"
    try:
        with OurProcess(
            session_home / "cross-ours", "broker", "--namesrv", namesrv.address, "--port", "0", "--store", str(store)
        ) as broker:
            yield namesrv, broker
    finally:
        namesrv.kill()


@pytest.fixture(scope="module")
def apache_broker_at_ours(session_home: Path) -> Iterator[tuple[OurProcess, apache.ApacheBroker]]:
    """Our nameserver with Apache's broker registered at it; the broker talks in binary headers."""
    with OurProcess(session_home / "our-namesrv", "namesrv", "--port", "0") as namesrv:
        flags = (*apache.SMALL_BROKER, "-Drocketmq.serialize.type=ROCKETMQ")
        broker = apache.ApacheBroker(session_home / "apache-at-ours", namesrv.namesrv, name="apache-b", flags=flags)
        yield namesrv, broker
        broker.kill()


async def test_apaches_nameserver_knows_our_broker(
    java: apache.JavaClient, our_broker_at_apache: tuple[apache.ApacheNamesrv, OurProcess]
) -> None:
    namesrv, broker = our_broker_at_apache
    async with AdminClient(namesrv=namesrv.address) as admin:
        ((cluster, names),) = (await admin.cluster()).cluster_addr_table.items()
        await admin.create_topic("AtApache", queues=5)
        route = await admin.route("AtApache")
    assert [(data.cluster, data.broker_name, data.broker_addrs) for data in route.broker_datas] == [(cluster, names[0], {0: broker.broker})]
    assert [(data.read_queue_nums, data.write_queue_nums, data.perm) for data in route.queue_datas] == [(5, 5, 6)]
    row = java.mqadmin("clusterList", "-n", namesrv.address).splitlines()[-1].split()
    assert row[:4] == [cluster, names[0], "0", broker.broker]


async def test_both_clients_work_through_apaches_nameserver(
    java: apache.JavaClient, our_broker_at_apache: tuple[apache.ApacheNamesrv, OurProcess]
) -> None:
    namesrv, _ = our_broker_at_apache
    topic = "ThroughApache"
    sent = variety(topic)
    async with AdminClient(namesrv=namesrv.address) as admin:
        await admin.create_topic(topic, queues=2)
    async with Producer("cross_producer", namesrv=namesrv.address) as producer:
        mine = [result.msg_id for result in await producer.send_batch([ours(described) for described in sent])]
    theirs = java.send_batch(namesrv.address, sent)["msg_id"].split(",")
    views = java_pull_all(java, namesrv.address, topic)
    assert views == await pull_all(namesrv.address, topic)
    by_id = {view["msg_id"]: view for view in views}
    for msg_id, described in zip([*mine, *theirs], [*sent, *sent], strict=True):
        assert_as_sent(by_id.pop(msg_id), described)
    assert not by_id


async def test_our_broker_leaves_apaches_nameserver_when_it_stops(
    home: Path, our_broker_at_apache: tuple[apache.ApacheNamesrv, OurProcess]
) -> None:
    namesrv, _ = our_broker_at_apache
    directory = home / "cross-leaving"
    command = ("broker", "--namesrv", namesrv.address, "--port", "0", "--store", str(directory / "store"), "--name", "leaving")
    with OurProcess(directory, *command):
        assert b'"leaving"' in apache.cluster_info(namesrv.address)
    # Apache's nameserver works unregistrations off in a thread of its own.
    deadline = time.monotonic() + 60
    while b'"leaving"' in apache.cluster_info(namesrv.address):
        assert time.monotonic() < deadline, "the broker did not unregister"


async def test_our_nameserver_knows_apaches_broker(
    java: apache.JavaClient, apache_broker_at_ours: tuple[OurProcess, apache.ApacheBroker]
) -> None:
    namesrv, broker = apache_broker_at_ours
    created = java.mqadmin("updateTopic", "-n", namesrv.namesrv, "-c", broker.cluster, "-t", "AtOurs", "-r", "3", "-w", "3")
    assert "success" in created
    async with AdminClient(namesrv=namesrv.namesrv) as admin:
        assert (await admin.cluster()).cluster_addr_table == {broker.cluster: [broker.name]}
        route = await admin.route("AtOurs")
        assert [data.broker_addrs for data in route.broker_datas] == [{0: broker.address}]
        assert [(data.broker_name, data.write_queue_nums) for data in route.queue_datas] == [(broker.name, 3)]
        assert {"AtOurs", "TBW102"} <= set(await admin.topics())
        await admin.delete_topic("AtOurs")
        assert "AtOurs" not in await admin.topics()
    row = java.mqadmin("clusterList", "-n", namesrv.namesrv).splitlines()[-1].split()
    assert row[:4] == [broker.cluster, broker.name, "0", broker.address]


async def test_both_clients_work_with_an_apache_broker_that_answers_in_binary(
    java: apache.JavaClient, apache_broker_at_ours: tuple[OurProcess, apache.ApacheBroker]
) -> None:
    namesrv, _ = apache_broker_at_ours
    topic = "ThroughOurs"
    sent = variety(topic)
    async with AdminClient(namesrv=namesrv.namesrv) as admin:
        await admin.create_topic(topic, queues=2)
    async with Producer("cross_producer", namesrv=namesrv.namesrv) as producer:
        mine = [(await producer.send(ours(described))).msg_id for described in sent]
        mine += [result.msg_id for result in await producer.send_batch([ours(described) for described in sent])]
    theirs = [result["msg_id"] for result in java.send(namesrv.namesrv, sent)]
    views = java_pull_all(java, namesrv.namesrv, topic)
    assert views == await pull_all(namesrv.namesrv, topic)
    by_id = {view["msg_id"]: view for view in views}
    for msg_id, described in zip([*mine, *theirs], [*sent] * 3, strict=True):
        assert_as_sent(by_id.pop(msg_id), described)
    assert not by_id


def refused_newcomer(home: Path, namesrv: str, name: str) -> str:
    """Start a broker of ours whose name is taken, and return what it says."""
    command = [sys.executable, "-m", "sprocketmq", "broker", "--namesrv", namesrv, "--port", "0", "--name", name, "--store", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    return done.stderr


def test_a_second_broker_of_ours_with_one_name_does_not_start_at_apaches_nameserver(
    home: Path, our_broker_at_apache: tuple[apache.ApacheNamesrv, OurProcess]
) -> None:
    namesrv, broker = our_broker_at_apache
    assert f"has a broker broker-a at {broker.broker}, and it answers" in refused_newcomer(home / "newcomer-1", namesrv.address, "broker-a")


def test_a_broker_of_ours_with_the_name_of_a_live_one_of_apaches_does_not_start(
    home: Path, apache_broker_at_ours: tuple[OurProcess, apache.ApacheBroker]
) -> None:
    namesrv, _ = apache_broker_at_ours
    assert "has a broker apache-b at " in refused_newcomer(home / "newcomer-2", namesrv.namesrv, "apache-b")


async def test_either_nameserver_goes_on_with_the_key_value_configuration_of_the_other(java: apache.JavaClient, home: Path) -> None:
    directory = home / "kv"
    pair = ("-s", "ns", "-k", "key")
    with OurProcess(directory, "namesrv", "--port", "0", "--store", str(directory)) as ours_first:
        assert "success" in java.mqadmin("updateKvConfig", "-n", ours_first.namesrv, *pair, "-v", "ours, ü")
    theirs = apache.ApacheNamesrv(directory)  # which keeps it in namesrv/kvConfig.json of its home, too
    try:
        assert await kv_value(theirs.address) == "ours, ü"
        assert "success" in java.mqadmin("updateKvConfig", "-n", theirs.address, *pair, "-v", "theirs")
    finally:
        theirs.stop()
    with OurProcess(directory, "namesrv", "--port", "0", "--store", str(directory)) as ours_again:
        assert await kv_value(ours_again.namesrv) == "theirs"
        assert "success" in java.mqadmin("deleteKvConfig", "-n", ours_again.namesrv, *pair)
        assert await kv_value(ours_again.namesrv) is None


async def kv_value(namesrv: str) -> str | None:
    """Ask a nameserver for the item `key` of the namespace `ns`."""
    pool = ConnectionPool(expected="nameserver")
    answer = await (await pool.get(namesrv)).request(101, ext={"namespace": "ns", "key": "key"}, timeout_s=60)
    await pool.close()
    return (answer.ext or {}).get("value")
