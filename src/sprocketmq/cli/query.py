"""``sprocketmq query``: messages by key or id."""

import sys
from dataclasses import dataclass

from sprocketmq import sync
from sprocketmq.cli.consume import as_json_line, start_of
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, fail
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.records import ReceivedMessage


@dataclass(frozen=True)
class Options:
    """What to look for."""

    topic: str
    key: str
    count: int = 64
    since: str | None = None
    until: str | None = None
    raw: bool = False


def run(namesrv: str, options: Options, *, as_json: bool) -> int:
    """Print what is found; return 1 when nothing is. Raises ConfigError for times that are none, TopicNotFound."""
    begin_ms = _time_ms("--since", options.since, 0)
    end_ms = _time_ms("--until", options.until, 2**63 - 1)
    with sync.AdminClient(namesrv=namesrv) as admin:
        found = admin.query_by_key(options.topic, options.key, max_count=options.count, begin_ms=begin_ms, end_ms=end_ms)
        if not found:
            found = _by_place(admin, options)
    for message in found:
        sys.stdout.buffer.write(as_json_line(message) if as_json else message.body if options.raw else message.body + b"\n")
    sys.stdout.buffer.flush()
    if not found:
        fail(f"no message of topic {options.topic} with key or id {options.key}")
        return EXIT_FAILURE
    return EXIT_OK


def _by_place(admin: sync.AdminClient, options: Options) -> list[ReceivedMessage]:
    """Return the message with the broker's id, if the key is one and the message is of the topic."""
    try:
        found = admin.messages_at(options.key)
    except ConfigError:  # not such an id
        return []
    return [message for message in found if message.topic == options.topic]


def _time_ms(option: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    seconds = start_of(text, option)
    if isinstance(seconds, str):
        raise ConfigError(f"{option} takes epoch seconds or a time such as 2024-05-01T12:00:00, not {text!r}")
    return round(seconds * 1000)
