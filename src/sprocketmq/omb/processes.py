"""The worker processes of a run, as the coordinating process sees them."""

import asyncio
import contextlib
import signal
import sys
from collections import deque
from collections.abc import Callable

import msgspec

from sprocketmq.errors import FatalError
from sprocketmq.omb.plan import Action, WorkerCommand, WorkerPlan, WorkerReport, from_line, to_line

# A report has three histograms, of up to 100 KB each.
MAX_REPORT_BYTES = 4 << 20
STOP_TIMEOUT_S = 30.0
_KEPT_LINES = 5


class WorkerProcess:
    """One worker: started by ``start``; ``on_report`` gets its reports, ``failure`` says why it ended early."""

    def __init__(self, plan: WorkerPlan, on_report: Callable[[WorkerReport], None]) -> None:
        self.plan = plan
        self.ready = False
        self.ended = False
        self.failure: FatalError | None = None
        self._on_report = on_report
        self._errors: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and give it its plan. A session of its own keeps Ctrl-C from it."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sprocketmq.omb.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_REPORT_BYTES,
            start_new_session=True,
        )
        self._following = asyncio.ensure_future(self._follow(self._process))
        assert self._process.stdin is not None
        self._process.stdin.write(to_line(self.plan))
        with contextlib.suppress(ConnectionError):  # ``_follow`` says why it is gone
            await self._process.stdin.drain()

    def tell(self, action: Action, phase: str = "") -> None:
        """Send a command; a worker that is gone gets none."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(to_line(WorkerCommand(action, phase)))

    async def stop(self) -> None:
        """End the input and wait for the process to end; kill it after 30 s."""
        if self._process is None or self._following is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.wait([self._following])
        except TimeoutError:
            self.failure = self.failure or FatalError(f"{self.plan.worker} did not stop within {STOP_TIMEOUT_S:.0f} s and was killed")
            self.kill()
            await asyncio.wait([self._following])

    def kill(self) -> None:
        """Kill the process, by its id."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.ensure_future(self._keep_errors(process.stderr))
        try:
            while line := await process.stdout.readline():
                report = from_line(line, WorkerReport)
                if report.failure:
                    self.failure = FatalError(f"{self.plan.worker}: {report.failure}")
                self.ready = self.ready or report.ready
                self.ended = self.ended or report.ended
                self._on_report(report)
        except (msgspec.DecodeError, ValueError) as e:
            self.failure = FatalError(f"{self.plan.worker} wrote a line that is not a report ({e}): its driver must not print")
            process.kill()
        code = await process.wait()
        await asyncio.wait([errors])
        if not self.ended and self.failure is None:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            said = f"; the last lines it wrote: {' / '.join(self._errors)}" if self._errors else ""
            self.failure = FatalError(f"worker {self.plan.worker} was ended {how}, so the run cannot continue{said}")
        self._on_report(WorkerReport(worker=self.plan.worker, phase="gone"))

    async def _keep_errors(self, stream: asyncio.StreamReader) -> None:
        """Keep the last lines of standard error, cutting what is longer than a line should be."""
        rest = b""
        while data := await stream.read(4096):
            *lines, rest = (rest + data).split(b"\n")
            self._errors.extend(line.decode(errors="replace").strip() for line in lines if line.strip())
            rest = rest[-4096:]
        if rest.strip():
            self._errors.append(rest.decode(errors="replace").strip())
