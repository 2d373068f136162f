"""What clients tell about their work: counters by stats(), and hooks that are called for each step."""

from sprocketmq import ClientHooks, HandleEvent, Message, SendEvent, sync
from sprocketmq.embedded import LocalCluster


class Watch(ClientHooks):
    def sent(self, event: SendEvent, token: object) -> None:
        print(f"sent {event.message_count} messages to {event.queue}: {event.error or 'stored'}")

    def handled(self, event: HandleEvent, token: object) -> None:
        print(f"handled {event.message_count} messages, {len(event.retried)} of them come again")


with LocalCluster() as mq:
    with sync.Producer("shop", namesrv=mq.namesrv, hooks=[Watch()]) as producer:
        producer.send(Message("orders", b"o1"))
        producer.send_batch([Message("orders", b"o%d" % i) for i in range(2, 11)])
        stats = producer.stats()
        print(f"{stats.messages} messages in {stats.requests} requests, sizes {stats.messages_per_request}")

    with sync.PushConsumer("billing", "orders", namesrv=mq.namesrv, consume_from="first", hooks=[Watch()]) as consumer:
        seen = 0
        for batch in consumer.batches():
            seen += len(batch)
            if seen == 10:
                batch.ack()
                break
        print(f"{consumer.stats().messages} messages by {consumer.stats().pulls} pulls")
