import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for fake_cluster, as test modules are imported by path

from fake_cluster import fake_cluster


@pytest.fixture
async def cluster():
    """One fake broker with topic ``t`` of four queues."""
    async with fake_cluster(1, "t") as running:
        yield running


@pytest.fixture
async def two_brokers():
    """Two fake brokers, each with four queues of topic ``t``."""
    async with fake_cluster(2, "t") as running:
        yield running
