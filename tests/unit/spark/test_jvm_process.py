"""What becomes of the processes of a start of Spark that is interrupted; shells stand for Spark's scripts and the JVM."""

import signal
import subprocess

import psutil
import pytest
from tests.processes import ended

pytest.importorskip("pyspark")

from pyspark import SparkContext, java_gateway

from sprocketmq.spark.sessions.jvm_process import ended_unless_started
from sprocketmq.testing import wait_until

# A script with a child, which becomes another program: as spark-submit does.
SCRIPT = ["sh", "-c", "sleep 600 & exec sleep 600"]


def start(stdin=subprocess.PIPE):
    """Start the processes as PySpark does; return the one that was started, and both to be looked at."""

    def ignore_interrupts():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    process = java_gateway.Popen(SCRIPT, stdin=stdin, preexec_fn=ignore_interrupts)
    parent = psutil.Process(process.pid)
    return process, [parent, *wait_until(parent.children)]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_whatever_interrupts_a_start_ends_its_processes(interruption):
    before = java_gateway.Popen
    with pytest.raises(interruption), ended_unless_started():
        _, processes = start()
        raise interruption
    wait_until(lambda: all(map(ended, processes)))
    assert java_gateway.Popen is before


def test_an_interrupt_while_the_process_is_made_comes_when_it_is_known(monkeypatch):
    made = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(psutil.Process(self.pid))
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt), ended_unless_started():
        start()
    wait_until(lambda: all(map(ended, made)))
    assert made
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_gateway_whose_process_was_ended_is_not_used_again(monkeypatch):
    class Gateway:
        closed = False

        def shutdown(self):
            self.closed = True
            raise OSError("its JVM is gone")

    gateway = Gateway()
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    monkeypatch.setattr(SparkContext, "_jvm", object())
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(KeyboardInterrupt), ended_unless_started():
        start()
        raise KeyboardInterrupt
    assert (gateway.closed, SparkContext._gateway, SparkContext._jvm) == (True, None, None)


def test_a_jvm_that_ran_before_is_left_alone(monkeypatch):
    gateway = object()
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    with pytest.raises(KeyboardInterrupt), ended_unless_started():
        raise KeyboardInterrupt
    assert SparkContext._gateway is gateway


def test_what_has_started_stays():
    with ended_unless_started():
        started, processes = start(stdin=subprocess.DEVNULL)
    try:
        assert not any(map(ended, processes))
    finally:
        for process in processes:
            process.kill()
        started.wait()
