"""A session whose start is interrupted leaves no process behind."""

import os
import signal
import subprocess
import sys
import uuid

import psutil
import pytest
from tests.processes import kill

from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(200)]

PROGRAM = "from sprocketmq.spark import session; session(cores=1, quick_start=True)"
# Every process that descends from the program has this variable in its environment.
MARK = "SPROCKETMQ_TEST_MARK"


def descendants(mark, parent):
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != parent and process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # gone, or another user's
            continue
    return found


def is_jvm(process):
    """Tell the JVM of Spark from the shell script and the launcher before it, which have the same words behind others."""
    try:
        program, *words = process.cmdline() or [""]
    except psutil.Error:
        return False
    return program.endswith("java") and "org.apache.spark.deploy.SparkSubmit" in words and "org.apache.spark.launcher.Main" not in words


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, lambda processes: processes),
        (signal.SIGINT, lambda processes: any(map(is_jvm, processes))),
        (signal.SIGTERM, lambda processes: any(map(is_jvm, processes))),
    ],
    ids=["an interrupt as the first process starts", "an interrupt as the JVM starts", "a termination as the JVM starts"],
)
def test_an_interrupted_start_leaves_no_process(number, moment):
    mark = uuid.uuid4().hex
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], env=os.environ | {MARK: mark}, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: moment(descendants(mark, program.pid)), timeout_s=60)
        program.send_signal(number)
        program.wait(60)
        assert program.returncode == -number
        jvms = set()

        def all_are_gone():
            left = descendants(mark, program.pid)
            jvms.update(process.pid for process in left if is_jvm(process))
            return not left

        wait_until(all_are_gone, timeout_s=60)
        # An interrupted program has ended its JVM; that of one that was killed outright ends when it has read that its input has ended.
        assert not jvms or number == signal.SIGTERM
    finally:
        program.kill()
        kill(descendants(mark, program.pid))
