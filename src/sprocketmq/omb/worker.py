"""A worker process: ``python -m sprocketmq.omb.worker`` reads a plan and commands from its input and writes reports (``plan.py``)."""

import asyncio
import contextlib
import os
import signal
import sys

from sprocketmq.net.loops import new_event_loop
from sprocketmq.omb.driver import Driver, LoadingDriver, OmbConsumer, OmbProducer
from sprocketmq.omb.drivers import make_driver
from sprocketmq.omb.plan import Action, WorkerCommand, WorkerPlan, WorkerReport, from_line, to_line
from sprocketmq.omb.sending import Load
from sprocketmq.omb.tally import Tally

# The plan holds the payloads, in Base64.
MAX_LINE_BYTES = 128 << 20
# How long answers are awaited at the end.
DRAIN_S = 10.0


class Reports:
    """The reports' way out: the process's own standard output, which nothing else may write to."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def write(self, report: WorkerReport) -> None:
        """Write one line; a reader that is gone also ends the input, which is noticed there."""
        line = to_line(report)
        with contextlib.suppress(BrokenPipeError):
            while line:
                line = line[self._file.write(line) :]


class PythonWorker:
    """Carries out the plan with a driver whose client runs in this process."""

    def __init__(self, plan: WorkerPlan, driver: Driver, commands: "asyncio.Queue[WorkerCommand]", reports: Reports) -> None:
        self._plan = plan
        self._driver = driver
        self._commands = commands
        self._reports = reports
        self._tally = Tally(plan.worker)
        self._producers: list[OmbProducer] = []
        self._consumers: list[OmbConsumer] = []

    async def run(self) -> None:
        """Connect, follow the commands, close."""
        await self._driver.start()
        try:
            for one in self._plan.consumers:
                self._consumers.append(await self._driver.consumer(one.topic, one.name, self._tally.on_received))
            for topic in self._plan.producers:
                self._producers.append(await self._driver.producer(topic))
            load = Load(self._plan, self._producers, self._tally)
            self._reports.write(self._tally.report(ready=True))
            sending = asyncio.ensure_future(load.run())
            try:
                await self._follow(load, sending)
            finally:
                sending.cancel()
                await asyncio.wait([sending])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    for producer in self._producers:
                        await producer.flush()
        finally:
            await self._close()
        self._reports.write(self._tally.report(ended=True))

    async def _follow(self, load: Load, sending: "asyncio.Task[None]") -> None:
        loop = asyncio.get_running_loop()
        next_report = loop.time() + self._plan.report_s
        while True:
            command = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_report):
                    command = await self._commands.get()
            if sending.done():
                sending.result()
            self._reports.write(self._tally.report())
            next_report = loop.time() + self._plan.report_s
            if command is None:
                continue
            self._tally.phase = command.phase or self._tally.phase
            match command.action:
                case Action.PROBE:
                    await load.probe()
                case Action.LOAD:
                    load.begin()
                case Action.HOLD:
                    load.hold()
                case Action.PAUSE:
                    for consumer in self._consumers:
                        consumer.pause()
                case Action.RESUME:
                    for consumer in self._consumers:
                        consumer.resume()
                case Action.STOP:
                    return
                case Action.MARK:
                    pass

    async def _close(self) -> None:
        for producer in self._producers:
            await producer.close()
        for consumer in self._consumers:
            await consumer.close()
        await self._driver.stop()


async def _read_commands(reader: asyncio.StreamReader, commands: "asyncio.Queue[WorkerCommand]") -> None:
    """Pass on commands; the end of the input stops the worker, so that none outlives its coordinator."""
    while line := await reader.readline():
        commands.put_nowait(from_line(line, WorkerCommand))
    commands.put_nowait(WorkerCommand(Action.STOP))


async def work(reports: Reports) -> int:
    """Follow the plan on standard input; return the exit code."""
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = await reader.readline()
    if not line:
        return 0
    plan = from_line(line, WorkerPlan)
    commands: asyncio.Queue[WorkerCommand] = asyncio.Queue()
    reading = asyncio.ensure_future(_read_commands(reader, commands))
    try:
        driver = make_driver(plan.driver, plan.config)
        if isinstance(driver, LoadingDriver):
            async for report in driver.run_worker(plan, commands):
                reports.write(report)
        else:
            await PythonWorker(plan, driver, commands, reports).run()
    except Exception as e:  # noqa: BLE001 - the coordinator says it
        reports.write(WorkerReport(worker=plan.worker, failure=f"{type(e).__name__}: {e}"))
        return 1
    finally:
        reading.cancel()
    return 0


def main() -> int:
    """Run the worker. Ctrl-C is for the coordinator, which then ends the input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work(Reports()))


if __name__ == "__main__":
    sys.exit(main())
