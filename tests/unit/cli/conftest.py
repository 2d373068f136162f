"""Running commands: in this process with real files as standard streams, or as processes of their own where that is the point."""

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest
from tests.recorded_stores import unpack

from sprocketmq.cli.app import main
from sprocketmq.embedded import LocalCluster
from sprocketmq.events import fields_of


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def json_lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal(io.TextIOWrapper):
    """A file that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture(scope="module")
def mq():
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def cli(mq, monkeypatch, tmp_path, capfd):
    """Return ``cli(*arguments, stdin=b"", terminal=False)``: run a command against the module's cluster."""
    monkeypatch.setenv("NAMESRV_ADDR", mq.namesrv)

    def run(*arguments, stdin=b"", terminal=False):
        source = tmp_path / "stdin"
        source.write_bytes(stdin)
        with Terminal(source.open("rb")) if terminal else source.open() as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stream)
            code = main(arguments)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Done(code, out, err)

    return run


@pytest.fixture
def spawn():
    """Return ``spawn(mq, *arguments)``: start a command against a cluster as a process, with pipes unless ``streams`` says otherwise."""

    def start(mq, *arguments, **streams):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environ = os.environ | {"NAMESRV_ADDR": mq.namesrv}
        processes.append(subprocess.Popen([sys.executable, "-m", "sprocketmq", *arguments], env=environ, **(pipes | streams)))
        return processes[-1]

    processes = []
    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Serving:
    """A serving verb as a process of its own."""

    def __init__(self, *arguments, environ=None):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sprocketmq", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (environ or {}),
        )
        self.ready = self.process.stdout.readline()
        self.address = fields_of(self.ready)

    def end(self, number=signal.SIGTERM):
        """Send a signal and return exit code and stderr."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self):
        _, err = self.process.communicate(timeout=120)
        assert "Traceback" not in err
        return self.process.returncode, err


@pytest.fixture
def serving():
    """Return a function that starts a serving verb and waits for its ready line."""
    started = []

    def start(*arguments, environ=None):
        started.append(Serving(*arguments, environ=environ))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


@pytest.fixture
def store(tmp_path):
    """A store of Apache's broker, stopped in order."""
    return unpack("plain", tmp_path)


@pytest.fixture
def command(capfd):
    """Return ``command(verb, *arguments)``: run a command that needs no cluster; gives (exit code, output, errors)."""

    def run(verb, *arguments):
        code = main([verb, *map(str, arguments)])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run
