"""The Spark blocks of the tutorial and the guides run as they are printed, page by page, in the session that all tests share.

The JVM stays in the directory where it was started, so relative paths become absolute ones. A query that a page starts and leaves running is
stopped when it has read everything, and a command that goes on until Ctrl-C gets its signal after its first result.
"""

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.documented import ADDRESS, OWN_TESTS, PAGES, pattern, plain, relative, sessions
from tests.recorded_stores import unpack

from sprocketmq import Message, sync
from sprocketmq.cli.app import main
from sprocketmq.embedded import LocalCluster
from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SPARK = {name: found for name, page in PAGES.items() if (found := [b for b in page if b.runs == "spark" and b.page not in OWN_TESTS])}
OTHER_CLUSTER = "10.0.0.7:9876"
# The commands that go on until Ctrl-C, and how they exit then: landing ends after a whole batch, as a service does.
ENDLESS = {"--every 30": 0, "--watch": 130}


def words(text):
    """Return a text without colours and with one blank between words."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text))


def interrupt_after(out, handler, ended):
    """Press Ctrl-C when a command has printed its first table, or takes signals itself instead of ``handler``; again until it has ended.

    The main thread gets the signal: what another one gets does not wake it from its sleep.
    """
    wait_until(lambda: "messages behind" in out.getvalue() or signal.getsignal(signal.SIGINT) is not handler)
    pressed = True
    while pressed:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        pressed = not ended.wait(10)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Reader:
    """Somebody with a broker, a topic ``orders``, dead letters of the group ``billing``, and a store ``mq`` of a stopped broker."""

    def __init__(self, spark, cluster, home, monkeypatch):
        self.spark, self.cluster, self.home, self.monkeypatch = spark, cluster, home, monkeypatch
        self.names = {}
        monkeypatch.chdir(home)
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        monkeypatch.setenv("COLUMNS", "400")  # no line is folded
        monkeypatch.setenv("TERM", "xterm")
        self.queues = 4
        cluster.create_topic("orders", queues=self.queues)
        unpack("plain", home).rename(home / "mq")
        with sync.Producer("shop", namesrv=cluster.namesrv) as producer:
            producer.send_batch([Message("orders", b'{"order": %d, "total": 10}' % number, tag="new") for number in range(20)])

    def damage(self):
        with (self.home / "mq/commitlog" / ("0" * 20)).open("r+b") as log:
            log.seek(283 + 91)
            byte = log.read(1)[0]
            log.seek(-1, os.SEEK_CUR)
            log.write(bytes([byte ^ 1]))

    def add_readers(self):
        """Leave offsets and dead letters of the group ``billing``, a landed table and a checkpoint behind."""
        namesrv = self.cluster.namesrv
        self.cluster.create_topic("orders-check", queues=1)
        with sync.Producer("shop", namesrv=namesrv) as producer:
            producer.send_batch([Message("invoices", b"%d" % number, tag="invoice") for number in range(3)])
        seen = 0
        with sync.PushConsumer("billing", ["orders", "invoices"], namesrv=namesrv, consume_from="first") as consumer:
            for batch in consumer.batches():
                for message in batch:
                    if message.topic == "invoices":
                        batch.retry(message, delay_level=-1)
                batch.ack()
                seen += len(batch)
                if seen == 23:
                    break
        assert len(self.cluster.messages("%DLQ%billing", count=3)) == 3
        self.type("sprocketmq pipeline land orders --to tables/orders")
        stream = self.spark.readStream.format("rocketmq").options(nameserver=namesrv, subscribe="orders", startingOffsets="earliest")
        query = stream.load().writeStream.format("noop").option("checkpointLocation", f"{self.home}/checkpoints/orders")
        query.trigger(availableNow=True).start().awaitTermination()

    def here(self, text):
        text = text.replace(ADDRESS, self.cluster.namesrv)
        text = re.sub(r'(?<=["\s])(checkpoints|tables)/', rf"{self.home}/\1/", text)
        return re.sub(r'(?<=["\s])mq(?=["\s])', f"{self.home}/mq", text)

    def do(self, block):
        match block.language:
            case "python":
                self.execute(block.text)
            case "sql":
                self.spark.sql(self.here(block.text))
                assert self.spark.table("orders").count() == 20
                self.spark.catalog.dropTempView("orders")
            case "sh" | "bash" if "spark-submit" in block.text:
                self.submit(block.text)
            case "sh" | "bash" if OTHER_CLUSTER in block.text:
                with LocalCluster() as other:
                    other.create_topic("orders", queues=self.queues)
                    for line in block.text.splitlines():
                        self.type(line.replace(OTHER_CLUSTER, other.namesrv))
                    assert len(other.messages("orders", count=20)) == 20
            case "sh" | "bash":
                for line in block.text.splitlines():
                    self.type(line)
            case "console":
                for line, shown in sessions(block.text):
                    said = relative(self.type(line, code=1 if "NOT in order" in shown else 0), self.home)
                    assert pattern(words(shown)).fullmatch(plain(words(said))), f"{line} prints\n{said}and the page shows\n{shown}"
            case other:
                pytest.fail(f"{block}: nothing here runs a {other} block")

    def execute(self, program):
        """Run a program, and end the queries it leaves behind once they have read everything."""
        if "watch(" in program:
            self.end_the_watched_query()
        exec(self.here(program), self.names)
        for query in self.spark.streams.active:
            query.processAllAvailable()
            query.stop()

    def end_the_watched_query(self):
        """Send messages from another thread until a query has read one, then stop it."""

        def end():
            with sync.Producer("shop", namesrv=self.cluster.namesrv) as producer:
                wait_until(lambda: self.spark.streams.active)
                [query] = self.spark.streams.active
                wait_until(lambda: producer.send(Message("orders", b"late")) and any(p.numInputRows for p in query.recentProgress))
                query.stop()

        threading.Thread(target=end).start()

    def type(self, line, code=0):
        """Run one command in this process, as on a terminal, and return what it printed."""
        program, *arguments = (self.here(f" {word} ")[1:-1] for word in shlex.split(line, comments=True))
        endless = next((option for option in ENDLESS if option in " ".join(arguments)), None)
        code = ENDLESS.get(endless, code)
        assert program == "sprocketmq"
        with self.monkeypatch.context() as patch:
            # The session of the tests serves; a command of its own would start and stop another JVM.
            patch.setattr("sprocketmq.spark.session", lambda *_, **__: self.spark)
            patch.setattr(self.spark, "stop", lambda: None)
            patch.setattr(sys, "stdout", out := Terminal())
            ended = threading.Event()
            interrupt = threading.Thread(target=interrupt_after, args=(out, signal.getsignal(signal.SIGINT), ended))
            if endless:
                interrupt.start()
            try:
                assert main(arguments) == code, f"{line}\n{out.getvalue()}"
            finally:
                ended.set()
            if endless:
                interrupt.join()
        return out.getvalue()

    def submit(self, text):
        (self.home / "job.py").write_text("print('the job ran')", encoding="utf-8")
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environment.pop("PYSPARK_GATEWAY_PORT", None)
        done = subprocess.run(
            ["bash", "-ec", text], cwd=self.home, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert (done.returncode, "the job ran" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("page", sorted(SPARK))
def test_the_spark_blocks_of_a_page_run(page, spark, rocketmq, tmp_path, monkeypatch):
    reader = Reader(spark, rocketmq, tmp_path, monkeypatch)
    needs = " ".join(block.mark for block in SPARK[page])
    if "dead letters" in needs or "a reader" in needs:
        reader.add_readers()
    for block in SPARK[page]:
        if "NOT in order" in block.text:
            reader.damage()
        reader.do(block)
    for table in (tmp_path / "tables").glob("*"):
        assert spark.read.parquet(str(table)).count() == 20, table
