"""The same clients for code without an event loop.

Each class wraps its namesake of ``sprocketmq.client``: methods that are awaited there block here, ``submit`` and ``listen`` return
``concurrent.futures.Future``. All share one background thread with an event loop (uvloop where it is installed), which runs while any of
them is open. They may be used from any thread, but not from callbacks that run on that loop.

::

    with sync.Producer("pg", namesrv="127.0.0.1:9876") as producer:
        result = producer.send(Message("orders", b"..."))
        future = producer.submit(Message("orders", b"..."))
        future.result()
"""

from sprocketmq.sync.admin import AdminClient
from sprocketmq.sync.consumers import PullConsumer, PushConsumer
from sprocketmq.sync.producer import Producer
from sprocketmq.sync.transactions import Transaction, TransactionProducer

__all__ = ["AdminClient", "Producer", "PullConsumer", "PushConsumer", "Transaction", "TransactionProducer"]
