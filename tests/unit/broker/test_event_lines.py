"""One line of the log for each thing that operators ask about: who did what, when."""

import logging

import pytest

from sprocketmq import AdminClient, Message, Producer
from sprocketmq.testing import eventually


@pytest.fixture
def said(caplog):
    """Return a function that gives the lines of some events."""
    caplog.set_level(logging.INFO)

    def lines(*names):
        records = [*caplog.get_records("setup"), *caplog.get_records("call")]
        return [record.getMessage() for record in records if getattr(record, "event", "") in names]

    return lines


@pytest.fixture
async def mq(said, start_broker, namesrv):
    return await start_broker(namesrv=(namesrv.address,))


@pytest.fixture
async def admin(mq, namesrv):
    async with AdminClient(namesrv=namesrv.address) as client:
        yield client


async def test_what_administrators_do_has_one_line_each(admin, said):
    await admin.create_topic("t", queues=2)
    await admin.create_topic("t", queues=2)
    await admin.create_topic("t", queues=3)
    await admin.create_group("cg")
    await admin.reset_offsets("cg", "t", "first")
    await admin.delete_group("cg")
    await admin.delete_topic("t")
    created, changed, deleted = said("topic_created", "topic_changed", "topic_deleted")[:3]
    assert created.startswith("topic_created topic=t queues=2 perm=6 peer=127.0.0.1:")
    assert changed.startswith("topic_changed topic=t queues=3 perm=6 peer=127.0.0.1:")
    assert deleted.startswith("topic_deleted topic=t peer=127.0.0.1:")
    assert said("group_created")[0].startswith("group_created group=cg peer=127.0.0.1:")
    assert said("group_deleted")[0].startswith("group_deleted group=cg offsets=true peer=127.0.0.1:")
    resets = said("offsets_reset")
    assert resets
    assert all(line.startswith("offsets_reset group=cg topic=t offsets=") and " peer=127.0.0.1:" in line for line in resets)


async def test_topics_and_groups_that_clients_create_are_few_lines(mq, namesrv, said):
    async with Producer("pg", namesrv=namesrv.address) as producer:
        await producer.send(Message("by-a-send", b"x"))
    assert said("topic_created") == ["topic_created topic=by-a-send queues=4 perm=6"]
    for number in range(1_000):
        mq.groups.find(f"group{number}")
    assert len(said("group_created")) == 10


async def test_registrations_are_logged_at_both_ends(mq, namesrv, said):
    (line,) = said("broker_registered")
    assert line == f"broker_registered broker={mq.config.broker_name} broker_id=0 address={mq.address} cluster=DefaultCluster"
    assert said("registered") == [f"registered broker={mq.config.broker_name} nameserver={namesrv.address} again=false"]
    await mq.stop()
    assert said("broker_unregistered")[0].startswith(f"broker_unregistered broker={mq.config.broker_name} address={mq.address} peer=")


async def test_a_nameserver_that_is_gone_is_logged_once(mq, namesrv, said):
    await namesrv.stop()
    await eventually(lambda: said("registration_lost"))
    (line,) = said("registration_lost")
    assert line.startswith(f"registration_lost broker={mq.config.broker_name} nameserver={namesrv.address} reason=")
