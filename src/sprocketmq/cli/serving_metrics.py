"""``serve --brokers N --metrics PORT``: one page with the metrics of all processes.

Each broker serves its own page at a free port of 127.0.0.1. A scrape of this process reads them all at once, and adds what it knows of each
process, the nameserver and itself included. A process that does not answer is shown as down, and its series are left out.
"""

import asyncio
import http.client
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sprocketmq.broker.metrics.exposition import COUNTER, GAUGE, Metric, Row, Writer, read_labels
from sprocketmq.broker.scraping.endpoint import PATH, MetricsEndpoint
from sprocketmq.broker.scraping.merging import merge, samples_of
from sprocketmq.cli.config import Settings
from sprocketmq.net.address import parse_address
from sprocketmq.processes.supervisor import ChildState, Supervisor

# The label that tells processes apart, with the names that log lines have: a slave has the ``node_id`` of its master.
LABEL = "process"
# This process in that label.
OWN_NAME = "serve"
# How long a broker may be silent while its page is read. Prometheus gives up a scrape after 10 s by default.
SILENT_S = 4.0
# Pages that are read at the same time.
_READERS = 8


class ServedMetrics:
    """The metrics port of a supervised cluster. Raises ConfigError for labels that Prometheus does not allow."""

    def __init__(self, settings: Settings, supervisor: Supervisor) -> None:
        self._settings = settings
        self._supervisor = supervisor
        labels = {"cluster": settings.cluster_name, **read_labels(settings.metrics_label)}
        self._writer = Writer(labels, settings.metrics_max_series)
        self._readers = ThreadPoolExecutor(_READERS, "sprocketmq-scrape")
        self._endpoint = MetricsEndpoint(self._page, name=OWN_NAME)

    def child_options(self, process: str) -> Sequence[str]:
        """Return the options with which a broker serves its page here, its series labelled with the name of its process."""
        label = ",".join(filter(None, (self._settings.metrics_label, f"{LABEL}:{process}")))
        return ["--metrics", "0", "--set", "metrics_host=127.0.0.1", "--set", f"metrics_label={label}"]

    async def start(self) -> None:
        """Listen. Raises PortInUse, and ConfigError for a host that is not this machine's."""
        await self._endpoint.start(self._settings.metrics_host, self._settings.metrics_port)

    async def stop(self) -> None:
        """Stop listening; pages that are being read are given up."""
        await self._endpoint.stop()
        self._readers.shutdown(wait=False, cancel_futures=True)

    @property
    def address(self) -> str:
        """The ``host:port`` it listens on."""
        return self._endpoint.address

    async def _page(self) -> AsyncIterator[str]:
        states = self._supervisor.states
        addresses = {name: address for name, state in states.items() if state.is_ready and (address := state.fields.get("metrics"))}
        loop = asyncio.get_running_loop()
        reading = [loop.run_in_executor(self._readers, _read, address) for address in addresses.values()]
        pages = dict(zip(addresses, await asyncio.gather(*reading), strict=True))
        rows = [_Process(name, state, is_up=state.is_ready and pages.get(name, True) is not None) for name, state in states.items()]
        rows.append(_Process(OWN_NAME, ChildState(is_ready=True, pid=os.getpid(), starts=1, fields={}), is_up=True))
        for metric in PROCESSES:
            for piece in self._writer.pieces(metric, metric.rows(rows)):
                yield piece
        for piece in merge(page for page in pages.values() if page is not None):
            yield piece


def _read(address: str) -> dict[str, str] | None:
    """Return the page of one broker, None when it cannot be read whole."""
    host, port = parse_address(address)
    connection = http.client.HTTPConnection(host, port, timeout=SILENT_S)
    try:
        connection.request("GET", PATH)
        response = connection.getresponse()
        return samples_of(response.read().decode()) if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class _Process:
    """One process at the time of a scrape. ``usage`` has its seconds of processor time and its resident bytes, where /proc tells them."""

    def __init__(self, name: str, state: ChildState, *, is_up: bool) -> None:
        self.name = name
        self.is_up = is_up
        self.restarts = max(0, state.starts - 1)
        self.usage = None if state.pid is None else usage_of(state.pid)


def usage_of(pid: int) -> tuple[float, int] | None:
    """Return the seconds of processor time, user and kernel, and the resident bytes of a process; None where there is no Linux /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def _up(processes: Sequence[_Process]) -> Iterator[Row]:
    for process in processes:
        yield (process.name,), int(process.is_up)


def _restarts(processes: Sequence[_Process]) -> Iterator[Row]:
    for process in processes:
        yield (process.name,), process.restarts


def _cpu(processes: Sequence[_Process]) -> Iterator[Row]:
    for process in processes:
        if process.usage is not None:
            yield (process.name,), process.usage[0]


def _resident(processes: Sequence[_Process]) -> Iterator[Row]:
    for process in processes:
        if process.usage is not None:
            yield (process.name,), process.usage[1]


PROCESSES = (
    Metric("sprocketmq_process_up", GAUGE, (LABEL,), "1 for a process that is ready and whose metrics were read, otherwise 0.", _up),
    Metric("sprocketmq_process_restarts_total", COUNTER, (LABEL,), "How often a process was started again.", _restarts),
    Metric("sprocketmq_process_cpu_seconds_total", COUNTER, (LABEL,), "Processor time of a process, user and kernel.", _cpu),
    Metric("sprocketmq_process_resident_bytes", GAUGE, (LABEL,), "Memory of a process, mapped files included.", _resident),
)
