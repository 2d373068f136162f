"""The drivers kafka and apache: their settings, what they refuse, and how they pass on what workers are told and answer."""

import asyncio
import base64
import queue
import shlex
import struct
import sys
import textwrap
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sprocketmq.errors import ConfigError, SprocketError
from sprocketmq.omb.drivers import apache, driver_names, kafka, make_driver
from sprocketmq.omb.plan import Action, Subscription, WorkerCommand, WorkerPlan, WorkerReport, from_line, to_line

PLAN = WorkerPlan(
    worker="producers-0",
    driver="apache",
    producers=("t1", "t2"),
    consumers=(Subscription("t1", "g"),),
    payloads=(b"\0" * 16, b"\xff" * 8),
    keys=("k",),
    rate=10.5,
)


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """A directory that looks like `lib` of an unpacked release."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "rocketmq-client-5.5.0.jar").touch()
    return tmp_path / "lib"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPROCKETMQ_APACHE_JARS", "ROCKETMQ_HOME", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)


class TestSettingsOfKafka:
    def test_plain_names_hold_for_every_client(self) -> None:
        config = {"bootstrap.servers": "h:1", "security.protocol": "SSL"}
        for kind in ("producer", "consumer", "admin"):
            assert kafka.settings_of(config, kind) == config

    def test_the_address_has_a_default(self) -> None:
        assert kafka.settings_of({}, "producer") == {"bootstrap.servers": "localhost:9092"}

    def test_prefixed_names_hold_for_one_kind_and_come_first(self) -> None:
        config = {"producer.linger.ms": "10", "consumer.fetch.min.bytes": 5, "client.id": "a", "producer.client.id": "b"}
        assert kafka.settings_of(config, "producer") == {"bootstrap.servers": "localhost:9092", "linger.ms": "10", "client.id": "b"}
        assert kafka.settings_of(config, "consumer") == {"bootstrap.servers": "localhost:9092", "fetch.min.bytes": 5, "client.id": "a"}

    def test_what_driver_files_say_beside_them_is_left_out(self) -> None:
        config = {"name": "Kafka", "driverClass": "io.openmessaging.Driver", "replicationFactor": 3}
        assert kafka.settings_of(config, "admin") == {"bootstrap.servers": "localhost:9092"}
        assert kafka.replication_of(config) == 3

    @pytest.mark.parametrize("wrong", ["0", "-1", "many", 1.5, ""])
    def test_replication_must_be_a_positive_number(self, wrong: object) -> None:
        with pytest.raises(ConfigError, match="replicationFactor must be a number from 1 on"):
            kafka.replication_of({"replicationFactor": wrong})

    def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "confluent_kafka", None)
        with pytest.raises(ConfigError, match="pip install confluent-kafka"):
            make_driver("kafka", {})


class FakeKafkaError(Exception):
    pass


MADE: list["FakeClient"] = []


def fetched_message(body: bytes) -> SimpleNamespace:
    return SimpleNamespace(value=lambda: body, error=lambda: None)


class FakeClient:
    """librdkafka as the driver uses it: a queue of `room` messages, answered by `poll`."""

    def __init__(self, settings: dict[str, object]) -> None:
        MADE.append(self)
        if "wrong" in settings:
            raise FakeKafkaError(SimpleNamespace(str=lambda: 'No such configuration property: "wrong"'))
        self.settings = settings
        self.room = 2
        self.waiting: list[object] = []
        self.sent: list[tuple[str, bytes, bytes | None]] = []
        self.arriving: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self.fetched: list[bytes] = []
        self.closed = False

    def produce(self, topic: str, payload: bytes, key: bytes | None, *, on_delivery: object) -> None:
        if len(self.waiting) == self.room:
            raise BufferError
        self.waiting.append(on_delivery)
        self.sent.append((topic, payload, key))

    def poll(self, timeout: float) -> object:
        if self.settings.get("group.id"):
            try:
                self.fetched = self.arriving.get(timeout=timeout)
            except queue.Empty:
                return None
            return fetched_message(self.fetched.pop(0))
        answered, self.waiting = self.waiting, []
        for one in answered:
            one(None, None)
        return len(answered)

    def consume(self, count: int, timeout: float) -> list[object]:
        return [fetched_message(body) for body in self.fetched]

    def subscribe(self, topics: list[str]) -> None:
        self.topics = topics

    def close(self) -> None:
        self.closed = True

    def __len__(self) -> int:
        return len(self.waiting)


FAKE = SimpleNamespace(Producer=FakeClient, Consumer=FakeClient, KafkaException=FakeKafkaError)


class FakeAdmin:
    """A cluster that knows new topics at the second question, and refuses more than 20 topics at once."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.topics: dict[str, SimpleNamespace] = {}
        self.questions = 0

    def create_topics(self, new: list[SimpleNamespace], **timeouts: float) -> dict[str, Future[None]]:
        assert len(new) <= 20
        for topic in new:
            self.topics[topic.name] = SimpleNamespace(partitions={n: SimpleNamespace(leader=1) for n in range(topic.partitions)})
        return {topic.name: answer(None) for topic in new}

    def delete_topics(self, topics: list[str], **timeouts: float) -> dict[str, Future[None]]:
        return {topic: answer(None if self.topics.pop(topic, None) else FakeKafkaError(UNKNOWN)) for topic in topics}

    def list_topics(self, timeout: float) -> SimpleNamespace:
        self.questions += 1
        return SimpleNamespace(topics=self.topics if self.questions > 2 else {})


UNKNOWN = SimpleNamespace(code=lambda: 3, str=lambda: "Broker: Unknown topic or partition")


def answer(error: Exception | None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


class Answers:
    def __init__(self) -> None:
        self.errors: list[object] = []

    def delivered(self, error: object, message: object) -> None:
        self.errors.append(error)


class TestKafka:
    async def test_topics_are_made_in_parts_and_ready_when_they_have_leaders(self) -> None:
        made: list[FakeAdmin] = []

        def admin(settings: dict[str, object]) -> FakeAdmin:
            made.append(FakeAdmin(settings))
            return made[-1]

        new_topic = lambda name, partitions, replication: SimpleNamespace(name=name, partitions=partitions)  # noqa: E731
        fake = SimpleNamespace(
            admin=SimpleNamespace(AdminClient=admin, NewTopic=new_topic),
            KafkaException=FakeKafkaError,
            KafkaError=SimpleNamespace(UNKNOWN_TOPIC_OR_PART=3),
        )
        driver = kafka.KafkaDriver(fake, {})
        await driver.start()
        topics = [f"t{number}" for number in range(50)]
        await driver.create_topics(topics, 100)
        assert (len(made[0].topics), made[0].questions) == (50, 3)
        await driver.delete_topics([*topics, "never made"])
        assert made[0].topics == {}

    async def test_a_full_queue_is_said_and_has_room_after_answers(self) -> None:
        driver = kafka.KafkaDriver(FAKE, {})
        producer = await driver.producer("t")
        done = Answers()
        assert [producer.send(b"k", b"p", done) for _ in range(3)] == [True, True, False]
        await producer.room()
        assert producer.send(None, b"q", done)
        await producer.flush()
        assert done.errors == [None] * 3
        await producer.close()
        await driver.stop()

    async def test_producers_share_one_client(self) -> None:
        driver = kafka.KafkaDriver(FAKE, {})
        MADE.clear()
        for topic in ("a", "b"):
            (await driver.producer(topic)).send(None, topic.encode(), Answers())
        assert [client.sent for client in MADE] == [[("a", b"a", None), ("b", b"b", None)]]
        await driver.stop()

    async def test_a_consumer_hands_over_batches_and_begins_with_the_first_message(self) -> None:
        driver = kafka.KafkaDriver(FAKE, {})
        got: asyncio.Queue[tuple[list[int], int]] = asyncio.Queue()
        consumer = await driver.consumer("t", "g", lambda stamps, size: got.put_nowait((np.asarray(stamps).tolist(), size)))
        client = MADE[-1]
        assert client.settings == {"bootstrap.servers": "localhost:9092", "auto.offset.reset": "earliest", "group.id": "g"}
        client.arriving.put([struct.pack(">Q", 7) + b"body", struct.pack(">Q", 8)])
        assert await asyncio.wait_for(got.get(), 30) == ([7, 8], 20)
        await consumer.close()
        assert client.closed

    async def test_settings_that_librdkafka_refuses_are_a_wrong_setting(self) -> None:
        with pytest.raises(ConfigError, match=r"librdkafka refuses the settings: No such configuration property"):
            await kafka.KafkaDriver(FAKE, {"wrong": 1}).producer("t")


class TestSettingsOfApache:
    def test_an_unknown_setting_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(ConfigError, match=r"driver apache: Object contains unknown field x: its settings are namesrv, .*batchQueues"):
            make_driver("apache", {"x": 1})

    def test_without_java_the_error_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch, jars: Path) -> None:
        monkeypatch.setenv("PATH", "")
        with pytest.raises(ConfigError, match="needs a JDK, Java 17 or newer, but `java` is neither in JAVA_HOME/bin nor on the PATH"):
            apache.create({"jars": str(jars)})

    def test_a_named_java_must_be_there(self, jars: Path) -> None:
        with pytest.raises(ConfigError, match="there is no command '/nowhere/java'"):
            apache.create({"jars": str(jars), "java": "/nowhere/java"})

    def test_without_jars_the_error_says_how_to_name_them(self) -> None:
        with pytest.raises(ConfigError, match="needs the jars of Apache's Java client: set the option jars=DIR or SPROCKETMQ_APACHE_JARS"):
            apache.create({"java": sys.executable})

    def test_a_directory_without_the_client_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"finds no rocketmq-client-\*\.jar in"):
            apache.create({"java": sys.executable, "jars": str(tmp_path)})

    def test_variables_name_the_jars_too(self, jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ROCKETMQ_HOME", str(jars.parent))
        assert apache.jars_of(apache.Config()) == jars
        monkeypatch.setenv("SPROCKETMQ_APACHE_JARS", str(jars.parent))
        with pytest.raises(ConfigError, match="finds no"):
            apache.jars_of(apache.Config())
        assert apache.jars_of(apache.Config(jars=str(jars))) == jars

    def test_the_program_is_part_of_the_package(self) -> None:
        assert "final class Omb " in apache.PROGRAM.read_text(encoding="utf-8")


def program(tmp_path: Path, jars: Path, body: str) -> apache.ApacheDriver:
    """Return a driver whose `java` is a Python program with ``body``."""
    java = tmp_path / "java"
    program = tmp_path / "java.py"
    program.write_text(f"import json, sys\n{textwrap.dedent(body)}")
    java.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(program))} "$@"\n')
    java.chmod(0o755)
    return apache.create({"java": str(java), "jars": str(jars), "namesrv": "h:1", "batchMaxBytes": "1048576", "autoBatch": "false"})


class TestApacheWorker:
    async def test_plan_and_commands_reach_the_program_and_its_reports_come_back(self, tmp_path: Path, jars: Path) -> None:
        driver = program(
            tmp_path,
            jars,
            """
            plan = json.loads(sys.stdin.readline())
            config = plan["config"]
            assert (config["namesrv"], config["batchMaxBytes"], config["autoBatch"]) == ("h:1", 1048576, False), plan
            print(json.dumps({"worker": plan["worker"], "ready": True, "sent": len(plan["payloads"])}), flush=True)
            command = json.loads(sys.stdin.readline())
            print(json.dumps({"worker": plan["worker"], "phase": command["action"] + command["phase"], "ended": True}), flush=True)
            """,
        )
        commands: asyncio.Queue[WorkerCommand] = asyncio.Queue()
        reports = []
        async for report in driver.run_worker(PLAN, commands):
            reports.append(report)
            if report.ready:
                commands.put_nowait(WorkerCommand(Action.STOP, "end"))
        assert reports == [
            WorkerReport(worker="producers-0", ready=True, sent=2),
            WorkerReport(worker="producers-0", phase="stopend", ended=True),
        ]

    async def test_a_program_that_ends_early_is_a_failure_with_the_end_of_its_log(self, tmp_path: Path, jars: Path) -> None:
        driver = program(tmp_path, jars, "sys.exit('error: no compiler')")
        reports = [report async for report in driver.run_worker(PLAN, asyncio.Queue())]
        assert [report.failure for report in reports] == ["the Java program ended with 1: error: no compiler"]

    async def test_a_reported_failure_is_passed_on_once(self, tmp_path: Path, jars: Path) -> None:
        driver = program(tmp_path, jars, """print('{"worker": "w", "failure": "no route"}')""")
        reports = [report async for report in driver.run_worker(PLAN, asyncio.Queue())]
        assert [report.failure for report in reports] == ["no route"]


class TestLines:
    def test_a_plan_stays_the_same(self) -> None:
        assert from_line(to_line(PLAN), WorkerPlan) == PLAN

    def test_payloads_are_base64(self) -> None:
        assert base64.b64encode(b"\xff" * 8) in to_line(PLAN)


def test_the_drivers_are_known() -> None:
    assert {"apache", "kafka"} <= set(driver_names())


def test_a_driver_reports_that_nobody_answers() -> None:
    class Unreachable(FakeClient):
        def list_topics(self, timeout: float) -> None:
            raise FakeKafkaError(SimpleNamespace(str=lambda: "Local: Timed out"))

    fake = SimpleNamespace(admin=SimpleNamespace(AdminClient=Unreachable), KafkaException=FakeKafkaError)
    with pytest.raises(SprocketError, match="no Kafka broker answers at h:1: Local: Timed out"):
        asyncio.run(kafka.KafkaDriver(fake, {"bootstrap.servers": "h:1"}).start())
