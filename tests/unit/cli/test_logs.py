"""Where log lines go: formats, rotation, SIGHUP, a disk that is full and a standard error that nobody reads."""

import contextlib
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading

import pytest

from sprocketmq import __version__, sync
from sprocketmq.cli.app import main
from sprocketmq.cli.logs import (
    JSON_KEYS,
    FileOutput,
    JsonFormatter,
    LogOptions,
    LogWriter,
    StderrOutput,
    TextFormatter,
    logging_to,
    wrap_line,
)
from sprocketmq.events import event
from sprocketmq.testing import wait_until

FREE = ("--port", "0", "--namesrv-port", "0")
LOG = logging.getLogger("sprocketmq.tests")


def record(message, *args, exc_info=None):
    return LOG.makeRecord(LOG.name, logging.WARNING, "", 0, message, args, exc_info)


def error():
    try:
        raise ValueError("bad")
    except ValueError:
        return sys.exc_info()


@pytest.fixture
def writer():
    """Return a function that makes a LogWriter of plain messages."""
    made = []

    def make(output, **settings):
        made.append(LogWriter(output, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def pipe():
    """The reading and the writing end of a pipe that is full."""
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(ends[1], b"x" * 4096)
    os.set_blocking(ends[1], True)
    yield ends
    for end in ends:
        os.close(end)


# --- formats ---


def test_text_has_the_process_and_one_line_for_each_record_but_for_tracebacks():
    text = TextFormatter("broker-a").format(record("a %s", "line\nand \x1b[2J"))
    assert text.startswith("broker-a: ")
    assert text.endswith(r" WARNING sprocketmq.tests: a line\nand \x1b[2J")
    assert TextFormatter().format(record("x", exc_info=error())).endswith("ValueError: bad")


def test_json_has_the_fields_of_an_event_or_the_message(caplog):
    formatter = JsonFormatter("broker-a")
    event(LOG, logging.WARNING, "topic_deleted", topic="a\nb", queues=8, ok=True)
    line = json.loads(formatter.format(caplog.records[0]))
    assert line.pop("time").endswith("Z")
    common = {"level": "WARNING", "process": "broker-a", "logger": "sprocketmq.tests"}
    assert line == {**common, "event": "topic_deleted", "topic": "a\nb", "queues": 8, "ok": True}
    text = formatter.format(record("a %s", "line\n", exc_info=error()))
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "a line\n"
    assert line["trace"].endswith("ValueError: bad")
    assert line.keys() <= {*JSON_KEYS}


def test_lines_of_children_get_their_name():
    assert wrap_line("broker-a", "2026 INFO x: y", "text") == "broker-a: 2026 INFO x: y"
    inner = JsonFormatter().format(record("hello"))
    assert json.loads(wrap_line("broker-a", inner, "json")) == {"process": "broker-a", **json.loads(inner)}
    assert json.loads(wrap_line("broker-a", 'Fatal "error"', "json")) == {"process": "broker-a", "message": 'Fatal "error"'}


# --- writing ---


def test_a_file_is_rotated_by_size_and_old_ones_go(tmp_path, writer):
    log = writer(FileOutput(tmp_path / "deep" / "mq.log", 1_000, 2))
    for number in range(100):
        log.handle(record(f"line {number:04d} {'x' * 80}"))
    log.close()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "deep").iterdir()}
    assert sizes.keys() == {"mq.log", "mq.log.1", "mq.log.2"}
    assert max(sizes.values()) <= 1_000
    assert "line 0099" in (tmp_path / "deep" / "mq.log").read_text().splitlines()[-1]
    assert log.dropped == 0


def test_a_full_disk_drops_lines_and_one_line_says_how_many(tmp_path, writer):
    path = tmp_path / "mq.log"
    path.symlink_to("/dev/full")
    log = writer(FileOutput(path, 1_000_000, 2))
    for number in range(100):
        log.handle(record(f"lost {number}"))
    wait_until(lambda: log.dropped == 100)
    path.unlink()
    path.write_text("a line that was cut")  # as a disk that was full in the middle of a line leaves it
    log.handle(record("kept 1"))
    log.handle(record("kept 2"))
    log.close()
    lines = path.read_text().splitlines()
    told = 'log_lines_dropped count=100 reason="No space left on device"'
    assert lines[:2] == ["a line that was cut", "kept 1"]
    assert sorted(lines[2:]) == ["kept 2", told]


def test_a_pipe_that_nobody_reads_never_holds_up_who_logs(pipe, writer):
    reader, end = pipe
    log = writer(StderrOutput(end), max_waiting=100)
    for number in range(5_000):
        log.handle(record(f"line {number} {'x' * 100}"))
    assert log.dropped in (4_899, 4_900)  # the thread may have taken one line
    received = bytearray()
    reading = threading.Thread(target=lambda: read_until(reader, b"log_lines_dropped", received))
    reading.start()
    reading.join(60)
    assert f"log_lines_dropped count={log.dropped} ".encode() in received
    assert received.count(b"log_lines_dropped") == 1


def read_until(reader, what, received):
    while what not in received or not received.endswith(b"\n"):
        received += os.read(reader, 1 << 16)


def test_the_end_does_not_wait_for_a_pipe_that_nobody_reads(pipe, writer):
    log = writer(StderrOutput(pipe[1]))
    for number in range(5_000):
        log.handle(record(f"line {number} {'x' * 100}"))
    log.close()  # the test has a time limit
    assert log.dropped > 0


def test_a_reader_that_is_gone_harms_nobody(writer):
    reader, end = os.pipe()
    os.close(reader)
    log = writer(StderrOutput(end))
    log.handle(record("nobody"))
    log.close()
    os.close(end)
    assert log.dropped == 1


def test_a_line_with_wrong_arguments_is_said_to_be_one(tmp_path, writer):
    log = writer(FileOutput(tmp_path / "mq.log", 0, 0))
    log.handle(record("%d things", "many"))
    log.close()
    assert (tmp_path / "mq.log").read_text().startswith("a log line of sprocketmq.tests cannot be formatted: '%d things': TypeError")


def test_hangup_opens_the_file_again_and_the_block_restores_what_was(tmp_path):
    before = signal.getsignal(signal.SIGHUP), logging.getLogger().handlers[:], logging.getLogger().level
    path = tmp_path / "mq.log"
    with logging_to(LogOptions(level="info", file=path)) as log:
        LOG.info("one")
        log.flush()
        path.rename(tmp_path / "old.log")
        signal.raise_signal(signal.SIGHUP)
        LOG.info("two")
    assert (tmp_path / "old.log").read_text().endswith("INFO sprocketmq.tests: one\n")
    assert path.read_text().endswith("INFO sprocketmq.tests: two\n")
    assert (signal.getsignal(signal.SIGHUP), logging.getLogger().handlers[:], logging.getLogger().level) == before


# --- serving ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--log-file", "/dev/null/x"), "the log file /dev/null/x cannot be written: "),
        (("--log-format", "xml"), "log_format must be one of text, json"),
        (("--log-level", "loud"), "log_level must be one of debug, info, warning, error"),
        (("--log-backups", "-1"), "log_backups must be 0 or more"),
        (("--set", "log_max_bytes=-5"), "log_max_bytes must be 0 or more"),
    ],
)
def test_log_options_that_cannot_be_are_explained(options, words, capfd):
    assert main(["namesrv", *options]) == 2
    err = capfd.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_a_server_logs_json_to_its_file_and_goes_on_after_hangup(serving, tmp_path):
    path = tmp_path / "logs" / "mq.log"
    server = serving("serve", *FREE, "--store", str(tmp_path / "store"), "--log-file", str(path), "--log-format", "json")
    wait_until(lambda: '"logger"' in path.read_text())
    path.rename(tmp_path / "old.log")
    server.process.send_signal(signal.SIGHUP)
    wait_until(path.exists)
    assert server.end() == (0, "")
    for each in (path, tmp_path / "old.log"):
        lines = [json.loads(line) for line in each.read_text().splitlines()]
        assert lines
        assert all({"time", "level", "logger"} <= line.keys() and "process" not in line for line in lines)


def test_several_brokers_have_one_log_with_the_name_of_the_process_in_each_line(serving, tmp_path):
    path = tmp_path / "mq.log"
    server = serving(
        "serve",
        "--brokers",
        "2",
        *FREE,
        "--store",
        str(tmp_path / "s"),
        "--log-file",
        str(path),
        "--log-format",
        "json",
        "--log-max-bytes",
        "0",
    )
    names = {"namesrv", "broker-a", "broker-b"}
    wait_until(lambda: {json.loads(line).get("process") for line in path.read_text().splitlines()} >= names)
    assert server.end() == (0, "")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["process"] for line in lines} <= names | {"serve"}
    assert all("logger" in line for line in lines)


def test_the_log_of_several_brokers_rotates_and_is_opened_again_on_hangup(serving, tmp_path):
    path = tmp_path / "mq.log"
    options = ("--log-file", str(path), "--log-max-bytes", "2000", "--log-backups", "50")
    server = serving("serve", "--brokers", "2", *FREE, "--store", str(tmp_path / "s"), *options)
    with sync.AdminClient(namesrv=server.address["namesrv"]) as admin:
        for number in range(20):
            admin.create_topic(f"orders-{number}", queues=1)
    wait_until((tmp_path / "mq.log.1").exists)
    path.rename(tmp_path / "mq.log.renamed")
    server.process.send_signal(signal.SIGHUP)
    wait_until(path.exists)
    assert server.end() == (0, "")
    lines = [line for file in tmp_path.glob("mq.log*") for line in file.read_text().splitlines()]
    names = [re.fullmatch(r"(serve|namesrv|broker-a|broker-b): \d{4}-\d\d-\d\d [^\n]+", line) for line in lines]
    assert all(names), lines
    assert {name[1] for name in names} == {"serve", "namesrv", "broker-a", "broker-b"}


def test_a_broker_whose_standard_error_is_never_read_answers_and_stops(serving, tmp_path):
    server = serving("serve", *FREE, "--store", str(tmp_path / "store"), "--log-level", "info")
    os.set_blocking(server.process.stderr.fileno(), False)
    with sync.AdminClient(namesrv=server.address["namesrv"]) as admin:
        for number in range(300):
            admin.create_topic(f"{'x' * 100}{number}", queues=1)
        assert len(admin.topics()) >= 300
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


def test_a_server_ends_in_order_when_its_terminal_is_closed(tmp_path):
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "sprocketmq", "namesrv", "--port", "0", "--store", str(tmp_path)]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and the server would ignore it as well
    try:
        process = subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, start_new_session=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        assert process.stdout.readline().startswith(b"ready ")
        process.send_signal(signal.SIGHUP)  # the terminal is there: only the log is opened again
        os.close(terminal)
        assert process.poll() is None
        os.close(master)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_log_file_says_why_a_server_cannot_start(tmp_path, capfd):
    path = tmp_path / "mq.log"
    arguments = ["namesrv", "--port", "0", "--log-file", str(path), "--set", "host=nosuch.invalid", "--insecure"]
    assert main(arguments) != 0
    assert capfd.readouterr().err.count("\n") == 1
    assert "start_failed verb=namesrv reason=" in path.read_text()


def test_a_start_says_what_is_served_with_which_settings_and_a_stop_why(serving, tmp_path):
    log = tmp_path / "mq.log"
    settings = ("--set", "default_topic_queues=7", "--name", "broker-x")
    server = serving("serve", *FREE, "--store", str(tmp_path / "mq"), "--log-file", str(log), "--log-format", "json", *settings)
    assert server.end()[0] == 0
    lines = {line.get("event"): line for line in map(json.loads, log.read_text().splitlines())}
    started, stopped = lines["started"], lines["stopped"]
    assert (started["level"], started["verb"], started["version"]) == ("INFO", "serve", __version__)
    assert server.ready.startswith(f"ready {started['listens']} ")
    assert (started["tls"], started["access_control"], started["store"]) == ("disabled", "off", str(tmp_path / "mq"))
    assert {"default_topic_queues=7", "broker_name=broker-x"} <= set(started["settings"].split(" "))
    assert (stopped["verb"], stopped["reason"]) == ("serve", "SIGTERM")
