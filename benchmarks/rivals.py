"""The rivals as servers on loopback: Apache Kafka on one node, and Apache RocketMQ's nameserver and broker.

Their jars come from Maven Central into a cache outside the tree, keyed by version. Logs and stores stay in the directory that the caller
gives. Servers are stopped by their own process ids.
"""

import base64
import contextlib
import importlib.util
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop import apache
from tests.ports import LOOPBACK, free_ports

from benchmarks.load.sides import serve
from sprocketmq.omb.cpu import cpu_s

KAFKA_VERSION = "4.1.1"
HERE = Path(__file__).parent / "java"
# The flags of Kafka's own start script.
KAFKA_FLAGS = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:MaxInlineLevel=15")
HEAP = "2g"
CLIENT_PACKAGES = {"confluent_kafka": "confluent-kafka", "aiokafka": "aiokafka", "hdrh": "hdrhistogram"}


@dataclass(frozen=True)
class Server:
    """A running cluster of one broker: where its clients connect, its processes, and the directory of its messages."""

    name: str
    address: str
    pids: tuple[int, ...]
    store: Path

    def cpu_s(self) -> float:
        """Return the CPU seconds its processes have used so far, user and kernel."""
        return cpu_s(self.pids) or 0.0


def kafka_jars() -> Path:
    """Return the directory of Kafka's jars, resolving them with Maven the first time (about 60 MB). Raises ApacheUnavailable."""
    cache = apache.cache_dir().with_name(f"apache-kafka-{KAFKA_VERSION}")
    return apache.resolved(HERE / "pom.xml", cache, f"kafka_2.13-{KAFKA_VERSION}.jar", f"Apache Kafka {KAFKA_VERSION}")


def require(names: Sequence[str], packages: Sequence[str] = ()) -> None:
    """Make sure that the rivals ``names`` (apache, kafka) and modules can run here. Raises ApacheUnavailable with what to install."""
    missing = [CLIENT_PACKAGES[module] for module in packages if importlib.util.find_spec(module) is None]
    if missing:
        raise apache.ApacheUnavailable(f"the package {' and '.join(missing)} is missing: pip install 'sprocketmq[rivals]'")
    if "apache" in names:
        apache.require()
    if "kafka" in names:
        kafka_jars()


class KafkaBroker(apache.JavaProcess):
    """Kafka's broker and controller in one process on free ports; ready when constructed."""

    def __init__(self, home: Path, heap: str = HEAP) -> None:
        library = kafka_jars()
        self.port = free_ports(1)
        self.address = f"{LOOPBACK}:{self.port}"
        self.store = home / "store"
        home.mkdir(parents=True, exist_ok=True)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOOPBACK}:{self.port + 1}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{LOOPBACK}:{self.port + 1}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.store),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "log.segment.delete.delay.ms": "1000",
            "broker.session.timeout.ms": "600000",  # a broker that is stopped while others are measured stays a member
        }
        config = home / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        _run_tool(home, library, "kafka.tools.StorageTool", "format", f"--cluster-id={_cluster_id()}", "-c", str(config))
        flags = (f"-Xms{heap}", f"-Xmx{heap}", *KAFKA_FLAGS, f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}")
        super().__init__("kafka.Kafka", str(config), home=home, flags=flags, library=library)
        self.wait_for("Kafka Server started")


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _run_tool(home: Path, library: Path, main: str, *arguments: str) -> None:
    with apache.JavaProcess(main, *arguments, home=home / "tool", flags=apache.SMALL, library=library) as tool:
        try:
            code = tool.process.wait(60)
        except subprocess.TimeoutExpired:
            code = -1
        if code != 0:
            raise apache.ApacheFailed(f"{main} ended with {code}:\n{tool.tail()}")


@contextlib.contextmanager
def kafka(directory: Path, heap: str = HEAP) -> Iterator[Server]:
    """Run Kafka's broker."""
    broker = KafkaBroker(directory / "kafka", heap)
    try:
        yield Server("kafka", broker.address, (broker.process.pid,), broker.store)
    finally:
        broker.kill()


@contextlib.contextmanager
def rocketmq(directory: Path, heap: str = HEAP) -> Iterator[Server]:
    """Run Apache RocketMQ's nameserver and broker with their defaults."""
    with contextlib.ExitStack() as running:
        namesrv = apache.ApacheNamesrv(directory / "namesrv")
        running.callback(namesrv.kill)
        flags = (f"-Xms{heap}", f"-Xmx{heap}", f"-XX:MaxDirectMemorySize={heap}")
        broker = apache.ApacheBroker(directory / "broker", namesrv.address, settings={}, unhurried={}, flags=flags)
        running.callback(broker.kill)
        yield Server("apache", namesrv.address, (namesrv.process.pid, broker.process.pid), broker.store)


@contextlib.contextmanager
def ours(directory: Path) -> Iterator[Server]:
    """Run our nameserver and broker with their defaults."""
    with serve(directory / "sprocketmq") as (address, pid):
        yield Server("sprocketmq", address, (pid,), directory / "sprocketmq" / "store")


@contextlib.contextmanager
def started(system: str, directory: Path, heap: str = HEAP) -> Iterator[Server]:
    """Run the servers of one system: sprocketmq, apache or kafka."""
    with ours(directory) if system == "sprocketmq" else {"apache": rocketmq, "kafka": kafka}[system](directory, heap) as server:
        yield server
