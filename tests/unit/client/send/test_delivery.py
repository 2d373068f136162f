import asyncio

import pytest
from fake_cluster import answer, hang_up, silence
from tests.inside import broker_connections, faults, run_due

from sprocketmq.client import Producer
from sprocketmq.client.routes import Route
from sprocketmq.client.send import outbox, requests
from sprocketmq.client.send.faults import FaultTable
from sprocketmq.client.send.queue_choice import Publisher
from sprocketmq.clock import ManualClock
from sprocketmq.errors import BrokerBusy, BrokerError, ConfigError, ConnectFailed, MaybeStoredError, SendTimeout, TlsFailed
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.message import Message, MessageQueue, SendStatus

SENDS = (Q.SEND_MESSAGE_V2, Q.SEND_BATCH_MESSAGE)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(requests, "RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(requests, "BUSY_PAUSE_S", 0.001)


def route(*brokers: str, queues: int = 2) -> Route:
    every = tuple(MessageQueue("t", name, i) for name in brokers for i in range(queues))
    return Route("t", every, every, {name: {0: f"{name}:1"} for name in brokers})


def stored(code: int, offset: int = 5):
    def step(conn, command):
        conn.respond(command, code, ext={"msgId": "M", "queueId": "1", "queueOffset": str(offset)})
        return True

    return step


async def send_one(producer, method: str, **options):
    """Send one message by any of the methods and return its result."""
    if method == "send_batch":
        (result,) = await producer.send_batch([Message("t", b"x")], **options)
        return result
    return await getattr(producer, method)(Message("t", b"x"), **options)


EVERY_METHOD = pytest.mark.parametrize("method", ["send", "submit", "send_batch"])


# --- which queue --------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock():
    return ManualClock()


def publisher(clock: ManualClock, *brokers: str) -> tuple[Publisher, FaultTable]:
    faults = FaultTable(clock.monotonic)
    return Publisher("g", route(*brokers), faults), faults


def test_an_isolated_broker_gets_nothing_until_its_time_is_over(clock):
    topic, faults = publisher(clock, "a", "b", "c")
    faults.failed("b")
    assert {topic.next().broker_name for _ in range(12)} == {"a", "c"}
    clock.advance(10)
    assert {topic.next().broker_name for _ in range(12)} == {"a", "b", "c"}


def test_the_queues_of_available_brokers_are_used_in_turn(clock):
    topic, faults = publisher(clock, "a", "b", "c")
    faults.failed("b")
    used = [topic.next() for _ in range(8)]
    assert used[:4] == used[4:]
    assert len({(t.broker_name, t.queue_id) for t in used}) == 4


def test_all_are_used_in_turn_when_all_are_isolated(clock):
    topic, faults = publisher(clock, "a", "b")
    faults.failed("a")
    faults.failed("b")
    used = [topic.next() for _ in range(8)]
    assert used[:4] == used[4:]
    assert {t.broker_name for t in used} == {"a", "b"}


def test_a_retry_goes_to_another_available_broker_else_to_another_else_anywhere(clock):
    topic, faults = publisher(clock, "a", "b", "c")
    faults.failed("b")
    assert {topic.next_elsewhere("a").broker_name for _ in range(6)} == {"c"}
    faults.failed("c")
    assert {topic.next_elsewhere("a").broker_name for _ in range(6)} == {"b", "c"}
    alone, _ = publisher(clock, "a")
    assert alone.next_elsewhere("a").broker_name == "a"


def test_a_chosen_queue_is_used_even_while_its_broker_is_isolated(clock):
    topic, faults = publisher(clock, "a", "b")
    faults.failed("a")
    assert topic.pinned(MessageQueue("t", "a", 1)).broker_name == "a"


# --- latency fault tolerance --------------------------------------------------------------------------------------------


@EVERY_METHOD
@pytest.mark.parametrize("fault", [hang_up, answer(2), answer(14), answer(1)])
async def test_a_broker_that_fails_gets_no_messages_for_ten_seconds(two_brokers, clock, method, fault):
    for broker in two_brokers.brokers:
        for code in SENDS:
            broker.script(code, fault)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, latency_fault_tolerance=True, clock=clock) as producer:
        first = asyncio.ensure_future(send_one(producer, method))
        while not first.done():  # both brokers fail once, so one of them twice in a row is paused for
            run_due(producer)
            clock.advance(0.001)
            await asyncio.sleep(0)
        await first
        assert not any(faults(producer).available(name) for name in ("broker-a", "broker-b"))
        clock.advance(10)
        assert {(await send_one(producer, method)).broker_name for _ in range(8)} == {"broker-a", "broker-b"}


@EVERY_METHOD
async def test_a_broker_that_answers_slowly_is_avoided(two_brokers, clock, method, monkeypatch):
    slow = two_brokers.brokers[0]
    async with Producer("pg", namesrv=two_brokers.namesrv.address, latency_fault_tolerance=True, clock=clock) as producer:
        for _ in range(8):
            await send_one(producer, method)
        loop = asyncio.get_running_loop()
        now = loop.time
        late = 0.0
        monkeypatch.setattr(loop, "time", lambda: now() + late)

        def step(conn, command):
            nonlocal late
            late += 2.0
            return False

        for code in SENDS:
            slow.script(code, step)
        while faults(producer).available(slow.name):
            await send_one(producer, method)
        assert {(await send_one(producer, method)).broker_name for _ in range(8)} == {"broker-b"}
        clock.advance(5)
        assert {(await send_one(producer, method)).broker_name for _ in range(8)} == {"broker-a", "broker-b"}


async def test_a_message_that_is_refused_for_good_says_nothing_about_the_broker(cluster):
    cluster.broker.script(Q.SEND_MESSAGE_V2, answer(13), *[answer(16)] * 3, *[answer(17)] * 3)
    async with Producer("pg", namesrv=cluster.namesrv.address, latency_fault_tolerance=True) as producer:
        for _ in range(3):
            with pytest.raises(Exception, match=r"13|16|does not exist at broker"):
                await producer.send(Message("t", b"x"))
        assert not faults(producer)


async def test_without_the_option_nothing_is_measured(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x"))
        assert faults(producer) is None


# --- stored, but not as safely as asked -----------------------------------------------------------------------------------


@EVERY_METHOD
@pytest.mark.parametrize("code", [10, 11, 12])
async def test_a_weakly_stored_message_is_sent_to_another_broker_on_request(two_brokers, method, code):
    a, b = two_brokers.brokers
    for kind in SENDS:
        a.script(kind, stored(code))
    async with Producer("pg", namesrv=two_brokers.namesrv.address, retry_another_broker_when_not_store_ok=True) as producer:
        results = [await send_one(producer, method) for _ in range(8)]
    assert all(result.status is SendStatus.SEND_OK for result in results)
    assert sum(sum(c.code in SENDS for c in broker.seen) for broker in (a, b)) == 9


@EVERY_METHOD
async def test_a_message_that_is_weakly_stored_everywhere_has_the_last_brokers_result(two_brokers, method):
    for broker in two_brokers.brokers:
        for kind in SENDS:
            broker.script(kind, *[stored(10)] * 3)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, retry_another_broker_when_not_store_ok=True) as producer:
        result = await send_one(producer, method)
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert (result.queue_id, result.queue_offset) == (1, 5)
    assert sum(sum(c.code in SENDS for c in broker.seen) for broker in two_brokers.brokers) == 3


@pytest.mark.parametrize("then", [answer(13), hang_up, answer(2)])
async def test_a_weakly_stored_message_keeps_its_result_when_the_other_broker_fails(two_brokers, then):
    steps = iter([stored(11, offset=77), then, answer(13)])

    def step(conn, command):
        return next(steps)(conn, command)

    for broker in two_brokers.brokers:
        broker.script(Q.SEND_MESSAGE_V2, *[step] * 3)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, retry_another_broker_when_not_store_ok=True) as producer:
        result = await producer.send(Message("t", b"x"))
    assert (result.status, result.queue_offset) == (SendStatus.SLAVE_NOT_AVAILABLE, 77)


async def test_a_weakly_stored_message_stays_where_there_is_no_other_broker(cluster):
    cluster.broker.script(Q.SEND_MESSAGE_V2, stored(10))
    async with Producer("pg", namesrv=cluster.namesrv.address, retry_another_broker_when_not_store_ok=True) as producer:
        assert (await producer.send(Message("t", b"x"))).status is SendStatus.FLUSH_DISK_TIMEOUT
    assert cluster.broker.count(Q.SEND_MESSAGE_V2) == 1


async def test_a_weakly_stored_message_of_a_chosen_queue_is_sent_once(two_brokers):
    a, b = two_brokers.brokers
    a.script(Q.SEND_MESSAGE_V2, stored(10))
    async with Producer("pg", namesrv=two_brokers.namesrv.address, retry_another_broker_when_not_store_ok=True) as producer:
        result = await producer.send(Message("t", b"x", queue=MessageQueue("t", "broker-a", 1)))
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert b.count(Q.SEND_MESSAGE_V2) == 0


# --- time ---------------------------------------------------------------------------------------------------------------


@EVERY_METHOD
async def test_all_tries_together_take_no_longer_than_the_time_of_the_send(two_brokers, method, monkeypatch):
    """Each try hangs up after half a second of the loop's time; there is time for two of the three tries."""
    async with Producer("pg", namesrv=two_brokers.namesrv.address) as producer:
        for _ in range(8):
            await send_one(producer, method)
        before = sum(sum(c.code in SENDS for c in broker.seen) for broker in two_brokers.brokers)
        loop = asyncio.get_running_loop()
        now = loop.time
        late = 0.0
        monkeypatch.setattr(loop, "time", lambda: now() + late)

        def step(conn, command):
            nonlocal late
            late += 50.0
            return hang_up(conn, command)

        for broker in two_brokers.brokers:
            for code in SENDS:
                broker.script(code, *[step] * 3)
        with pytest.raises(MaybeStoredError):
            await send_one(producer, method, timeout_s=80)
    assert sum(sum(c.code in SENDS for c in broker.seen) for broker in two_brokers.brokers) == before + 2


async def test_a_broker_that_accepts_no_connection_leaves_time_for_another(two_brokers, monkeypatch):
    monkeypatch.setattr(outbox, "CONNECT_PATIENCE_S", 0.02)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, timeout_s=60) as producer:
        await producer.queues("t")
        pool = broker_connections(producer)
        real = pool.get

        async def get(address, **options):
            if address == two_brokers.broker.address:
                await asyncio.Event().wait()
            return await real(address, **options)

        monkeypatch.setattr(pool, "get", get)
        monkeypatch.setattr(pool, "peek", lambda address: None)
        results = await asyncio.gather(*(producer.send(Message("t", b"x"), timeout_s=6) for _ in range(8)))
    assert {result.broker_name for result in results} == {"broker-b"}


async def test_messages_behind_a_broker_that_accepts_no_connection_do_not_wait_for_it_one_after_the_other(two_brokers, monkeypatch):
    monkeypatch.setattr(outbox, "CONNECT_PATIENCE_S", 0.3)  # forty times that is more than the sends have
    async with Producer("pg", namesrv=two_brokers.namesrv.address) as producer:
        real = broker_connections(producer).get

        async def get(address, **options):
            if address == two_brokers.broker.address:
                await asyncio.Event().wait()
            return await real(address, **options)

        monkeypatch.setattr(broker_connections(producer), "get", get)
        futures = [producer.submit(Message("t", b"x"), timeout_s=9) for _ in range(40)]
        results = await asyncio.gather(*futures)
    assert {result.broker_name for result in results} == {"broker-b"}


async def test_a_send_does_not_wait_behind_one_that_has_more_time_for_a_connection(cluster, monkeypatch):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.queues("t")
        monkeypatch.setattr(broker_connections(producer), "get", lambda address, **options: asyncio.Event().wait())
        patient = asyncio.ensure_future(producer.send(Message("t", b"x"), timeout_s=1000))
        with pytest.raises(ConnectFailed):
            await producer.send(Message("t", b"y"), timeout_s=0.05)
        assert not patient.done()
        patient.cancel()


async def test_an_attempt_to_connect_that_runs_out_of_time_does_not_hide_why_the_one_before_failed(cluster, monkeypatch):
    address = cluster.broker.address
    failures = iter([TlsFailed(address, "broker", "expired", "certificate has expired")])

    async def get(address, **options):
        for failure in failures:
            raise failure
        await asyncio.Event().wait()

    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.queues("t")
        pool = broker_connections(producer)
        monkeypatch.setattr(pool, "get", get)
        monkeypatch.setattr(pool, "peek", lambda address: None)
        with pytest.raises(TlsFailed, match="certificate has expired"):
            await producer.send(Message("t", b"x"), timeout_s=0.5)


async def test_a_send_that_is_cancelled_before_it_left_is_not_sent(cluster, monkeypatch):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.queues("t")
        real, asked, go_on = broker_connections(producer).get, asyncio.Event(), asyncio.Event()

        async def get(address, **options):
            asked.set()
            await go_on.wait()
            return await real(address, **options)

        monkeypatch.setattr(broker_connections(producer), "get", get)
        sending = asyncio.ensure_future(producer.send(Message("t", b"cancelled")))
        await asked.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert producer.in_flight == 0
        go_on.set()
        await producer.send(Message("t", b"x"))
    assert cluster.broker.count(Q.SEND_MESSAGE_V2) == 1


async def test_what_has_no_time_left_does_not_leave(cluster, monkeypatch):
    async with Producer("pg", namesrv=cluster.namesrv.address, timeout_s=3) as producer:
        await producer.queues("t")
        real = broker_connections(producer).get
        loop = asyncio.get_running_loop()
        now = loop.time
        late = 0.0
        monkeypatch.setattr(loop, "time", lambda: now() + late)

        async def get(address, **options):
            nonlocal late
            connection = await real(address, **options)
            late += 3.0
            return connection

        monkeypatch.setattr(broker_connections(producer), "get", get)
        for send in (producer.submit, producer.send):
            with pytest.raises(SendTimeout, match="nothing is stored"):
                await send(Message("t", b"x"))
            broker_connections(producer).drop(cluster.broker.address)
            assert producer.in_flight == 0
    assert cluster.broker.count(Q.SEND_MESSAGE_V2) == 0


async def test_an_unanswered_send_says_that_it_may_be_stored_and_where(two_brokers):
    for broker in two_brokers.brokers:
        broker.script(Q.SEND_MESSAGE_V2, silence)
    async with Producer("pg", namesrv=two_brokers.namesrv.address) as producer:
        with pytest.raises(MaybeStoredError, match=r"0\.4 s") as e:
            await producer.send(Message("t", b"x"), timeout_s=0.4)
    assert e.value.address in {broker.address for broker in two_brokers.brokers}


@EVERY_METHOD
async def test_a_send_that_never_left_is_not_said_to_be_stored_perhaps(two_brokers, method):
    for broker in two_brokers.brokers:
        await broker.stop()
    async with Producer("pg", namesrv=two_brokers.namesrv.address) as producer:
        with pytest.raises(ConnectFailed):
            await send_one(producer, method, timeout_s=0.05)


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_the_number_of_tries_is_the_callers(two_brokers, retries):
    for broker in two_brokers.brokers:
        broker.script(Q.SEND_MESSAGE_V2, *[answer(2)] * 4)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, retries=retries) as producer:
        with pytest.raises(BrokerBusy):
            await producer.send(Message("t", b"x"))
    assert sum(broker.count(Q.SEND_MESSAGE_V2) for broker in two_brokers.brokers) == retries + 1


@EVERY_METHOD
async def test_an_answer_that_does_not_say_where_leaves_the_outcome_unknown(cluster, method):
    def step(conn, command):
        conn.respond(command, 0, ext={"queueId": "one"})
        return True

    for code in SENDS:
        cluster.broker.script(code, step)
    for batching in ({}, {"auto_batch": True}):
        async with Producer("pg", namesrv=cluster.namesrv.address, **batching) as producer:
            with pytest.raises(MaybeStoredError, match="but not where"):
                await send_one(producer, method)
            assert producer.in_flight == 0
        for code in SENDS:
            cluster.broker.script(code, step)


@EVERY_METHOD
@pytest.mark.parametrize("timeout_s", [0, -1])
async def test_a_time_that_cannot_be_is_refused(cluster, method, timeout_s):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        with pytest.raises(ConfigError, match="timeout_s"):
            await send_one(producer, method, timeout_s=timeout_s)
        assert producer.in_flight == 0


# --- a batch stays whole ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [hang_up, answer(2), stored(10)])
async def test_a_batch_that_is_tried_elsewhere_is_the_same_batch(two_brokers, fault):
    for broker in two_brokers.brokers:
        broker.script(Q.SEND_BATCH_MESSAGE, fault)
    async with Producer("pg", namesrv=two_brokers.namesrv.address, retry_another_broker_when_not_store_ok=True) as producer:
        results = await producer.send_batch([Message("t", b"%d" % i) for i in range(10)])
    assert len({command.body for broker in two_brokers.brokers for command in broker.seen if command.code == Q.SEND_BATCH_MESSAGE}) == 1
    assert len({(r.broker_name, r.queue_id) for r in results}) == 1
    assert [r.queue_offset for r in results] == list(range(10))


async def test_a_refused_batch_names_the_brokers_code(cluster):
    cluster.broker.script(Q.SEND_BATCH_MESSAGE, answer(13, "no"))
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        with pytest.raises(BrokerError) as e:
            await producer.send_batch([Message("t", b"x")])
    assert e.value.code == 13
