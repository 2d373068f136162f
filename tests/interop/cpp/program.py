"""Drives Apache's client for C++ through the Python package that has it inside, in an environment of that package's own.

    program.py NAMESRV send TOPIC           sends ten messages in order of the queues, one with a delay level, one one-way
    program.py NAMESRV consume TOPIC GROUP COUNT [orderly]
    program.py NAMESRV pull TOPIC

What is sent or received is printed, a JSON array a line.
"""

import json
import sys
import threading
import time

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer

output = threading.Lock()


def message(topic: str, body: str, **fields: str) -> Message:
    made = Message(topic)
    made.set_body(body)
    made.set_tags("TagA")
    for name, value in fields.items():
        getattr(made, f"set_{name}")(value)
    return made


def say(*values: object) -> None:
    line = json.dumps([value.decode() if isinstance(value, bytes) else value for value in values])
    with output:  # several threads call handlers
        print(line, flush=True)


def send(namesrv: str, topic: str) -> None:
    producer = Producer("cpp_producer")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    for number in range(10):
        one = message(topic, f"body {number} ü", keys=f"key-{number}")
        one.set_property("number", str(number))
        sent = producer.send_sync(one)
        say(sent.msg_id, sent.offset)
    producer.send_sync(message(topic, "late", delay_time_level=1))
    producer.send_oneway(message(topic, "one-way"))
    time.sleep(0.5)
    producer.shutdown()


def consume(namesrv: str, topic: str, group: str, count: str, orderly: str = "") -> None:
    taken = 0

    def handle(received):
        nonlocal taken
        say(received.body, received.tags, received.keys, received.id, received.queue_id, received.queue_offset)
        taken += 1

    consumer = PushConsumer(group, orderly=bool(orderly))
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(topic, handle)
    consumer.start()
    until = time.monotonic() + 90
    while taken < int(count) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1)  # it would take more than it is sent, and offsets are saved
    consumer.shutdown()


def pull(namesrv: str, topic: str) -> None:
    consumer = PullConsumer("cpp_puller")
    consumer.set_namesrv_addr(namesrv)
    consumer.start()
    for received in consumer.pull(topic):
        say(received.body, received.id)
    consumer.shutdown()


if __name__ == "__main__":
    {"send": send, "consume": consume, "pull": pull}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
