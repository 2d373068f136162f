"""Our own servers as users start them: the commands of `sprocketmq`, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from sprocketmq.events import fields_of

READY_TIMEOUT_S = 60.0
# A broker on a busy disk would refuse sends after a write that took a second.
UNHURRIED = {"os_page_cache_busy_timeout_ms": 60_000}


class OurProcess:
    """One `sprocketmq` server command. `namesrv`, `broker` and `metrics` are the addresses its ready line tells, where it has them."""

    def __init__(self, directory: Path, *command: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.store = directory / "store"
        self.log = directory / "errors.log"
        self._errors = self.log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sprocketmq", *command], stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=directory
        )
        assert self.process.stdout is not None
        watchdog = threading.Timer(READY_TIMEOUT_S, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                if line.startswith("ready "):
                    break
            else:
                self.stop()
                raise AssertionError(f"`sprocketmq {' '.join(command)}` did not get ready:\n{self.log.read_text()}")
        finally:
            watchdog.cancel()
        facts = fields_of(line)
        self.namesrv = facts.get("namesrv", "")
        self.broker = facts.get("broker", "")
        self.metrics = facts.get("metrics", "")

    def stop(self) -> None:
        """Stop cleanly, by SIGTERM, and wait; a second call does nothing."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(60)
        self._close()

    def kill(self) -> None:
        """End the process at once, by SIGKILL, as if the machine's memory had run out."""
        self.process.kill()
        self.process.wait(60)
        self._close()

    def _close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def namesrv_and_broker(directory: Path, **settings: object) -> OurProcess:
    """Run both in one process on free ports."""
    chosen = [f"--set={key}={value}" for key, value in (UNHURRIED | settings).items()]
    return OurProcess(directory, "serve", "--namesrv-port", "0", "--port", "0", "--store", str(directory / "store"), *chosen)
