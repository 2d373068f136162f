"""Settings of the whole suite."""

import gc
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Before the first import of numpy: the pool of threads that it would start in every process is of use to no test.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What is imported and collected stays until the end (`pytest_collection_finish`): looking for garbage in between finds none.
gc.disable()

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from tests.inside import listen_on_own_ports  # noqa: E402

from sprocketmq import testing  # noqa: E402
from sprocketmq.net.sockets import raise_descriptor_limit  # noqa: E402

# A test that starts a process forks, and gRPC, whose threads other tests have started, would write about that to its standard error.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Most shells allow 1024 open files, or 256: fewer than the connections of some tests.
raise_descriptor_limit()

# A shell that starts a job in the background has it ignore SIGINT, and so would every process the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The directories of tests have a space in their names, as those of many users have; each user of a machine has its own.
_SPACED = Path(tempfile.gettempdir(), f"sprocketmq tests {getattr(os, 'getuid', int)()}")
_SPACED.mkdir(exist_ok=True)
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_SPACED))

# Machines that run tests are slow and shared: a time limit for one example tells nothing about the code. A failing example is
# printed with the line that repeats it.
settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("shared-machine")

# A server of this process that ends finds its port free when it comes back.
listen_on_own_ports()

# A wait ends when its condition is true; on a machine that does other things, too, that may take a while.
testing.TIMEOUT_S = 60.0


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what stays until the end, some 450 MB of modules and tests, out of every later collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _signals_arrive() -> Iterator[None]:
    """A test that leaves a handler of its own behind takes signals from all that follow."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before, "the test leaves signal handlers behind"


@pytest.fixture(autouse=True)
def _log_handlers_end_with_their_test() -> Iterator[None]:
    """Remove the handler that a command sets up in this process: its stream is the test's captured one, which is closed afterwards."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in before:  # pytest's own handlers are of other classes
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _process_settings_end_with_their_test() -> Iterator[None]:
    """Undo what a server's command that runs in this process sets for a process of its own (``net.own_process``).

    With its callback every full collection freezes what it finds. Hypothesis, when CI is set in the environment, asks the collector who
    refers to its generator of random numbers, and then warns that nobody does.
    """
    callbacks, switch_interval_s = [*gc.callbacks], sys.getswitchinterval()
    yield
    gc.callbacks[:] = callbacks
    sys.setswitchinterval(switch_interval_s)
