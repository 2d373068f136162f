"""Child processes that run a serving verb of ``sprocketmq``: started until they are ready, watched, started again when they die.

A child's standard input is a pipe from this process: when this process ends, even by a kill, the children stop. They have process
groups of their own, so that Ctrl-C reaches this process alone, which stops them in order.
"""

import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, NamedTuple

from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.errors import FatalError
from sprocketmq.events import event, fields_of
from sprocketmq.protocol.settings import SETTING_VARIABLE

log = logging.getLogger(__name__)

FIRST_RESTART_DELAY_S = 0.25
MAX_RESTART_DELAY_S = 30.0
# A child that ran for this long starts with the shortest delay again.
STEADY_AFTER_S = 60.0
STOP_TIMEOUT_S = 30.0
KEPT_LINES = 20
# A longer line of a child's standard error is passed on in parts.
MAX_LINE_BYTES = 64 << 10
NOT_IN_TIME = "it was not ready in time"

# The command line after ``sprocketmq``, made from the fields of the child's last ready line (none at first), so that ports stay the same.
Command = Callable[[Mapping[str, str]], Sequence[str]]
# Called with the name of a child and a line that it wrote to standard error.
Say = Callable[[str, str], None]


class ChildFailed(FatalError):
    """A child did not become ready; ``code`` is its exit code, None when it was still running."""

    def __init__(self, name: str, reason: str, code: int | None) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason
        self.code = code


class ChildState(NamedTuple):
    """A child at one time: its process, None between two, how often it was started, and the fields of its last ready line."""

    is_ready: bool
    pid: int | None
    starts: int
    fields: Mapping[str, str]


class Supervisor:
    """A set of children by name. With ``restart``, those that end on their own are started again after a growing delay.

    ``start`` returns when all the children it is given are ready, and raises ChildFailed with the reason of the first one that cannot be.
    Methods may be called from any thread; ``stop`` also ends a ``start`` that is under way.
    """

    def __init__(self, *, restart: bool, say: Say | None = None) -> None:
        self._restart = restart
        self._say = say
        self._children: dict[str, Child] = {}

    def start(self, commands: Mapping[str, Command], timeout_s: float | None = None) -> None:
        """Start children and wait until they are ready, without a limit unless ``timeout_s`` is given."""
        deadline = None if timeout_s is None else SYSTEM_CLOCK.monotonic() + timeout_s
        for name, command in commands.items():
            self._children[name] = Child(name, command, restart=self._restart, say=self._say)
        self._start(commands, deadline)

    def start_again(self, name: str, timeout_s: float | None = None) -> None:
        """Start a child that was stopped or killed; harmless when it runs."""
        self._start([name], None if timeout_s is None else SYSTEM_CLOCK.monotonic() + timeout_s)

    def _start(self, names: Iterable[str], deadline: float | None) -> None:
        children = [self._children[name] for name in names]
        for child in children:
            child.start(deadline)
        for child in children:
            child.wait_ready(deadline)

    def stop(self, *chains: Sequence[Iterable[str]], timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop children cleanly, those in no chain last; what takes too long is killed.

        A chain has one or more stages, the names of children that stop at a time, one stage after the other. Chains do not wait for each
        other.
        """
        deadline = SYSTEM_CLOCK.monotonic() + timeout_s
        known = [[[self._children[name] for name in stage if name in self._children] for stage in chain] for chain in chains]
        named = {child for chain in known for stage in chain for child in stage}
        if known:
            with ThreadPoolExecutor(len(known)) as at_once:
                list(at_once.map(lambda chain: _stop_in_order(chain, deadline), known))
        _stop_in_order([[child for child in self._children.values() if child not in named]], deadline)

    def stop_one(self, name: str, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop one child cleanly; it stays away until ``start_again``."""
        child = self._children[name]
        child.end(signal.SIGTERM)
        child.join(SYSTEM_CLOCK.monotonic() + timeout_s)

    def kill(self, *names: str) -> None:
        """End children as ``kill -9`` does, all of them without names; they stay away until ``start_again``."""
        children = [self._children[name] for name in names] if names else list(self._children.values())
        for child in children:
            child.end(signal.SIGKILL)
        for child in children:
            child.join(None)

    def ready(self, name: str) -> Mapping[str, str]:
        """Return the fields of a child's last ready line."""
        return self._children[name].fields

    @property
    def states(self) -> dict[str, ChildState]:
        """All children, by name."""
        return {name: child.state for name, child in list(self._children.items())}

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run, by name."""
        return {name: pid for name, child in self._children.items() if (pid := child.pid) is not None}


def _stop_in_order(stages: Iterable[Sequence["Child"]], deadline: float) -> None:
    for stage in stages:
        for child in stage:
            child.end(signal.SIGTERM)
        for child in stage:
            child.join(deadline)


class Child:
    """One child. A thread starts its process and waits for its end, another one reads its standard error."""

    def __init__(self, name: str, command: Command, *, restart: bool, say: Say | None) -> None:
        self.name = name
        self.fields: Mapping[str, str] = {}
        self._command = command
        self._restart = restart
        self._say = say
        self._changed = threading.Condition()
        self._wanted = False
        self._ready = False
        self._starts = 0
        self._failure: ChildFailed | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process, None when there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def state(self) -> ChildState:
        with self._changed:
            return ChildState(self._ready, self.pid, self._starts, self.fields)

    def start(self, deadline: float | None) -> None:
        """Start the process in the background; harmless when it runs."""
        with self._changed:
            if self._wanted:
                return
            self._wanted, self._failure = True, None
            self._thread = threading.Thread(target=self._run, args=(deadline,), name=f"sprocketmq-child-{self.name}", daemon=True)
            self._thread.start()

    def wait_ready(self, deadline: float | None) -> None:
        """Wait until it is ready. Raises ChildFailed."""
        with self._changed:
            left = None if deadline is None else deadline - SYSTEM_CLOCK.monotonic()
            self._changed.wait_for(lambda: self._ready or self._failure is not None or not self._wanted, left)
            if self._failure is not None:
                raise self._failure
            if not self._wanted:
                raise ChildFailed(self.name, "it was stopped before it was ready", None)
            if not self._ready:
                raise ChildFailed(self.name, NOT_IN_TIME, None)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends it, and do not start it again."""
        with self._changed:
            self._wanted = False
            if self._process is not None:
                self._process.send_signal(number)
            self._changed.notify_all()

    def join(self, deadline: float | None) -> None:
        """Wait until it is gone; kill it at ``deadline``."""
        thread = self._thread
        if thread is None:
            return
        if deadline is not None:
            thread.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))
            if thread.is_alive():
                event(log, logging.WARNING, "process_killed", child=self.name, pid=self.pid, reason="it did not stop in time")
                self.end(signal.SIGKILL)
        thread.join()

    def _run(self, deadline: float | None) -> None:
        delay = FIRST_RESTART_DELAY_S
        first = True
        while True:
            with self._changed:
                if not self._wanted:
                    return
                try:
                    process = self._process = self._spawn()
                    self._starts += 1
                except OSError as e:
                    self._fail(ChildFailed(self.name, f"its process cannot be started: {e.strerror or e}", None))
                    return
            complaints = Complaints(self.name, process, self._say)
            line = first_line(process, deadline)
            became_ready = line.startswith("ready ")
            if became_ready:
                complaints.release()
                with self._changed:
                    self.fields = fields_of(line)
                    self._ready = True
                    self._changed.notify_all()
            late = not became_ready and process.poll() is None and deadline is not None and SYSTEM_CLOCK.monotonic() >= deadline
            if late:
                process.kill()
            began = SYSTEM_CLOCK.monotonic()
            code = process.wait()
            complaints.close()
            with self._changed:
                self._ready = False
                if self._is_unwanted():
                    self._changed.notify_all()
                    return
                reason = NOT_IN_TIME if late else f"{_how(code)}{complaints.reason(line)}"
                if (first and not became_ready) or not self._restart:
                    self._fail(ChildFailed(self.name, reason, code))
                    if became_ready:
                        event(log, logging.WARNING, "process_ended", child=self.name, pid=process.pid, reason=reason)
                    return
                if became_ready and SYSTEM_CLOCK.monotonic() - began >= STEADY_AFTER_S:
                    delay = FIRST_RESTART_DELAY_S
                event(log, logging.WARNING, "process_ended", child=self.name, pid=process.pid, reason=reason, restart_in_s=delay)
                self._changed.wait_for(lambda: not self._wanted, delay)
            first, deadline = False, None
            delay = min(2 * delay, MAX_RESTART_DELAY_S)

    def _is_unwanted(self) -> bool:
        return not self._wanted

    def _fail(self, failure: ChildFailed) -> None:
        self._failure = failure
        self._wanted = False
        self._changed.notify_all()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        # A child is configured by its command line alone, whatever the environment sets for servers that users start.
        environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTING_VARIABLE)}
        return subprocess.Popen(
            [sys.executable, "-m", "sprocketmq", *self._command(self.fields), "--stop-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            env=environ,
        )


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


class Complaints:
    """The standard error of a child: its last lines are kept for the reason of its end; it is passed on once the child is ready."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", say: Say | None) -> None:
        self._name = name
        self._process = process
        self._say = say
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._released = False
        self._lock = threading.Lock()
        assert process.stderr is not None
        self._thread = threading.Thread(target=self._read, args=(process.stderr,), name=f"sprocketmq-stderr-{name}", daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes]) -> None:
        while data := pipe.readline(MAX_LINE_BYTES):
            line = data.decode(errors="replace").rstrip()
            with self._lock:
                self._lines.append(line)
                if self._released and self._say is not None:
                    self._say(self._name, line)

    def release(self) -> None:
        """Pass on what was written so far, and each further line."""
        with self._lock:
            self._released = True
            if self._say is not None:
                for line in self._lines:
                    self._say(self._name, line)

    def close(self) -> None:
        """Close the pipes of a child that has ended. A process that it started may hold one open: its output is not waited for."""
        self._thread.join(1.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        if not self._thread.is_alive() and self._process.stderr is not None:
            self._process.stderr.close()

    def reason(self, first_line: str) -> str:
        """Return the last sentence of the child as ``: SENTENCE``, or all it wrote before it was ready; nothing for one that was silent."""
        with self._lock:
            lines = list(self._lines)
            released = self._released
        own = max((i for i, line in enumerate(lines) if line.startswith("sprocketmq: ")), default=len(lines) if released else 0)
        said = "\n".join(lines[own:]).removeprefix("sprocketmq: ")
        return f": {said}" if said else "" if first_line.startswith("ready ") else f": {first_line or 'it wrote nothing'}"


def first_line(process: "subprocess.Popen[bytes]", deadline: float | None) -> str:
    """Return the first line of a child's output, or its beginning when the child ended or the deadline passed."""
    assert process.stdout is not None
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"\n" not in data:
            left = None if deadline is None else deadline - SYSTEM_CLOCK.monotonic()
            if (left is not None and left <= 0) or not selector.select(left):
                break
            chunk = os.read(process.stdout.fileno(), 4096)
            if not chunk:
                break
            data += chunk
    return data.partition(b"\n")[0].decode(errors="replace")
