"""``sprocketmq bench omb``: whole runs with tiny loads, what they write, and what cannot be run."""

import json
import os
import pty
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import psutil
import pytest
from tests.ports import address_of, hold
from tests.processes import ended

from sprocketmq.cli import omb
from sprocketmq.cli.errors import EXIT_USAGE
from sprocketmq.errors import FatalError
from sprocketmq.omb.result import QUANTILES
from sprocketmq.omb.run import Run, Settings
from sprocketmq.omb.workload import Workload

TINY = """
name: tiny
topics: 2
partitionsPerTopic: 4
messageSize: 100
subscriptionsPerTopic: 2
producersPerTopic: 2
consumerPerSubscription: 1
producerRate: 200
warmupDurationMinutes: 0
testDurationMinutes: 0.05
"""


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def topics(cli):
    return cli("topic", "list").out


def test_a_run_writes_a_result_of_the_benchmarks_shape_and_a_picture(cli, mq, tiny, tmp_path):
    output = tmp_path / "r.json"
    done = cli("bench", "omb", str(tiny), "--namesrv", mq.namesrv, "--output", str(output), "--server-pid", str(os.getpid()))
    assert (done.code, done.err) == (0, "")
    header, row, said = done.out.splitlines()
    assert header.startswith("result\tdriver\tsent/s")
    assert row.startswith("r\tsprocketmq\t")
    assert said == f"result written to {output}, picture to {output.with_suffix('.svg')}"
    found = json.loads(output.read_text())
    assert (found["workload"], found["driver"], found["messageSize"]) == ("tiny", "sprocketmq", 100)
    assert (found["topics"], found["partitions"], found["producersPerTopic"], found["consumersPerTopic"]) == (2, 4, 2, 1)
    samples = len(found["publishRate"])
    assert samples >= 1
    for name, whole in (
        ("publishLatency", "aggregatedPublishLatency"),
        ("publishDelayLatency", "aggregatedPublishDelayLatency"),
        ("endToEndLatency", "aggregatedEndToEndLatency"),
    ):
        for suffix in ("Avg", *(f"{label}pct" for label in QUANTILES), "Max"):
            assert len(found[name + suffix]) == samples, name + suffix
            assert found[whole + suffix] >= 0
        assert found[f"{whole}50pct"] <= found[f"{whole}99pct"] <= found[f"{whole}Max"]
        assert found[f"{whole}Quantiles"]["100"] == found[f"{whole}Max"]
    extra = found["sprocketmq"]
    assert extra["messagesSent"] > 0
    assert extra["messagesReceived"] > 0
    assert extra["sendErrors"] == 0
    assert extra["cpuUsPerMessage"]["producers"] > 0
    assert extra["cpuUsPerMessage"]["consumers"] > 0
    assert extra["cpuUsPerMessage"]["servers"] >= 0
    ET.fromstring(output.with_suffix(".svg").read_text())
    assert "omb-" not in topics(cli)


def test_results_are_compared(cli, mq, tiny, tmp_path):
    output = tmp_path / "a.json"
    assert (
        cli("bench", "omb", str(tiny), "--namesrv", mq.namesrv, "--duration", "1s", "--output", str(output), "--json").json["topics"] == 2
    )
    other = tmp_path / "b.json"
    doubled = json.loads(output.read_text())
    other.write_text(json.dumps(doubled | {"publishRate": [2 * rate for rate in doubled["publishRate"]], "driver": "Kafka"}))
    rows = cli("bench", "omb", "--compare", str(output), str(other), "--plot", str(tmp_path / "c.svg"), "--json").json
    assert [row["result"] for row in rows] == ["a", "b"]
    assert (rows[1]["driver"], rows[1]["sent_ratio"], rows[1]["received_ratio"]) == ("Kafka", "2.00", "1.00")
    ET.fromstring((tmp_path / "c.svg").read_text())


def test_keys_tags_and_sizes_of_a_mixed_workload_arrive_in_batch_queues(cli, mq, tmp_path):
    path = tmp_path / "mixed.yaml"
    path.write_text(
        TINY.replace("topics: 2", "topics: 1")
        + "messageSizeMax: 300\nkeyDistributor: KEY_ROUND_ROBIN\ntags: [a, b]\nuseRandomizedPayloads: true\n"
    )
    settings = tmp_path / "driver.yaml"
    settings.write_text("name: SprocketMQ\nbatchQueues: true\nbatchMaxDelayMs: 2\n")
    output = tmp_path / "m.json"
    arguments = ("--driver-config", str(settings), "--option", "maxInFlight=500", "--duration", "2s", "--output", str(output))
    done = cli("bench", "omb", str(path), "--namesrv", mq.namesrv, *arguments)
    assert (done.code, done.err) == (0, "")
    extra = json.loads(output.read_text())["sprocketmq"]
    assert extra["driverConfig"] == {
        "name": "SprocketMQ",
        "batchQueues": True,
        "batchMaxDelayMs": 2,
        "maxInFlight": "500",
        "namesrv": mq.namesrv,
    }
    assert extra["mixed"]
    assert extra["messagesReceived"] > 0


def test_a_backlog_is_built_while_consumers_pause_and_drained_afterwards(mq):
    workload = Workload(
        name="backlog",
        message_size=1024,
        partitions_per_topic=4,
        consumer_backlog_size_gb=0.004,
        test_duration_minutes=1 / 60,
        warmup_duration_minutes=0,
    )
    found = run(Run(workload, Settings(config={"namesrv": mq.namesrv})))
    facts = found["sprocketmq"]["backlog"]
    assert facts["backlogMessages"] >= workload.backlog_messages == 4194
    assert facts["drainSeconds"] > 0
    assert facts["drainRate"] > 0
    assert found["sprocketmq"]["messagesReceived"] >= 4194


def test_bodies_for_which_there_is_some_room_but_not_enough_are_sent_when_there_is(mq):
    workload = Workload(name="large", message_size=100_000, test_duration_minutes=1 / 60, warmup_duration_minutes=0)
    found = run(Run(workload, Settings(config={"namesrv": mq.namesrv, "maxInFlightBytes": 250_000})))
    assert found["sprocketmq"]["messagesSent"] > 0
    assert found["sprocketmq"]["sendErrors"] == 0


def run(one):
    import asyncio

    from sprocketmq.net.loops import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(one.run())


def workers_of(process):
    found = []
    for child in process.children(recursive=True):
        try:
            if "sprocketmq.omb.worker" in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_worker_that_dies_ends_the_run_and_leaves_no_process_and_no_topic(cli, mq):
    killed = []

    def watch(progress):
        if progress.phase == "measure" and not killed:
            killed.append(workers_of(psutil.Process())[0])
            killed[0].kill()

    workload = Workload(name="w", message_size=100, producer_rate=50, warmup_duration_minutes=0, test_duration_minutes=10)
    with pytest.raises(FatalError, match=r"worker (producers|consumers)-0 was ended by SIGKILL, so the run cannot continue"):
        run(Run(workload, Settings(config={"namesrv": mq.namesrv}), watch))
    assert killed
    assert workers_of(psutil.Process()) == []
    assert "omb-" not in topics(cli)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_everything_and_what_was_measured_is_written(mq, tiny, tmp_path, number):
    terminal, of_child = pty.openpty()
    arguments = [sys.executable, "-m", "sprocketmq", "bench", "omb", str(tiny), "--namesrv", mq.namesrv, "--duration", "10m"]
    process = subprocess.Popen(
        arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=of_child, text=True, env=os.environ | {"TERM": "xterm", "COLUMNS": "300"}
    )
    os.close(of_child)
    shown = b""
    workers = []
    while data := read(terminal):
        shown += data
        if not workers and shown.count(b"measure") > 3:
            workers = workers_of(psutil.Process(process.pid))
            process.send_signal(number)
    os.close(terminal)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}" in shown.decode()
    assert len(workers) == 2
    assert all(map(ended, workers))
    (written,) = tmp_path.glob("tiny-sprocketmq-*.json")
    assert written.name in out
    assert json.loads(written.read_text())["sprocketmq"]["stoppedEarly"]


def read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # the child's end is closed
        return b""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "name one workload: a file, or one that sprocketmq bench omb --list shows"),
        (("nothing-like-it",), "there is no workload 'nothing-like-it'"),
        (("FILE", "--driver", "pulsar"), "there is no driver 'pulsar': choose one of"),
        (("FILE", "--duration", "soon"), "--duration 'soon' is not a duration: write it like 30s, 5m or 1h"),
        (("FILE", "--duration", "9999h"), "the command line: testDurationMinutes must be from 0 to 10,080"),
        (("FILE", "--option", "autoBatch"), "--option 'autoBatch' must be KEY=VALUE"),
        (("FILE", "--option", "batchQueue=1", "--option", "namesrv=127.0.0.1:1"), "unknown field batchQueue: its settings are"),
        (("FILE", "--driver-config", "none.yaml"), "--driver-config none.yaml: No such file or directory"),
        (("FILE", "--driver-config", "FILE.broken"), "is not YAML"),
        (("FILE", "--plot", "p.png"), "name the file p.svg"),
        (("FILE", "--output", "none/r.json"), "there is no directory none: make it first"),
        (("--compare",), "--compare needs result files"),
        (("--compare", "FILE"), "is not JSON: give a file that a run has written"),
        (("--compare", "FILE.list"), "is not a result of the OpenMessaging benchmark"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(command, tiny, arguments, complaint):
    Path(f"{tiny}.broken").write_text("a: [")
    Path(f"{tiny}.list").write_text("[1]")
    code, _, err = command("bench", "omb", *(argument.replace("FILE", str(tiny)) for argument in arguments))
    assert code == EXIT_USAGE
    assert complaint in err


def test_an_address_where_nobody_listens_is_named(command, tiny, tmp_path):
    with hold() as held:
        code, _, err = command("bench", "omb", str(tiny), "--namesrv", address_of(held), "--output", tmp_path / "r.json")
        assert code == 1
        assert address_of(held) in err
    assert not (tmp_path / "r.json").exists()


def test_missing_packages_are_named(command, tiny, monkeypatch):
    monkeypatch.setattr(omb.importlib.util, "find_spec", lambda name: None)
    code, _, err = command("bench", "omb", str(tiny))
    assert code == EXIT_USAGE
    assert "bench omb needs hdrhistogram and pyyaml: pip install 'sprocketmq[bench]'" in err


def test_the_workloads_of_the_package_are_listed(command):
    code, out, err = command("bench", "omb", "--list")
    assert (code, err) == (0, "")
    assert "100-topics-100-partitions-1kb\t100 topics, 100 partitions each, 1 KiB" in out.splitlines()
    assert {one["workload"] for one in json.loads(command("bench", "omb", "--list", "--json")[1])} >= {"latency-1k-per-second"}


def test_other_commands_load_neither_yaml_nor_histograms():
    program = "import sys; from sprocketmq.cli.app import main; main(['bench', '--help']); import sprocketmq.cli.bench; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert not {"yaml", "hdrh", "numpy", "sprocketmq.omb.run"} & set(done.stdout.split())
