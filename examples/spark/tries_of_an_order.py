"""transformWithState: count the tries of each order, in sessions that end after ten minutes without a try.

Needs Spark 4.2 or newer, and protobuf: pip install 'sprocketmq[pipelines]'
"""

import tempfile
from collections.abc import Iterator

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.spark import session

QUIET_MS = 600_000
MINUTE = 60


class Tries(StatefulProcessor):
    """The state of one order: its tries so far, and the timer that ends the session."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._session = handle.getValueState("session", "tries INT, first BIGINT, last BIGINT")

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: object) -> Iterator[Row]:
        tries, first, last = self._session.get() if self._session.exists() else (0, 0, 0)
        if tries:
            self._handle.deleteTimer(last + QUIET_MS)
        for at in sorted(row.at_ms for row in rows):
            if tries and at > last + QUIET_MS:
                yield ended(key, tries, first, last)
                tries = 0
            tries, first, last = tries + 1, min(first, at) if tries else at, max(last, at) if tries else at
        self._session.update((tries, first, last))
        self._handle.registerTimer(last + QUIET_MS)

    def handleExpiredTimer(self, key: tuple[str], timerValues: object, expiredTimerInfo: object) -> Iterator[Row]:
        yield ended(key, *self._session.get())
        self._session.clear()

    def close(self) -> None:
        pass


def ended(key: tuple[str], tries: int, first: int, last: int) -> Row:
    return Row(order=key[0], tries=tries, seconds=(last - first) // 1000)


def tried(order: str, *minutes: int) -> list[Message]:
    """Return the messages of one order: a try in each of these minutes."""
    return [Message("tries", b"charge the card", keys=[order], properties={"at": str(minute * MINUTE)}) for minute in minutes]


spark = session("tries", quick_start=True)
# State that Python code keeps needs this store.
spark.conf.set("spark.sql.streaming.stateStore.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
with LocalCluster() as mq, tempfile.TemporaryDirectory() as directory:
    with sync.Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send_batch(tried("o1", 1, 2, 5, 40) + tried("o2", 3))
        producer.send_batch(tried("the-clock-goes-on", 120))
    tries = spark.readStream.format("rocketmq").option("nameserver", mq.namesrv).option("subscribe", "tries")
    rows = tries.option("startingOffsets", "earliest").load()
    timed = rows.selectExpr("keys", "timestamp_seconds(CAST(properties['at'] AS BIGINT)) AS at")
    sessions = (
        timed.withColumn("at_ms", timed.at.cast("long") * 1000)
        .withWatermark("at", "1 minute")
        .groupBy("keys")
        .transformWithState(Tries(), "order STRING, tries INT, seconds BIGINT", "append", "EventTime")
    )
    query = (
        sessions.writeStream.format("memory")
        .queryName("sessions")
        .option("checkpointLocation", directory)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.table("sessions").orderBy("order", "seconds").show()
