"""Run Apache RocketMQ beside us: resolve its jars, start its nameserver and broker, drive its Java client and admin tool.

Used by the interop suite and by the load benchmarks. Everything a process writes (logs, stores, offsets) stays in the directory it is
given; the jars and our compiled driver are kept in a cache keyed by version and by source.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import fcntl
import hashlib
import hmac
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self, TypedDict, Unpack

from tests.ports import LOOPBACK, free_ports

VERSION = "5.5.0"
HERE = Path(__file__).parent / "java"
POM = HERE / "pom.xml"
DRIVER = tuple(sorted(HERE.glob("*.java")))

# What the broker's memory-mapped files and buffers reach into on Java 17.
OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
# A short-lived JVM on two shared cores is quicker with the cheap compiler and collector.
SMALL = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SMALL_BROKER = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# The shape the rivals' figures in the performance notes were measured with.
MEASURED_BROKER = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g")
MEASURED_CLIENT = ("-Xms2g", "-Xmx2g")

# Small files, so that a test's store costs megabytes; a broker's own defaults otherwise.
SMALL_STORE = {
    "mappedFileSizeCommitLog": "67108864",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}

# Brokers of tests share two processors and a disk. One that nobody asks would take a seventh of a core to compare its timer wheel with its
# file every second; one whose sends waited for 200 ms, or whose write took a second, would refuse sends.
UNHURRIED = {"timerFlushIntervalMs": "10000", "waitTimeMillsInSendQueue": "60000", "osPageCacheBusyTimeOutMills": "60000"}

# A JVM beside many others on two slow processors takes over a minute to begin.
BOOT_TIMEOUT_S = 240.0
# The admin tool gives each of its requests 3 s, connecting included, and cannot be told otherwise.
MQADMIN_TRIES = 3
# A Java push consumer may miss a beat, and gets nothing until its next one 30 s later (see Consumers.java).
CONSUME_TIMEOUT_S = 120.0


class ApacheUnavailable(Exception):
    """Apache RocketMQ cannot run here; the text says what is missing and where to get it."""


class ApacheFailed(Exception):
    """A Java process failed, or answered with an error; the text carries the end of its log."""


def tool(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / name).exists():
        return str(Path(home) / "bin" / name)
    found = shutil.which(name)
    if found is None:
        raise ApacheUnavailable(
            f"it needs Java 17 (a JDK, with `javac`), Maven, Node with npm, and for tests marked long Rust with cargo, and Go; `{name}` is not on the PATH"
        )
    return found


def cache_dir(version: str = VERSION) -> Path:
    """Return the directory outside the tree that keeps the jars and compiled drivers of a version."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sprocketmq" / f"apache-rocketmq-{version}"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def jars(version: str = VERSION) -> Path:
    """Return the directory of the jars, resolving them with Maven the first time (about 100 MB). Raises ApacheUnavailable."""
    return resolved(POM, cache_dir(version), f"rocketmq-broker-{version}.jar", f"Apache RocketMQ {version}", version)


def resolved(pom: Path, cache: Path, expected: str, what: str, version: str = VERSION) -> Path:
    """Return the directory in ``cache`` with the jars that ``pom`` names, among them ``expected``. Raises ApacheUnavailable."""
    library = cache / "lib"
    with locked(cache / "lock"):
        if library.is_dir():
            return library
        maven = tool("mvn")
        partial = Path(tempfile.mkdtemp(prefix="resolving-", dir=cache))
        try:
            goal = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
            command = [
                maven,
                "-q",
                "-B",
                "-f",
                str(pom),
                goal,
                f"-DoutputDirectory={partial}",
                "-DincludeScope=runtime",
                f"-Drocketmq.version={version}",
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode != 0 or not (partial / expected).exists():
                raise ApacheUnavailable(f"Maven could not resolve {what}:\n{(done.stdout + done.stderr)[-2000:]}")
            partial.rename(library)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return library


def driver_classes() -> Path:
    """Return the directory of our compiled driver, running javac when a source is new. Raises ApacheUnavailable, ApacheFailed."""
    source = b"".join(file.read_bytes() for file in DRIVER)
    classes = cache_dir() / f"driver-{hashlib.sha256(source).hexdigest()[:16]}"
    library = jars()
    with locked(cache_dir() / "lock"):
        if classes.is_dir():
            return classes
        partial = Path(tempfile.mkdtemp(prefix="compiling-", dir=cache_dir()))
        try:
            command = [tool("javac"), "--release", "17", "-nowarn", "-d", str(partial), "-cp", f"{library}/*", *map(str, DRIVER)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode != 0:
                raise ApacheFailed(f"javac refused the driver:\n{done.stderr[-2000:]}")
            partial.rename(classes)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return classes


def require() -> None:
    """Make sure that everything is there to run Apache RocketMQ. Raises ApacheUnavailable with what is missing."""
    tool("java")
    tool("javac")
    tool("node")
    tool("npm")
    jars()


class JavaProcess:
    """One JVM with its output in a log file, and Apache RocketMQ's jars or those of `library` on its class path.

    `stop` ends it by its own id: SIGTERM, then SIGKILL after 20 s.
    """

    def __init__(
        self,
        main: str,
        *arguments: str,
        home: Path,
        flags: Sequence[str],
        extra_path: str = "",
        stdin: bool = False,
        library: Path | None = None,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        (home / "conf").mkdir(exist_ok=True)
        self.home = home
        self.log = home / "output.log"
        path = f"{library or jars()}/*" + (f"{os.pathsep}{extra_path}" if extra_path else "")
        command = [tool("java"), *flags, *OPENED, f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-Dfile.encoding=UTF-8"]
        command += ["-cp", path, main, *arguments]
        environment = {name: value for name, value in os.environ.items() if name not in {"NAMESRV_ADDR", "JAVA_TOOL_OPTIONS"}}
        self._log_file: IO[bytes] = self.log.open("wb")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdin else self._log_file,
            stderr=self._log_file if stdin else subprocess.STDOUT,
            cwd=home,
            env=environment,
        )

    def tail(self) -> str:
        """Return the end of what the process printed."""
        return self.log.read_text(errors="replace")[-3000:]

    def wait_for(self, text: str, timeout_s: float = BOOT_TIMEOUT_S) -> None:
        """Wait until the output contains `text`. Raises ApacheFailed when the process ends first or the time is up."""
        deadline = time.monotonic() + timeout_s
        while text not in self.log.read_text(errors="replace"):
            if self.process.poll() is not None:
                self._reap()
                raise ApacheFailed(f"the JVM ended with {self.process.returncode} before it said {text!r}:\n{self.tail()}")
            if time.monotonic() > deadline:
                self.stop()
                raise ApacheFailed(f"the JVM did not say {text!r} within {timeout_s} s:\n{self.tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the process in the orderly way and wait for it; a second call does nothing.

        A broker takes about 11 s, and more on a busy machine; one that is killed meanwhile leaves files that it has not finished.
        """
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._reap()

    def kill(self) -> None:
        """End the process at once; for those whose store nobody wants."""
        if self.process.poll() is None:
            self.process.kill()
        self._reap()

    def _reap(self) -> None:
        self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._log_file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass(frozen=True)
class Login:
    """A user of a secured cluster."""

    access_key: str
    secret_key: str = field(repr=False)

    def sign(self, fields: Mapping[str, str], body: bytes = b"") -> dict[str, str]:
        """Return the fields of a request with its signature; written from the format, not with the package's own code."""
        signed = {**fields, "AccessKey": self.access_key}
        content = "".join(value for _, value in sorted(signed.items())).encode() + body
        signed["Signature"] = base64.b64encode(hmac.digest(self.secret_key.encode(), content, "sha1")).decode()
        return signed


def request(
    address: str,
    code: int,
    *,
    login: Login | None = None,
    tls: ssl.SSLContext | None = None,
    body: bytes = b"",
    **fields: object,
) -> tuple[dict[str, Any], bytes]:
    """Send one request over a socket, and return the header and the body of the answer."""
    host, port = address.rsplit(":", 1)
    ext = {name: str(value) for name, value in fields.items()}
    if login is not None:
        ext = login.sign(ext, body)
    header = json.dumps({"code": code, "flag": 0, "language": "PYTHON", "opaque": 1, "version": 513, "extFields": ext}).encode()
    with contextlib.ExitStack() as closing:
        connection = closing.enter_context(socket.create_connection((host, int(port)), timeout=30))
        if tls is not None:
            connection = closing.enter_context(tls.wrap_socket(connection, server_hostname=host))
        answer = closing.enter_context(connection.makefile("rb"))
        connection.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        length, header_length = struct.unpack(">ii", answer.read(8))
        told: dict[str, Any] = json.loads(answer.read(header_length & 0xFFFFFF))
        return told, answer.read(length - 4 - (header_length & 0xFFFFFF))


def cluster_info(namesrv: str, tls: ssl.SSLContext | None = None, login: Login | None = None) -> bytes:
    """Ask a nameserver for its brokers (code 106); the body as it came."""
    return request(namesrv, 106, tls=tls, login=login)[1]


def _write_config(home: Path, settings: Mapping[str, str]) -> Path:
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for server in ("namesrv", "broker"):  # versions before 5.1 read it and need it
        (home / "conf" / f"logback_{server}.xml").write_text("<configuration/>")
    config = home / "settings.conf"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return config


class ApacheNamesrv(JavaProcess):
    """Apache's nameserver on a free port; ready when constructed."""

    def __init__(self, home: Path, flags: Sequence[str] = SMALL, version: str = VERSION) -> None:
        self.port = free_ports()
        self.address = f"{LOOPBACK}:{self.port}"
        config = _write_config(home, {"listenPort": str(self.port), "bindAddress": LOOPBACK})
        super().__init__("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config), home=home, flags=flags, library=jars(version))
        self.wait_for("boot success")


def broker_port() -> int:
    """Return a free port for a broker, which also listens on P - 2 (its fast port) and on P + 1 (for its slaves)."""
    return free_ports(-2, 1)


class AdminTool:
    """The admin tool of a release, in a process of its own for each command: some commands end theirs."""

    def __init__(self, home: Path, version: str) -> None:
        settings = home / "conf" / "logback_tools.xml"  # releases before 5.0 do not start without it
        settings.parent.mkdir(parents=True)
        settings.write_text("<configuration></configuration>")
        self._home = home
        self._command = [tool("java"), *SMALL, *OPENED, f"-Drocketmq.home.dir={home}", f"-Duser.home={home}"]
        self._command += ["-cp", f"{jars(version)}/*", "org.apache.rocketmq.tools.command.MQAdminStartup"]

    def run(self, *arguments: str) -> str:
        """Run a command and return what it prints to either stream."""
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=self._home,  # some commands write files there
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return "\n".join(line for line in done.stdout.splitlines() if "|-" not in line)


class ApacheBroker(JavaProcess):
    """Apache's broker (a master with ASYNC_FLUSH) on free ports; ready and registered at `namesrv` when constructed.

    `settings` are added to its configuration, and so are those of `unhurried`, which a benchmark leaves out; `store` defaults to a directory
    under `home`, `port` to a free one. `tls` and `login` are what this process asks a secured nameserver with.
    """

    def __init__(
        self,
        home: Path,
        namesrv: str,
        *,
        name: str = "apache-a",
        cluster: str = "ApacheCluster",
        store: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, str] = SMALL_STORE,
        unhurried: Mapping[str, str] = UNHURRIED,
        flags: Sequence[str] = SMALL_BROKER,
        version: str = VERSION,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        self.port = port or broker_port()
        self.address = f"{LOOPBACK}:{self.port}"
        self.name = name
        self.cluster = cluster
        self.store = store or home / "store"
        base = {
            "brokerClusterName": cluster,
            "brokerName": name,
            "brokerId": "0",
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "ASYNC_FLUSH",
            "namesrvAddr": namesrv,
            "brokerIP1": LOOPBACK,
            "listenPort": str(self.port),
            "haListenPort": str(self.port + 1),
            "storePathRootDir": str(self.store),
            "autoCreateTopicEnable": "true",
        }
        config = _write_config(home, base | dict(unhurried) | dict(settings))
        main = "org.apache.rocketmq.broker.BrokerStartup"
        super().__init__(main, "-c", str(config), home=home, flags=flags, library=jars(version))
        self.wait_for("boot success")
        self._wait_registered(namesrv, tls, login)

    def _wait_registered(self, namesrv: str, tls: ssl.SSLContext | None, login: Login | None, timeout_s: float = 40.0) -> None:
        # The first registration goes to the nameservers already connected; when the connection is still being made it is lost and
        # the next comes 10 s later.
        deadline = time.monotonic() + timeout_s
        while f'"{self.address}"'.encode() not in cluster_info(namesrv, tls, login):
            if time.monotonic() > deadline:
                self.stop()
                raise ApacheFailed(f"{self.name} did not register at {namesrv} within {timeout_s} s:\n{self.tail()}")
            time.sleep(0.05)


class ConsumerOptions(TypedDict, total=False):
    """What a Java push consumer does otherwise than by default.

    It refuses messages whose body matches `refuse` (a Java regular expression) while they came back less than `refuse_times` times: by
    RECONSUME_LATER (orderly: SUSPEND_CURRENT_QUEUE_A_MOMENT), with `delay_level`, or as `refuse_by` says ("later", "exception", "null").
    `pause_ms` is spent on every call of the listener. `one_thread` calls it, which keeps the order of each queue. `max_cached` messages of a
    queue wait for it. Nameservers are asked every `poll_routes_ms`. `traced` sets enableTrace; traces are written some seconds later.
    Topic and group are in `namespace`. With `sql` the expression is an SQL92 condition. With `broker_rebalance` the broker divides the
    queues, and says whether to pull or pop.
    """

    orderly: bool
    broadcasting: bool
    batch_max: int
    max_reconsume_times: int
    refuse: str
    refuse_times: int
    refuse_by: str
    delay_level: int
    pause_ms: int
    max_cached: int
    one_thread: bool
    poll_routes_ms: int
    traced: bool
    namespace: str
    sql: bool
    broker_rebalance: bool


class JavaClient(JavaProcess):
    """Apache's Java client in one JVM, commanded line by line; one call at a time.

    Bodies go in and come out as bytes; the other fields of a message are named like our own. A client of another
    `version` lacks some methods that the driver calls: commands that need them fail.
    """

    def __init__(self, home: Path, flags: Sequence[str] = SMALL, version: str = VERSION) -> None:
        path = os.pathsep.join(map(str, [driver_classes(), *jars().glob("fastjson2-*.jar")]))
        super().__init__("Driver", home=home, flags=flags, extra_path=path, stdin=True, library=jars(version))
        self.login: Login | None = None
        self._last = 0
        self._lock = threading.Lock()

    def signed_by(self, login: Login) -> JavaClient:
        """Return this client with another identity: the same JVM, whose requests of these calls are signed by `login`."""
        other = copy.copy(self)
        other.login = login
        return other

    def call(self, op: str, **arguments: Any) -> Any:
        """Run one command and return its value. Raises ApacheFailed with the Java exception's text."""
        if self.login is not None:
            arguments = {"access_key": self.login.access_key, "secret_key": self.login.secret_key, **arguments}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self._lock:
            self._last += 1
            command = {"id": self._last, "op": op, **arguments}
            try:
                self.process.stdin.write(json.dumps(command).encode() + b"\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
            except BrokenPipeError:
                line = b""
            if not line:
                raise ApacheFailed(f"the Java client ended:\n{self.tail()}")
            answer = json.loads(line)
        assert answer["id"] == command["id"]
        if "error" in answer:
            raise ApacheFailed(f"{answer['error']}\n{answer['trace']}")
        return answer["value"]

    def send(
        self,
        namesrv: str,
        messages: Sequence[Mapping[str, Any]],
        queue: Mapping[str, Any] | None = None,
        namespace: str | None = None,
    ) -> list[dict[str, Any]]:
        """Send one by one (each awaited); a message is a mapping of topic, body, tag, keys, properties, flag."""
        described = [_encoded(m) for m in messages]
        result: list[dict[str, Any]] = self.call("send", namesrv=namesrv, messages=described, queue=queue, namespace=namespace)
        return result

    def send_by_key(self, namesrv: str, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Send one by one, each to the queue that SelectMessageQueueByHash chooses for its property __SHARDINGKEY."""
        results: list[dict[str, Any]] = self.call("send_by_key", namesrv=namesrv, messages=[_encoded(m) for m in messages])
        return results

    def send_traced(self, namesrv: str, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Send one by one with enableTrace; the traces are written some seconds later."""
        results: list[dict[str, Any]] = self.call("send_traced", namesrv=namesrv, messages=[_encoded(m) for m in messages])
        return results

    def request(self, namesrv: str, topic: str, body: bytes, *, timeout_s: float = 60.0) -> dict[str, Any]:
        """Send a request and return its reply: topic, body, tag, properties."""
        encoded = base64.b64encode(body).decode()
        reply: dict[str, Any] = self.call("request", namesrv=namesrv, topic=topic, body=encoded, timeout_ms=round(timeout_s * 1000))
        return {**reply, "body": base64.b64decode(reply["body"])}

    @contextlib.contextmanager
    def replier(self, namesrv: str, group: str, topic: str) -> Iterator[None]:
        """Run a consumer that replies to every request with its body in capitals, and tag FromJava."""
        handle = self.call("replier_start", namesrv=namesrv, group=group, topic=topic)
        try:
            yield
        finally:
            self.call("replier_stop", handle=handle)

    def send_timed(self, namesrv: str, topic: str, body: bytes, delay_s: int) -> str:
        """Send a message for a time `delay_s` ahead, and return its recall handle."""
        encoded = base64.b64encode(body).decode()
        return str(self.call("send_timed", namesrv=namesrv, topic=topic, body=encoded, delay_s=delay_s))

    def recall(self, namesrv: str, topic: str, handle: str) -> str:
        """Recall a message and return its id."""
        return str(self.call("recall", namesrv=namesrv, topic=topic, handle=handle))

    @contextlib.contextmanager
    def transactions(
        self, namesrv: str, group: str, topic: str, ends: Mapping[bytes, str]
    ) -> Iterator[tuple[list[dict[str, Any]], Callable[[], list[dict[str, Any]]]]]:
        """Send a message in a transaction for each body, which ends as `Transactions.java` says, while the block runs.

        Gives what each send returned, and a function that returns what the broker has asked about so far.
        """
        messages = [{"body": base64.b64encode(body).decode(), "end": end} for body, end in ends.items()]
        started = self.call("transactions_start", namesrv=namesrv, group=group, topic=topic, messages=messages)
        try:
            yield started["sent"], lambda: self.call("transactions_asked", handle=started["handle"])
        finally:
            self.call("transactions_stop", handle=started["handle"])

    def send_batch(self, namesrv: str, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Send as one explicit batch; the result's ids are comma lists and its offset the first message's."""
        result: dict[str, Any] = self.call("send_batch", namesrv=namesrv, messages=[_encoded(m) for m in messages])
        return result

    def send_auto_batch(
        self, namesrv: str, messages: Sequence[Mapping[str, Any]], *, max_bytes: int = 4096, max_delay_ms: int = 10, blocking: bool = False
    ) -> list[dict[str, Any]]:
        """Send at once through the client's accumulator (RIP-27); one result a message, in their order.

        With callbacks, or, `blocking`, from a thread a message: the accumulator has a way of its own for each.
        """
        arguments = {"max_bytes": max_bytes, "max_delay_ms": max_delay_ms, "messages": [_encoded(m) for m in messages]}
        results: list[dict[str, Any]] = self.call("send_auto_batch", namesrv=namesrv, blocking=blocking, **arguments)
        return results

    def query(self, namesrv: str, topic: str, key: str, *, max_messages: int = 64) -> list[dict[str, Any]]:
        """Return the messages with a key or a unique key. Raises ApacheFailed (208) when there is none."""
        return [_decoded(m) for m in self.call("query", namesrv=namesrv, topic=topic, key=key, max_messages=max_messages)]

    def view(self, namesrv: str, topic: str, msg_id: str) -> dict[str, Any]:
        """Return one message by its offset id or its unique key."""
        return _decoded(self.call("view", namesrv=namesrv, topic=topic, msg_id=msg_id))

    def mqadmin(self, *arguments: str) -> str:
        """Run one command of Apache's admin tool and return what it printed, without the logger's own lines.

        The tool catches its own failures and prints them: look at the text. It has its credentials from a file. A command that got no answer
        in time is given again.
        """
        tools = self.home / "conf" / "tools.yml"
        if self.login is None:
            tools.unlink(missing_ok=True)
        else:
            tools.write_text(f"accessKey: {self.login.access_key}\nsecretKey: {self.login.secret_key}\n")
        printed = ""
        for _ in range(MQADMIN_TRIES):
            printed = self.call("mqadmin", arguments=arguments)
            if "RemotingTimeoutException" not in printed:
                break
        return "\n".join(line for line in printed.splitlines() if "|-" not in line)

    @contextlib.contextmanager
    def push_consumer(
        self, namesrv: str, group: str, topic: str, expression: str = "*", **options: Unpack[ConsumerOptions]
    ) -> Iterator[JavaPushConsumer]:
        """Run a push consumer (default settings but for `options`, from the first offset) while the block runs."""
        handle = self.call("consumer_start", namesrv=namesrv, group=group, topic=topic, expression=expression, **options)
        consumer = JavaPushConsumer(self, handle)
        try:
            yield consumer
        finally:
            consumer.rest = [_decoded(message) for message in self.call("consumer_stop", handle=handle)]

    def consume(
        self, namesrv: str, group: str, topic: str, count: int, *, expression: str = "*", timeout_s: float = CONSUME_TIMEOUT_S
    ) -> list[dict[str, Any]]:
        """Consume `count` messages with a push consumer; fewer come back when the time is up."""
        with self.push_consumer(namesrv, group, topic, expression) as consumer:
            return consumer.take(count, timeout_s)

    def pull(
        self, namesrv: str, group: str, queue: Mapping[str, Any], offset: int, *, max_messages: int = 32, expression: str = "*"
    ) -> dict[str, Any]:
        """Pull once from one queue (a mapping of topic, broker, queue_id)."""
        arguments = {"queue": queue, "offset": offset, "max_messages": max_messages, "expression": expression}
        result: dict[str, Any] = self.call("pull", namesrv=namesrv, group=group, **arguments)
        result["messages"] = [_decoded(message) for message in result["messages"]]
        return result

    def stop(self) -> None:
        """Close the clients inside, then end the JVM."""
        if self.process.poll() is None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        super().stop()


class JavaPushConsumer:
    """A running push consumer inside a JavaClient; when it is stopped, `rest` is what it received and nobody took."""

    def __init__(self, client: JavaClient, handle: int) -> None:
        self.rest: list[dict[str, Any]] = []
        self._client = client
        self._handle = handle

    def take(self, count: int, timeout_s: float = CONSUME_TIMEOUT_S) -> list[dict[str, Any]]:
        """Return the next `count` messages in the order the listener got them; fewer when the time is up.

        Each has the wall-clock milliseconds `received_ms` in addition to what other messages have.
        """
        taken = self._client.call("consumer_take", handle=self._handle, count=count, timeout_ms=int(timeout_s * 1000))
        return [_decoded(message) for message in taken]

    @property
    def client_id(self) -> str:
        """The name its group knows it by."""
        client_id: str = self._client.call("consumer_state", handle=self._handle)["client_id"]
        return client_id

    def held(self) -> int:
        """Return how many messages it has pulled, and neither accepted nor given back. What is left at its stop comes again."""
        held: int = self._client.call("consumer_state", handle=self._handle)["held"]
        return held

    def queues(self, topic: str) -> set[tuple[str, int]]:
        """Return the queues of a topic that it consumes now, as pairs of broker and queue id; with queue -1 it pops from all of the broker."""
        queues = self._client.call("consumer_state", handle=self._handle)["queues"]
        return {(queue["broker"], queue["queue_id"]) for queue in queues if queue["topic"] == topic}


def _encoded(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "body": base64.b64encode(message["body"]).decode()}


def _decoded(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "body": base64.b64decode(message["body"])}
