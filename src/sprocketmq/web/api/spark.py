"""The page Spark: progress and lag of streaming queries that report to a topic (option ``progressTopic``)."""

from typing import Any

from sprocketmq.client import AdminClient
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import ProtocolError, TopicNotFound
from sprocketmq.protocol.progress_reports import PROGRESS_TOPIC, ProgressReport, decode_report
from sprocketmq.web.api.message_views import Json, cut
from sprocketmq.web.api.messages import MAX_SEARCHED_BYTES, SEARCH_TIMEOUT_S
from sprocketmq.web.calls import Call, Route

HISTORY_MS = 3_600_000
# A query that runs reports every ten seconds.
SILENT_AFTER_MS = 60_000
# The window of the rates.
RATE_MS = 60_000
MAX_REPORTS = 4000
MAX_QUERIES, MAX_POINTS = 100, 240


async def queries(admin: AdminClient, topic: str = PROGRESS_TOPIC, clock: Clock = SYSTEM_CLOCK) -> Json:
    """Return the queries that have reported in the last hour, those farthest behind first, with their lag over time.

    Anyone who may send to the topic can write reports, so numbers are only displayed. ``missing`` when there is no such topic.
    """
    now_ms = clock.time_ms()
    try:
        found = await admin.search(
            topic,
            begin_ms=now_ms - HISTORY_MS,
            max_count=MAX_REPORTS,
            max_bytes=MAX_SEARCHED_BYTES,
            timeout_s=SEARCH_TIMEOUT_S,
        )
    except TopicNotFound:
        return {"topic": cut(topic), "missing": True, "queries": [], "invalid": 0, "cut": None, "read": 0, "unreachable": []}
    by_query: dict[str, list[tuple[int, ProgressReport]]] = {}
    invalid = 0
    for message in reversed(found.messages):
        try:
            report = decode_report(message.body)
        except ProtocolError:
            invalid += 1
            continue
        if len(by_query) < MAX_QUERIES or report.query in by_query:
            by_query.setdefault(report.query, []).append((message.store_timestamp_ms, report))
    shown = [_query(reports, now_ms) for reports in by_query.values()]
    shown.sort(key=lambda one: (-one["lag"], one["query"]))
    return {
        "topic": cut(topic),
        "missing": False,
        "queries": shown,
        "invalid": invalid,
        "cut": found.cut,
        "read": found.scanned,
        "unreachable": list(found.unreachable),
    }


def _query(reports: list[tuple[int, ProgressReport]], now_ms: int) -> Json:
    """Return the view of one query; ``reports`` are in the order of their store times, by the brokers' clocks."""
    at_ms, newest = reports[-1]
    read_rate, added_rate = _rates(reports)
    closing = None if read_rate is None or added_rate is None else read_rate - added_rate
    step = max(1, -(-len(reports) // MAX_POINTS))
    points = reports[::-1][::step][::-1]
    silent = newest.state == "running" and now_ms - at_ms > SILENT_AFTER_MS
    return {
        "query": cut(newest.query),
        "host": cut(newest.host),
        "state": "silent" if silent else newest.state,
        "at_ms": at_ms,
        "started_ms": newest.started_ms,
        "batches": newest.batches,
        "read": newest.read,
        "lag": newest.lag,
        "queues": newest.queues,
        "read_rate": read_rate,
        "added_rate": added_rate,
        "catch_up_ms": 0 if newest.lag <= 0 else round(newest.lag / closing * 1000) if closing is not None and closing > 0 else None,
        "history": [[stored_ms, report.lag] for stored_ms, report in points],
        "topics": [_place(topic, topic=cut(topic.topic), queues=topic.queues) for topic in newest.topics[:64]],
        "slowest": [_place(place, topic=cut(place.topic), broker=cut(place.broker), queue=place.queue) for place in newest.slowest[:16]],
    }


def _place(place: Any, **names: object) -> Json:
    return {**names, "position": place.position, "end": place.end, "lag": max(0, place.end - place.position)}


def _rates(reports: list[tuple[int, ProgressReport]]) -> tuple[float | None, float | None]:
    """Return messages read and messages added per second, over the last RATE_MS of the newest run; None while it has one report."""
    newest = reports[-1][1]
    recent = [report for _, report in reports if report.run == newest.run and newest.at_ms - report.at_ms <= RATE_MS]
    seconds = (newest.at_ms - recent[0].at_ms) / 1000
    if seconds <= 0:
        return None, None
    read = newest.read - recent[0].read
    return max(0.0, read / seconds), max(0.0, (read + newest.lag - recent[0].lag) / seconds)


async def queries_route(call: Call) -> object:
    """Answer with the queries that report to a topic; viewers at the same time share one search."""
    topic = call.text("topic", PROGRESS_TOPIC) or PROGRESS_TOPIC

    async def load() -> Json:
        return await queries(await call.admin(), topic)

    return await call.cached(f"spark: {topic}", 2.0, load)


ROUTES = (Route("GET", "/api/spark", queries_route),)
