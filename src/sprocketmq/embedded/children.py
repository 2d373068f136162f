"""The servers of a LocalCluster in child processes: ``sprocketmq namesrv``, and ``sprocketmq broker`` for each broker."""

from collections.abc import Mapping, Sequence
from dataclasses import fields

from sprocketmq.clock import SYSTEM_CLOCK
from sprocketmq.embedded.plan import STOP_TIMEOUT_S, ClusterFailed, ClusterPlan
from sprocketmq.processes.members import Member
from sprocketmq.processes.supervisor import ChildFailed, Command, Supervisor

NAMESRV = "namesrv"


class ChildServers:
    """A supervised nameserver and brokers. A child that ends on its own stays away, as tests expect."""

    def __init__(self, plan: ClusterPlan) -> None:
        self._plan = plan
        self._supervisor = Supervisor(restart=False)
        self.namesrv: str = ""
        self.brokers: dict[str, str] = {}

    def start(self) -> None:
        deadline = SYSTEM_CLOCK.monotonic() + self._plan.start_timeout_s
        self._start({NAMESRV: self._namesrv_command}, deadline)
        self.namesrv = self._supervisor.ready(NAMESRV)["namesrv"]
        for members in (self._plan.masters, self._plan.slaves):
            self._start({member.name: self._broker_command(member) for member in members}, deadline)
        for member in self._plan.members:
            self.brokers[member.name] = self._supervisor.ready(member.name)["broker"]

    def stop(self) -> None:
        # Slaves first, or they would log that their master is gone.
        self._supervisor.stop([[member.name for member in self._plan.slaves], [member.name for member in self._plan.masters]])

    def kill(self) -> None:
        self._supervisor.kill()

    def stop_broker(self, name: str) -> None:
        self._supervisor.stop_one(self._plan.member(name).name, STOP_TIMEOUT_S)

    def kill_broker(self, name: str) -> None:
        self._supervisor.kill(self._plan.member(name).name)

    def start_broker(self, name: str) -> None:
        self._start_again(self._plan.member(name).name)

    def stop_namesrv(self) -> None:
        self._supervisor.stop_one(NAMESRV, STOP_TIMEOUT_S)

    def start_namesrv(self) -> None:
        self._start_again(NAMESRV)

    @property
    def pids(self) -> list[int]:
        pids = self._supervisor.pids
        return [pids[member.name] for member in self._plan.members if member.name in pids]

    def _start(self, commands: Mapping[str, Command], deadline: float) -> None:
        try:
            self._supervisor.start(commands, deadline - SYSTEM_CLOCK.monotonic())
        except ChildFailed as e:
            raise ClusterFailed(str(e)) from None

    def _start_again(self, name: str) -> None:
        try:
            self._supervisor.start_again(name, self._plan.start_timeout_s)
        except ChildFailed as e:
            raise ClusterFailed(str(e)) from None

    def _namesrv_command(self, before: Mapping[str, str]) -> Sequence[str]:
        port = port_of(before["namesrv"]) if before else str(self._plan.namesrv_port)
        cluster = f"cluster_name={self._plan.cluster_name}"
        return ("namesrv", "--port", port, "--store", str(self._plan.kv_directory), *self._security, "--set", cluster)

    @property
    def _security(self) -> tuple[str, ...]:
        return () if self._plan.secure is None else ("--secure", str(self._plan.secure.root))

    def _broker_command(self, member: Member) -> Command:
        """Return the command line for what the plan's ``broker_config`` returns."""
        config = self._plan.broker_config(self.namesrv, member)
        options = ["--store", str(config.store.root), "--name", config.broker_name, "--cluster", config.cluster_name]
        options += ["--namesrv", self.namesrv, *self._security]
        said = {"root", "store", "broker_name", "cluster_name", "port", "namesrv", "tls", "tls_client", "security"}
        for part in (config, config.store):
            for one in fields(part):
                value = getattr(part, one.name)
                if one.name not in said and value != one.default:
                    options += ["--set", f"{one.name}={str(value).lower() if isinstance(value, bool) else value}"]

        def command(before: Mapping[str, str]) -> Sequence[str]:
            return ("broker", "--port", port_of(before["broker"]) if before else str(config.port), *options)

        return command


def port_of(address: str) -> str:
    """Return the port of ``host:port``."""
    return address.rpartition(":")[2]
