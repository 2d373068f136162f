"""Commands that are stopped in the middle: what they leave behind, and their exit codes."""

import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sprocketmq import Message, sync
from sprocketmq.storage.inspect.verification import verify
from sprocketmq.testing import wait_until


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def number(request):
    return request.param


def test_a_command_that_a_signal_ends_says_so_and_exits_as_shells_expect(command, store, monkeypatch, number):
    def stopped(*_args, **_kwargs):
        signal.raise_signal(number)

    monkeypatch.setattr("sprocketmq.cli.verify.verify", stopped)
    assert command("verify", store) == (128 + number, "", f"sprocketmq: stopped by {number.name}\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_signals_do_what_they_did_when_a_command_that_handles_them_has_ended(cli):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert cli("produce", "t", stdin=b"a\n").code == 0
    assert cli("consume", "t", "--from", "first", "--count", "1").code == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("fd", [0, 1])
def test_a_closed_standard_stream_fails_what_needs_it_and_nothing_else(mq, spawn, fd):
    mq.create_topic("closed")
    verb = ["topic", "list"] if fd else ["produce", "closed"]
    command = spawn(mq, *verb, preexec_fn=lambda: os.close(fd))
    _, err = command.communicate(timeout=120)
    assert (command.returncode, err) == (1, b"sprocketmq: Bad file descriptor\n")


@pytest.mark.parametrize("verb", [["consume", "wide", "--from", "first", "--count", "300"], ["query", "wide", "k"]])
def test_a_reader_that_has_seen_enough_ends_a_command_in_order(mq, spawn, verb):
    """As in `sprocketmq consume t | head`; what was written does not fit the pipe."""
    with sync.Producer("pg", namesrv=mq.namesrv) as producer:
        producer.send_batch([Message("wide", b"x" * 5_000, keys=["k"]) for _ in range(300)])
    command = spawn(mq, *verb)
    assert command.stdout.read(1) == b"x"
    command.stdout.close()
    assert command.stderr.read() == b""
    assert command.wait(timeout=60) == 0


def test_a_full_disk_behind_standard_output_is_one_line_and_a_failure(mq, spawn):
    mq.create_topic("full")
    with Path("/dev/full").open("w") as full:
        command = spawn(mq, "topic", "list", stdout=full)
        _, err = command.communicate(timeout=120)
    assert (command.returncode, err) == (1, b"sprocketmq: No space left on device\n")


def test_what_py4j_says_of_an_interrupt_is_not_shown(command, store, monkeypatch):
    shown = []
    monkeypatch.setattr(
        "sprocketmq.cli.verify.verify", lambda *_, **__: shown.append(logging.getLogger("py4j.clientserver").isEnabledFor(logging.ERROR))
    )
    command("verify", store)
    assert shown == [False]


def test_a_rebuild_that_is_stopped_leaves_the_store_as_it_was(command, store, monkeypatch, number):
    before = sorted(path.relative_to(store) for path in store.rglob("*"))

    def stopped(*_args):
        signal.raise_signal(number)

    monkeypatch.setattr("sprocketmq.storage.bulk.rebuild._Rebuild._keep_expired", stopped)
    code, out, err = command("rebuild", store)
    assert (code, out, err) == (128 + number, "", f"sprocketmq: stopped by {number.name}\n")
    assert [path for path in sorted(path.relative_to(store) for path in store.rglob("*")) if path.name != "lock"] == [
        path for path in before if path.name != "lock"
    ]
    assert verify(str(store)).ok


def test_a_benchmark_that_is_stopped_deletes_its_topics(mq, spawn, number):
    run = spawn(mq, "bench", "batch", "--namesrv", mq.namesrv, "--seconds", "600", "--json")
    with sync.AdminClient(namesrv=mq.namesrv) as admin:
        wait_until(lambda: [name for name in admin.topics() if name.startswith("bench-")])
        run.send_signal(number)
        out, err = run.communicate(timeout=120)
        assert (run.returncode, out, err.decode()) == (128 + number, b"", f"sprocketmq: stopped by {number.name}\n")
        assert not [name for name in admin.topics() if name.startswith("bench-")]


@pytest.fixture
def silent():
    """A nameserver that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield listener


QUESTIONS = [
    ["top", "--json"],
    ["top"],
    ["doctor"],
    ["query", "t", "k"],
    ["trace", "7F000001A3C5F1E2D3C400AB12CD0001"],
    ["failover", "broker-a"],
    ["group", "list"],
    ["group", "progress", "g"],
    ["group", "delete", "g"],
    ["topic", "list"],
    ["cluster"],
    ["consume", "t"],
    ["consume", "t", "--group", "g"],
    ["pipeline", "lag", "--group", "g", "--watch"],
]


@pytest.mark.parametrize("verb", QUESTIONS, ids=" ".join)
def test_a_command_that_waits_for_an_answer_stops_at_a_signal(spawn, silent, number, verb):
    port = silent.getsockname()[1]
    run = spawn(SimpleNamespace(namesrv=f"127.0.0.1:{port}"), *verb)
    connection, _ = silent.accept()
    with connection:
        assert connection.recv(1)
        run.send_signal(number)
        out, err = run.communicate(timeout=60)
    assert (run.returncode, out, err.decode()) == (128 + number, b"", f"sprocketmq: stopped by {number.name}\n")


def test_a_command_that_ignores_ctrl_c_in_the_background_stops_at_sigterm(spawn, silent):
    port = silent.getsockname()[1]
    ignore = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    run = spawn(SimpleNamespace(namesrv=f"127.0.0.1:{port}"), "doctor", **ignore)
    connection, _ = silent.accept()
    with connection:
        assert connection.recv(1)
        run.terminate()
        assert (run.communicate(timeout=60), run.returncode) == ((b"", b"sprocketmq: stopped by SIGTERM\n"), 143)


def test_an_inspection_that_is_stopped_ends_in_its_line(spawn, store, number):
    run = spawn(SimpleNamespace(namesrv=""), "inspect", store / "commitlog" / ("0" * 20), "--limit", "0", "--hex")
    assert run.stdout.read(1)  # the rest does not fit the pipe
    run.send_signal(number)
    _, err = run.communicate(timeout=60)
    assert (run.returncode, err.decode()) == (128 + number, f"sprocketmq: stopped by {number.name}\n")


@pytest.mark.parametrize("verb", ["dashboard", "proxy"])
def test_a_server_that_is_stopped_ends_in_order(mq, spawn, number, verb):
    run = spawn(mq, verb, "--port", "0")
    assert run.stdout.readline().startswith(b"ready ")
    run.send_signal(number)
    assert (run.communicate(timeout=60), run.returncode) == ((b"", b""), 0)


FOLLOW = """
import sys
from sprocketmq import arrow
try:
    for table in arrow.follow(sys.argv[2], namesrv=sys.argv[1], start="first"):
        print(table.num_rows, flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_following_a_topic_ends_at_a_signal_without_a_word(mq, number):
    topic = f"followed-until-{number.name}"
    with sync.Producer("pg", namesrv=mq.namesrv) as producer:
        producer.send(Message(topic, b"x"))
    command = [sys.executable, "-X", "faulthandler", "-c", FOLLOW, mq.namesrv, topic]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout.readline() == b"1\n"
    run.send_signal(number)
    try:
        out, err = run.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGABRT)  # says where its threads stand
        out, err = run.communicate()
    assert (out, err.decode(), run.returncode) == (b"", "", 130 if number == signal.SIGINT else -number)


def test_a_live_table_that_is_stopped_gives_the_terminal_back(mq, spawn, number, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    run = spawn(mq, "top", stdout=theirs)
    os.close(theirs)
    shown = b""
    while b"Ctrl-C ends it" not in shown:
        shown += os.read(ours, 4096)
    run.send_signal(number)
    while b"\x1b[?1049l" not in shown:  # back from the alternate screen
        shown += os.read(ours, 4096)
    assert (run.communicate(timeout=60)[1].decode(), run.returncode) == (f"sprocketmq: stopped by {number.name}\n", 128 + number)
    os.close(ours)
