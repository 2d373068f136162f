"""A ``sprocketmq serve`` process that a test can kill.

::

    server = ServeProcess(tmp_path / "store", flush_disk_type="SYNC_FLUSH")
    namesrv = server.start()
    ...
    server.kill()          # SIGKILL, at any moment, also before it is ready

``BrokerProcess`` is the same for a broker alone, of which there can be several.
"""

import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from sprocketmq.events import fields_of
from sprocketmq.net.address import parse_address
from sprocketmq.net.listening import KeptPorts

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


class ServeFailed(AssertionError):
    """The process did not become ready, or did not stop cleanly; the text has its standard error."""


class ServeProcess:
    """Nameserver and broker in one child process on free ports of this machine, over one store directory.

    ``settings`` are those of the configuration file. ``start`` runs a new process each time; leaving ``with`` kills it. The child ends by
    itself when this process does.
    """

    def __init__(self, store: Path, **settings: object) -> None:
        self.store = store
        self.settings = settings
        self._child: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``

    @property
    def pid(self) -> int:
        """The id of the process that was launched. Raises ProcessLookupError when none is."""
        if self._child is None:
            raise ProcessLookupError("the process is not launched, or was killed")
        return self._child.pid

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self.kill()
        self._said.seek(0)
        self._said.truncate()
        command = [sys.executable, "-m", "sprocketmq", *self._arguments(), "--stop-with-stdin", "--store", str(self.store)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, bufsize=0)

    def _arguments(self) -> list[str]:
        return ["serve", "--namesrv-port", "0", "--port", "0"]

    def start(self) -> str:
        """Start the process and return the nameserver's address when it is ready. Raises ServeFailed."""
        self.launch()
        return self.ready()

    def ready(self) -> str:
        """Wait for the launched process and return the nameserver's address. Raises ServeFailed."""
        return self._await_ready()["namesrv"]

    def _await_ready(self) -> dict[str, str]:
        child = self._child
        assert child is not None, "launch it first"
        assert child.stdout is not None
        line = b""
        deadline = time.monotonic() + READY_TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    break
                more = child.stdout.read(4096)
                if not more:
                    break
                line += more
        if not line.startswith(b"ready "):
            self.kill()
            raise ServeFailed(f"`sprocketmq serve` did not become ready: {self.said() or line.decode() or 'it printed nothing'}")
        return fields_of(line.decode())

    def said(self) -> str:
        """Return what the process has written to standard error."""
        self._said.seek(0)
        return self._said.read().decode(errors="replace").strip()

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it is gone; harmless when none runs."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()

    def stop(self) -> None:
        """Stop the process cleanly (SIGTERM). Raises ServeFailed when it fails or takes too long."""
        child = self._child
        if child is None:
            return
        child.terminate()
        try:
            code = child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = -1
        self.kill()
        if code:
            raise ServeFailed(f"`sprocketmq serve` ended with {code}: {self.said()}")

    def close(self) -> None:
        """Kill the process if it runs, and free all resources."""
        self.kill()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class BrokerProcess(ServeProcess):
    """A broker in one child process, registered at the nameserver ``namesrv``; ``advertise`` is the host for clients.

    ``start`` returns its address, as ``HOST:PORT``: any free port the first time, the same one after each ``kill``.
    """

    def __init__(self, store: Path, *, namesrv: str, name: str = "broker-a", advertise: str = "127.0.0.1", **settings: object) -> None:
        super().__init__(store, **settings)
        self.namesrv = namesrv
        self.name = name
        self.advertise = advertise
        self.port: int = 0
        self._kept_ports = KeptPorts()

    def _arguments(self) -> list[str]:
        return ["broker", "--namesrv", self.namesrv, "--name", self.name, "--advertise", self.advertise, "--port", str(self.port)]

    def ready(self) -> str:
        """Wait for the launched process and return its address. Raises ServeFailed."""
        self.port = parse_address(self._await_ready()["broker"])[1]
        self._kept_ports.give_up(self.name)
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it is gone; harmless when none runs. The port is kept for its return."""
        super().kill()
        if self.port:
            self._kept_ports.keep(self.name, "127.0.0.1", self.port)

    def close(self) -> None:
        """Kill the process if it runs, and free all resources."""
        super().close()
        self._kept_ports.close()
