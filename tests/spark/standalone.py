"""A standalone Spark master with workers on this machine's loopback: a cluster small enough for tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil
from tests.processes import descendants, jvms, kill

from sprocketmq.spark import ensure_java
from sprocketmq.testing import wait_until

LOOPBACK = "127.0.0.1"
READY_S = 60.0
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# What Spark reaches into; its own scripts say the same.
OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util", "sun.nio.ch")
]


class StandaloneCluster:
    """A master and ``workers`` workers with one core each. ``url`` is the master's; executors come and go with applications."""

    def __init__(self, home: Path, workers: int = 2) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._home = home
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        try:
            log = self._run("master", "org.apache.spark.deploy.master.Master", "--host", LOOPBACK, "--port", "0", "--webui-port", "0")
            self.url = self._said(log, rf"Starting Spark master at (spark://{LOOPBACK}:\d+)")
            arguments = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            logs = [
                self._run(
                    f"worker-{i}", "org.apache.spark.deploy.worker.Worker", *arguments, "--work-dir", str(home / f"work-{i}"), self.url
                )
                for i in range(workers)
            ]
            for log in logs:
                self._said(log, "(Successfully registered with master)")
        except BaseException:
            self.stop()
            raise

    def executors(self) -> list[psutil.Process]:
        """Return the JVMs that run tasks now."""
        return [child for worker in self._processes[1:] for child in jvms(worker.pid)]

    def stop(self) -> None:
        """End everything, executors included."""
        for process in self._processes:
            kill(descendants(process.pid))
            process.kill()
        for process in self._processes:
            process.wait(120)
        for log in self._logs:
            log.close()
        self._processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run(self, name: str, main: str, *arguments: str) -> Path:
        from pyspark.find_spark_home import _find_spark_home

        spark_home, java_home = _find_spark_home(), ensure_java()
        path = self._home / f"{name}.log"
        self._logs.append(path.open("wb"))
        command = [f"{java_home}/bin/java", "-Xmx256m", *QUICK, *OPENED, "-cp", f"{spark_home}/jars/*", main, *arguments]
        # Executors are started by their worker, with its environment; Spark's own scripts say which Scala, else it is looked for in vain.
        named = {"SPARK_HOME": spark_home, "JAVA_HOME": java_home, "SPARK_LOCAL_IP": LOOPBACK, "SPARK_SCALA_VERSION": "2.13"}
        environment = {**os.environ, **named}
        self._processes.append(
            subprocess.Popen(
                command, cwd=self._home, env=environment, stdin=subprocess.DEVNULL, stdout=self._logs[-1], stderr=subprocess.STDOUT
            )
        )
        return path

    def _said(self, log: Path, pattern: str) -> str:
        """Wait until a log has a line and return its first group."""

        def found() -> re.Match[str] | None:
            text = log.read_text(errors="replace")
            if self._processes[-1].poll() is not None:
                raise RuntimeError(f"{log.stem} ended with {self._processes[-1].returncode}:\n{text[-3000:]}")
            return re.search(pattern, text)

        match = wait_until(found, timeout_s=READY_S, what=f"{pattern!r} in {log}")
        assert match is not None
        return match[1]
