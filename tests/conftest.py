"""Settings of the whole suite."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from sprocketmq import testing

# A shell that starts a job in the background has it ignore SIGINT, and so would every process the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines that run tests are slow and shared: a time limit for one example tells nothing about the code. A failing example is
# printed with the line that repeats it.
settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("shared-machine")

# A wait ends when its condition is true; on a machine that does other things, too, that may take a while.
testing.TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def _signals_arrive() -> Iterator[None]:
    """A test that leaves a handler of its own behind takes signals from all that follow."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before, "the test leaves signal handlers behind"
