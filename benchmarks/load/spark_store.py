"""Rows per second of a Spark scan of a store's commit log, beside Spark's own scan of the same rows in Parquet.

One warm session reads, in turns: the store by format `rocketmq-store` with its default columns; the same rows from Parquet files that this
session wrote from it (uncompressed and without dictionaries, which is fastest for bodies that do not compress); the store with `columns`
that leave the body out, and the same columns from Parquet. Bodies are 1 KiB of random bytes, all files are in the page cache. The rows go
to Spark's "noop" sink, which reads every column and keeps nothing. Beside them stands what one process takes for the decoding alone.

Exits 1 when the scan has less than 400,000 rows/s or less than 1.05 times that of Parquet, or without bodies is less than 1.8 times as fast.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.processor import processor_s, us_a_row
from benchmarks.report import spread, timed, write_result
from sprocketmq.arrow.store.reading import StoreReader
from sprocketmq.protocol.batch import BatchEntry
from sprocketmq.protocol.records import pack_host
from sprocketmq.spark import session
from sprocketmq.spark.store.options import parse_store_options
from sprocketmq.spark.store.starting import plan_store
from sprocketmq.storage.store import MessageStore, StoreConfig

GOAL_ROWS_PER_S = 400_000
GOAL_OF_PARQUET = 1.05
GOAL_WITHOUT_BODY = 1.8
BODY_BYTES = 1024
QUEUES = 8
BATCH = 32
CORES = 2
WARM_UP = 4
# What says where each message is, and when: what an index is made of, or an audit needs.
WITHOUT_BODY = "topic,queueId,queueOffset,tags,storeTimestamp,commitLogOffset,storeSize"


def fill(root: str, messages: int) -> None:
    """Write a store with the messages, in batches of a plain topic."""
    host = pack_host("127.0.0.1", 10911)
    store = MessageStore(StoreConfig(Path(root), message_index_enable=False, commitlog_segment_bytes=256 << 20))
    store.store_host = host
    store.open()
    bodies = [memoryview(os.urandom(BODY_BYTES)) for _ in range(BATCH)]
    for first in range(0, messages, BATCH):
        names = [
            b"UNIQ_KEY\x017F00000100%022X\x02WAIT\x01true\x02TAGS\x01tag%d\x02KEYS\x01key-%d\x02" % (i, i % 3, i)
            for i in range(first, min(first + BATCH, messages))
        ]
        entries = [BatchEntry(0, body, properties) for body, properties in zip(bodies, names, strict=False)]
        store.stage_batch("SparkStore", first // BATCH % QUEUES, entries, sys_flag=0, born_timestamp_ms=1, born_host=host)
        store.commit()
    store.close()


def decode(root: str, columns: str | None) -> float:
    """Return the seconds one process needs to make Arrow batches of the whole store."""
    options = parse_store_options({"path": root} | ({"columns": columns} if columns else {}))
    began = time.perf_counter()
    for pieces in plan_store(options):
        for _ in StoreReader(options).read(pieces):
            pass
    return time.perf_counter() - began


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of the session, to compare runs")
    options = parser.parse_args()
    conf = dict(setting.split("=", 1) for setting in options.conf)
    with tempfile.TemporaryDirectory(prefix="sprocketmq-bench-") as directory:
        return run(directory, options.messages, options.rounds, conf)


def run(directory: str, messages: int, rounds: int, conf: dict[str, str]) -> int:
    root, parquet = f"{directory}/store", f"{directory}/parquet"
    # In processes of their own: neither the store's memory nor the decoder's should stay in the driver.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(fill, root, messages).result()
        alone = {
            name: min(pool.submit(decode, root, c).result() for _ in range(3)) for name, c in (("full", None), ("no_body", WITHOUT_BODY))
        }
    spark = session("spark-store", cores=CORES, memory="2g", conf={"spark.sql.warehouse.dir": f"{directory}/warehouse", **conf})
    try:
        reader = spark.read.format("rocketmq-store")
        store = reader.load(root)
        lean = reader.option("columns", WITHOUT_BODY).load(root)
        found = store.count()
        if found != messages:
            print(f"the store has {found} rows, {messages} were written")
            return 1
        # The columns of both scans, so that one table serves as the rival of both.
        names = ",".join(dict.fromkeys([*store.columns, *lean.columns]))
        every = reader.option("columns", names).load(root)
        every.write.option("compression", "none").option("parquet.enable.dictionary", "false").parquet(parquet)
        table = spark.read.parquet(parquet)
        frames = {
            "full": store,
            "parquet": table.select(*store.columns),
            "no_body": lean,
            "parquet_no_body": table.select(*lean.columns),
        }
        rates: dict[str, list[float]] = {name: [] for name in frames}
        spent: dict[str, list[dict[str, float]]] = {name: [] for name in frames}
        for i in range(WARM_UP + rounds):
            for name, frame in frames.items():
                before = processor_s()
                rate = messages / timed(lambda frame=frame: drain(frame))  # type: ignore[misc]
                if i >= WARM_UP:
                    rates[name].append(rate)
                    spent[name].append(us_a_row(before, processor_s(), messages))
        version = spark.version
    finally:
        spark.stop()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    of_parquet = medians["full"] / medians["parquet"]
    without_body = medians["no_body"] / medians["full"]
    figures: dict[str, Any] = {
        "what": f"scan of {messages} messages of {BODY_BYTES} bytes, default columns, local[{CORES}], warm session, page cache",
        "goal_rows_per_s": GOAL_ROWS_PER_S,
        "goal_of_parquet": GOAL_OF_PARQUET,
        "goal_without_body": GOAL_WITHOUT_BODY,
        "columns_without_body": WITHOUT_BODY,
        "rows_per_s": {name: spread(values, 0) for name, values in rates.items()},
        "processor_us_a_row": {
            name: {kind: round(statistics.median(one[kind] for one in found), 2) for kind in found[0]} for name, found in spent.items()
        },
        "of_parquet": round(of_parquet, 3),
        "without_body": round(without_body, 3),
        "one_process_rows_per_s": {name: round(messages / seconds) for name, seconds in alone.items()},
        "spark": version,
        "conf": conf,
    }
    path = write_result("spark-store", figures)
    print(
        f"store {medians['full']:,.0f} rows/s, {of_parquet:.2f} of Parquet's {medians['parquet']:,.0f}; without bodies"
        f" {medians['no_body']:,.0f} ({without_body:.2f} times) -> {path}"
    )
    good = medians["full"] >= GOAL_ROWS_PER_S and of_parquet >= GOAL_OF_PARQUET and without_body >= GOAL_WITHOUT_BODY
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
