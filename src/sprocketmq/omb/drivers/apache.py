"""The driver for Apache RocketMQ's own Java client: a Java program (`Omb.java`) per worker generates the load and measures it.

Topics are made by this package's admin client, so that the program also runs against SprocketMQ's brokers.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec

from sprocketmq.errors import ConfigError
from sprocketmq.net.tasks import Background
from sprocketmq.omb.drivers._topics import TopicDriver
from sprocketmq.omb.plan import WorkerCommand, WorkerPlan, WorkerReport, from_line, to_line

PROGRAM = Path(__file__).with_name("Omb.java")
JARS_VARIABLE = "SPROCKETMQ_APACHE_JARS"
MAX_LINE_BYTES = 16 << 20
STOP_TIMEOUT_S = 10.0
LOG_TAIL_BYTES = 2000


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The settings of the driver; see docs/guide/omb.md."""

    namesrv: str = "127.0.0.1:9876"
    name: str = "apache"
    driver_class: str = ""
    # The directory of the client's jars, such as `lib` of an unpacked release.
    jars: str = ""
    java: str = ""
    java_options: str = "-Xms512m -Xmx1g"
    # Topics with batch queues (RIP-26).
    batch_queues: bool = False
    # AutoBatch (RIP-27); without it each message is a request.
    auto_batch: bool = True
    batch_max_bytes: int = 32 * 1024
    batch_max_delay_ms: int = 10
    max_in_flight: int = 10_000
    max_message_size: int = 4 << 20
    compress_over_bytes: int = 4 << 20
    sender_threads: int = 2
    consumer_batch_max: int = 256
    consume_threads: int = 20
    max_cached: int = 1000


def create(config: Mapping[str, object]) -> "ApacheDriver":
    """Return the driver. Raises ConfigError for a wrong setting, and when Java or the jars are missing."""
    try:
        settings = msgspec.convert(config, Config, strict=False)
    except msgspec.ValidationError as e:
        known = ", ".join(Config.__struct_encode_fields__)
        raise ConfigError(f"driver apache: {str(e).replace('`', '')}: its settings are {known}") from None
    return ApacheDriver(settings, java_of(settings), jars_of(settings))


def java_of(config: Config) -> str:
    """Return the path of the command `java`. Raises ConfigError when there is none."""
    home = os.environ.get("JAVA_HOME")
    candidates = [config.java] if config.java else [*([f"{home}/bin/java"] if home else []), "java"]
    for candidate in candidates:
        if found := shutil.which(candidate):
            return found
    named = f"there is no command {config.java!r}" if config.java else "`java` is neither in JAVA_HOME/bin nor on the PATH"
    raise ConfigError(f"the driver apache needs a JDK, Java 17 or newer, but {named}: install one, or name its `java` with the option java")


def jars_of(config: Config) -> Path:
    """Return the directory of the jars: the option, SPROCKETMQ_APACHE_JARS, or ROCKETMQ_HOME/lib. Raises ConfigError when it has none."""
    home = os.environ.get("ROCKETMQ_HOME")
    named = config.jars or os.environ.get(JARS_VARIABLE) or (f"{home}/lib" if home else "")
    how = f"set the option jars=DIR or {JARS_VARIABLE} to `lib` of an unpacked release of Apache RocketMQ 5"
    if not named:
        raise ConfigError(f"the driver apache needs the jars of Apache's Java client: {how}")
    if not any(Path(named).glob("rocketmq-client-*.jar")):
        raise ConfigError(f"the driver apache finds no rocketmq-client-*.jar in {named}: {how}")
    return Path(named)


class ApacheDriver(TopicDriver):
    """Makes topics, and runs the Java program."""

    name = "apache"

    def __init__(self, config: Config, java: str, jars: Path) -> None:
        self._config = config
        self._java = java
        self._jars = jars
        super().__init__(config.namesrv, {"namesrv": config.namesrv}, batch_queues=config.batch_queues)

    async def run_worker(self, plan: WorkerPlan, commands: "asyncio.Queue[WorkerCommand]") -> AsyncIterator[WorkerReport]:
        """Run the Java program with all settings in its plan, hand it the commands and yield what it reports."""
        plan = msgspec.structs.replace(plan, config=msgspec.to_builtins(self._config))
        with tempfile.TemporaryDirectory(prefix="sprocketmq-omb-", ignore_cleanup_errors=True) as home:
            log = Path(home) / "errors.log"
            # user.home is where the client writes its log.
            command = [self._java, *self._config.java_options.split(), f"-Duser.home={home}", "-cp", f"{self._jars}/*", str(PROGRAM)]
            with log.open("wb") as errors:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, cwd=home, limit=MAX_LINE_BYTES
                )
            assert process.stdin is not None
            assert process.stdout is not None
            background = Background("omb apache")
            background.spawn(_feed(process.stdin, plan, commands), "commands")
            last: WorkerReport | None = None
            try:
                while (last is None or not (last.ended or last.failure)) and (line := await process.stdout.readline()):
                    last = from_line(line, WorkerReport)
                    yield last
                if last is None or not (last.ended or last.failure):
                    code = await process.wait()
                    text = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
                    yield WorkerReport(worker=plan.worker, failure=f"the Java program ended with {code}: {text}")
            finally:
                await background.close()
                await _end(process)


async def _feed(stdin: asyncio.StreamWriter, plan: WorkerPlan, commands: "asyncio.Queue[WorkerCommand]") -> None:
    """Write the plan, then each command; a program that ended is noticed at its output."""
    with contextlib.suppress(ConnectionError):
        stdin.write(to_line(plan))
        await stdin.drain()
        while True:
            stdin.write(to_line(await commands.get()))
            await stdin.drain()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait for a program that reported its end; kill one that goes on."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
    except asyncio.CancelledError:
        process.kill()
        raise
