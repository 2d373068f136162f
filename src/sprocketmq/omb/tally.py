"""What one worker has done since its last report."""

import time
from array import array
from collections.abc import Iterable

import numpy as np

from sprocketmq.omb.histogram import Latencies
from sprocketmq.omb.plan import WorkerReport

_NS_PER_US = 1000


class Tally:
    """Counters and latencies of one interval; ``report`` returns them and begins the next."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self.phase = "setup"
        self._began = time.perf_counter()
        self._cpu_s = time.process_time()
        self._clear()

    def _clear(self) -> None:
        # Nanoseconds of acknowledged messages, and of the calls of send.
        self.publish_ns = array("q")
        self.delay_ns = array("q")
        self.sent_bytes = 0
        self.errors = 0
        self.first_error = ""
        self.received = 0
        self.received_bytes = 0
        self._end_to_end: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []

    def failed(self, error: object) -> None:
        """Count a message that was not acknowledged."""
        self.errors += 1
        if not self.first_error:
            self.first_error = f"{type(error).__name__}: {error}"

    def on_received(self, stamps_us: Iterable[int], payload_bytes: int) -> None:
        """Count one delivered batch."""
        now = time.time_ns() // _NS_PER_US
        stamps = np.asarray(stamps_us if hasattr(stamps_us, "__len__") else list(stamps_us), np.int64)
        self.received += len(stamps)
        self.received_bytes += payload_bytes
        self._end_to_end.append(now - stamps)

    def report(self, *, ready: bool = False, ended: bool = False, failure: str = "") -> WorkerReport:
        """Return the interval that ends now."""
        now, cpu = time.perf_counter(), time.process_time()
        publish, delay, end_to_end = Latencies(), Latencies(), Latencies()
        publish.record(np.frombuffer(self.publish_ns, np.int64) // _NS_PER_US)
        delay.record(np.frombuffer(self.delay_ns, np.int64) // _NS_PER_US)
        if self._end_to_end:
            end_to_end.record(np.concatenate(self._end_to_end))
        report = WorkerReport(
            worker=self._worker,
            phase=self.phase,
            elapsed_s=now - self._began,
            sent=len(self.publish_ns),
            sent_bytes=self.sent_bytes,
            send_errors=self.errors,
            first_error=self.first_error,
            received=self.received,
            received_bytes=self.received_bytes,
            publish=publish.encode(),
            publish_delay=delay.encode(),
            end_to_end=end_to_end.encode(),
            cpu_s=cpu - self._cpu_s,
            ready=ready,
            ended=ended,
            failure=failure,
        )
        self._began, self._cpu_s = now, cpu
        self._clear()
        return report


class Sent:
    """Takes the outcomes of messages that were due at ``intended_ns``: the ``OnDone`` of one burst."""

    __slots__ = ("_intended_ns", "_tally")

    def __init__(self, tally: Tally, intended_ns: int) -> None:
        self._tally = tally
        self._intended_ns = intended_ns

    def __call__(self, error: object) -> None:
        """Take an outcome."""
        if error is None:
            self._tally.publish_ns.append(time.perf_counter_ns() - self._intended_ns)
        else:
            self._tally.failed(error)

    def answered(self, result: object, error: object) -> None:  # noqa: ARG002 - the signature of callbacks
        """Take an outcome."""
        if error is None:
            self._tally.publish_ns.append(time.perf_counter_ns() - self._intended_ns)
        else:
            self._tally.failed(error)

    def delivered(self, error: object, message: object) -> None:  # noqa: ARG002 - the signature of callbacks
        """Take an outcome."""
        if error is None:
            self._tally.publish_ns.append(time.perf_counter_ns() - self._intended_ns)
        else:
            self._tally.failed(error)
