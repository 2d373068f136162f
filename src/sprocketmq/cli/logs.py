"""Where the log lines of serving verbs go: standard error or a file that rotates, as text or as JSON, written by a thread.

Logging never waits for a disk or a reader: a record is formatted and put into a bounded queue. Lines that find the queue full, or
cannot be written, are dropped and counted, and one line reports their number when lines can be written again.
"""

import contextlib
import logging
import logging.handlers
import os
import queue
import select
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Protocol

import msgspec

from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import ConfigError
from sprocketmq.events import escaped, text_of

log = logging.getLogger(__name__)

# Lines that wait for the disk or a reader; with values of at most 1,000 characters they are a few MiB.
MAX_WAITING = 4_096
# Interval of reports while lines are dropped continuously.
TELL_INTERVAL_S = 10.0
# How long the end of the process waits until the last lines are written.
CLOSE_TIMEOUT_S = 2.0
# Linux reports a pipe as writable when it has room for so many bytes: a write of that length does not block.
PIPE_BUF = getattr(select, "PIPE_BUF", 512)
_STDERR = 2
_POLL_S = 0.2

# Keys of a JSON line that no event may use as a field.
JSON_KEYS = ("time", "level", "process", "logger", "event", "message", "trace")


@dataclass(frozen=True)
class LogOptions:
    """The log options of a serving verb. ``process`` is named in each line, "" for none.

    A file is rotated when it reaches ``max_bytes``, and ``backups`` earlier ones are kept; with 0 for either it only grows.
    """

    level: str = "warning"
    format: str = "text"
    file: Path | None = None
    max_bytes: int = 64 << 20
    backups: int = 5
    process: str = ""


class TextFormatter(logging.Formatter):
    """``2026-11-23 10:15:00,123 WARNING sprocketmq.broker.server: MESSAGE``, on one line but for tracebacks."""

    def __init__(self, process: str = "") -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._prefix = f"{process}: " if process else ""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = escaped(record.message)
        return self._prefix + super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: the time in UTC, the level, the logger, and an event's name and fields, or the message of other lines."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        line: dict[str, object] = {"time": f"{time}Z", "level": record.levelname, **self._process, "logger": record.name}
        if name := getattr(record, "event", None):
            line |= {"event": name, **getattr(record, "fields", {})}
        else:
            line["message"] = record.getMessage()
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class Output(Protocol):
    """Writes lines in the thread of a LogWriter. ``write`` raises OSError for a line that is not written."""

    def write(self, line: str, give_up: threading.Event) -> None: ...

    def reopen(self) -> None: ...

    def close(self) -> None: ...


class StderrOutput:
    """Standard error. A pipe that nobody reads holds up ``write`` until it is read, or until ``give_up`` is set.

    It writes to the descriptor: a thread that is blocked in ``sys.stderr`` would hold its lock, and Python aborts at exit.
    """

    def __init__(self, descriptor: int = _STDERR) -> None:
        self._descriptor = descriptor

    def write(self, line: str, give_up: threading.Event) -> None:
        data = memoryview(f"{line}\n".encode(errors="backslashreplace"))
        while data:
            while not takes_text(self._descriptor, timeout_s=_POLL_S):
                if give_up.is_set():
                    raise BlockingIOError("nobody reads standard error")
            with contextlib.suppress(BlockingIOError):  # another process with the same pipe filled it
                data = data[os.write(self._descriptor, data[:PIPE_BUF]) :]

    def reopen(self) -> None:
        """Nothing to do: standard error belongs to the process that started this one."""

    def close(self) -> None:
        """Leave standard error open."""


class FileOutput(logging.handlers.RotatingFileHandler):
    """A file that is rotated by size and can be opened again. Raises ConfigError when it cannot be opened at first."""

    def __init__(self, path: Path, max_bytes: int, backups: int) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(path, maxBytes=max_bytes if backups else 0, backupCount=backups, encoding="utf-8", errors="backslashreplace")
        except OSError as e:
            raise ConfigError(f"the log file {path} cannot be written: {e.strerror or e}; name another one (--log-file)") from None
        self._failed = False

    def write(self, line: str, give_up: threading.Event) -> None:  # noqa: ARG002 - a file takes a line or refuses it
        begin = "\n" if self._failed and self._ends_within_a_line() else ""
        self.emit(logging.makeLogRecord({"msg": begin + line}))
        self._failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - the name is logging's
        """Raise the error that is being handled. The next line opens the file again, without what its buffer could not write."""
        self._failed = True
        self._close_stream()
        raise  # noqa: PLE0704 - called while an exception is handled

    def reopen(self) -> None:
        """Open the file at its path, as after it was renamed."""
        self._close_stream()
        with contextlib.suppress(OSError):  # the next line tries again
            self.stream = self._open()

    def _close_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()

    def _ends_within_a_line(self) -> bool:
        try:
            with open(self.baseFilename, "rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
        except OSError:  # empty, not there, or no regular file
            return False


class LogWriter(logging.Handler):
    """Formats records, and hands them to a thread that writes them to ``output``; logging never waits.

    ``dropped`` counts the lines that found MAX_WAITING others waiting, or could not be written.
    """

    def __init__(self, output: Output, *, max_waiting: int = MAX_WAITING) -> None:
        super().__init__()
        self.dropped = 0
        self._unsaid = 0
        self._why = ""
        self._told = SYSTEM_CLOCK.monotonic()
        self._output = output
        self._max_waiting = max_waiting
        # A signal handler may put into it, also while this thread does so.
        self._lines: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        self._reopen = False  # no Event: its lock would stop a signal handler that interrupts another one
        self._ending = threading.Event()
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sprocketmq-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop it."""
        try:
            line = self.format(record)
        except Exception as e:  # noqa: BLE001 - a line with wrong arguments harms nobody else
            line = f"a log line of {record.name} cannot be formatted: {record.msg!r}: {e!r}"
        self.put(line)

    def put(self, line: str) -> None:
        """Queue a line that is formatted already, or drop it."""
        if self._lines.qsize() >= self._max_waiting:
            self._drop("lines are written faster than their reader or the disk takes them")
        else:
            self._lines.put(line)

    def reopen(self) -> None:
        """Open the file again; a signal handler may call this."""
        self._reopen = True
        self._lines.put(None)

    def flush(self) -> None:
        """Wait until the lines before this call are written, for up to CLOSE_TIMEOUT_S."""
        if not self._ending.is_set():
            done = threading.Event()
            self._lines.put(done)
            done.wait(CLOSE_TIMEOUT_S)

    def close(self) -> None:
        """Write the lines that wait, within CLOSE_TIMEOUT_S, and end the thread."""
        super().close()
        if self._ending.is_set():
            return
        self._ending.set()
        self._lines.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        self._give_up.set()
        self._thread.join(2 * _POLL_S)  # a thread that is blocked by a disk is abandoned

    def _drop(self, why: str) -> None:
        with self.lock or contextlib.nullcontext():
            self.dropped += 1
            self._unsaid += 1
            self._why = why

    def _run(self) -> None:
        works = True
        while not (self._ending.is_set() and self._lines.empty()) and not self._give_up.is_set():
            line = self._lines.get()
            if self._reopen:
                self._reopen = False
                self._output.reopen()
            if isinstance(line, threading.Event):
                line.set()
            elif line is not None:
                works = self._written(line)
            if works and self._unsaid and (self._lines.empty() or SYSTEM_CLOCK.monotonic() >= self._told + TELL_INTERVAL_S):
                self._tell()
        self._output.close()

    def _written(self, line: str) -> bool:
        try:
            self._output.write(line, self._give_up)
        except OSError as e:
            self._drop(e.strerror or str(e))
            return False
        return True

    def _tell(self) -> None:
        """Report how many lines were dropped, now that lines are written again."""
        self._told = SYSTEM_CLOCK.monotonic()
        with self.lock or contextlib.nullcontext():
            count, self._unsaid = self._unsaid, 0
        fields = {"count": count, "reason": self._why}
        record = log.makeRecord(log.name, logging.WARNING, "", 0, text_of("log_lines_dropped", fields), (), None)
        record.event, record.fields = "log_lines_dropped", fields
        if not self._written(self.format(record)):
            with self.lock or contextlib.nullcontext():
                self._unsaid += count - 1


@contextlib.contextmanager
def logging_to(options: LogOptions) -> Iterator[LogWriter]:
    """Log as ``options`` say, until the end of the block; SIGHUP opens the file again. Raises ConfigError for a file that cannot be opened.

    A SIGHUP because the terminal was closed ends the process as SIGTERM does.
    """
    output = StderrOutput() if options.file is None else FileOutput(options.file, options.max_bytes, options.backups)
    writer = LogWriter(output)
    writer.setFormatter(JsonFormatter(options.process) if options.format == "json" else TextFormatter(options.process))
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [writer]
    root.setLevel(options.level.upper())
    try:
        with _on_hangup(writer.reopen):
            yield writer
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        writer.close()


@contextlib.contextmanager
def _on_hangup(reopen: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    had_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and os.isatty(_STDERR)

    def hung_up(_number: int, _frame: FrameType | None) -> None:
        if had_terminal and not os.isatty(_STDERR):
            signal.raise_signal(signal.SIGTERM)
        else:
            reopen()

    before = signal.signal(signal.SIGHUP, hung_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def wrap_line(process: str, line: str, form: str) -> str:
    """Return a line that a child process wrote, with the name of the process; ``form`` is the format of both."""
    if form == "text":
        return f"{process}: {line}"
    name = msgspec.json.encode(process).decode()
    if line.startswith('{"time":') and line.endswith("}"):
        return f'{{"process":{name},{line[1:]}'
    return f'{{"process":{name},"message":{msgspec.json.encode(line).decode()}}}'


def takes_text(descriptor: int = _STDERR, *, timeout_s: float) -> bool:
    """Wait until ``descriptor`` takes PIPE_BUF bytes or has failed; False if it does not in time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(timeout_s * 1000))
