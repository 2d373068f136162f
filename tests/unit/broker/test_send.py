"""Sends: what is stored, what is answered, what is refused and in which words."""

import asyncio
import errno
import os
import struct

import pytest
from asking import exchange

from sprocketmq.errors import StoreFailed
from sprocketmq.events import quoted
from sprocketmq.protocol.command import Command, encode_command
from sprocketmq.protocol.ids import parse_offset_msg_id, parse_uniq_key
from sprocketmq.protocol.records import decode_records, pack_host
from sprocketmq.storage.fs import RealFileSystem

ID = "7F000001516DE40737036832F5A00002"
TOO_LARGE = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4194304B, msg properties length limit 32KB."
)


async def stored(ask, topic="orders", queue=0):
    answer = await ask.pull(topic, 0, queue=queue, count=1000)
    return decode_records(answer.body)


async def test_a_message_is_stored_with_what_a_broker_adds(ask, broker):
    answer = await ask.send("orders", b"hello", queue=2, properties=f"KEYS\x01k1 k2\x02UNIQ_KEY\x01{ID}\x02TAGS\x01TagA", h="7", f="769")
    assert answer.code == 0
    assert answer.ext == {
        "queueId": "2",
        "transactionId": ID,
        "msgId": answer.ext["msgId"],
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
        "queueOffset": "0",
    }
    ip, port, physical = parse_offset_msg_id(answer.ext["msgId"])
    assert (f"{ip}:{port}", physical) == (broker.address, 0)
    (message,) = await stored(ask, queue=2)
    assert bytes(message.stored_body) == b"hello"
    assert (message.flag, message.sys_flag, message.born_timestamp_ms, message.queue_id) == (7, 769, 1700000000000, 2)
    assert message.store_host == broker.address
    assert message.properties == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": ID,
        "TAGS": "TagA",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


async def test_offsets_count_up_per_queue(ask):
    answers = [await ask.send("orders", b"x", queue=queue) for queue in (0, 0, 1, 0)]
    assert [(a.ext["queueId"], a.ext["queueOffset"]) for a in answers] == [("0", "0"), ("0", "1"), ("1", "0"), ("0", "2")]


async def test_a_missing_message_id_is_made(ask):
    answer = await ask.send("orders")
    (message,) = await stored(ask)
    assert message.properties["UNIQ_KEY"] == answer.ext["transactionId"]
    assert parse_uniq_key(answer.ext["transactionId"])[0] == "127.0.0.1"


async def test_any_text_may_be_a_message_id(ask):
    answer = await ask.send("orders", properties='UNIQ_KEY\x01a"b\\ ü\x02')
    assert answer.ext["transactionId"] == 'a"b\\ ü'


async def test_properties_a_broker_sets_are_replaced_and_empty_ones_dropped(ask):
    properties = "CLUSTER\x01elsewhere\x02MSG_REGION\x01x\x02TRACE_ON\x01false\x02POP_CK\x01y\x02EMPTY\x01\x02KEYS\x01k\x02"
    await ask.send("orders", properties=properties)
    (message,) = await stored(ask)
    message.properties.pop("UNIQ_KEY")
    assert message.properties == {"KEYS": "k", "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def test_long_field_names_store_the_same(ask):
    ext = {
        "producerGroup": "pg",
        "topic": "orders",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "TAGS\x01t\x02",
        "reconsumeTimes": "0",
        "batch": "false",
    }
    assert (await ask(10, ext, b"v1")).ext["queueOffset"] == "0"
    assert await ask.bodies("orders", queue=1, expression="t") == [b"v1"]


async def test_a_negative_queue_is_any_writable_one(ask):
    seen = {(await ask.send("orders", queue=-1)).ext["queueId"] for _ in range(40)}
    assert seen <= {"0", "1", "2", "3"}
    assert len(seen) > 1


async def test_a_batch_becomes_one_message_each(ask, broker):
    answer = await ask.send_batch("orders", [b"a", b"bb", b"ccc"], properties=f"UNIQ_KEY\x01{ID}\x02", each=b"TAGS\x01t\x02")
    assert answer.code == 0
    assert (answer.ext["queueOffset"], answer.ext["transactionId"]) == ("0", ID)
    ids = answer.ext["msgId"].split(",")
    messages = await stored(ask)
    assert [m.offset_msg_id for m in messages] == ids
    assert [(bytes(m.body), m.queue_offset, m.raw_properties) for m in messages] == [
        (b"a", 0, b"TAGS\x01t\x02"),
        (b"bb", 1, b"TAGS\x01t\x02"),
        (b"ccc", 2, b"TAGS\x01t\x02"),
    ]
    assert (await ask.send("orders")).ext["queueOffset"] == "3"


async def test_a_batch_without_an_id_has_no_transaction_id(ask):
    assert "transactionId" not in (await ask.send_batch("orders", [b"a"])).ext


async def test_whether_a_send_is_a_batch_is_said_by_its_field_not_its_code(ask):
    from sprocketmq.protocol.batch import encode_batch

    assert (await ask(320, ask.send_ext("orders"), b"one")).ext["queueOffset"] == "0"
    answer = await ask(310, ask.send_ext("orders", batch=True), encode_batch([(0, b"x", b""), (0, b"y", b"")]))
    assert answer.ext["queueOffset"] == "1"
    assert await ask.bodies("orders") == [b"one", b"x", b"y"]


async def test_sends_of_one_readiness_are_committed_once(ask, broker, monkeypatch):
    commits = []
    commit = broker.store.commit
    monkeypatch.setattr(broker.store, "commit", lambda: (commits.append(1), commit()))
    frames = b"".join(encode_command(Command(310, opaque=n, ext=ask.send_ext("orders"), body=b"%d" % n)) for n in range(30))
    answers = await exchange(broker.address, frames, answers=30)
    assert sorted(int(a.ext["queueOffset"]) for a in answers) == list(range(30))
    assert len(commits) == 1
    assert await ask.bodies("orders", count=100) == [b"%d" % n for n in range(30)]


async def test_a_one_way_send_is_stored_without_an_answer(ask, broker):
    frames = encode_command(Command(310, opaque=1, flag=2, ext=ask.send_ext("orders"), body=b"quiet"))
    frames += encode_command(Command(31, opaque=2, ext={"topic": "orders", "queueId": "0"}))
    (answer,) = await exchange(broker.address, frames)
    assert answer.opaque == 2
    assert await ask.bodies("orders") == [b"quiet"]


class FaultyDisk(RealFileSystem):
    """A disk whose files refuse the calls in ``refused`` (path part, call) with an errno."""

    def __init__(self):
        super().__init__()
        self.refused = {}

    def open(self, path, *args, **options):
        return FaultyFile(super().open(path, *args, **options), str(path), self)


class FaultyFile:
    def __init__(self, file, path, disk):
        self._file = file
        self._path = path
        self._disk = disk

    def __getattr__(self, name):
        value = getattr(self._file, name)
        if not callable(value):
            return value

        def call(*args, **options):
            for (part, refused), number in self._disk.refused.items():
                if refused == name and part in self._path:
                    raise OSError(number, os.strerror(number))
            return value(*args, **options)

        return call


@pytest.fixture
async def faulty(start_broker, connect):
    """A broker on a disk that fails when told to, with topic ``orders``, and a connection to it."""
    disk = FaultyDisk()
    broker = await start_broker("faulty", disk=disk)
    broker.topics.create_internal("orders", 4)
    return disk, broker, await connect(broker)


# --- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "code", "remark"),
    [
        ("bad topic!", 29, "The specified topic: bad topic!, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("../../etc", 29, "The specified topic: ../../etc, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("", 29, "The specified topic is blank."),
        (" ", 29, "The specified topic is blank."),
        ("t" * 128, 29, "The specified topic is longer than topic max length 127."),
        ("SCHEDULE_TOPIC_XXXX", 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
        ("TRANS_CHECK_MAX_TIME_TOPIC", 16, "Sending message to topic[TRANS_CHECK_MAX_TIME_TOPIC] is forbidden."),
    ],
)
async def test_topics_that_take_no_messages(ask, topic, code, remark):
    answer = await ask.send(topic)
    assert (answer.code, answer.remark) == (code, remark)
    assert answer.ext == {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}


async def test_an_unknown_topic_without_its_template_does_not_exist(ask):
    answer = await ask.send("unknown", c="NoSuchDefault")
    assert answer.code == 17
    assert answer.remark.startswith("topic[unknown] not exist, apply first please!\n")


async def test_an_unknown_topic_does_not_exist_where_creation_is_off(start_broker, connect):
    ask = await connect(await start_broker(auto_create_topic=False))
    assert (await ask.send("unknown")).code == 17


async def test_a_queue_the_topic_does_not_have(ask):
    answer = await ask.send("orders", queue=4)
    assert answer.code == 29
    assert answer.remark.startswith(
        "request queueId[4] is illegal, TopicConfig [topicName=orders, readQueueNums=4, writeQueueNums=4, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}] Producer: 127.0.0.1:"
    )


async def test_a_topic_that_may_not_be_written(ask, broker):
    broker.topics.create_internal("readonly", 1, perm=4)
    answer = await ask.send("readonly")
    assert (answer.code, answer.remark) == (16, "the topic[readonly] sending message is forbidden")


@pytest.mark.parametrize("code", [310, 320])
async def test_an_empty_body(ask, code):
    for batch in ("false", "true"):
        answer = await ask(code, ask.send_ext("orders", m=batch), b"")
        assert (answer.code, answer.remark) == (1, "the message body is empty")


async def test_a_body_over_the_limit(ask, start_broker, connect):
    answer = await ask.send("orders", bytes((4 << 20) + 1))
    assert (answer.code, answer.remark) == (13, TOO_LARGE)
    assert (await ask.send("orders", bytes(4 << 20))).code == 0
    small = await connect(await start_broker("small", max_message_bytes=10))
    assert (await small.send("auto", b"x" * 10)).code == 0
    assert (await small.send("auto", b"x" * 11)).code == 13
    assert (await small.send_batch("auto", [b"x"])).code == 13


async def test_properties_over_the_limit(ask):
    assert (await ask.send("orders", properties="a\x01" + "x" * 32765 + "\x02")).code == 13
    answer = await ask.send("orders", properties="a\x01" + "x" * 32500 + "\x02")
    assert answer.code == 0, answer.remark


async def test_a_delay_of_nothing_is_none(ask):
    assert (await ask.send("orders", properties="DELAY\x010\x02MY_DELAY\x017\x02")).code == 0
    assert (await ask.send("orders", properties="DELAY\x01soon\x02")).remark == "property DELAY is 'soon', not a number"


@pytest.mark.parametrize(("flag", "properties"), [("4", ""), ("4", "TRAN_MSG\x01false\x02"), ("8", "TRAN_MSG\x01true\x02"), ("12", "")])
async def test_a_message_is_no_half_of_a_transaction_by_its_flag_alone(ask, flag, properties):
    answer = await ask.send("orders", f=flag, properties=properties)
    assert answer.code == 13
    assert answer.remark.startswith("the system flag says that the message is part of a transaction")


@pytest.mark.parametrize("fields", [{"f": "128"}, {"f": "64"}, {"properties": "INNER_NUM\x013\x02"}])
async def test_what_claims_to_be_an_inner_batch_is_illegal(ask, fields):
    answer = await ask.send("orders", **fields)
    assert (answer.code, answer.remark) == (13, TOO_LARGE)


async def test_host_bits_of_a_client_are_ignored(ask):
    assert (await ask.send("orders", f="48")).code == 0
    (message,) = await stored(ask)
    assert message.sys_flag == 0


@pytest.mark.parametrize("fields", [{"e": "x"}, {"e": "99999999999"}, {"g": "1" * 30}, {"h": "-2147483649"}, {"m": "maybe"}, {"f": "1.5"}])
async def test_fields_that_are_no_numbers_of_their_width(ask, fields):
    answer = await ask.send("orders", **fields)
    assert answer.code == 1
    assert "header of request 310 does not fit" in answer.remark


async def test_a_missing_field_is_named(ask):
    ext = ask.send_ext("orders")
    del ext["e"]
    answer = await ask(310, ext, b"x")
    assert answer.code == 1
    assert "`e`" in answer.remark


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"x", id="shorter than an entry"),
        pytest.param(struct.pack(">iiiii", 50, 0, 0, 0, 20) + bytes(27), id="cut short"),
        pytest.param(struct.pack(">iiiii", 0, 0, 0, 0, 0) + bytes(2), id="size 0"),
        pytest.param(struct.pack(">iiiii", -1, 0, 0, 0, 0) + bytes(2), id="size -1"),
        pytest.param(struct.pack(">iiiii", 22, 0, 0, 0, 2**31 - 1) + bytes(2), id="huge body"),
        pytest.param(struct.pack(">iiiiih", 22, 0, 0, 0, 0, -1), id="negative properties"),
    ],
)
async def test_a_broken_batch_stores_nothing(ask, broker, body):
    answer = await ask(320, ask.send_ext("orders", batch=True), body)
    assert answer.code == 1
    assert "batch entry 0" in answer.remark
    assert broker.store.max_offset("orders", 0) == 0
    assert (await ask.send("orders")).ext["queueOffset"] == "0"


async def test_a_batch_may_not_be_delayed_or_go_to_a_retry_topic(ask):
    answer = await ask.send_batch("orders", [b"a"], properties="DELAY\x011\x02")
    assert (answer.code, answer.remark) == (13, TOO_LARGE)
    await ask.heartbeat(consumers=["cg"])
    answer = await ask.send_batch("%RETRY%cg", [b"a"])
    assert (answer.code, answer.remark) == (13, "batch request does not support retry group %RETRY%cg")


async def test_a_refused_send_between_good_ones_harms_neither(ask, broker):
    def frame(n, body=b"ok", **fields):
        return encode_command(Command(310, opaque=n, ext=ask.send_ext("orders", **fields), body=body))

    frames = frame(1) + frame(2, queue=77) + frame(3, b"") + frame(4) + encode_command(Command(9999, opaque=5)) + frame(6)
    answers = {a.opaque: a for a in await exchange(broker.address, frames, answers=6)}
    assert {n: a.code for n, a in answers.items()} == {1: 0, 2: 29, 3: 1, 4: 0, 5: 3, 6: 0}
    assert [answers[n].ext["queueOffset"] for n in (1, 4, 6)] == ["0", "1", "2"]


# --- topics that come to life -------------------------------------------------------------------------------------------


async def test_a_first_message_creates_its_topic(ask, broker, tmp_path):
    assert (await ask.send("fresh", d="3")).code == 0
    topic = broker.topics.get("fresh")
    assert (topic.config.read_queue_nums, topic.config.write_queue_nums, topic.config.perm) == (3, 3, 6)
    assert '"fresh"' in (tmp_path / "store/config/topics.json").read_text()


async def test_a_created_topic_has_at_most_the_templates_queues(ask, broker):
    await ask.send("fresh", d="500")
    assert broker.topics.get("fresh").config.write_queue_nums == 8
    assert (await ask.send("none", d="0")).code == 17


async def test_sends_that_wait_for_a_new_topic_keep_their_order_and_bodies(ask, broker):
    futures = [ask.request(310, ask.send_ext("fresh"), b"%d" % n) for n in range(200)]
    answers = await asyncio.gather(*futures)
    assert [int(a.ext["queueOffset"]) for a in answers] == list(range(200))
    assert await ask.bodies("fresh", count=300) == [b"%d" % n for n in range(200)]


async def test_a_retry_topic_needs_its_group(start_broker, connect):
    ask = await connect(await start_broker(auto_create_group=False))
    assert (await ask.send("%RETRY%nobody")).code == 26


# --- the store fails ----------------------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_every_send_of_the_readiness_and_recovers(faulty, said):
    disk, _, ask = faulty
    assert (await ask.send("orders", b"before")).code == 0
    disk.refused = {("commitlog", "pwrite"): errno.ENOSPC, ("commitlog", "pwritev"): errno.ENOSPC}
    answers = await asyncio.gather(*(ask.request(310, ask.send_ext("orders"), b"lost") for _ in range(5)))
    assert {a.code for a in answers} == {14}
    assert all("service not available now" in a.remark and "No space left on device" in a.remark for a in answers)
    assert await ask.bodies("orders") == [b"before"]
    disk.refused = {}
    assert (await ask.send("orders", b"after")).ext["queueOffset"] == "1"
    assert await ask.bodies("orders") == [b"before", b"after"]
    assert len(said("sends_refused")) == 1
    assert "No space left on device" in said("sends_refused")[0]
    assert said("sends_accepted_again") == ["sends_accepted_again"]


async def test_a_new_topic_whose_entry_cannot_be_saved_takes_no_messages(faulty):
    disk, broker, ask = faulty
    disk.refused = {("topics.json", "pwrite"): errno.ENOSPC}
    answer = await ask.send("fresh")
    assert answer.code == 14
    assert "No space left on device" in answer.remark
    assert broker.store.max_offset("fresh", 0) == 0
    disk.refused = {}
    assert (await ask.send("fresh")).code == 0


async def test_a_failed_flush_ends_all_writes(faulty, said):
    disk, broker, ask = faulty
    await ask.send("orders", b"before")
    disk.refused = {("commitlog", "fdatasync"): errno.EIO}
    broker.flusher.settle()
    failure = await asyncio.wait_for(broker.wait_failed(), 60)
    assert isinstance(failure, StoreFailed)
    (line,) = said("store_failed")
    assert line == f"store_failed reason={quoted(failure)}"
    disk.refused = {}
    answer = await ask.send("orders", b"after")
    assert answer.code == 14
    assert "refuses writes until the broker is restarted" in answer.remark
    assert await ask.bodies("orders") == [b"before"]


async def test_records_carry_the_senders_address(ask):
    await ask.send("orders")
    (message,) = await stored(ask)
    host, _, port = message.born_host.rpartition(":")
    assert host == "127.0.0.1"
    assert len(pack_host(host, int(port))) == 8


async def test_a_first_message_with_long_field_names_creates_its_topic(ask):
    ext = {"producerGroup": "pg", "topic": "fresh", "queueId": "0", "bornTimestamp": "1", "defaultTopicQueueNums": "2"}
    assert (await ask(10, ext, b"v1")).code == 0
    assert await ask.bodies("fresh") == [b"v1"]


async def test_bodies_that_wait_for_new_topics_are_bounded(ask, broker, monkeypatch):
    from sprocketmq.broker import new_topics

    monkeypatch.setattr(new_topics, "MAX_PARKED_BYTES", 100)
    answers = await asyncio.gather(*(ask.request(310, ask.send_ext("fresh"), bytes(40)) for _ in range(4)))
    assert [answer.code for answer in answers] == [0, 0, 2, 2]
    assert broker.sends.new_topics.parked_bytes == 0


async def test_a_client_that_leaves_before_its_topic_is_there_is_forgotten(ask, broker, connect):
    other = await connect(broker)
    lost = other.request(310, other.send_ext("fresh"), b"lost")
    while "fresh" not in broker.topics:
        await asyncio.sleep(0)
    other.conn.abort("gone")
    await asyncio.gather(lost, return_exceptions=True)
    assert (await ask.send("fresh", b"stays")).code == 0
    assert broker.sends.new_topics.parked == {}


async def test_a_store_that_cannot_stage_answers_each_send_by_itself(ask, broker, monkeypatch):
    stage = broker.store.stage_message

    def staging(topic, queue_id, body, *args, **fields):
        if bytes(body) == b"bad":
            raise OSError(errno.EIO, "Input/output error")
        return stage(topic, queue_id, body, *args, **fields)

    monkeypatch.setattr(broker.store, "stage_message", staging)
    answers = await asyncio.gather(*(ask.request(310, ask.send_ext("orders"), body) for body in (b"a", b"bad", b"b")))
    assert [answer.code for answer in answers] == [0, 14, 0]
    assert await ask.bodies("orders") == [b"a", b"b"]


async def test_a_message_larger_than_a_segment_of_the_log_is_refused(start_broker, connect, tmp_path, monkeypatch):
    from sprocketmq.errors import MessageTooLarge

    broker = await start_broker()
    ask = await connect(broker)

    def staging(*args, **fields):
        raise MessageTooLarge(10, 5)

    broker.topics.create_internal("orders", 1)
    monkeypatch.setattr(broker.store, "stage_message", staging)
    assert (await ask.send("orders")).code == 13


async def test_a_long_dead_letter_topic_takes_no_batches(ask, broker):
    name = "%DLQ%" + "g" * 125
    broker.topics.create_internal(name, 1)
    assert (await ask.send(name)).code == 0
    answer = await ask.send_batch(name, [b"x"])
    assert (answer.code, answer.remark) == (13, "message topic length too long 130")
