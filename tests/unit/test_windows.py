"""Clients on Windows, in a process that meets what is different there (``tests/windows/sitecustomize.py``)."""

import signal
import subprocess
import sys

import pytest
from tests.systems import environment_of, run_on

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import NotOnWindows

# Servers see Windows, too.
ALL = {"SPROCKETMQ_TEST_ALL_ON_WINDOWS": "1"}


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def command(mq):
    """Return ``start(*arguments)``: start a command that meets Windows, with pipes."""

    def start(*arguments):
        environment = environment_of("windows") | {"NAMESRV_ADDR": mq.namesrv}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        started.append(subprocess.Popen([sys.executable, "-m", "sprocketmq", *arguments], env=environment, **pipes))
        return started[-1]

    started = []
    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_messages_are_sent_and_consumed_and_offsets_kept_in_a_locked_file(mq, tmp_path):
    program = f"""
import os
from sprocketmq import Message
from sprocketmq.errors import OffsetsLocked
from sprocketmq.sync import Producer, PullConsumer, PushConsumer
options = dict(namesrv={mq.namesrv!r})
with Producer("shop", **options) as producer, PullConsumer("readers", **options) as reader:
    producer.send(Message("windows", b"one"))
    producer.submit(Message("windows", b"two")).result(30)
    read = [reader.pull(queue, 0).messages for queue in reader.queues("windows")]
    print(sorted(message.body for messages in read for message in messages))
def member():
    return PushConsumer("all", "windows", mode="broadcasting", offsets_dir="offsets", **options)
first = member()
first.start()
try:
    member().start()
except OffsetsLocked:
    print("locked")
first.close()
with member():
    print("free")
"""
    done = run_on("windows", program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[b'one', b'two']", "locked", "free"]


def test_a_blocking_client_leaves_signals_to_the_loop_of_the_main_thread(mq, tmp_path):
    program = f"""
import asyncio, signal
from sprocketmq import sync
async def main():
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    with sync.AdminClient(namesrv={mq.namesrv!r}):
        print(descriptor >= 0, signal.set_wakeup_fd(descriptor) == descriptor)
asyncio.run(main())
"""
    done = run_on("windows", program, tmp_path)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_connections_are_encrypted(tmp_path):
    program = """
from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
with LocalCluster(secure=True) as mq, sync.Producer("shop", namesrv=mq.namesrv, secure=mq.secure) as producer:
    futures = [producer.submit(Message("orders", bytes(1000))) for _ in range(1000)]
    print(len({future.result(30).msg_id for future in futures}))
"""
    done = run_on("windows", program, tmp_path)
    assert (done.stdout, done.stderr) == ("1000\n", "")


def test_lines_of_a_pipe_are_sent_as_they_come(mq, command):
    writer = command("produce", "lines", "--json")
    for line in (b"first", b"second"):
        writer.stdin.write(line + b"\n")
        writer.stdin.flush()
        assert line in [message.body for message in mq.messages("lines", count=1 if line == b"first" else 2)]
    output, error = writer.communicate()
    assert (writer.returncode, b'"messages": 2' in output, error) == (0, True, b"")


@pytest.mark.parametrize("arguments", [("produce", "stopped"), ("consume", "watched", "--from", "first")])
def test_a_signal_ends_a_command_that_waits(mq, command, arguments):
    process = command(*arguments)
    if arguments[0] == "produce":
        process.stdin.write(b"one\n")
        process.stdin.flush()
        mq.messages("stopped", count=1)
    else:
        with sync.Producer("shop", namesrv=mq.namesrv) as producer:
            producer.send(Message("watched", b"one"))
        assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 128 + signal.SIGINT


# The waits of this lock are ended by no signal: it has its effect afterwards.
LOCK = """
import _thread, signal, types
from sprocketmq.net import loops
class Lock:
    def __init__(self):
        self.real = _thread.allocate_lock()
        self.release = self.real.release
    def acquire(self, blocking=True, timeout=-1):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self.real.acquire(blocking, timeout)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
loops._thread = types.SimpleNamespace(allocate_lock=Lock)
"""


def test_an_interrupt_ends_a_blocking_call(mq):
    program = f"""{LOCK}
from sprocketmq.sync import PullConsumer
with PullConsumer("waiting", namesrv={mq.namesrv!r}) as consumer:
    consumer.subscribe("nothing")
    try:
        print("waits", flush=True)
        consumer.poll(1, timeout_s=300)
    except KeyboardInterrupt:
        print("interrupted")
"""
    mq.create_topic("nothing")
    process = subprocess.Popen([sys.executable, "-c", program], env=environment_of("windows"), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=100)
    finally:
        process.kill()
        process.communicate()
    assert (output, process.returncode) == ("interrupted\n", 0)


@pytest.mark.parametrize(
    "arguments",
    [
        *("serve", "broker", "namesrv", "proxy", "dashboard", "demo", "inspect .", "verify .", "rebuild .", "bench omb backlog-drain.yaml"),
        "bench batch",
    ],
)
def test_what_serves_or_reads_a_store_is_refused_in_one_sentence(tmp_path, arguments):
    (tmp_path / "commitlog").mkdir()
    program = f"from sprocketmq.cli.app import main; raise SystemExit(main({arguments.split()!r}))"
    done = run_on("windows", program, tmp_path, env=ALL)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"sprocketmq: {NotOnWindows()}\n")


def test_so_is_a_cluster_of_the_process(tmp_path):
    program = """
try:
    from sprocketmq.embedded import LocalCluster
except ImportError as e:
    print(type(e).__name__)
"""
    assert run_on("windows", program, tmp_path, env=ALL).stdout == "NotOnWindows\n"


def test_what_runs_there_needs_nothing_of_what_does_not(tmp_path):
    names = ("client", "sync", "otel", "arrow.topics", "spark.source.data_source", "spark.sink.data_sink", "testing", "cli.commands")
    program = "\n".join(f"import sprocketmq.{name}" for name in names)
    done = run_on("windows", program, tmp_path, env=ALL)
    assert done.returncode == 0, done.stderr
