"""The pytest plugin: the fixture ``rocketmq`` and the marker that configures it. Installing SprocketMQ activates it.

pytest loads this module in every run of an environment that has SprocketMQ, so it imports no other module of the package before a test uses
the fixture.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sprocketmq.embedded import LocalCluster


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker ``rocketmq``."""
    config.addinivalue_line(
        "markers",
        "rocketmq(**options): options of LocalCluster for the fixture `rocketmq`, such as brokers=2 or auto_create_topic=False",
    )


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest) -> Iterator["LocalCluster"]:
    """Start a fresh RocketMQ cluster: nameserver and broker in this process, on free ports, with a temporary store.

    ``rocketmq.namesrv`` is the address for clients; see ``sprocketmq.embedded.LocalCluster`` for the rest. Works in plain and in async
    tests. ``@pytest.mark.rocketmq(brokers=2)`` passes options to LocalCluster.
    """
    with _cluster(request) as cluster:
        yield cluster


@pytest.fixture
def rocketmq_secure(request: pytest.FixtureRequest) -> Iterator["LocalCluster"]:
    """Start the same with TLS and access control; clients need ``secure=rocketmq_secure.secure``, the directory of an administrator."""
    with _cluster(request, secure=True) as cluster:
        yield cluster


def _cluster(request: pytest.FixtureRequest, **fixed: bool) -> "LocalCluster":
    from inspect import signature

    from sprocketmq.embedded import LocalCluster

    marker = request.node.get_closest_marker("rocketmq")
    if marker is not None and marker.args:
        raise pytest.UsageError("the rocketmq marker takes options by name, for example @pytest.mark.rocketmq(brokers=2)")
    options = marker.kwargs if marker is not None else {}
    known = signature(LocalCluster).parameters
    unknown = ", ".join(name for name in options if name not in known)
    if unknown:
        raise pytest.UsageError(f"the rocketmq marker has no option {unknown}; the options are {', '.join(known)}")
    return LocalCluster(**{**options, **fixed})
