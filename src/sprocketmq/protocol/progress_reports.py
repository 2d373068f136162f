"""Reports of streaming queries about their progress: one small JSON object per message of a reporting topic.

A query that was given such a topic writes them; the dashboard reads them. They hold numbers and names, no messages::

    {"version": 1, "query": "orders-to-lake", "run": "8f2c...", "host": "driver-1", "state": "running", "started_ms": ..., "at_ms": ...,
     "batches": 12, "read": 48000, "lag": 350, "queues": 8,
     "topics": [{"topic": "orders", "queues": 8, "position": 48000, "end": 48350}],
     "slowest": [{"topic": "orders", "broker": "broker-a", "queue": 3, "position": 5990, "end": 6090}]}

``read`` counts since the ``run`` began; ``position`` is the sum of the offsets before which everything is in the sink.
"""

from typing import Literal

import msgspec

from sprocketmq.errors import RemoteProtocolError

VERSION = 1
# The reporting topic of a dashboard that is not told another one.
PROGRESS_TOPIC = "spark-progress"
# Larger messages are no reports. One of MAX_TOPICS topics and MAX_SLOWEST queues has at most 20 KiB.
MAX_REPORT_BYTES = 64 << 10
MAX_TOPICS, MAX_SLOWEST = 64, 16
MAX_NAME = 200


class TopicProgress(msgspec.Struct, frozen=True):
    """The queues of one topic together: what was read, and where they end."""

    topic: str
    queues: int
    position: int
    end: int


class QueuePlace(msgspec.Struct, frozen=True):
    """One queue."""

    topic: str
    broker: str
    queue: int
    position: int
    end: int


class ProgressReport(msgspec.Struct, frozen=True):
    """The progress of one query at ``at_ms``, wall-clock milliseconds of its driver."""

    query: str
    run: str
    host: str
    started_ms: int
    at_ms: int
    batches: int
    read: int
    lag: int
    queues: int
    topics: list[TopicProgress]
    slowest: list[QueuePlace]
    state: Literal["running", "stopped"] = "running"
    version: int = VERSION

    def encode(self) -> bytes:
        """Return the report as JSON."""
        return msgspec.json.encode(self)


def decode_report(body: bytes) -> ProgressReport:
    """Return the report in a message's body. Raises RemoteProtocolError for anything else."""
    if len(body) > MAX_REPORT_BYTES:
        raise RemoteProtocolError(f"a report has at most {MAX_REPORT_BYTES} bytes, not {len(body)}")
    try:
        return msgspec.json.decode(body, type=ProgressReport)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        raise RemoteProtocolError(f"the message is not a progress report: {e}") from None
