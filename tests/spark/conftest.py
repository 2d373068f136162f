"""One Spark session and one cluster for all tests of this process."""

import shutil
import tempfile
from pathlib import Path

import pytest

from sprocketmq.embedded import LocalCluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from sprocketmq.spark import session

    home = tmp_path_factory.mktemp("spark")
    running = session(
        "tests",
        cores=2,
        quick_start=True,
        log_file=home / "spark.log",
        shuffle_partitions=1,
        # Tests run many tiny jobs: planning them anew at every stage costs more than running them.
        conf={
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.sql.session.timeZone": "America/St_Johns",  # neither that of the data nor whole hours away
            "spark.sql.adaptive.enabled": "false",
        },
    )
    yield running
    running.stop()


@pytest.fixture(params=["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def timestamp_type(request, spark):
    """What TIMESTAMP means in SQL. Columns of messages have a time zone whatever it says."""
    spark.conf.set("spark.sql.timestampType", request.param)
    yield request.param
    spark.conf.unset("spark.sql.timestampType")


@pytest.fixture(scope="session")
def cluster():
    with LocalCluster() as running:
        yield running


@pytest.fixture
def unspaced():
    """A directory without a space in its path: Spark looks for no format with a Python in one, and escapes it in the warehouse's."""
    directory = Path(tempfile.mkdtemp(prefix="sprocketmq-"))
    yield directory
    shutil.rmtree(directory)
