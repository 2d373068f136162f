"""The broker of a run that was given none."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import ConfigError
from sprocketmq.omb.workload import GIB, Workload

# What the log, queues and free space that the broker insists on need beside the bodies.
_ROOM = 1.5


@dataclass(frozen=True)
class Servers:
    """Where the servers are, as the driver's settings, and the processes whose CPU time counts as theirs."""

    config: Mapping[str, object]
    pids: Sequence[int]


@contextlib.contextmanager
def own_broker(workload: Workload) -> Iterator[Servers]:
    """Run a nameserver and a broker in child processes, with a store in a temporary directory.

    Raises ConfigError when the disk cannot hold the workload's backlog.
    """
    free = shutil.disk_usage(tempfile.gettempdir()).free
    wanted = workload.consumer_backlog_size_gb * GIB * _ROOM
    if wanted > free:
        raise ConfigError(
            f"a backlog of {workload.consumer_backlog_size_gb:g} GiB needs {wanted / GIB:.0f} GiB of disk, and {tempfile.gettempdir()} has"
            f" {free / GIB:.0f} GiB free: lower consumerBacklogSizeGB, or set TMPDIR to a larger disk"
        )
    with LocalCluster(in_process=False) as cluster:
        yield Servers({"namesrv": cluster.namesrv}, cluster.pids)
