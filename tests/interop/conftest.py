"""Apache RocketMQ beside us: what the interop suite shares. JVMs are started when a test first needs them, once for the suite."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.interop import apache
from tests.interop.ours import OurProcess, namesrv_and_broker
from tests.interop.secured import Secured, our_secured_servers, secured_apache_servers, tls_client
from tests.interop.sides import DELAY_LEVELS, Side


def pytest_collection_finish(session: pytest.Session) -> None:
    """Without Java or Maven, say so and leave; in CI that is a failure."""
    if not any(item.get_closest_marker("interop") for item in session.items) or session.config.option.collectonly:
        return
    try:
        apache.require()
    except apache.ApacheUnavailable as missing:
        pytest.exit(f"the interop suite did NOT run: {missing}", returncode=1 if os.environ.get("CI") else 0)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where processes keep logs and stores."""
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="session")
def java(home: Path) -> Iterator[apache.JavaClient]:
    """Apache's Java client with default settings."""
    client = apache.JavaClient(home / "java")
    yield client
    client.kill()


@pytest.fixture(scope="session")
def java_binary(home: Path) -> Iterator[apache.JavaClient]:
    """Apache's Java client set to send ROCKETMQ (binary) headers."""
    client = apache.JavaClient(home / "java-binary", flags=(*apache.SMALL, "-Drocketmq.serialize.type=ROCKETMQ"))
    yield client
    client.kill()


@pytest.fixture(scope="session")
def apache_namesrv(home: Path) -> Iterator[apache.ApacheNamesrv]:
    """Apache's nameserver."""
    server = apache.ApacheNamesrv(home / "apache-namesrv")
    yield server
    server.kill()


@pytest.fixture(scope="session")
def own_namesrv(home: Path) -> Iterator[apache.ApacheNamesrv]:
    """A nameserver for brokers that come and go: the topic of delayed messages is read here, and every broker has one."""
    server = apache.ApacheNamesrv(home / "moving-namesrv")
    yield server
    server.kill()


@pytest.fixture(scope="session")
def apache_broker(home: Path, apache_namesrv: apache.ApacheNamesrv) -> Iterator[apache.ApacheBroker]:
    """Apache's broker `apache-a`, at Apache's nameserver."""
    settings = apache.SMALL_STORE | {"messageDelayLevel": DELAY_LEVELS}
    broker = apache.ApacheBroker(home / "apache-broker", apache_namesrv.address, settings=settings)
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def our_cluster(home: Path) -> Iterator[OurProcess]:
    """Our nameserver and broker in one process, as `sprocketmq serve` runs them."""
    with namesrv_and_broker(home / "ours", message_delay_level=DELAY_LEVELS) as process:
        yield process


@pytest.fixture(scope="session")
def spark(home: Path) -> Iterator[Any]:
    """A local Spark session with our formats, the only JVM of this process."""
    from sprocketmq.spark import session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running = session(
            "interop", cores=2, memory="512m", quick_start=True, log_file=home / "spark.log", conf={"spark.sql.session.timeZone": "UTC"}
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


@pytest.fixture(scope="session")
def authority(home: Path) -> Authority:
    """The certificate authority of all secured servers and clients."""
    return Authority(home / "authority")


@pytest.fixture(scope="session")
def secured_apache(home: Path, authority: Authority) -> Iterator[Secured]:
    """Apache's nameserver and broker with TLS and access control."""
    with secured_apache_servers(home / "secured-apache", authority) as servers:
        yield servers


@pytest.fixture(scope="session")
def secured_ours(home: Path, authority: Authority) -> Iterator[Secured]:
    """Our nameserver and broker with TLS and access control."""
    with our_secured_servers(home / "secured-ours", authority) as servers:
        yield servers


@pytest.fixture(scope="session")
def secured_java(home: Path, authority: Authority) -> Iterator[apache.JavaClient]:
    """Apache's Java client with TLS, which checks certificates; `signed_by` gives it credentials."""
    client = apache.JavaClient(home / "secured-java", flags=(*apache.SMALL, *tls_client(authority.ca_file)))
    yield client
    client.kill()
