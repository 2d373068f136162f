"""Clients used outside the event loop they were started on, and clients that nobody closed."""

import asyncio
import gc
import subprocess
import sys
import warnings

import pytest
import uvloop
from tests import eager
from tests.inside import instance_of

from sprocketmq import AdminClient, Batching, Message, MessageQueue, Producer, PullConsumer, PushConsumer, sync
from sprocketmq.client.consume.batches import Batches
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ClientClosed, NameserverUnavailable, WrongEventLoop
from sprocketmq.sync import faces
from sprocketmq.testing import wait_until

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as cluster:
        cluster.create_topic("t", queues=2)
        yield cluster


def make(kind: str, mq: LocalCluster):
    if kind.startswith("producer"):
        batching = {"producer": None, "producer batching": Batching(), "producer adaptive": Batching(adaptive=True)}[kind]
        return Producer("pg", namesrv=mq.namesrv, batching=batching)
    if kind == "push":
        return PushConsumer("cg-loops", "t", namesrv=mq.namesrv)
    return PullConsumer("cg-loops", namesrv=mq.namesrv) if kind == "pull" else AdminClient(namesrv=mq.namesrv)


PRODUCERS = ("producer", "producer batching", "producer adaptive")
KINDS = (*PRODUCERS, "push", "pull", "admin")

# What each client is asked to do where it may not be used: called, and awaited when it returns something to await.
CALLS = {
    "producer": (
        lambda p: p.send(Message("t", b"x")),
        lambda p: p.send(Message("t", b"x"), timeout_s=60),
        lambda p: p.submit(Message("t", b"x")),
        lambda p: p.submit(Message("t", b"x"), lambda result, error: None),
        lambda p: p.send_batch([Message("t", b"x")]),
        lambda p: p.send_encoded("t", b"x", "", batch=False),
        lambda p: p.flush(),
        lambda p: p.room(),
        lambda p: p.queues("t"),
    ),
    "push": (
        lambda c: c.batches(),
        lambda c: Batches(c, instance_of(c), c.ready, c.outcomes).__anext__(),
        lambda c: c.listen(print),
        lambda c: c.run(print),
        lambda c: c.commit(),
        lambda c: c.pause(),
        lambda c: c.resume(),
        lambda c: c.seek(QUEUE, 0),
        lambda c: c.seek_to_time("t", 0),
    ),
    "pull": (
        lambda c: c.queues("t"),
        lambda c: c.pull(QUEUE, 0),
        lambda c: c.min_offset(QUEUE),
        lambda c: c.offset_at(QUEUE, 0),
        lambda c: c.committed(QUEUE),
        lambda c: c.commit(QUEUE, 0),
        lambda c: c.commit(),
        lambda c: c.subscribe("t"),
        lambda c: c.assign([QUEUE]),
        lambda c: c.poll(),
        lambda c: c.position(QUEUE),
        lambda c: c.seek(QUEUE, 0),
        lambda c: c.seek_to_time(QUEUE, 0),
        lambda c: c.pause(),
        lambda c: c.resume(),
        lambda c: c.check_expression(QUEUE, "a"),
    ),
    "admin": (
        lambda a: a.create_topic("u"),
        lambda a: a.topics(),
        lambda a: a.route("t"),
        lambda a: a.queues("t"),
        lambda a: a.max_offset(QUEUE),
        lambda a: a.progress("g"),
        lambda a: a.message_at(QUEUE, 0),
        lambda a: a.query_by_key("t", "k"),
    ),
}
EVERY = (lambda c: c.start(), lambda c: c.close())


def calls(kind: str):
    return (*CALLS[kind.split(maxsplit=1)[0]], *EVERY)


async def refuse_all(client, kind: str, words: str) -> None:
    for call in calls(kind):
        with pytest.raises(WrongEventLoop, match=words):
            work = call(client)
            if hasattr(work, "__await__"):
                await asyncio.wait_for(work, 60)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_refuses_every_call_from_another_thread_and_goes_on(mq, kind):
    client = make(kind, mq)
    await client.start()
    try:
        await asyncio.to_thread(lambda: asyncio.run(refuse_all(client, kind, "another event loop or thread: use sprocketmq.sync")))
        if kind in PRODUCERS:
            with pytest.raises(WrongEventLoop):
                await asyncio.to_thread(client.submit, Message("t", b"x"))
            assert client.in_flight == 0
            assert client.batching_stats.held_bytes == 0
            await client.send(Message("t", b"x"))
    finally:
        await asyncio.wait_for(client.close(), 60)
    with pytest.raises(ClientClosed):
        instance_of(client).check()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_whose_loop_has_ended_refuses_every_call(mq, kind, run):
    client = make(kind, mq)
    run(client.start())
    run(refuse_all(client, kind, "has ended"))
    del client
    gc.collect()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_is_started_outside_asyncio_names_the_way(mq, kind):
    starting = make(kind, mq).start()
    with pytest.raises(WrongEventLoop, match=r"this (\w+) was to be started: under trio call sprocketmq\.sync\.\1 in a thread"):
        starting.send(None)  # the first step that another library's loop would take


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_submit_without_any_loop_is_refused(mq):
    producer = make("producer batching", mq)
    asyncio.run(producer.start())
    with pytest.raises(WrongEventLoop, match="has ended"):
        producer.submit(Message("t", b"x"))
    assert producer.in_flight == 0
    del producer
    gc.collect()


async def test_submit_may_be_called_from_callbacks_of_the_loop(mq):
    async with make("producer batching", mq) as producer:
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: producer.submit(Message("t", b"x"), lambda result, error: done.set_result(result)))
        assert (await asyncio.wait_for(done, 60)).topic == "t"


async def test_a_batch_is_not_acknowledged_from_another_thread(mq):
    mq.create_topic("acks", queues=1)
    async with make("producer", mq) as producer:
        await producer.send(Message("acks", b"x"))
    async with PushConsumer("cg-acks", "acks", namesrv=mq.namesrv, consume_from="first") as consumer:
        async for batch in consumer.batches():
            with pytest.raises(WrongEventLoop):
                await asyncio.to_thread(batch.ack)
            batch.ack()
            break


# --- start and close ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_two_tasks_may_start_and_close_a_client_at_the_same_time(mq, kind):
    client = make(kind, mq)
    await asyncio.gather(client.start(), client.start())
    tasks = len(asyncio.all_tasks())
    await client.start()
    assert len(asyncio.all_tasks()) == tasks
    await asyncio.gather(client.close(), client.close())
    await client.close()
    with pytest.raises(ClientClosed, match="make a new one"):
        await client.start()


async def test_a_second_close_does_not_cut_off_what_the_first_waits_for(mq):
    producer = make("producer", mq)
    await producer.start()
    sending = [producer.submit(Message("t", b"x")) for _ in range(100)]
    await asyncio.gather(producer.close(), producer.close())
    assert {(await each).topic for each in sending} == {"t"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_is_closed_while_it_starts_is_closed(mq, kind):
    client = make(kind, mq)
    before = asyncio.all_tasks()
    starting = asyncio.ensure_future(client.start())
    await asyncio.sleep(0)
    await asyncio.wait_for(client.close(), 60)
    await asyncio.gather(starting, return_exceptions=True)
    with pytest.raises(ClientClosed):
        instance_of(client).check()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("kind", ["producer", "pull", "admin", "push"])
async def test_a_start_that_failed_or_was_cancelled_may_be_tried_again(mq, kind):
    client = make(kind, mq)
    addresses = instance_of(client).namesrv.addresses
    instance_of(client).namesrv.addresses = ("127.0.0.1:1",)
    with pytest.raises(NameserverUnavailable):
        await client.start()
    instance_of(client).namesrv.addresses = addresses
    starting = asyncio.ensure_future(client.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await client.start()
    await client.close()


# --- clients that nobody closed -----------------------------------------------------------------------------------------


def forgotten(work, *, clients: int = 1) -> list[str]:
    """Run ``work()``, which drops ``clients``, and return the warnings about them when all are there: another thread may drop one last."""

    def about_clients() -> list[str]:
        return [text for w in caught if "unclosed" in (text := str(w.message)) and "transport" not in text and "socket" not in text]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
        wait_until(lambda: gc.collect() >= 0 and len(about_clients()) >= clients, timeout_s=60)
    return about_clients()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_a_program_forgets_to_close_warns(mq, kind):
    async def program() -> None:
        client = make(kind, mq)
        await client.start()
        if kind in PRODUCERS:
            await client.send(Message("t", b"x"))

    name = {"push": "PushConsumer", "pull": "PullConsumer", "admin": "AdminClient"}.get(kind, "Producer")
    group = {"push": " of group 'cg-loops'", "pull": " of group 'cg-loops'", "admin": ""}.get(kind, " of group 'pg'")
    (text,) = forgotten(lambda: asyncio.run(program()))
    assert text.startswith(f"unclosed {name}{group}")
    assert "async with" in text


async def test_a_dropped_producer_is_collected_at_once_and_disconnects(mq):
    producer = make("producer", mq)
    await producer.start()
    await producer.send(Message("t", b"x"))
    connections = [*instance_of(producer).brokers.open_connections(), *instance_of(producer).namesrv.pool.open_connections()]
    gc.disable()  # no cycle may keep it
    try:
        with pytest.warns(ResourceWarning, match="unclosed Producer of group 'pg' with 0 messages on the way"):
            del producer
    finally:
        gc.enable()
    await asyncio.sleep(0)
    assert connections
    assert all(conn.closed for conn in connections)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("options", [{}, {"batching": Batching(max_delay_ms=20)}])
async def test_a_producer_that_is_dropped_sends_what_it_has_accepted(mq, options):
    async def program() -> list[asyncio.Future]:
        producer = Producer("pg", namesrv=mq.namesrv, **options)
        await producer.start()
        return [producer.submit(Message("t", b"x")) for _ in range(4)]

    futures = await program()
    assert [result.topic for result in await asyncio.gather(*futures)] == ["t"] * 4


def test_the_warning_counts_the_messages_on_the_way(mq):
    async def program() -> None:
        producer = Producer("pg", namesrv=mq.namesrv, batching=Batching(max_delay_ms=30_000))
        await producer.start()
        for _ in range(4):
            producer.submit(Message("t", b"x"))

    assert [text.partition(":")[0] for text in forgotten(lambda: asyncio.run(program()))] == [
        "unclosed Producer of group 'pg' with 4 messages on the way"
    ]


def test_clients_that_are_closed_or_never_started_do_not_warn(mq):
    async def program() -> None:
        for kind in KINDS:
            make(kind, mq)
            async with make(kind, mq):
                pass

    assert forgotten(lambda: asyncio.run(program()), clients=0) == []


def test_a_blocking_producer_that_is_dropped_warns_and_still_sends(mq):
    def program():
        producer = sync.Producer("pg", namesrv=mq.namesrv)
        producer.start()
        return [producer.submit(Message("t", b"x")) for _ in range(10)]

    results = []
    (text,) = forgotten(lambda: results.extend(program()))
    assert text.startswith("unclosed sync.Producer of group 'pg' with ")
    assert {future.result(60).topic for future in results} == {"t"}
    wait_until(lambda: not faces.dropped and faces.shared_thread.thread is None)


@pytest.mark.parametrize("kind", [sync.PullConsumer, sync.PushConsumer])
def test_a_blocking_consumer_that_is_dropped_warns(mq, kind):
    def program() -> None:
        (kind("cg-drop", "t", namesrv=mq.namesrv) if kind is sync.PushConsumer else kind("cg-drop", namesrv=mq.namesrv)).start()

    (text,) = forgotten(program)
    assert text.startswith(f"unclosed sync.{kind.__name__} of group 'cg-drop'")
    wait_until(lambda: not faces.dropped and faces.shared_thread.thread is None)


def test_what_a_dropped_blocking_producer_took_is_sent_at_exit(mq):
    mq.create_topic("last", queues=1)
    program = f"""
from sprocketmq import Message, sync
def work():
    producer = sync.Producer("pg", namesrv={mq.namesrv!r})
    producer.start()
    for _ in range(100):
        producer.submit(Message("last", b"x"))
work()
"""
    done = subprocess.run([sys.executable, "-W", "always::ResourceWarning", "-c", program], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stderr.count(b"ResourceWarning: unclosed sync.Producer of group 'pg'") == 1
    assert len(mq.messages("last")) == 100


@pytest.mark.parametrize("kind", PRODUCERS)
async def test_clients_work_where_tasks_begin_at_once(mq, kind):
    """As with ``asyncio.eager_task_factory``."""
    asyncio.get_running_loop().set_task_factory(eager.factory)
    topic, handled = f"eager-{kind.replace(' ', '-')}", asyncio.Queue()
    mq.create_topic(topic, queues=2)

    async def handle(messages) -> None:
        for message in messages:
            handled.put_nowait(message.body)

    async with make(kind, mq) as producer, PushConsumer("cg-eager", topic, namesrv=mq.namesrv, consume_from="first") as consumer:
        listening = consumer.listen(handle)
        bodies = [b"%d" % n for n in range(100)]
        await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies[:50]))
        for body in bodies[50:]:
            producer.submit(Message(topic, body))
        await producer.flush()
        assert sorted([await handled.get() for _ in bodies]) == sorted(bodies)
        listening.cancel()
    assert handled.empty()
    async with PullConsumer("cg-eager-pulls", namesrv=mq.namesrv, consume_from="first") as consumer:
        await consumer.subscribe(topic)
        polled: list[bytes] = []
        while len(polled) < len(bodies):
            polled += [message.body for message in await consumer.poll()]
    assert sorted(polled) == sorted(bodies)


def test_blocking_clients_work_beside_greenlets_that_left_threads_as_they_are(mq):
    mq.create_topic("greenlets", queues=1)
    program = f"""
from gevent import monkey
import sys
exec("monkey." + sys.argv[1])
import gevent, time
from gevent.event import Event
from sprocketmq import Message, sync

turns, handled, all_handled = 0, [], Event()

def turn():
    global turns
    while True:
        turns += 1
        gevent.sleep(0.001)

def wait_for(count):
    while len(handled) < count:
        gevent.sleep(0.001)
    all_handled.set()

gevent.spawn(turn)
with sync.Producer("pg", namesrv={mq.namesrv!r}) as producer:
    threads = gevent.get_hub().threadpool
    sends = [gevent.spawn(producer.send, Message("greenlets", b"a")) for _ in range(50)]
    sends += [gevent.spawn(threads.apply, producer.send, (Message("greenlets", b"b"),)) for _ in range(50)]
    gevent.joinall(sends, raise_error=True)

def handle(batch):
    time.sleep(0)
    handled.extend(message.body for message in batch)

with sync.PushConsumer("cg-greenlets", "greenlets", namesrv={mq.namesrv!r}, consume_from="first") as consumer:
    consumer.listen(handle)
    gevent.spawn(wait_for, 100)
    all_handled.wait()
print(sorted(handled) == [b"a"] * 50 + [b"b"] * 50, turns > 0)
"""
    for call, code, said, error in (
        ("patch_all(thread=False, queue=False, select=False)", 0, "True True\n", ""),
        ("patch_all()", 1, "", "gevent.monkey.patch_all(thread=False, queue=False, select=False)\n"),
    ):
        done = subprocess.run([sys.executable, "-c", program, call], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (code, said), done.stderr
        assert done.stderr.endswith(error)
        assert "Exception" not in done.stderr


def test_a_client_left_open_in_a_global_makes_no_noise_but_its_warning(mq):
    program = f"""
import asyncio
from sprocketmq import AdminClient, Producer, PullConsumer, PushConsumer
clients = [Producer("pg", namesrv={mq.namesrv!r}), PushConsumer("cg-exit", "t", namesrv={mq.namesrv!r}),
           PullConsumer("cg-exit", namesrv={mq.namesrv!r}), AdminClient(namesrv={mq.namesrv!r})]
async def main():
    for client in clients:
        await client.start()
asyncio.run(main())
"""
    for filters, expected in ((["-W", "always::ResourceWarning"], 4), ([], 0)):
        done = subprocess.run([sys.executable, *filters, "-c", program], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0
        for word in ("Exception", "Traceback", "Task was destroyed"):
            assert word not in done.stderr
        assert sum("ResourceWarning: unclosed" in line and "group" in line for line in done.stderr.splitlines()) == (3 if expected else 0)
        assert ("unclosed AdminClient" in done.stderr) is bool(expected)


async def test_a_client_prints_its_group_and_state(mq):
    producer = Producer("pg", namesrv=mq.namesrv)
    assert repr(producer) == f"<Producer of group 'pg' at {mq.namesrv}, not started>"
    async with producer:
        assert repr(producer) == f"<Producer of group 'pg' at {mq.namesrv}, open>"
    assert repr(producer) == f"<Producer of group 'pg' at {mq.namesrv}, closed>"
    assert repr(AdminClient(namesrv=mq.namesrv)) == f"<AdminClient at {mq.namesrv}, not started>"
    assert repr(PushConsumer("cg", "t", namesrv="a:1;b:2")) == "<PushConsumer of group 'cg' at a:1;b:2, not started>"


def test_a_blocking_client_prints_that_it_is_one(mq):
    with sync.PullConsumer("cg", namesrv=mq.namesrv) as consumer:
        assert repr(consumer) == f"<sync.PullConsumer of group 'cg' at {mq.namesrv}, open>"
