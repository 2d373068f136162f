"""Read a topic as a DataFrame, and in SQL. ``session`` finds Java and registers the format ``rocketmq``."""

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.spark import session

with LocalCluster() as mq:
    with sync.Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send_batch([Message("orders", f"order {i}".encode(), tag="new" if i % 3 else "paid", keys=[f"o{i}"]) for i in range(30)])

    spark = session("read a topic")
    orders = spark.read.format("rocketmq").option("nameserver", mq.namesrv).option("subscribe", "orders").load()
    orders.groupBy("tags").count().orderBy("tags").show()

    # The same in SQL; reading is cheapest without the body.
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW keys USING rocketmq"
        f" OPTIONS (nameserver '{mq.namesrv}', subscribe 'orders', columns 'queueId,queueOffset,keys')"
    )
    print(spark.sql("SELECT count(DISTINCT keys) AS orders FROM keys").first())
