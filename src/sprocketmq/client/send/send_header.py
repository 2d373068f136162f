"""The header of a send request (V2) as JSON text.

Its front part depends on group, topic and queue only and is made once for each queue; a message adds five fields. No dict is built for a
message.
"""

import msgspec

from sprocketmq.client.routes import DEFAULT_TOPIC_QUEUES
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.protocol.names import DEFAULT_TOPIC

_json = msgspec.json.encode


def header_prefix(group: str, queue: MessageQueue, *, batch: bool) -> bytes:
    """Return the part of the header that is the same for every message of ``group`` to ``queue``."""
    return b'{"a":%b,"b":%b,"c":"%b","d":"%d","e":"%d","j":"0","k":"false","m":"%b","n":%b,"f":"' % (
        _json(group),
        _json(queue.topic),
        DEFAULT_TOPIC.encode(),
        DEFAULT_TOPIC_QUEUES,
        queue.queue_id,
        b"true" if batch else b"false",
        _json(queue.broker_name),
    )


# ``HEADER % (prefix, sys_flag, born_timestamp_ms, flag, properties)`` is the whole header; ``properties`` is the property string as a JSON
# string.
HEADER = b'%b%d","g":"%d","h":"%d","i":%b}'
