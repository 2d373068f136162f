"""`sprocketmq bench omb --driver apache` with Apache's Java client: against Apache's broker and against ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.interop import apache
from tests.interop.ours import namesrv_and_broker

from sprocketmq.omb.drivers import make_driver
from sprocketmq.omb.histogram import Latencies
from sprocketmq.omb.plan import Action, Subscription, WorkerCommand, WorkerPlan, WorkerReport

pytestmark = pytest.mark.interop

MESSAGES = 200
SIZES = (1024, 500)
TIMEOUT_S = 120.0


@pytest.fixture(params=[pytest.param("apache", marks=pytest.mark.long), "ours"])
async def namesrv(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[str]:
    """The address of a nameserver with a broker of Apache's, or of ours."""
    if request.param == "apache":
        request.getfixturevalue("apache_broker")
        yield request.getfixturevalue("apache_namesrv").address
    else:
        with namesrv_and_broker(home / "ours") as servers:
            yield servers.namesrv


async def test_a_worker_sends_receives_and_measures(namesrv: str) -> None:
    config: dict[str, object] = {"namesrv": namesrv, "jars": str(apache.jars()), "javaOptions": "-Xmx256m -XX:+UseSerialGC"}
    driver = make_driver("apache", config)
    await driver.start()
    topics = ("OmbFirst", "OmbSecond")
    await driver.create_topics(topics, 4)
    try:
        plan = WorkerPlan(
            worker="both",
            driver="apache",
            config=config,
            producers=topics,
            consumers=(Subscription(topics[0], "omb_a"), Subscription(topics[0], "omb_a"), Subscription(topics[1], "omb_b")),
            payloads=tuple(bytes(size) for size in SIZES),
            keys=("k1", "k2"),
            tags=("x",),
            rate=200.0,
        )
        reports = await followed(driver, plan)
    finally:
        await driver.delete_topics(topics)
        await driver.stop()
    assert not [report.failure or report.first_error for report in reports if report.failure or report.send_errors]
    assert reports[0].ready
    assert reports[-1].ended
    assert next(report.phase for report in reports if report.sent) == "probe"
    sent, received = sum(report.sent for report in reports), sum(report.received for report in reports)
    # Both brokers may deliver again what a member had when another one joined.
    assert received >= sent >= MESSAGES
    assert sum(report.received_bytes for report in reports) >= sum(report.sent_bytes for report in reports) >= sent * min(SIZES)
    publish, end_to_end = Latencies(), Latencies()
    for report in reports:
        publish.merge(report.publish)
        end_to_end.merge(report.end_to_end)
    assert (publish.count, end_to_end.count) == (sent, received)
    assert sum(report.cpu_s for report in reports) > 0


async def followed(driver: object, plan: WorkerPlan) -> list[WorkerReport]:
    """Run the plan: a probe, the load until enough was received, rest until all was, and the end."""
    commands: asyncio.Queue[WorkerCommand] = asyncio.Queue()
    reports: list[WorkerReport] = []
    step = "start"
    async with asyncio.timeout(TIMEOUT_S):
        async for report in driver.run_worker(plan, commands):  # type: ignore[attr-defined]
            reports.append(report)
            print(step, report.phase, report.sent, report.received)  # pytest shows it when the time is up
            sent, received = sum(one.sent for one in reports), sum(one.received for one in reports)
            if step == "start":
                step = "probe"
                commands.put_nowait(WorkerCommand(Action.PROBE, "probe"))
            elif step == "probe" and received >= len(plan.producers):
                step = "load"
                commands.put_nowait(WorkerCommand(Action.LOAD, "load"))
            elif step == "load" and received >= MESSAGES:
                step = "hold"
                commands.put_nowait(WorkerCommand(Action.HOLD, "hold"))
            elif step == "hold" and report.phase == "hold" and not report.sent and received >= sent:
                step = "stop"
                commands.put_nowait(WorkerCommand(Action.STOP, "end"))
    return reports
