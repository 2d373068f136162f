"""``serve --brokers N --replicas M``: a nameserver, masters and slaves on one machine, each in a process that this one supervises."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from sprocketmq._version import __version__
from sprocketmq.cli.config import SECURITY_KEYS, Settings, data_directory
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, fail
from sprocketmq.cli.logs import LogOptions, wrap_line
from sprocketmq.cli.serving_beside import ServedBeside
from sprocketmq.cli.serving_metrics import ServedMetrics
from sprocketmq.cli.serving_options import LOG_SETTINGS
from sprocketmq.cli.serving_security import ready_fields
from sprocketmq.cli.stopping import on_stop_signals, print_ready, watch_stdin
from sprocketmq.errors import ConfigError
from sprocketmq.events import event, quoted
from sprocketmq.net.address import parse_address
from sprocketmq.processes.members import PORT_STEP, Member, check_arrangement, members_of
from sprocketmq.processes.supervisor import ChildFailed, Command, Supervisor

log = logging.getLogger(__name__)

NAMESRV = "namesrv"
SYNC_MASTER, SLAVE = "SYNC_MASTER", "SLAVE"
# These have an option of their own in a child's command line, or do not apply there.
_OPTIONS = {"broker_name", "namesrv", "namesrv_port", "port", "store", "role", "broker_id", "ha_port", "in_sync_replicas"}
_OPTIONS |= {"metrics_exporter", "metrics_host", "metrics_label", "metrics_port", *LOG_SETTINGS}


async def serve_many(cluster: "ManyServers", *, stop_with_stdin: bool) -> int:
    """Run ``cluster`` until a signal, and return the exit code.

    A child that cannot start ends all of them; one that dies later is started again.
    """
    stop = asyncio.Event()
    why = "standard input ended"

    def stop_by(number: signal.Signals) -> None:
        nonlocal why
        why = number.name
        stop.set()

    with on_stop_signals(stop_by):
        if stop_with_stdin:
            watch_stdin(asyncio.get_running_loop(), stop)
        if cluster.metrics is not None:
            await cluster.metrics.start()
        starting = asyncio.ensure_future(asyncio.to_thread(cluster.start))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                await starting
                event(log, logging.INFO, "started", verb="serve", version=__version__, processes=cluster.names, settings=cluster.changes)
                print_ready(cluster.ready_line)
                await stopping
        except ChildFailed as e:
            why = str(e)
            fail(why)
            return EXIT_USAGE if e.code == EXIT_USAGE else EXIT_FAILURE
        finally:
            stopping.cancel()
            await asyncio.to_thread(cluster.stop)
            if cluster.metrics is not None:
                await cluster.metrics.stop()
            with contextlib.suppress(ChildFailed):
                await starting
            event(log, logging.INFO, "stopped", verb="serve", reason=why)
    return EXIT_OK


class ManyServers:
    """The children and their command lines. Each broker has a directory of its own in the store's. Raises ConfigError.

    What the children log goes to ``put``, with their names: one process writes the log file.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        brokers: int,
        replicas: int,
        insecure: bool,
        logs: LogOptions,
        put: Callable[[str], None],
        beside: list[ServedBeside],
    ) -> None:
        if brokers > 1 and "broker_name" in settings.explicit:
            raise ConfigError("several brokers are called broker-a, broker-b and so on: leave their name out (--name)")
        self._settings = settings
        if settings.initial_users:
            raise ConfigError(
                "secrets in a configuration file do not reach the processes of several brokers: make these users with"
                " `sprocketmq user create NAME --admin --users-file FILE`, and set users_file and inner_credentials_file"
            )
        if settings.role == SLAVE or settings.broker_id:
            raise ConfigError("the brokers that are started are masters, each with its slaves: leave broker_id out, and SLAVE as the role")
        if settings.role == SYNC_MASTER and not replicas:
            raise ConfigError("a SYNC_MASTER waits for slaves: say how many it has (--replicas), or leave the role out")
        if settings.in_sync_replicas is not None and settings.in_sync_replicas > replicas + 1:
            raise ConfigError(
                f"in_sync_replicas is {settings.in_sync_replicas}, but a master and its slaves are {replicas + 1}: no send would be"
                " acknowledged; start more slaves (--replicas)"
            )
        self._members = members_of(brokers, replicas, settings.broker_name)
        self._replicas = replicas
        last = settings.port + PORT_STEP * (len(self._members) - 1)
        if settings.port and last > 65535:
            raise ConfigError(f"port {settings.port}: {len(self._members)} brokers need ports up to {last}; choose a lower one, or 0")
        self._root = Path(settings.store).expanduser().absolute() if settings.store else data_directory()
        check_arrangement(self._root, self._members)
        self._supervisor = Supervisor(restart=True, say=lambda name, line: put(wrap_line(name, line, logs.format)))
        self.metrics = ServedMetrics(settings, self._supervisor) if settings.metrics_exporter == "prom" else None
        self._beside = beside
        self._beside_fields = ""
        self._common = ["--insecure"] if insecure else []
        self._common += ["--secure", str(settings.secure)] if settings.secure is not None else []
        self._common += ["--set", f"host={settings.host}", "--set", f"log_level={logs.level}", "--set", f"log_format={logs.format}"]

    @property
    def names(self) -> list[str]:
        """The processes, by name."""
        return [NAMESRV, *(member.name for member in self._members)]

    @property
    def changes(self) -> str:
        """The settings that differ from their defaults."""
        return self._settings.changes()

    @property
    def ready_line(self) -> str:
        """All addresses, and the directory that has the stores."""
        names = (member.name for member in self._members)
        brokers = " ".join(f"{name}={self._supervisor.ready(name)['broker']}" for name in names)
        scraped = f" metrics={self.metrics.address}" if self.metrics is not None else ""
        more = f"{self._beside_fields}{ready_fields(self._settings)} store={quoted(self._root)}"
        return f"ready namesrv={self._namesrv} {brokers}{scraped}{more}"

    def start(self) -> None:
        """Start the nameserver, then all masters at a time, then all slaves, which find their masters. Raises ChildFailed."""
        self._supervisor.start({NAMESRV: self._namesrv_command})
        commands = {member: self._broker_command(i, member) for i, member in enumerate(self._members)}
        for masters in (True, False):
            self._supervisor.start({member.name: command for member, command in commands.items() if member.is_master is masters})
        self._beside_fields = "".join([process.start(self._namesrv) for process in self._beside])

    def stop(self) -> None:
        """Stop all within a bounded time.

        First what runs beside the brokers, then each master and after it its slaves, which have everything by then and no time to miss
        their master, then the nameserver.
        """
        for process in self._beside:
            process.stop()
        masters = [member for member in self._members if member.is_master]
        slaves = [member for member in self._members if not member.is_master]
        chains = [([master.name], [slave.name for slave in slaves if slave.broker_name == master.broker_name]) for master in masters]
        self._supervisor.stop(*chains)

    @property
    def _namesrv(self) -> str:
        return self._supervisor.ready(NAMESRV)["namesrv"]

    def _namesrv_command(self, before: Mapping[str, str]) -> Sequence[str]:
        port = parse_address(before["namesrv"])[1] if before else self._settings.namesrv_port
        options = self._set({"max_connections", "cluster_name", *SECURITY_KEYS} & self._settings.explicit)
        return ["namesrv", "--port", str(port), "--store", str(self._root), *self._common, *options]

    def _set(self, keys: Collection[str]) -> list[str]:
        """Return the options for settings. They may name files with secrets; no setting is a secret."""
        options = []
        for key in sorted(keys):
            value = getattr(self._settings, key)
            options += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        return options

    def _broker_command(self, index: int, member: Member) -> Command:
        settings = self._settings
        addresses = ";".join(filter(None, (self._namesrv, settings.namesrv)))
        options = ["--namesrv", addresses, "--name", member.broker_name, "--store", str(member.store(self._root)), *self._common]
        if self._replicas:
            options += ["--role", settings.role if member.is_master else SLAVE, "--broker-id", str(member.broker_id)]
            copies = settings.in_sync_replicas or (2 if settings.role == SYNC_MASTER else None)
            # A slave that is promoted then takes its master's role.
            options += ["--in-sync-replicas", str(copies)] if copies is not None else []
        options += self._set(settings.explicit - _OPTIONS)
        first_port = settings.port + PORT_STEP * index if settings.port else 0
        if self._replicas:
            options += ["--ha-port", str(first_port + 1 if first_port else 0)]
        if self.metrics is not None:
            options += self.metrics.child_options(member.name)

        def command(before: Mapping[str, str]) -> Sequence[str]:
            return ["broker", "--port", str(parse_address(before["broker"])[1] if before else first_port), *options]

        return command
