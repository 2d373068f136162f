"""The thread in which the log is flushed. A simulation replaces it by an event loop (``testing/rig``)."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol


class FlushWorker(Protocol):
    """Runs one job repeatedly, outside the event loop that requests it."""

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        ...

    def start(self, job: Callable[[], None], ended: Callable[[BaseException | None], None]) -> None:
        """Start; ``ended`` is called once at the end of the thread, with the error when ``job`` raised one, else None."""
        ...

    def ask(self) -> None:
        """Run the job once more after the current one."""
        ...

    def end(self) -> None:
        """End after the jobs that were asked for."""
        ...

    def join(self) -> None:
        """Return when it has ended."""
        ...


class FlushThread:
    """A daemon thread as a FlushWorker."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None], ended: Callable[[BaseException | None], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(job, ended), name="sprocketmq-flush", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        self._jobs.put(True)

    def end(self) -> None:
        self._jobs.put(False)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _run(self, job: Callable[[], None], ended: Callable[[BaseException | None], None]) -> None:
        try:
            while self._jobs.get():
                job()
        except BaseException as e:  # noqa: BLE001 - whoever waits for the job is told of every end
            ended(e)
        else:
            ended(None)
