"""Runs one scenario with Apache's own Python client (rocketmq-python-client, gRPC), and prints what came of it as JSON on the last line.

It runs in a process of its own: ``python official_python.py ENDPOINT SCENARIO ARGUMENTS`` with the arguments as a JSON object.
"""

import json
import sys
import threading
import time

from rocketmq.grpc_protocol import TransactionResolution
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import ConsumeResult, MessageListener, PushConsumer, SimpleConsumer
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer, TransactionChecker

DEADLINE_S = 90


def configured(endpoint, access_key="", secret_key=""):
    return ClientConfiguration(endpoint, Credentials(access_key, secret_key), request_timeout=10)


def message_of(topic, spec):
    message = Message()
    message.topic, message.body = topic, spec["body"].encode()
    if "tag" in spec:
        message.tag = spec["tag"]
    if "key" in spec:
        message.keys = spec["key"]
    if "group" in spec:
        message.message_group = spec["group"]
    if "delay_s" in spec:
        message.delivery_timestamp = int(time.time() + spec["delay_s"])
    for name, value in spec.get("properties", {}).items():
        message.add_property(name, value)
    return message


def shown(message):
    return {
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": list(message.keys or ()),
        "group": message.message_group,
        "properties": dict(message.properties or {}),
        "id": message.message_id,
        "attempt": message.delivery_attempt,
        "corrupted": message.corrupted,
    }


def send(endpoint, topic, messages, access_key="", secret_key="", recall=False):
    producer = Producer(configured(endpoint, access_key, secret_key), (topic,))
    producer.startup()
    receipts = [producer.send(message_of(topic, spec)) for spec in messages]
    recalled = [producer.recall_message(topic, receipt.recall_handle) is not None for receipt in receipts] if recall else []
    producer.shutdown()
    return {"ids": [receipt.message_id for receipt in receipts], "offsets": [receipt.offset for receipt in receipts], "recalled": recalled}


def transactions(endpoint, topic, messages):
    """``end`` of a message: commit, rollback, or the answer to the broker's question."""
    asked = []
    all_asked = threading.Event()
    checks = {spec["body"]: spec["end"] for spec in messages if spec["end"].startswith("check")}

    class Checker(TransactionChecker):
        def check(self, message):
            asked.append(message.body.decode())
            if set(asked) >= set(checks):
                all_asked.set()
            return TransactionResolution.COMMIT if checks[message.body.decode()] == "check commit" else TransactionResolution.ROLLBACK

    producer = Producer(configured(endpoint), (topic,), checker=Checker())
    producer.startup()
    for spec in messages:
        transaction = producer.begin_transaction()
        producer.send(message_of(topic, spec), transaction)
        if spec["end"] == "commit":
            transaction.commit()
        elif spec["end"] == "rollback":
            transaction.rollback()
    if checks:
        all_asked.wait(DEADLINE_S)
        time.sleep(1)  # the answer is one-way
    producer.shutdown()
    return {"asked": asked}


def receive(endpoint, topic, group, count, expression="*", invisible_s=20, skip_acks=(), deadline_s=DEADLINE_S):
    """Receive ``count`` messages with a simple consumer; bodies in ``skip_acks`` are not acknowledged the first time."""
    consumer = SimpleConsumer(configured(endpoint), group, {topic: FilterExpression(expression)}, await_duration=10)
    consumer.startup()
    found, left = [], set(skip_acks)
    end = time.monotonic() + deadline_s
    while len(found) < count and time.monotonic() < end:
        for message in consumer.receive(16, invisible_s) or ():
            found.append(shown(message))
            if message.body.decode() in left:
                left.discard(message.body.decode())
                consumer.change_invisible_duration(message, 10)
            else:
                consumer.ack(message)
    consumer.shutdown()
    return {"messages": found}


def listen(endpoint, topic, group, count, fail=()):
    """Handle ``count`` deliveries with a push consumer; bodies in ``fail`` fail the first time."""
    found, left, done = [], set(fail), threading.Event()

    class Listener(MessageListener):
        def consume(self, message):
            found.append(shown(message))
            if len(found) >= count:
                done.set()
            if message.body.decode() in left:
                left.discard(message.body.decode())
                return ConsumeResult.FAILURE
            return ConsumeResult.SUCCESS

    consumer = PushConsumer(configured(endpoint), group, Listener(), {topic: FilterExpression()})
    consumer.startup()
    done.wait(DEADLINE_S)
    consumer.shutdown()
    return {"messages": found}


if __name__ == "__main__":
    name, arguments = sys.argv[2], json.loads(sys.argv[3])
    print(json.dumps(globals()[name](sys.argv[1], **arguments)))
