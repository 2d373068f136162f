"""``sprocketmq query``: messages by key, id, tag or offset."""

import sys
from dataclasses import dataclass

from sprocketmq import sync
from sprocketmq.cli.consume import as_json_line, seconds_of
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, fail
from sprocketmq.cli.group import queue_with
from sprocketmq.cli.target import Target
from sprocketmq.errors import ConfigError, NotRocketMQ, RetriableError
from sprocketmq.protocol.records import ReceivedMessage


@dataclass(frozen=True)
class QueryOptions:
    """What to look for: a key or an id, a tag, or the message at an offset of a queue."""

    topic: str
    key: str | None = None
    count: int = 64
    since: str | None = None
    until: str | None = None
    raw: bool = False
    tag: str | None = None
    queue: int | None = None
    offset: int | None = None
    broker: str | None = None


def run(target: Target, options: QueryOptions, *, as_json: bool) -> int:
    """Print the messages found; return 1 if there are none. Raises ConfigError for contradictory options, TopicNotFound."""
    asked = [what for what in (options.key, options.tag, options.offset) if what is not None]
    if len(asked) != 1 or (options.offset is None) != (options.queue is None):
        raise ConfigError("ask for one thing: a key or an id, --tag TAG, or --queue N with --offset N")
    if options.broker is not None and options.queue is None:
        raise ConfigError("--broker selects the broker of a queue: add --queue N and --offset N")
    if options.raw and as_json:
        raise ConfigError("--raw and --json exclude each other: bodies are written unchanged, or as JSON")
    begin_ms = time_ms("--since", options.since, 0)
    end_ms = time_ms("--until", options.until, 2**63 - 1)
    topic = options.topic
    with sync.AdminClient(**target.options) as admin:
        if options.offset is not None and options.queue is not None:
            message = admin.message_at(queue_with(admin.queues(topic), options.queue, options.broker), options.offset)
            found = [message] if message is not None else []
            what = f"at offset {options.offset} of queue {options.queue}"
        elif options.tag is not None:
            found = admin.query_by_tag(topic, options.tag, max_count=options.count, begin_ms=begin_ms, end_ms=end_ms)
            what = f"with tag {options.tag}"
        else:
            key = options.key or ""
            found = admin.query_by_key(topic, key, max_count=options.count, begin_ms=begin_ms, end_ms=end_ms)
            found = found or _by_id(admin, topic, key)
            what = f"with key or id {key}"
    for message in found:
        sys.stdout.buffer.write(as_json_line(message) if as_json else message.body if options.raw else message.body + b"\n")
    sys.stdout.buffer.flush()
    if not found:
        fail(f"no message of topic {topic} {what}")
        return EXIT_FAILURE
    return EXIT_OK


def _by_id(admin: sync.AdminClient, topic: str, msg_id: str) -> list[ReceivedMessage]:
    """Return the messages with an id, the broker's or the producer's, if ``msg_id`` is one."""
    try:
        found = [message for message in admin.messages_at(msg_id) if message.topic == topic]
    except (ConfigError, RetriableError, NotRocketMQ):  # not a broker's id, or that broker is unreachable
        found = []
    return found or admin.query_by_unique_key(topic, msg_id)


def time_ms(option: str, text: str | None, default: int) -> int:
    """Return a time option in milliseconds, or ``default`` when it is not given. Raises ConfigError for an invalid time."""
    if text is None:
        return default
    return round(seconds_of(text, option) * 1000)
