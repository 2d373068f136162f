"""Transactions: half messages, their outcomes, and what a broker asks about those that have none."""

import errno
import logging
import random

import pytest
from pairs import caught_up
from transacting import COMMIT, HALF, ROLLBACK, UNKNOWN, Transactions

from sprocketmq.broker.transactions import open as open_module
from sprocketmq.broker.transactions.open import OpenHalf, OpenTransactions
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.message import TransactionOutcome
from sprocketmq.protocol.names import DISCARDED_HALVES_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.store import MessageStore
from sprocketmq.testing import eventually

TIMEOUT_S = 6.0
INTERVAL_S = 30.0


@pytest.fixture
def transactions(ask):
    return Transactions(ask)


async def read(ask, topic, queue=0):
    return decode_records((await ask.pull(topic, 0, queue=queue)).body)


async def test_half_a_transaction_is_seen_when_it_is_committed(ask, broker, transactions):
    await ask.send("orders", b"not at the start of the log", queue=0)
    half = await transactions.begin(properties="KEYS\x01k\x02TAGS\x01red\x02UNIQ_KEY\x01U1\x02")
    assert half["transactionId"] == "U1"
    assert await ask.bodies("orders", queue=1) == []
    answer = await transactions.end(half, COMMIT)
    assert (answer.code, answer.ext) == (0, {})
    (message,) = await read(ask, "orders", queue=1)
    assert bytes(message.body) == b"paid"
    assert message.sys_flag == 8
    assert message.prepared_offset == int(half["commitLogOffset"])
    assert message.properties == {
        "TRAN_MSG": "true", "PGROUP": "pg", "KEYS": "k", "TAGS": "red", "UNIQ_KEY": "U1", "__transactionId__": "U1",
        "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    assert await ask.bodies("orders", queue=1, expression="red") == [b"paid"]
    assert await ask.bodies("orders", queue=1, expression="blue") == []


async def test_half_messages_lie_where_apaches_broker_looks_for_them(ask, transactions):
    half = await transactions.begin(properties="UNIQ_KEY\x01U1\x02")
    await transactions.send(ROLLBACK, b"not paid")
    first, second = await read(ask, HALF_TOPIC)
    assert first.properties["REAL_TOPIC"] == "orders"
    assert first.properties["REAL_QID"] == "1"
    assert first.sys_flag == 0
    assert first.commitlog_offset == int(half["commitLogOffset"])
    (mark,) = await read(ask, OP_TOPIC)
    assert (bytes(mark.body), mark.tag) == (b"%d," % second.queue_offset, "d")


async def test_a_committed_message_wakes_a_pull_that_waits(ask, connect, broker, transactions):
    half = await transactions.begin()
    reader = await connect(broker)
    pull = reader.pull("orders", 0, queue=1, wait_ms=30_000)
    assert (await transactions.end(half, COMMIT)).code == 0
    assert [bytes(message.body) for message in decode_records((await pull).body)] == [b"paid"]


async def test_a_transaction_that_is_rolled_back_is_never_seen(ask, broker, transactions):
    await transactions.send(ROLLBACK)
    await transactions.send(COMMIT, b"second")
    assert await ask.bodies("orders", queue=1) == [b"second"]
    assert not len(broker.transactions.open_halves)


@pytest.mark.parametrize(("first", "second"), [(COMMIT, COMMIT), (ROLLBACK, ROLLBACK), (COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
async def test_an_outcome_that_is_told_twice_counts_once(ask, transactions, first, second):
    half = await transactions.send(first)
    answer = await transactions.end(half, second)
    if first == second:
        assert answer.code == 0
    else:
        assert (answer.code, answer.remark) == (1, "the transaction was ended before, and not in this way")
    assert len(await ask.bodies("orders", queue=1)) == (first == COMMIT)


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
async def test_an_outcome_counts_before_disk_or_slaves_have_the_half_message(ask, broker, transactions, monkeypatch, outcome):
    """A producer that is told so rolls back at once: nobody is asked about its transaction later."""
    half = await transactions.begin()
    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "commitlog_visible_offset", property(lambda _: int(half["commitLogOffset"])))
        assert (await transactions.end(half, outcome)).code == 0
    assert not len(broker.transactions.open_halves)
    assert await ask.bodies("orders", queue=1) == ([b"paid"] if outcome == COMMIT else [])


async def test_an_unknown_outcome_leaves_the_transaction_open(ask, broker, transactions):
    half = await transactions.begin()
    assert (await transactions.end(half, UNKNOWN)).code == 0
    assert len(broker.transactions.open_halves) == 1
    assert (await transactions.end(half, COMMIT)).code == 0
    assert await ask.bodies("orders", queue=1) == [b"paid"]


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"commitLogOffset": "0"}, "Find prepared transaction message failed"),
        ({"commitLogOffset": "-1"}, "Find prepared transaction message failed"),
        ({"commitLogOffset": str(1 << 62)}, "Find prepared transaction message failed"),
        ({"producerGroup": "other"}, "The producer group wrong"),
        ({"tranStateTableOffset": "7"}, "The transaction state table offset wrong"),
        ({"commitOrRollback": "4"}, "commitOrRollback is 4, it must be 8 (commit), 12 (roll back) or 0 (not known yet)"),
    ],
)
async def test_an_outcome_that_names_no_half_message_is_refused(ask, broker, transactions, fields, remark):
    await ask.send("orders", b"plain", queue=1)
    half = await transactions.begin()
    answer = await transactions.end(half, COMMIT, **fields)
    assert (answer.code, answer.remark) == (1, remark)
    assert await ask.bodies("orders", queue=1) == [b"plain"]
    assert len(broker.transactions.open_halves) == 1


async def test_an_ordinary_message_is_no_half_message_whatever_its_properties(ask, transactions):
    answer = await ask.send("orders", b"plain", properties="PGROUP\x01pg\x02REAL_TOPIC\x01orders\x02REAL_QID\x012\x02")
    fields = {"producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": str(int(answer.ext["msgId"][16:], 16)), "msgId": "x"}
    refused = await transactions.end(fields, COMMIT)
    assert (refused.code, refused.remark) == (1, "Find prepared transaction message failed")


async def test_a_header_without_its_offsets_is_refused(transactions):
    answer = await transactions.end({"producerGroup": "pg", "msgId": "x"}, COMMIT)
    assert answer.code == 1
    assert "tranStateTableOffset" in answer.remark or "commitLogOffset" in answer.remark


async def test_what_a_client_says_about_its_half_message_is_overwritten(ask, transactions):
    told = "REAL_TOPIC\x01secret\x02REAL_QID\x017\x02TRANSACTION_CHECK_TIMES\x0114\x02TRAN_PREPARED_QUEUE_OFFSET\x010\x02__transactionId__\x01t\x02"
    half = await transactions.begin(properties=told)
    (message,) = await read(ask, HALF_TOPIC)
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("orders", "1")
    assert message.properties.keys().isdisjoint({"TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"})
    assert message.properties["__transactionId__"] == half["transactionId"]


async def test_a_half_message_without_a_group_gets_that_of_its_send(ask, transactions):
    answer = await ask.send("orders", properties="TRAN_MSG\x01true\x02")
    assert answer.code == 0
    (message,) = await read(ask, HALF_TOPIC)
    assert message.properties["PGROUP"] == "pg"


async def test_a_delay_begins_at_the_commit(ask, broker, clock, transactions):
    await transactions.send(COMMIT, properties="DELAY\x013\x02")
    assert await ask.bodies("orders", queue=1) == []
    clock.advance(10.0)
    broker.delays.fire()
    (message,) = await read(ask, "orders", queue=1)
    assert bytes(message.body) == b"paid"


async def test_a_time_of_delivery_counts_from_the_commit(ask, broker, clock, transactions):
    await transactions.send(COMMIT, properties=f"TIMER_DELIVER_MS\x01{clock.time_ms() + 5_000}\x02")
    assert await ask.bodies("orders", queue=1) == []
    clock.advance(6.0)
    broker.delays.fire()
    assert await ask.bodies("orders", queue=1) == [b"paid"]


async def test_a_transaction_of_a_deleted_topic_stays_open(ask, broker, transactions):
    half = await transactions.begin()
    broker.topics.delete("orders")
    answer = await transactions.end(half, COMMIT)
    assert (answer.code, answer.remark) == (17, "topic[orders] of the transaction not exist on this broker")
    broker.topics.create_internal("orders", 1)
    assert (await transactions.end(half, COMMIT)).code == 0
    assert await ask.bodies("orders", queue=0) == [b"paid"], "queue 1 is no more: the message goes to one that is"


async def test_transactions_can_be_refused_altogether(start_broker, connect):
    broker = await start_broker(reject_transactions=True)
    ask = await connect(broker)
    answer = await ask.send("orders", properties=HALF, f="4")
    remark = "the broker[127.0.0.1] sending transaction message is forbidden: reject_transactions is set there"
    assert (answer.code, answer.remark) == (16, remark)


async def test_open_transactions_are_bounded(ask, monkeypatch, transactions):
    monkeypatch.setattr(open_module, "MAX_OPEN", 2)
    first = await transactions.begin()
    await transactions.begin()
    answer = await ask.send("orders", properties=HALF, f="4")
    assert answer.code == 2
    assert "2 transactions have no outcome yet" in answer.remark
    await transactions.end(first, ROLLBACK)
    await transactions.begin()


# --- asking ---


async def asked(ask, broker, clock, seconds):
    clock.advance(seconds)
    broker.checks.fire()
    return await ask.next_push()


async def test_a_producer_is_asked_about_a_transaction_without_an_outcome(ask, broker, clock, transactions):
    await ask.heartbeat(producers=["pg"])
    half = await transactions.begin(properties="KEYS\x01k\x02UNIQ_KEY\x01U1\x02")
    push = await asked(ask, broker, clock, TIMEOUT_S + 0.1)
    assert push.code == RequestCode.CHECK_TRANSACTION_STATE
    assert push.ext == {
        "tranStateTableOffset": half["tranStateTableOffset"], "commitLogOffset": half["commitLogOffset"], "topic": HALF_TOPIC,
        "msgId": "U1", "transactionId": "U1", "bname": "broker-a", "offsetMsgId": push.ext["offsetMsgId"],
    }  # fmt: skip
    (message,) = decode_records(push.body)
    assert (message.topic, message.queue_id, bytes(message.body)) == ("orders", 1, b"paid")
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert message.properties["PGROUP"] == "pg"
    again = await asked(ask, broker, clock, INTERVAL_S + 0.1)
    assert decode_records(again.body)[0].properties["TRANSACTION_CHECK_TIMES"] == "2"
    assert (await transactions.end(half, COMMIT, fromTransactionCheck="true")).code == 0
    clock.advance(INTERVAL_S * 3)
    broker.checks.fire()
    assert await ask.bodies("orders", queue=1) == [b"paid"]
    assert ask.pushed == []


async def test_nobody_is_asked_too_early(ask, broker, clock, transactions):
    await ask.heartbeat(producers=["pg"])
    await transactions.begin(properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
    clock.advance(TIMEOUT_S + 1)
    broker.checks.fire()
    clock.advance(50)
    broker.checks.fire()
    await ask.send("orders")
    assert ask.pushed == []
    assert (await asked(ask, broker, clock, 10)).code == RequestCode.CHECK_TRANSACTION_STATE


async def test_an_immune_transaction_that_took_too_long_ends_by_the_question_alone(ask, broker, clock, transactions):
    await ask.heartbeat(producers=["pg"])
    half = await transactions.begin(properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x0110\x02")
    await asked(ask, broker, clock, 11)
    answer = await transactions.end(half, COMMIT)
    assert answer.code == 604
    assert "CHECK_IMMUNITY_TIME_IN_SECONDS" in answer.remark
    assert (await transactions.end(half, COMMIT, fromTransactionCheck="true")).code == 0


async def test_the_members_of_a_producer_group_are_asked_in_turn(ask, broker, clock, connect, transactions):
    others = [ask, await connect(broker), await connect(broker)]
    for number, one in enumerate(others):
        await one.heartbeat(f"c{number}", producers=["pg"])
    for _ in range(6):
        await transactions.begin()
    clock.advance(TIMEOUT_S + 1)
    broker.checks.fire()
    await eventually(lambda: [len(one.pushed) for one in others] == [2, 2, 2])


async def test_a_transaction_that_nobody_can_tell_about_is_put_aside(start_broker, clock, connect, caplog):
    caplog.set_level(logging.INFO)
    broker = await start_broker(transaction_check_max=3)
    broker.topics.create_internal("orders", 4)
    ask = await connect(broker)
    transactions = Transactions(ask)
    half = await transactions.begin(properties="UNIQ_KEY\x01U1\x02")
    for _ in range(4):
        clock.advance(INTERVAL_S + TIMEOUT_S)
        broker.checks.fire()
    assert not len(broker.transactions.open_halves)
    (message,) = await read(ask, DISCARDED_HALVES_TOPIC)
    assert bytes(message.body) == b"paid"
    assert message.properties["REAL_TOPIC"] == "orders"
    assert "transaction_unasked" in caplog.text
    assert "transaction_discarded" in caplog.text
    assert (await transactions.end(half, COMMIT)).code == 1
    assert await ask.bodies("orders", queue=1) == []
    assert [bytes(mark.body) for mark in await read(ask, OP_TOPIC)] == [b"0,"]


async def put_aside(broker, ask, clock):
    """Ask about all transactions until they are put aside, and return the message of the only one."""
    for _ in range(3):
        clock.advance(INTERVAL_S + TIMEOUT_S)
        broker.checks.fire()
    assert not len(broker.transactions.open_halves)
    (kept,) = await read(ask, DISCARDED_HALVES_TOPIC)
    return kept


async def test_a_transaction_that_was_put_aside_is_resumed_by_an_operator(start_broker, clock, connect):
    broker = await start_broker(transaction_check_max=1)
    broker.topics.create_internal("orders", 4)
    ask = await connect(broker)
    transactions = Transactions(ask)
    await transactions.begin(properties="UNIQ_KEY\x01U1\x02")
    kept = await put_aside(broker, ask, clock)
    assert (await ask(323, {"msgId": kept.offset_msg_id, "topic": DISCARDED_HALVES_TOPIC})).code == 0
    assert len(broker.transactions.open_halves) == 1
    await ask.heartbeat(producers=["pg"])
    push = await asked(ask, broker, clock, INTERVAL_S + TIMEOUT_S)
    (message,) = decode_records(push.body)
    assert (bytes(message.body), message.properties["TRANSACTION_CHECK_TIMES"]) == (b"paid", "1")
    half = (await read(ask, HALF_TOPIC))[-1]
    told = {
        "producerGroup": "pg",
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.commitlog_offset),
        "msgId": "U1",
    }
    assert (await transactions.end(told, COMMIT, fromTransactionCheck="true")).code == 0
    assert await ask.bodies("orders", queue=1) == [b"paid"]


@pytest.mark.parametrize(
    ("msg_id", "remark"),
    [
        ("", "is not a offset message id"),
        ("7F000001", "is not a offset message id"),
        ("7F00000100002A9F00000000000F4240", "there is no message of TRANS_CHECK_MAX_TIME_TOPIC"),
        ("7F00000100002A9F0000000000000000", "there is no message of TRANS_CHECK_MAX_TIME_TOPIC"),
        ("7F00000100002A9FFFFFFFFFFFFFFFFF", "is not an offset message id"),
    ],
)
async def test_what_was_not_put_aside_cannot_be_resumed(ask, broker, transactions, msg_id, remark):
    await transactions.begin()
    answer = await ask(323, {"msgId": msg_id})
    assert answer.code == 1
    assert remark in answer.remark
    assert len(broker.transactions.open_halves) == 1


async def test_a_transaction_whose_topic_is_gone_is_not_resumed(start_broker, clock, connect):
    broker = await start_broker(transaction_check_max=1)
    broker.topics.create_internal("orders", 4)
    ask = await connect(broker)
    await Transactions(ask).begin()
    kept = await put_aside(broker, ask, clock)
    assert (await ask(215, {"topic": "orders"})).code == 0
    answer = await ask(323, {"msgId": kept.offset_msg_id})
    assert (answer.code, answer.remark) == (17, "topic[orders] of the transaction not exist on this broker")
    assert not len(broker.transactions.open_halves)


# --- what a restart and a full disk leave ---


async def test_a_restart_knows_which_transactions_are_open(start_broker, broker, clock, connect, transactions):
    halves = [await transactions.begin(b"%d" % n) for n in range(6)]
    for n, outcome in ((0, COMMIT), (2, ROLLBACK), (3, COMMIT)):
        await transactions.end(halves[n], outcome)
    await broker.abort()
    again = await start_broker(like=broker)
    ask = await connect(again)
    later = Transactions(ask)
    assert len(again.transactions.open_halves) == 3
    assert (await later.end(halves[0], COMMIT)).code == 1, "it has ended before the kill"
    await ask.heartbeat(producers=["pg"])
    push = await asked(ask, again, clock, TIMEOUT_S + 1)
    assert bytes(decode_records(push.body)[0].body) == b"1"
    for n in (1, 4, 5):
        assert (await later.end(halves[n], COMMIT, fromTransactionCheck="true")).code == 0
    assert sorted(await ask.bodies("orders", queue=1)) == [b"0", b"1", b"3", b"4", b"5"]


async def test_a_commit_whose_mark_was_lost_is_not_made_twice(start_broker, broker, connect, transactions):
    """A kill in the middle of the write leaves the message, which comes first, without its mark."""
    half = await transactions.begin()
    store, before = broker.store, broker.store.commitlog_max_offset
    assert (await transactions.end(half, COMMIT)).code == 0
    (mark,) = await read(transactions.ask, OP_TOPIC)
    cut = mark.commitlog_offset
    assert before < cut < store.commitlog_max_offset
    await broker.abort()
    (segment,) = (broker.config.store.root / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.truncate(cut)
    again = await start_broker(like=broker)
    assert not len(again.transactions.open_halves)
    assert await (await connect(again)).bodies("orders", queue=1) == [b"paid"]


async def test_progress_is_saved_as_offsets_of_the_group_of_transactions(start_broker, broker, transactions):
    for n in range(5):
        await transactions.send(COMMIT if n % 2 else ROLLBACK, b"%d" % n)
    await transactions.begin(b"open")
    broker.transactions.note_progress()
    broker.store.flush()
    broker.transactions.note_progress()
    assert broker.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 5
    assert broker.offsets.get(TRANSACTION_GROUP, OP_TOPIC, 0) == 5
    await broker.stop()
    again = await start_broker(like=broker)
    assert len(again.transactions.open_halves) == 1


async def test_progress_waits_for_the_disk(broker, transactions):
    await transactions.send(COMMIT)
    broker.transactions.note_progress()
    broker.transactions.note_progress()
    assert broker.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) is None, "the log is not flushed: a crash would skip what it loses"


async def test_a_disk_that_refuses_leaves_the_transaction_open(ask, broker, monkeypatch, transactions):
    half = await transactions.begin()

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "commit", full)
        answer = await transactions.end(half, COMMIT)
        assert answer.code == 14
    broker.store.discard()
    assert len(broker.transactions.open_halves) == 1


@pytest.mark.parametrize("seed", range(5))
async def test_kills_lose_and_double_no_transaction(start_broker, connect, clock, seed):
    """Whatever was answered holds after a kill; what was not is asked about."""
    rng = random.Random(seed)
    broker = await start_broker(transaction_check_max=1000)
    broker.topics.create_internal("orders", 4)
    halves, decided = {}, {}
    for _ in range(6):
        ask = await connect(broker)
        transactions = Transactions(ask)
        for _ in range(rng.randrange(20)):
            body = b"%d" % len(halves)
            halves[body] = await transactions.begin(body)
        for body in rng.sample(sorted(halves), min(len(halves), rng.randrange(12))):
            if body not in decided:
                decided[body] = rng.choice([COMMIT, ROLLBACK])
                assert (await transactions.end(halves[body], decided[body])).code == 0
        if rng.random() < 0.5:
            broker.store.flush()
            broker.transactions.note_progress()
        await broker.abort()
        broker = await start_broker(like=broker)
        assert len(broker.transactions.open_halves) == len(halves) - len(decided)
    ask = await connect(broker)
    transactions = Transactions(ask)
    await ask.heartbeat(producers=["pg"])
    clock.advance(TIMEOUT_S + 1)
    while len(decided) < len(halves):
        broker.checks.fire()
        push = await ask.next_push()
        body = bytes(decode_records(push.body)[0].body)
        decided[body] = COMMIT
        assert (await transactions.end({**halves[body], **push.ext}, COMMIT, fromTransactionCheck="true")).code == 0
    found, offset = [], 0
    while bodies := await ask.bodies("orders", offset, queue=1):
        found += bodies
        offset += len(bodies)
    assert sorted(found) == sorted(body for body, outcome in decided.items() if outcome == COMMIT)


# --- the table of open transactions ---


def test_progress_never_passes_an_open_transaction(monkeypatch):
    monkeypatch.setattr(open_module, "MAX_MARKS", 8)
    for seed in range(50):
        rng = random.Random(seed)
        table, marks, still_open = OpenTransactions(), [], set()
        for offset in range(rng.randrange(1, 200)):
            table.add(offset, OpenHalf(offset * 100, "orders", 0.0))
            still_open.add(offset)
            while still_open and rng.random() < 0.5:
                ended = rng.choice(sorted(still_open))
                still_open.discard(ended)
                table.end(ended, TransactionOutcome.COMMIT)
                table.note_mark(len(marks), ended)
                marks.append(ended)
            if rng.random() < 0.2:
                first, mark = table.progress(offset + 1, len(marks))
                assert first == min(still_open, default=offset + 1)
                assert all(ended < first for ended in marks[:mark]), "a mark that is skipped is needed"
                if not still_open:
                    assert mark == len(marks)


def test_a_half_message_at_a_known_offset_replaces_one_whose_send_failed():
    table = OpenTransactions()
    table.add(3, OpenHalf(100, "orders", 5.0))
    table.add(3, OpenHalf(200, "bills", 7.0))
    assert table.get(3, 100) is None
    assert table.get(3, 200) is not None
    assert dict(table.by_topic) == {"bills": 1}
    assert table.next_at == 7.0
    assert [half.log_offset for _, half in table.take_due(8.0, 10)] == [200]


# --- replicas ---


async def test_a_promoted_slave_goes_on_with_the_transactions_that_are_open(pair, connect):
    master, slave = await pair(transaction_timeout_s=0.1, transaction_check_interval_s=0.1)
    at_master, at_slave = Transactions(await connect(master)), Transactions(await connect(slave))
    halves = [await at_master.begin(b"%d" % n) for n in range(3)]
    await at_master.end(halves[0], COMMIT)
    await eventually(lambda: caught_up(master, slave))
    refused = await at_slave.end(halves[1], COMMIT)
    assert refused.code == 11, "a slave changes nothing"
    assert not len(slave.transactions.open_halves)
    await at_slave.ask.heartbeat(producers=["pg"])
    promoted = await at_slave.ask(1008, {"masterAddress": slave.address, "masterEpoch": "1000"})
    assert promoted.code == 0
    assert len(slave.transactions.open_halves) == 2
    await eventually(lambda: master.role.is_slave)
    assert (await at_master.end(halves[2], COMMIT)).code == 11
    assert (await at_slave.end(halves[1], COMMIT)).code == 0
    push = await at_slave.ask.next_push()
    while push.ext.get("tranStateTableOffset") != halves[2]["tranStateTableOffset"]:
        push = await at_slave.ask.next_push()
    assert (await at_slave.end({**halves[2], **push.ext}, COMMIT, fromTransactionCheck="true")).code == 0
    assert sorted(await at_slave.ask.bodies("orders", queue=1)) == [b"0", b"1", b"2"]
