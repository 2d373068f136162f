"""The two sides of a load benchmark: our broker with our client, Apache's broker with its Java client, each in processes of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.interop import apache

from benchmarks.load.stores import empty_old_files, give_back, take_in
from benchmarks.processor import cpu_s
from sprocketmq import Credentials
from sprocketmq.client.credentials import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from sprocketmq.testing import wait_until

READY_TIMEOUT_S = 20.0


class Client(Protocol):
    """A client process that takes commands."""

    def call(self, op: str, **arguments: Any) -> Any:
        """Run one command and return its value."""
        ...


@dataclass(frozen=True)
class Side:
    """One running cluster with its client process.

    ``pids`` are all processes of the side, the client last; ``store`` is where its broker keeps messages.
    """

    name: str
    namesrv: str
    client: Client
    pids: tuple[int, ...]
    store: Path

    def drop_page_cache(self) -> None:
        """Have the system write out and forget the commit log, as far as it is not mapped, so that its memory is used again.

        A broker that has run for long gets its page cache from memory that was in use before. In a virtual machine memory touched for
        the first time costs several times as much, and a run of some minutes would measure that.
        """
        give_back((self.store / "commitlog").iterdir())

    def empty_old_files(self) -> None:
        """Give back the disk room of messages that nobody reads any more."""
        empty_old_files(self.store / "commitlog")

    def fill_page_cache(self, count: int) -> None:
        """Have the system read the first ``count`` bytes of the commit log, so that no reader of these waits for the disk."""
        take_in(sorted((self.store / "commitlog").iterdir()), count)

    @contextlib.contextmanager
    def paused(self, *, besides: Collection[int] = ()) -> Iterator[None]:
        """Stop the side's processes while the block runs, but for those of ``besides``, which belong to another side too.

        Even a JVM with nothing to do takes a tenth of a core from the other side.
        """
        pids = [pid for pid in self.pids if pid not in besides]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """Return the CPU seconds its processes have used so far."""
        return cpu_s(*self.pids)


class OurClient:
    """The process of ``benchmarks.load.client``, which encrypts when it is given an authority to trust, and signs with credentials."""

    def __init__(
        self, namesrv: str, profile: str | None = None, *, ca_file: str | None = None, credentials: Credentials | None = None
    ) -> None:
        command = [sys.executable, "-m", "benchmarks.load.client", namesrv, *([ca_file] if ca_file is not None else [])]
        if profile is not None:
            command[1:1] = ["-m", "cProfile", "-o", profile]
        environment = dict(os.environ)
        if credentials is not None:
            environment |= {ACCESS_KEY_VARIABLE: credentials.access_key, SECRET_KEY_VARIABLE: credentials.secret_key.reveal()}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self._last = 0

    def call(self, op: str, **arguments: Any) -> Any:
        """Run one command and return its value. Raises RuntimeError with the client's error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._last += 1
        self.process.stdin.write(json.dumps({"id": self._last, "op": op, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"our client process ended with {self.process.wait(10)}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()


@contextlib.contextmanager
def serve(directory: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Run ``sprocketmq serve`` on free ports with its store in ``directory``; yields the nameserver's address and the process id."""
    command = [sys.executable, "-m", "sprocketmq", "serve", "--namesrv-port", "0", "--port", "0", "--store", str(directory / "store")]
    command += options
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    watchdog = threading.Timer(READY_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if line.startswith("ready "):
                break
        else:
            raise RuntimeError(f"`sprocketmq serve` ended with {process.wait(10)} before it was ready")
        watchdog.cancel()
        facts = dict(part.split("=", 1) for part in line.split()[1:])
        yield facts["namesrv"], process.pid
    finally:
        watchdog.cancel()
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        process.stdout.close()


@contextlib.contextmanager
def ours(directory: Path, profile: str | None = None) -> Iterator[Side]:
    """Run our broker and client."""
    with serve(directory) as (namesrv, pid):
        client = OurClient(namesrv, profile)
        try:
            yield Side("ours", namesrv, client, (pid, client.process.pid), directory / "store")
        finally:
            client.stop()


@contextlib.contextmanager
def theirs(directory: Path, settings: Mapping[str, str]) -> Iterator[Side]:
    """Run Apache's broker, with ``settings`` beside its defaults, and Java client, with the heaps the published figures were measured with."""
    with contextlib.ExitStack() as running:
        namesrv = apache.ApacheNamesrv(directory / "namesrv")
        running.callback(namesrv.kill)
        broker = apache.ApacheBroker(directory / "broker", namesrv.address, settings=settings, flags=apache.MEASURED_BROKER, unhurried={})
        running.callback(broker.kill)
        client = running.enter_context(apache.JavaClient(directory / "client", flags=apache.MEASURED_CLIENT))
        yield Side("theirs", namesrv.address, client, (namesrv.process.pid, broker.process.pid, client.process.pid), broker.store)


@contextlib.contextmanager
def java_on(side: Side, directory: Path) -> Iterator[Side]:
    """Run a Java client of its own on the broker of ``side``."""
    with apache.JavaClient(directory, flags=apache.MEASURED_CLIENT) as client:
        yield Side("java", side.namesrv, client, (*side.pids[:-1], client.process.pid), side.store)


def busy_cpu_s() -> float:
    """Return the CPU seconds this machine has spent on anything so far."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Topic:
    """A topic to measure with; ``batch_queues`` makes it one of batch queues (RIP-26)."""

    name: str
    queues: int
    batch_queues: bool = False


def wait_for_route(side: Side, topic: str) -> None:
    """Wait until Apache's nameserver knows a broker of ``topic``: without one the Java client fails at once. Nothing to do for our side.

    The broker tells its nameserver by itself, after a topic is made, and again when it was forgotten while the side was paused for minutes.
    """
    java = side.client
    if isinstance(java, apache.JavaClient):
        wait_until(
            lambda: "brokerDatas" in java.mqadmin("topicRoute", "-n", side.namesrv, "-t", topic),
            timeout_s=60,
            what=f"the route of {topic} at Apache's nameserver",
        )


def create_topic(side: Side, topic: Topic) -> None:
    """Create a topic on the side's only broker."""
    if isinstance(side.client, apache.JavaClient):
        arguments = ["-n", side.namesrv, "-c", "ApacheCluster", "-t", topic.name, "-r", str(topic.queues), "-w", str(topic.queues)]
        if topic.batch_queues:
            arguments += ["-a", "+queue.type=BatchCQ"]
        printed = side.client.mqadmin("updateTopic", *arguments)
        if "success" not in printed:
            raise RuntimeError(f"updateTopic failed:\n{printed}")
        wait_for_route(side, topic.name)
    else:
        attributes = {"queue.type": "BatchCQ"} if topic.batch_queues else {}
        side.client.call("create_topic", topic=topic.name, queues=topic.queues, attributes=attributes)
