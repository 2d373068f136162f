import asyncio
import contextlib
import subprocess
import sys
import threading
from concurrent.futures import Future, wait

import pytest
from fake_cluster import FakeCluster, answer, silence
from tests.inside import held_messages, process_queues

from sprocketmq import Batching, ClientHooks, sync
from sprocketmq.client.consume import push
from sprocketmq.errors import (
    BrokerError,
    ClientClosed,
    ConfigError,
    InvalidMessage,
    InvalidName,
    MaybeStoredError,
    NameserverUnavailable,
    SendQueueFull,
)
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.message import Message, MessageQueue
from sprocketmq.sync import consumers
from sprocketmq.testing import wait_until

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def running():
    """A fake cluster on an event loop of its own thread, as blocking code needs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def start() -> FakeCluster:
        cluster = FakeCluster()
        await cluster.start()
        cluster.put("t")
        return cluster

    cluster = call(start())
    yield cluster
    call(cluster.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def loop_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "sprocketmq-loop"]


# --- producer -----------------------------------------------------------------------------------------------------------


def test_sends_block_and_submits_return_futures(running):
    with sync.Producer("pg", namesrv=running.namesrv.address) as producer:
        assert producer.send(Message("t", b"x", queue=QUEUE)).queue_offset == 0
        futures = [producer.submit(Message("t", b"x", queue=QUEUE)) for _ in range(100)]
        assert all(isinstance(f, Future) for f in futures)
        assert [f.result(60).queue_offset for f in futures] == list(range(1, 101))
        results = producer.send_batch([Message("t", b"x", queue=QUEUE)] * 3)
        assert [r.queue_offset for r in results] == [101, 102, 103]
        assert len(producer.queues("t")) == 4
        producer.room()
        producer.flush()
        assert producer.in_flight == 0


def test_many_threads_share_one_producer_and_one_loop(running):
    with sync.Producer("pg", namesrv=running.namesrv.address) as producer:
        offsets: list[int] = []

        def work():
            offsets.extend(producer.send(Message("t", b"x", queue=QUEUE)).queue_offset for _ in range(50))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offsets) == list(range(400))
        assert len(loop_threads()) == 1


def test_errors_come_out_where_the_result_would(running):
    with sync.Producer("pg", namesrv=running.namesrv.address) as producer:
        with pytest.raises(InvalidMessage):
            producer.send(Message("t", b""))
        with pytest.raises(InvalidName):
            producer.submit(Message("a b", b"x")).result(60)
        running.broker.script(Q.SEND_MESSAGE_V2, answer(13, "no"), silence)
        with pytest.raises(BrokerError, match="no"):
            producer.submit(Message("t", b"x")).result(60)
        with pytest.raises(MaybeStoredError):
            producer.send(Message("t", b"x"), timeout_s=0.05)
        assert producer.in_flight == 0


def test_submit_is_bounded_in_the_callers_thread(running):
    running.broker.script(Q.SEND_MESSAGE_V2, *[silence] * 3)
    with sync.Producer("pg", namesrv=running.namesrv.address, max_in_flight=2, max_in_flight_bytes=100, timeout_s=2) as producer:
        futures = [producer.submit(Message("t", b"x" * 60))]
        with pytest.raises(SendQueueFull, match="bytes"):
            producer.submit(Message("t", b"x" * 60))
        futures.append(producer.submit(Message("t", b"x")))
        with pytest.raises(SendQueueFull, match="messages"):
            producer.submit(Message("t", b"x"))
        for future in futures:
            with pytest.raises(MaybeStoredError):
                future.result(60)


def test_room_waits_until_a_body_fits_that_was_too_large(running):
    def answer_later(conn, command):
        asyncio.get_running_loop().call_later(0.05, running.broker.on_SEND_MESSAGE_V2, conn, command)
        return True

    running.broker.script(Q.SEND_MESSAGE_V2, answer_later)
    with sync.Producer("pg", namesrv=running.namesrv.address, max_in_flight_bytes=100, timeout_s=60) as producer:
        first = producer.submit(Message("t", b"x" * 60))
        with pytest.raises(SendQueueFull, match="bytes"):
            producer.submit(Message("t", b"x" * 60))
        producer.room()
        assert first.done()
        assert producer.submit(Message("t", b"x" * 60)).result(60).topic == "t"


def test_a_cancelled_future_frees_its_place(running):
    with sync.Producer("pg", namesrv=running.namesrv.address) as producer:
        future = producer.submit(Message("t", b"x"))
        future.cancel()
        producer.flush()
        wait_until(lambda: producer.in_flight == 0)


def test_threads_share_batches_and_each_message_gets_its_own_result(running):
    batching = Batching(max_bytes=1000, max_delay_ms=5)
    with sync.Producer("pg", namesrv=running.namesrv.address, batching=batching) as producer:
        offsets: list[int] = []

        def work():
            futures = [producer.submit(Message("t", b"x", queue=QUEUE)) for _ in range(50)]
            offsets.append(producer.send(Message("t", b"x", queue=QUEUE)).queue_offset)
            offsets.extend(future.result(60).queue_offset for future in futures)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offsets) == list(range(204))
        stats = producer.batching_stats
        assert (stats.messages, stats.held_bytes, producer.in_flight) == (204, 0, 0)
        assert stats.batches < 60


def test_callbacks_are_told_the_outcome_and_harm_nobody_when_they_raise(running):
    with sync.Producer("pg", namesrv=running.namesrv.address, auto_batch=True) as producer:
        told: list[object] = []

        def callback(result, error):
            told.append(error or result.queue_offset)
            raise RuntimeError

        for body in (b"x", b"x", b"x", b""):
            assert producer.submit(Message("t", body, queue=QUEUE), callback) is None
        producer.flush()
        assert isinstance(told.pop(0), InvalidMessage)
        assert told == [0, 1, 2]
        assert producer.in_flight == 0


def test_a_message_of_a_batch_that_was_cancelled_is_sent_all_the_same_and_ends_its_waiters(running):
    batching = Batching(max_delay_ms=30_000)
    with sync.Producer("pg", namesrv=running.namesrv.address, batching=batching) as producer:
        futures = [producer.submit(Message("t", b"x", queue=QUEUE)) for _ in range(3)]
        assert futures[1].cancel()
        producer.flush()
        done, pending = wait(futures, timeout=120)
        assert (len(done), len(pending)) == (3, 0)
        assert [futures[i].result().queue_offset for i in (0, 2)] == [0, 2]
        assert producer.in_flight == producer.batching_stats.held_bytes == 0


def test_close_sends_what_was_gathered(running):
    producer = sync.Producer("pg", namesrv=running.namesrv.address, batching=Batching(max_delay_ms=30_000))
    producer.start()
    futures = [producer.submit(Message("t", b"x", queue=QUEUE)) for _ in range(3)]
    producer.close()
    assert [future.result(0).queue_offset for future in futures] == [0, 1, 2]


def test_room_sends_gathered_messages_when_the_bound_is_met(running):
    batching = Batching(max_delay_ms=30_000)
    with sync.Producer("pg", namesrv=running.namesrv.address, batching=batching, max_in_flight=5) as producer:
        for _ in range(4):
            for _ in range(5):
                producer.submit(Message("t", b"x"))
            with pytest.raises(SendQueueFull):
                producer.submit(Message("t", b"x"))
            producer.room()
            wait_until(lambda: producer.in_flight == 0)


def test_a_blocking_call_from_the_loop_itself_is_refused(running):
    with sync.Producer("pg", namesrv=running.namesrv.address) as producer:
        seen: list[BaseException] = []

        def callback(future):
            for call in (lambda: producer.send(Message("t", b"x")), producer.flush):
                try:
                    call()
                except ConfigError as e:
                    seen.append(e)

        with loop_held(producer):
            producer.submit(Message("t", b"x")).add_done_callback(callback)
        wait_until(lambda: len(seen) == 2)


@contextlib.contextmanager
def loop_held(producer):
    """Let no future be done within the block: one that is done already calls back at once, in the thread of the test."""
    held, go_on = threading.Event(), threading.Event()

    def hold(result, failed):
        held.set()
        go_on.wait(60)

    producer.submit(Message("t", b"held"), hold)
    assert held.wait(60)
    try:
        yield
    finally:
        go_on.set()


# --- life ---------------------------------------------------------------------------------------------------------------


def test_the_loop_thread_lives_while_a_client_is_open(running):
    wait_until(lambda: not loop_threads())
    with sync.Producer("pg", namesrv=running.namesrv.address), sync.AdminClient(namesrv=running.namesrv.address):
        assert len(loop_threads()) == 1
        assert loop_threads()[0].daemon
    wait_until(lambda: not loop_threads())


def test_a_client_that_is_not_started_or_closed_says_so(running):
    producer = sync.Producer("pg", namesrv=running.namesrv.address)
    for use in (lambda: producer.send(Message("t", b"x")), lambda: producer.submit(Message("t", b"x")), producer.flush):
        with pytest.raises(ClientClosed, match="not started"):
            use()
    producer.start()
    producer.start()
    producer.close()
    producer.close()
    for use in (lambda: producer.send(Message("t", b"x")), lambda: producer.submit(Message("t", b"x")), producer.flush):
        with pytest.raises(ClientClosed, match="closed"):
            use()


def test_a_start_that_fails_leaves_no_thread():
    with pytest.raises(NameserverUnavailable):
        sync.Producer("pg", namesrv="127.0.0.1:1").start()
    wait_until(lambda: not loop_threads())


def test_arguments_are_those_of_the_async_client():
    import inspect

    assert "timeout_s" in inspect.signature(sync.Producer).parameters
    with pytest.raises(ConfigError):
        sync.Producer("a b", namesrv="127.0.0.1:1")


def test_a_program_that_forgets_to_close_still_ends_and_sends_what_it_submitted(running):
    program = f"""
from sprocketmq import Message, sync
producer = sync.Producer("pg", namesrv="{running.namesrv.address}")
producer.start()
for _ in range(10):
    producer.submit(Message("t", b"x"))
"""
    command = [sys.executable, "-W", "error", "-W", "always::ResourceWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stderr.count(b"ResourceWarning: unclosed sync.Producer of group 'pg'") == 1
    assert b"Exception" not in done.stderr
    assert running.broker.count(Q.SEND_MESSAGE_V2) == 10
    assert running.broker.count(Q.UNREGISTER_CLIENT) == 1


# --- consumers and admin ------------------------------------------------------------------------------------------------


def fill(running, amount: int) -> None:
    with sync.Producer("pg", namesrv=running.namesrv.address) as producer:
        producer.send_batch([Message("t", b"%d" % i, queue=QUEUE) for i in range(amount)])


def test_the_pull_consumer_blocks(running):
    fill(running, 5)
    with sync.PullConsumer("cg", namesrv=running.namesrv.address) as consumer:
        assert QUEUE in consumer.queues("t")
        result = consumer.pull(QUEUE, 2)
        assert [m.body for m in result.messages] == [b"2", b"3", b"4"]
        assert (consumer.min_offset(QUEUE), consumer.max_offset(QUEUE)) == (0, 5)
        assert consumer.committed(QUEUE) is None
        consumer.commit(QUEUE, 3)
        assert consumer.committed(QUEUE) == 3


def test_the_push_consumer_iterates_and_acknowledges(running):
    fill(running, 10)
    with sync.PushConsumer("cg", "t", namesrv=running.namesrv.address, consume_from="first", batch_max=3) as consumer:
        seen = []
        for batch in consumer.batches():
            seen += [m.body for m in batch]
            if len(seen) == 10:
                batch.ack()
                break
        assert seen == [b"%d" % i for i in range(10)]
        assert QUEUE in consumer.assignment
        consumer.commit()
        assert running.broker.offsets["cg", "t", 0] == 10


def test_a_loop_left_by_an_exception_commits_nothing_of_its_batch(running):
    fill(running, 4)
    with sync.PushConsumer("cg", "t", namesrv=running.namesrv.address, consume_from="first", batch_max=2) as consumer:
        with pytest.raises(RuntimeError):
            for batch in consumer.batches():
                if batch[0].queue_offset == 2:
                    raise RuntimeError
        again = next(consumer.batches())
        assert again[0].queue_offset == 2
    assert running.broker.offsets["cg", "t", 0] == 2


def test_batches_ends_when_another_thread_closes_the_consumer(running):
    consumer = sync.PushConsumer("cg", "t", namesrv=running.namesrv.address)
    consumer.start()
    ended = threading.Event()

    def read():
        for _ in consumer.batches():
            pass
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: consumer._client.ready.waiting)
    consumer.close()
    assert ended.wait(60)
    thread.join()


def test_a_fast_loop_is_handed_several_batches_at_once_and_gives_all_it_did_not_handle_back(running, monkeypatch):
    monkeypatch.setattr(consumers, "AHEAD_S", 1000.0)
    fill(running, 12)
    with sync.PushConsumer("cg", "t", namesrv=running.namesrv.address, consume_from="first", batch_max=1) as consumer:
        wait_until(lambda: held_messages(consumer, QUEUE) == 12)
        seen = []
        for batch in consumer.batches():
            seen.append(batch[0].queue_offset)
            if len(seen) == 3:
                break
        assert seen == [0, 1, 2]
        for batch in consumer.batches():
            seen.append(batch[0].queue_offset)
            if len(seen) == 13:
                batch.ack()
                break
    assert seen == [0, 1, 2, 2, *range(3, 12)]
    assert running.broker.offsets["cg", "t", 0] == 12


def test_a_slow_loop_is_handed_one_batch_at_a_time(running, monkeypatch):
    monkeypatch.setattr(consumers, "AHEAD_S", 0.0)
    fill(running, 4)
    with sync.PushConsumer("cg", "t", namesrv=running.namesrv.address, consume_from="first", batch_max=1) as consumer:
        wait_until(lambda: held_messages(consumer, QUEUE) == 4)
        for number, batch in enumerate(consumer.batches()):
            assert len(process_queues(consumer)[QUEUE]._out) <= 2  # this one, and the one before on its way to be acknowledged
            batch.ack()
            if number == 3:
                break


def test_messages_can_be_retried_from_the_thread_that_handles_them(running):
    fill(running, 3)
    with sync.PushConsumer("cg", "t", namesrv=running.namesrv.address, consume_from="first") as consumer:
        future = consumer.listen(lambda batch: batch.retry(batch[-1], delay_level=2))
        wait_until(lambda: running.broker.returned)
        wait_until(lambda: held_messages(consumer, QUEUE) == 0)
    assert future.done()
    assert [header.delay_level for header in running.broker.returned] == [2]
    assert running.broker.offsets["cg", "t", 0] == 3


def test_a_consumer_is_paused_and_moved_from_another_thread(running):
    fill(running, 3)
    with sync.PushConsumer("cg", "t", namesrv=running.namesrv.address, consume_from="first") as consumer:
        wait_until(lambda: len(consumer.assignment) == 4)
        consumer.pause(QUEUE)
        assert consumer.paused == [QUEUE]
        consumer.seek(QUEUE, 2)
        consumer.seek_to_time(QUEUE, 99)
        consumer.resume()
        assert consumer.paused == []
        batch = next(iter(consumer.batches()))
        assert batch[0].queue_offset == 1
        with pytest.raises(ConfigError):
            consumer.seek(MessageQueue("other", "b", 0), 1)


def test_listen_runs_handlers_in_threads(running):
    fill(running, 12)
    names, bodies, both = set(), [], threading.Barrier(2, timeout=120)

    def handler(batch):
        names.add(threading.current_thread().name)
        if len(bodies) == 0:
            both.wait()
        bodies.extend(m.body for m in batch)

    with sync.PushConsumer("cg", "t", namesrv=running.namesrv.address, consume_from="first", batch_max=3) as consumer:
        future = consumer.listen(handler, concurrency=2)
        wait_until(lambda: len(bodies) == 12)
        wait_until(lambda: process_queues(consumer)[QUEUE].commit_offset == 12)
    assert future.result(60) is None
    assert all(name.startswith("sprocketmq-handler") for name in names)
    assert len(names) == 2
    assert running.broker.offsets["cg", "t", 0] == 12


def test_a_handler_may_close_its_consumer(running):
    fill(running, 3)
    handled = []
    consumer = sync.PushConsumer("cg", "t", namesrv=running.namesrv.address, consume_from="first", batch_max=1)

    def handler(batch):
        consumer.close()
        consumer.close()
        handled.append(batch[0].body)

    consumer.start()
    consumer.run(handler, concurrency=1)
    wait_until(lambda: repr(consumer).endswith("closed>"))
    consumer.close()
    wait_until(lambda: not loop_threads())
    assert running.broker.offsets["cg", "t", 0] == len(handled) > 0
    assert running.broker.groups["cg"] == {}


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError])
def test_whatever_a_handler_raises_only_its_batch_fails(running, error):
    fill(running, 4)
    bodies = []

    def handler(batch):
        bodies.extend(bytes(m.body) for m in batch)
        if len(bodies) == 1:
            raise error

    with sync.PushConsumer(
        "cg", "t", namesrv=running.namesrv.address, consume_from="first", batch_max=1, orderly=True, suspend_s=0.01
    ) as consumer:
        future = consumer.listen(handler, concurrency=1)
        wait_until(lambda: len(bodies) == 5)
        assert not future.done()
    assert future.result(60) is None
    assert bodies[0] == bodies[1]


def test_a_handler_that_outlasts_the_close_is_named_as_its_thread_is_waited_for(running, monkeypatch, caplog):
    monkeypatch.setattr(push, "CLOSE_GRACE_S", 0.02)
    fill(running, 1)
    began, go_on = threading.Event(), threading.Event()

    def handler(batch):
        began.set()
        go_on.wait(120)

    with sync.PushConsumer("cg", "t", namesrv=running.namesrv.address, consume_from="first") as consumer:
        consumer.listen(handler)
        assert began.wait(60)
    assert "1 of its handlers still run: Python waits for their threads before the program ends" in caplog.text
    go_on.set()


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_a_callback_raises_is_logged_and_harms_no_other_message(running, error, caplog):
    def callback(result, failed):
        raise error("from a callback")

    with sync.Producer("pg", namesrv=running.namesrv.address, auto_batch=True) as producer:
        with loop_held(producer):
            producer.submit(Message("t", b"0"), callback)
            producer.submit(Message("t", b"1")).add_done_callback(lambda future: callback(future, None))
            others = [producer.submit(Message("t", b"%d" % n)) for n in range(2, 5)]
            producer.submit(Message("t", b"x" * (8 << 20)), callback)
            producer.submit(Message("t", b"x" * (8 << 20))).add_done_callback(lambda future: callback(future, None))
        assert [future.result(60).topic for future in others] == ["t"] * 3
        producer.flush()
        assert producer.stats().retries == 0
    # What the callback of a future raises is logged by Python unless it is to end the program.
    assert caplog.text.count("the callback of a sent message raised") + caplog.text.count("exception calling callback for") == 4


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_what_hooks_and_sharing_functions_raise_ends_no_other_client(running, error, caplog):
    class Hook(ClientHooks):
        def sending(self, event):
            raise error

    def share(queues, members, me):
        raise error

    address = running.namesrv.address
    with sync.Producer("other", namesrv=address) as other:
        with sync.Producer("pg", namesrv=address, hooks=[Hook()]) as producer:
            producer.send(Message("t", b"x"))
            assert producer.stats().hook_failures == 1
        with sync.PushConsumer("cg", "t", namesrv=address, rebalance=share):
            wait_until(lambda: f"it raised {error.__name__}" in caplog.text)
        other.send(Message("t", b"y"))


def test_a_callback_cannot_close_its_producer_which_stays_open(running):
    refused, called = [], threading.Event()
    with sync.Producer("pg", namesrv=running.namesrv.address) as producer:

        def callback(result, error):
            try:
                producer.close()
            except ConfigError as e:
                refused.append(str(e))
            called.set()

        producer.submit(Message("t", b"x"), callback)
        assert called.wait(60)
        assert "as in a callback of submit" in refused[0]
        producer.send(Message("t", b"y"))
    wait_until(lambda: not loop_threads())


# --- fork ---------------------------------------------------------------------------------------------------------------

FORK = """
import os, sys
from sprocketmq import Message, sync
from sprocketmq.errors import ForkedClient

before = sync.Producer("pg", namesrv="{address}")
before.start()
consumer = sync.PullConsumer("cg", namesrv="{address}")
consumer.start()
pid = os.fork()
if pid == 0:
    said = []
    for use in (lambda: before.send(Message("t", b"x")), lambda: before.submit(Message("t", b"x")), lambda: consumer.queues("t")):
        try:
            use()
        except ForkedClient as e:
            said.append(str(e))
    before.close()
    with sync.Producer("pg", namesrv="{address}") as own:
        own.send(Message("t", b"from the child"))
    ok = len(said) == 3 and "create a new one in the child" in said[0]
    os._exit(0 if ok else 1)
_, status = os.waitpid(pid, 0)
before.send(Message("t", b"from the parent"))
before.close()
consumer.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_is_told_to_make_its_own_clients_and_can(running):
    program = FORK.format(address=running.namesrv.address)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program], capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert running.broker.count(Q.SEND_MESSAGE_V2) == 2


async def test_an_async_client_in_a_forked_child_says_so(cluster):
    import os

    from sprocketmq.client import Producer
    from sprocketmq.errors import ForkedClient

    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x"))
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                producer.submit(Message("t", b"x"))
            except ForkedClient as e:
                os.write(write, str(e).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(write)
        assert b"this Producer was created before the process forked" in os.read(read, 1000)
        os.close(read)
        await producer.send(Message("t", b"x"))
