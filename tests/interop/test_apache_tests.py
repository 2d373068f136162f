"""Apache RocketMQ's own integration tests, from its jar of tests, against three of our brokers.

Each class runs in a JVM and against servers of its own. What the tests ask of brokers inside their process, ``apache_tests`` passes on to ours.
A listed failure that does not happen any more fails as well.
"""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.ours import UNHURRIED, OurProcess
from tests.ports import free_ports

pytestmark = [pytest.mark.interop, pytest.mark.long, pytest.mark.timeout(900)]

HERE = Path(__file__).with_name("apache_tests")
SOURCES = tuple(sorted(HERE.rglob("*.java")))
PACKAGE = "org.apache.rocketmq.test."
BROKERS = 3

# Classes and packages that start servers of Apache's in their process, or are about what this broker does not have.
LEFT_OUT = {
    "autoswitchrole.": "Apache's controller",
    "container.": "brokers of Apache's in one container",
    "dledger.": "Apache's log with Raft",
    "grpc.v2.GrpcBaseIT": "the tests of ClusterGrpcIT, without a server",
    "grpc.v2.LocalGrpcIT": "a proxy inside Apache's broker",
    "statictopic.": "static topics",
    "tls.": "Apache's servers with its test certificates",
    "offset.LagCalculationIT": "asks objects inside Apache's broker",
}
IN_PROCESS = "changes settings of the broker inside its process"
ASKS_INSIDE = "asks objects inside Apache's broker"
# By class and method: why it fails.
FAILS = {
    "client.consumer.pop.PopPriorityIT": {
        **{f"test_priority_consume_retry_as_highest[{n}]": IN_PROCESS for n in range(4)},
        **{f"test_priority_consume_{name}[{n}]": IN_PROCESS for n in (1, 3) for name in (
            "always_high_priority", "from_high_to_low", "use_separate_retry_queue", "use_separate_retry_queue_with_queue_expansion",
        )},
    },
    "offset.OffsetNotFoundIT": {"testConsumeStopAndResume": "registers a hook in the broker"},
    "offset.OffsetResetForPopIT": {
        "testResetOffsetThenAckOldForPopOrderly": ASKS_INSIDE,
        "testRestOffsetToSkipMsgForPopOrderly": ASKS_INSIDE,
    },
    "route.CreateAndUpdateTopicIT": {
        "testCreateOrUpdateTopic_EnableSplitRegistration": "registers topics of a broker inside its process",
        "testStaticTopicNotAffected": "static topics",
    },
    "smoke.NormalMessageSendAndRecvIT": {
        "testSynSendMessageWhenEnableBuildConsumeQueueConcurrently": "starts a broker of Apache's with settings of its own"
    },
}  # fmt: skip


# By package: the classes that run, without the IT at their ends.
CLASSES = {
    "client.consumer.balance": "NormalMsgDynamicBalance NormalMsgStaticBalance",
    "client.consumer.broadcast.normal": "BroadcastNormalMsgNotReceive BroadcastNormalMsgRecvCrash BroadcastNormalMsgRecvFail BroadcastNormalMsgRecvStartLater BroadcastNormalMsgTwoDiffGroupRecv NormalMsgTwoSameGroupConsumer",
    "client.consumer.broadcast.order": "OrderMsgBroadcast",
    "client.consumer.broadcast.tag": "BroadcastTwoConsumerFilter BroadcastTwoConsumerSubDiffTag BroadcastTwoConsumerSubTag",
    "client.consumer.cluster": "DynamicAddAndCrash DynamicAddConsumer DynamicCrashConsumer",
    "client.consumer.filter": "SqlFilter",
    "client.consumer.pop": "BatchAck Notification PopBigMessage PopMessageAndForwarding PopOrderly PopPriority PopSubCheck",
    "client.consumer.tag": "MulTagSub TagMessageWith1Consumer TagMessageWithMulConsumer TagMessageWithSameGroupConsumer",
    "client.consumer.topic": "MulConsumerMulTopic OneConsumerMulTopic",
    "client.producer.async": "AsyncSendException AsyncSendWithMessageQueue AsyncSendWithMessageQueueSelector AsyncSendWithOnlySendCallBack",
    "client.producer.batch": "BatchSend",
    "client.producer.exception.msg": "ChinaProp MessageException MessageUserProp",
    "client.producer.exception.producer": "ProducerGroupAndInstanceNameValidity",
    "client.producer.oneway": "OneWaySendException OneWaySend OneWaySendWithMQ OneWaySendWithSelector",
    "client.producer.order": "OrderMsgDynamicRebalance OrderMsg OrderMsgRebalance OrderMsgWithTag",
    "client.producer.querymsg": "QueryMsgByIdException QueryMsgById QueryMsgByKey",
    "client.producer.transaction": "TransactionalMsg",
    "delay": "NormalMsgDelay",
    "grpc.v2": "ClusterGrpc",
    "offset": "OffsetNotFound OffsetResetForPop OffsetReset",
    "recall": "RecallWithTrace SendAndRecallDelayMessage",
    "retry": "PopConsumerRetry",
    "route": "CreateAndUpdateTopic",
    "smoke": "NormalMessageSendAndRecv",
}


def library() -> Path:
    """Return the directory of the jars. Raises ApacheUnavailable."""
    jar = f"rocketmq-test-{apache.VERSION}-tests.jar"
    return apache.resolved(HERE / "pom.xml", apache.cache_dir().with_name(f"apache-tests-{apache.VERSION}"), jar, "Apache's tests")


def failed(output: str) -> set[str]:
    """Return the names of the methods that JUnit says have failed."""
    return set(re.findall(r"^\d+\) (\S+)\(", output, re.MULTILINE))


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our class, compiled."""
    directory = tmp_path_factory.mktemp("classes")
    command = [apache.tool("javac"), "--release", "17", "-nowarn", "-d", str(directory), "-cp", f"{library()}/*", *map(str, SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    """Three brokers of ours, as the property that tells the tests of them."""
    settings = [f"--set={key}={value}" for key, value in {**UNHURRIED, "recall_message_enable": "true"}.items()]
    port = free_ports(*(10 * number for number in range(1, BROKERS)))
    command = ["serve", "--brokers", str(BROKERS), "--namesrv-port", "0", "--port", str(port), "--store", str(tmp_path / "store")]
    with OurProcess(tmp_path / "ours", *command, *settings) as process:
        brokers = [f"broker-{letter}={port + 10 * number}" for number, letter in enumerate("abc")]
        yield ",".join([process.namesrv.rpartition(":")[2], *brokers])


def test_every_class_of_the_jar_runs_or_is_left_out_with_a_reason() -> None:
    with zipfile.ZipFile(library() / f"rocketmq-test-{apache.VERSION}-tests.jar") as jar:
        names = {
            name.removesuffix(".class").replace("/", ".").removeprefix(PACKAGE) for name in jar.namelist() if name.endswith("IT.class")
        }
    run = {f"{package}.{name}IT" for package, words in CLASSES.items() for name in words.split()}
    assert run <= names
    assert {name for name in names - run if not any(name.startswith(left_out) for left_out in LEFT_OUT)} == set()
    assert set(FAILS) <= run


@pytest.mark.parametrize("name", [f"{package}.{name}IT" for package, words in CLASSES.items() for name in words.split()])
def test_apaches_tests_pass(name: str, classes: Path, servers: str, home: Path) -> None:
    flags = (*apache.SMALL, "-Xmx1g", f"-Dservers={servers}", f"-Djava.io.tmpdir={home}")
    # Our class stands before Apache's of the same name.
    path = os.pathsep.join([str(classes), f"{library()}/*"])
    command = [
        apache.tool("java"),
        *flags,
        *apache.OPENED,
        f"-Duser.home={home}",
        "-cp",
        path,
        "org.junit.runner.JUnitCore",
        PACKAGE + name,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=home, check=False)
    output = done.stdout + done.stderr
    assert re.search(r"^(OK \(\d+ tests?\)|Tests run: \d+,  Failures: \d+)$", output, re.MULTILINE), output[-5000:]
    assert failed(output) == set(FAILS.get(name, ())), output[-20_000:]
