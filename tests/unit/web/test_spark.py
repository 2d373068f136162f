"""What the page Spark asks for."""

import msgspec

from sprocketmq import Message
from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.protocol.progress_reports import PROGRESS_TOPIC, ProgressReport, QueuePlace, TopicProgress
from sprocketmq.web.api.spark import queries


class Later:
    """A clock that is ahead."""

    def __init__(self, seconds):
        self._seconds = seconds

    monotonic = SYSTEM_CLOCK.monotonic

    def time_ms(self):
        return SYSTEM_CLOCK.time_ms() + self._seconds * 1000


def report(query="q", **fields):
    first = {
        "run": "r",
        "host": "h",
        "started_ms": 0,
        "at_ms": 0,
        "batches": 1,
        "read": 0,
        "lag": 0,
        "queues": 1,
        "topics": [],
        "slowest": [],
    }
    return ProgressReport(query, **(first | fields))


async def test_queries_are_shown_with_rates_and_the_one_farthest_behind_first(admin, producer):
    assert (await queries(admin))["missing"]
    await admin.create_topic(PROGRESS_TOPIC, queues=1)
    assert (await queries(admin))["queries"] == []
    for made in (
        report("near", lag=1),
        report("far", at_ms=0, read=100, lag=900),
        report("far", at_ms=10_000, read=300, lag=800, slowest=[QueuePlace("t", "b", 3, 10, 60)], topics=[TopicProgress("t", 8, 10, 60)]),
    ):
        await producer.send(Message(PROGRESS_TOPIC, made.encode()))
    await producer.send(Message(PROGRESS_TOPIC, b"<script>"))
    found = await queries(admin)
    far, near = found["queries"]
    assert (far["query"], far["lag"], far["read_rate"], far["added_rate"], far["catch_up_ms"]) == ("far", 800, 20.0, 10.0, 80_000)
    assert [lag for _, lag in far["history"]] == [900, 800]
    assert (far["topics"][0]["lag"], far["slowest"][0]["queue"], far["state"]) == (50, 3, "running")
    assert (near["query"], near["read_rate"], near["catch_up_ms"]) == ("near", None, None)
    assert (found["invalid"], found["cut"]) == (1, None)
    assert {one["state"] for one in (await queries(admin, clock=Later(120)))["queries"]} == {"silent"}
    assert (await queries(admin, clock=Later(7200)))["queries"] == []


async def test_a_query_that_stopped_says_so_and_what_grows_has_no_end(admin, producer):
    await admin.create_topic(PROGRESS_TOPIC, queues=1)
    for made in (report("grows", at_ms=0, lag=5), report("grows", at_ms=1000, read=5, lag=50), report("done", state="stopped")):
        await producer.send(Message(PROGRESS_TOPIC, made.encode()))
    grows, done = (await queries(admin))["queries"]
    assert (grows["catch_up_ms"], done["state"], done["catch_up_ms"]) == (None, "stopped", 0)


async def test_a_flood_of_names_and_forged_numbers_is_bounded(admin, producer):
    await admin.create_topic(PROGRESS_TOPIC, queues=1)
    flood = [Message(PROGRESS_TOPIC, report(f"q{n}").encode()) for n in range(150)]
    forged = msgspec.json.encode({**msgspec.to_builtins(report("x")), "lag": "many"})
    await producer.send_batch([Message(PROGRESS_TOPIC, forged), *flood])
    found = await queries(admin)
    assert (len(found["queries"]), found["invalid"]) == (100, 1)
