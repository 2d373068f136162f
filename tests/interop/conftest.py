"""Apache RocketMQ beside us: what the interop suite shares. JVMs are started when a test first needs them, once for the suite."""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.interop import apache
from tests.interop.ours import OurProcess, namesrv_and_broker
from tests.interop.secured import Secured, our_secured_servers, secured_apache_servers, tls_client
from tests.interop.sides import DELAY_LEVELS, Side
from tests.waiting import be_patient

from sprocketmq.net.client import Connection, ConnectionPool

# Whole files go to a worker, the slowest ones first: else one of them is left when the other worker has nothing to do any more.
SLOWEST = (
    "test_reading_from_slaves.py",
    "test_replication.py",
    "test_grpc.py",
    "test_grpc_java_and_node.py",
    "test_replication_stream.py",
    "test_stores_timed.py",
    "test_stores.py",
    "test_replication_metadata.py",
    "test_assignments.py",
    "test_metrics.py",
    "test_omb.py",
    "test_stores_delayed.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files first, after the order was drawn."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(item.path, len(SLOWEST)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Without Java or Maven, say so and leave; in CI that is a failure."""
    if not any(item.get_closest_marker("interop") for item in session.items) or session.config.option.collectonly:
        return
    try:
        apache.require()
    except apache.ApacheUnavailable as missing:
        pytest.exit(f"the interop suite did NOT run: {missing}", returncode=1 if os.environ.get("CI") else 0)


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Do without the short time limits that our clients have by default."""
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch)
        yield


@pytest.fixture(scope="session")
def session_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where processes of all tests keep logs and stores."""
    return tmp_path_factory.mktemp("interop")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where processes of one test keep logs and stores."""
    return tmp_path


@pytest.fixture(scope="session")
def java(session_home: Path) -> Iterator[apache.JavaClient]:
    """Apache's Java client with default settings."""
    client = apache.JavaClient(session_home / "java")
    yield client
    client.kill()


@pytest.fixture(scope="session")
def java_binary(session_home: Path) -> Iterator[apache.JavaClient]:
    """Apache's Java client set to send ROCKETMQ (binary) headers."""
    client = apache.JavaClient(session_home / "java-binary", flags=(*apache.SMALL, "-Drocketmq.serialize.type=ROCKETMQ"))
    yield client
    client.kill()


@pytest.fixture(scope="session")
def apache_namesrv(session_home: Path) -> Iterator[apache.ApacheNamesrv]:
    """Apache's nameserver."""
    server = apache.ApacheNamesrv(session_home / "apache-namesrv")
    yield server
    server.kill()


@pytest.fixture(scope="session")
def own_namesrv(session_home: Path) -> Iterator[apache.ApacheNamesrv]:
    """A nameserver for brokers that come and go: the topic of delayed messages is read here, and every broker has one."""
    server = apache.ApacheNamesrv(session_home / "moving-namesrv")
    yield server
    server.kill()


@pytest.fixture(scope="session")
def apache_broker(session_home: Path, apache_namesrv: apache.ApacheNamesrv) -> Iterator[apache.ApacheBroker]:
    """Apache's broker `apache-a`, at Apache's nameserver."""
    settings = apache.SMALL_STORE | {"messageDelayLevel": DELAY_LEVELS, "enablePropertyFilter": "true", "recallMessageEnable": "true"}
    broker = apache.ApacheBroker(session_home / "apache-broker", apache_namesrv.address, settings=settings)
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def our_cluster(session_home: Path) -> Iterator[OurProcess]:
    """Our nameserver and broker in one process, as `sprocketmq serve` runs them."""
    asking = {"transaction_timeout_s": 1.0, "transaction_check_interval_s": 2.0}
    with namesrv_and_broker(session_home / "ours", message_delay_level=DELAY_LEVELS, **asking) as process:
        yield process


@pytest.fixture(scope="session")
def spark(session_home: Path) -> Iterator[Any]:
    """A local Spark session with our formats, the only JVM of this process."""
    from sprocketmq.spark import session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running = session(
            "interop",
            cores=2,
            memory="512m",
            quick_start=True,
            log_file=session_home / "spark.log",
            conf={"spark.sql.session.timeZone": "UTC"},
        )
    yield running
    running.stop()


@pytest.fixture(params=["ours", "apaches"])
def side(request: pytest.FixtureRequest) -> Side:
    """Our broker, then Apache's: for tests that both must pass."""
    if request.param == "ours":
        ours: OurProcess = request.getfixturevalue("our_cluster")
        return Side("ours", ours.namesrv, ours.broker, "broker-a", "DefaultCluster")
    namesrv: apache.ApacheNamesrv = request.getfixturevalue("apache_namesrv")
    broker: apache.ApacheBroker = request.getfixturevalue("apache_broker")
    return Side("apaches", namesrv.address, broker.address, broker.name, broker.cluster)


@pytest.fixture
async def conn(side: Side) -> AsyncIterator[Connection]:
    """A connection to the broker."""
    pool = ConnectionPool(expected="broker")
    yield await pool.get(side.address)
    await pool.close()


@pytest.fixture(params=["ours", "apaches"])
def transacting_side(request: pytest.FixtureRequest, home: Path) -> Iterator[Side]:
    """The same for tests of transactions, with an Apache broker for this test alone.

    From its first transaction on, a thread of that broker (TransactionalOpBatchService) takes a whole processor until the broker ends.
    """
    if request.param == "ours":
        ours: OurProcess = request.getfixturevalue("our_cluster")
        yield Side("ours", ours.namesrv, ours.broker, "broker-a", "DefaultCluster")
        return
    namesrv: apache.ApacheNamesrv = request.getfixturevalue("apache_namesrv")
    asking = {"transactionTimeOut": "6000", "transactionCheckInterval": "2000", "recallMessageEnable": "true"}
    name, cluster = "apache-transacting", "TransactingCluster"
    settings = apache.SMALL_STORE | asking
    broker = apache.ApacheBroker(home / "transacting", namesrv.address, name=name, cluster=cluster, settings=settings)
    try:
        yield Side("apaches", namesrv.address, broker.address, name, cluster)
    finally:
        broker.kill()


@pytest.fixture(scope="session")
def authority(session_home: Path) -> Authority:
    """The certificate authority of all secured servers and clients."""
    return Authority(session_home / "authority")


@pytest.fixture(scope="session")
def secured_apache(session_home: Path, authority: Authority) -> Iterator[Secured]:
    """Apache's nameserver and broker with TLS and access control."""
    with secured_apache_servers(session_home / "secured-apache", authority) as servers:
        yield servers


@pytest.fixture(scope="session")
def secured_ours(session_home: Path, authority: Authority) -> Iterator[Secured]:
    """Our nameserver and broker with TLS and access control."""
    with our_secured_servers(session_home / "secured-ours", authority) as servers:
        yield servers


@pytest.fixture(scope="session")
def secured_java(session_home: Path, authority: Authority) -> Iterator[apache.JavaClient]:
    """Apache's Java client with TLS, which checks certificates; `signed_by` gives it credentials."""
    client = apache.JavaClient(session_home / "secured-java", flags=(*apache.SMALL, *tls_client(authority.ca_file)))
    yield client
    client.kill()
