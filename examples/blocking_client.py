"""Send and receive without asyncio: sprocketmq.sync."""

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster

with LocalCluster() as mq:
    with sync.Producer("shop", namesrv=mq.namesrv) as producer:
        print("stored at offset", producer.send(Message("orders", b"first")).queue_offset)
        futures = [producer.submit(Message("orders", b"%d" % i)) for i in range(100)]
        print(len({future.result(timeout=5).msg_id for future in futures}), "more stored")

    with sync.PushConsumer("billing", "orders", namesrv=mq.namesrv, consume_from="first") as consumer:
        seen = 0
        for batch in consumer.batches():
            seen += len(batch)
            if seen == 101:
                batch.ack()
                break
        print("received", seen)
