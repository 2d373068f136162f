"""Spark at a cluster with TLS and access control: what a refusal says, how a query goes on after one, and that no secret is anywhere."""

import asyncio
import pickle
import re
import socket
import ssl
from itertools import count
from pathlib import Path

import pytest
from tests.certificates import DAY, Authority
from tests.spark.available import run_available
from tests.spark.secured import SECRET, USER, secured_cluster

from sprocketmq import Message, sync
from sprocketmq.net.loops import LoopThread
from sprocketmq.spark import explain
from sprocketmq.spark.jobs.lag import lag
from sprocketmq.spark.jobs.land import land, landed
from sprocketmq.spark.jobs.replay import replay
from sprocketmq.spark.source.data_source import RocketMQDataSource
from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_numbers = count()


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    with secured_cluster(tmp_path_factory.mktemp("client")) as running:
        yield running


@pytest.fixture
def topic(secured):
    name = f"Secured{next(_numbers)}"
    secured.admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def event_log(spark, tmp_path):
    """Log the events of the session while a test runs; yields a function that returns the log so far."""
    context = spark.sparkContext._jsc.sc()
    jvm = spark.sparkContext._jvm
    conf = context.conf().clone().set("spark.eventLog.compress", "false").set("spark.eventLog.rolling.enabled", "false")
    to = jvm.java.net.URI(f"{tmp_path.as_uri()}/")
    nothing = getattr(jvm.scala, "None$").__getattr__("MODULE$")
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener("secured", nothing, to, conf, context.hadoopConfiguration())
    listener.start()
    context.addSparkListener(listener)

    def text():
        context.listenerBus().waitUntilEmpty()
        return b"".join(path.read_bytes() for path in tmp_path.glob("secured*"))

    yield text
    context.removeSparkListener(listener)
    listener.stop()


def options(secured, topic, **more):
    found = {"nameserver": secured.namesrv, "subscribe": topic, "startingOffsets": "earliest", "maxPartitions": "2", **more}
    return found if "credentials.file" in found or "secure" in found else {**found, "secure": str(secured.client)}


def send(secured, topic, numbers):
    secured.producer.send_batch([Message(topic, b"%d" % n) for n in numbers])


def bodies(frame):
    return sorted(int(row.body) for row in frame.select("body").collect())


def refused(work):
    """Return the sentence of the error that ``work`` ends with, and all that Spark says about it."""
    with pytest.raises(Exception) as caught:
        work()
    return explain(caught.value), str(caught.value)


def files_with_secret(directory):
    return [path for path in directory.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_source_sink_and_stream_work_and_the_secret_is_nowhere(spark, secured, topic, tmp_path_factory, event_log, capfd):
    copies, home = f"{topic}Copies", tmp_path_factory.mktemp("query")
    secured.admin.create_topic(copies, queues=2)
    send(secured, topic, range(300))
    read = {"credentials.file": str(secured.credentials), "tls.ca.file": str(secured.ca_file)}
    frame = spark.read.format("rocketmq").options(**options(secured, topic, **read)).load()
    plan = frame._jdf.queryExecution().toString()
    frame.select("body").write.format("rocketmq").options(nameserver=secured.namesrv, topic=copies, **read).mode("append").save()
    stream = spark.readStream.format("rocketmq").options(**options(secured, copies)).load()
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(home / "table"))
    )
    query.awaitTermination()
    assert bodies(spark.read.parquet(str(home / "table"))) == list(range(300))
    reader = RocketMQDataSource(options(secured, topic, **read)).reader(frame.schema)
    events = event_log()
    assert str(secured.credentials).encode() not in plan.encode()
    assert b"SparkListenerTaskEnd" in events
    said = capfd.readouterr()
    log = next(tmp_path_factory.getbasetemp().glob("spark*/spark.log"))  # of the JVM and its workers
    seen = (plan, repr(query.lastProgress), events.decode(errors="replace"), said.out, said.err, log.read_text(), repr(vars(reader)))
    assert not any(SECRET in text for text in seen)
    assert SECRET.encode() not in pickle.dumps(reader) + pickle.dumps(reader.partitions())
    assert files_with_secret(home) == []


def test_the_guide_s_program_runs(spark, secured):
    guide = (Path(__file__).parents[2] / "docs/guide/spark-security.md").read_text(encoding="utf-8")
    secured.admin.create_topic("orders", queues=2)
    send(secured, "orders", range(10))
    [program] = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    names = {}
    exec(program.replace("127.0.0.1:9876", secured.namesrv).replace("/etc/sprocketmq/secure", str(secured.client)), names)
    assert bodies(names["orders"]) == list(range(10))


def test_a_wrong_secret_ends_read_and_write_with_the_user_and_the_option(spark, secured, topic, event_log):
    wrong = f"{SECRET}-wrong"
    login = {"credentials.file": str(secured.write_credentials(wrong, "wrong.json")), "tls.ca.file": str(secured.ca_file)}
    sentence, text = refused(spark.read.format("rocketmq").options(**options(secured, topic, **login)).load().count)
    assert f"refused user '{USER}' of option credentials.file: check signature failed; check the secret there" in sentence
    rows = spark.createDataFrame([("x",)], "body string")
    writer = rows.write.format("rocketmq").options(nameserver=secured.namesrv, topic=topic, **login).mode("append")
    written, more = refused(writer.save)
    assert f"refused user '{USER}' of option credentials.file: check signature failed" in written
    assert SECRET not in text + more + event_log().decode(errors="replace")


def test_an_option_with_the_secret_is_refused_before_there_is_a_plan(spark, secured, topic, event_log):
    sentence, text = refused(lambda: spark.read.format("rocketmq").options(**options(secured, topic, secretKey=SECRET)).load())
    assert "of the rocketmq format: credentials are not given as options" in sentence
    assert SECRET not in text + event_log().decode(errors="replace")


def test_a_missing_right_is_named(spark, secured, topic):
    secured.revoke_topics()
    try:
        sentence, _ = refused(spark.read.format("rocketmq").options(**options(secured, topic)).load().count)
    finally:
        secured.grant_topics()
    assert f"refused user '{USER}' of option secure: User:{USER} has no permission to access Topic:{topic}" in sentence
    assert "have the right granted" in sentence


def test_a_query_whose_user_is_disabled_ends_and_goes_on_from_its_checkpoint(spark, secured, topic, tmp_path):
    def start(**trigger):
        stream = spark.readStream.format("rocketmq").options(**options(secured, topic, maxOffsetsPerTrigger="100")).load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(**trigger).start(str(tmp_path / "table"))

    send(secured, topic, range(200))
    query = start(processingTime="0 seconds")
    committed = tmp_path / "checkpoint" / "commits" / "0"
    wait_until(lambda: committed.exists() or not query.isActive, timeout_s=120, what="a batch is done")
    secured.admit(False)
    try:
        sentence, _ = refused(query.awaitTermination)
    finally:
        secured.admit(True)
    assert f"refused user '{USER}' of option secure: check signature failed" in sentence
    send(secured, topic, range(200, 300))
    run_available(lambda: start(availableNow=True))
    assert bodies(spark.read.parquet(str(tmp_path / "table"))) == list(range(300)), "nothing is lost, nothing is there twice"


def test_a_file_that_the_executors_lack_is_named_with_their_host(spark, secured, topic):
    send(secured, topic, range(10))
    path = secured.write_credentials(SECRET, "soon-gone.json")
    login = {"credentials.file": str(path), "tls.ca.file": str(secured.ca_file)}
    frame = spark.read.format("rocketmq").options(**options(secured, topic, **login)).load()
    execution = frame._jdf.queryExecution()
    execution.toRdd().getNumPartitions()  # planned; the tasks begin below
    path.unlink()
    sentence, _ = refused(lambda: execution.toRdd().count())
    assert f"option 'credentials.file' of the rocketmq format: on executor host {socket.gethostname()}, " in sentence
    assert f"{path} cannot be read: No such file or directory" in sentence


@pytest.fixture
def expired_server(tmp_path):
    """A TLS listener whose certificate has expired, as ours refuse to start with one; yields its address and its authority."""
    authority = Authority(tmp_path)
    expired = authority.issue("expired", begins=-2 * DAY, ends=-DAY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired.cert_file, expired.key_file)

    async def hang_up(reader, writer):
        writer.close()

    thread = LoopThread("expired").start()
    server = thread.run(lambda: asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context))
    host, port = server.sockets[0].getsockname()
    yield f"{host}:{port}", authority.ca_file

    async def close():
        server.close()
        await server.wait_closed()

    thread.run(close)
    thread.stop()


def test_an_expired_certificate_is_named(spark, expired_server):
    address, authority = expired_server
    reader = spark.read.format("rocketmq").options(**{"nameserver": address, "subscribe": "T", "tls.ca.file": authority})
    sentence, _ = refused(reader.load().count)
    assert f"no encrypted connection to the nameserver at {address}: its certificate has expired" in sentence


def test_the_jobs_log_in_and_encrypt(spark, secured, topic, tmp_path):
    copies = f"{topic}Copies"
    secured.admin.create_topic(copies, queues=2)
    send(secured, topic, range(100))
    secure = {"credentials.file": str(secured.credentials), "tls.ca.file": str(secured.ca_file)}
    land(spark, topic, tmp_path / "table", nameserver=secured.namesrv, secure=secure)
    assert landed(spark, tmp_path / "table").count() == 100
    assert files_with_secret(tmp_path) == []
    assert lag(secured.namesrv, table=tmp_path / "table", secure=secured.client).lag == 0
    assert replay(spark, topic, nameserver=secured.namesrv, to=copies, secure=secured.client).targets == {copies: 100}
    with sync.PullConsumer("copies", namesrv=secured.namesrv, secure=secured.mq.secure) as consumer:
        assert sum(consumer.max_offset(queue) for queue in consumer.queues(copies)) == 100
