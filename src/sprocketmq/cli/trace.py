"""``sprocketmq trace``: the life of a message as a time line."""

import sys
import time
from dataclasses import asdict, dataclass

from sprocketmq import sync
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, fail
from sprocketmq.cli.output import clean, print_json, print_table
from sprocketmq.cli.query import time_ms
from sprocketmq.cli.target import Target
from sprocketmq.client.admin import MessageTrace
from sprocketmq.client.admin.traces import TracedDelivery
from sprocketmq.errors import TopicNotFound

BAR_WIDTH = 32
# Times beyond are shown as numbers: anybody may write traces, and the C library refuses some.
_LAST_MS = 253_402_300_799_000


@dataclass(frozen=True)
class TraceOptions:
    """The message to trace, and where to look for its trace."""

    msg_id: str
    topic: str | None = None
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True)
class Event:
    """One line of the time line: what happened, from when to when (wall-clock milliseconds)."""

    start_ms: int
    end_ms: int
    what: str
    group: str
    client: str
    took: str


def run(target: Target, options: TraceOptions, *, as_json: bool) -> int:
    """Print the time line; return 1 when the message has no trace. Raises ConfigError."""
    begin_ms = time_ms("--since", options.since, 0)
    end_ms = time_ms("--until", options.until, 2**63 - 1)
    try:
        with sync.AdminClient(**target.options) as admin:
            trace = admin.trace(options.msg_id, topic=options.topic, begin_ms=begin_ms, end_ms=end_ms)
    except TopicNotFound as e:
        fail(f"nothing is traced here: there is no topic {e.topic}, which the first client with traces on creates (as produce --trace)")
        return EXIT_FAILURE
    if as_json:
        print_json({**asdict(trace), "topic": trace.topic})
    elif trace.found:
        _print(trace)
    if not trace.found:
        fail(f"no trace of message {options.msg_id} in topic {trace.trace_topic}: clients with tracing on write it some seconds later")
        return EXIT_FAILURE
    return EXIT_OK


def _print(trace: MessageTrace) -> None:
    print(_heading(trace))
    happened = events(trace)
    first, last = min(event.start_ms for event in happened), max(event.end_ms for event in happened)
    on_terminal = sys.stdout.isatty()
    columns = ["time", "after", "what", "group", "client", "took"]
    rows = []
    for event in happened:
        row = [_clock(event.start_ms), f"+{event.start_ms - first} ms", event.what, event.group, event.client, event.took]
        if on_terminal:
            row.insert(2, bar(event, first, last))
        rows.append([clean(cell) for cell in row])
    if on_terminal:
        columns.insert(2, "")
    print_table(columns, rows)


def _heading(trace: MessageTrace) -> str:
    text = f"message {trace.msg_id}"
    if trace.topic:
        text += f" of topic {trace.topic}"
    if trace.sends:
        sent = trace.sends[0]
        text += f", {sent.body_bytes} bytes"
        text += f", tag {sent.tags}" if sent.tags else ""
        text += f", keys {sent.keys}" if sent.keys else ""
        text += f", {sent.message_type.lower()}" if sent.message_type != "NORMAL" else ""
    return clean(text)


def events(trace: MessageTrace) -> list[Event]:
    """Return everything that happened to a message, in the order of time."""
    happened = [
        Event(
            send.time_ms,
            send.time_ms + max(0, send.cost_ms),
            f"{'sent to' if send.success else 'not stored safely by'} {send.store_host}",
            send.group,
            send.client_host,
            f"{send.cost_ms} ms",
        )
        for send in trace.sends
    ]
    for delivery in trace.deliveries:
        start = delivery.time_ms if delivery.time_ms is not None else delivery.end_ms
        if start is None:
            continue
        end = start if delivery.end_ms is None else max(start, delivery.end_ms)
        took = f"{delivery.cost_ms} ms" if delivery.cost_ms is not None else "-"
        happened.append(Event(start, end, _outcome(delivery), delivery.group, delivery.client_host, took))
    for transaction in trace.transactions:
        what = f"transaction {transaction.state.lower()}{' (checked)' if transaction.from_check else ''}"
        happened.append(Event(transaction.time_ms, transaction.time_ms, what, transaction.group, transaction.client_host, "-"))
    for recall in trace.recalls:
        what = "recalled" if recall.success else "recall failed"
        happened.append(Event(recall.time_ms, recall.time_ms, what, recall.group, recall.client_host, "-"))
    return sorted(happened, key=lambda event: (event.start_ms, event.end_ms))


def _outcome(delivery: TracedDelivery) -> str:
    what = f"delivery {delivery.retry_times + 1}" if delivery.retry_times is not None else "delivery"
    if delivery.success is None:
        return f"{what}: not ended, or its end was not traced"
    if delivery.success:
        return f"{what}: consumed"
    return f"{what}: failed ({(delivery.outcome or '').lower().replace('_', ' ')})"


def bar(event: Event, first_ms: int, last_ms: int) -> str:
    """Return a line of ``BAR_WIDTH`` characters that shows when, between the first and the last moment, the event was."""
    span = max(1, last_ms - first_ms)
    start = min(BAR_WIDTH - 1, (event.start_ms - first_ms) * BAR_WIDTH // span)
    stop = max(start + 1, min(BAR_WIDTH, -(-(event.end_ms - first_ms) * BAR_WIDTH // span)))
    return "·" * start + "█" * (stop - start) + "·" * (BAR_WIDTH - stop)


def _clock(ms: int) -> str:
    if not 0 < ms < _LAST_MS:
        return str(ms)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(ms // 1000))}.{ms % 1000:03d}"
