"""Settings of the whole suite."""

from hypothesis import HealthCheck, settings

from sprocketmq import testing

# Machines that run tests are slow and shared: a time limit for one example tells nothing about the code. A failing example is
# printed with the line that repeats it.
settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("shared-machine")

# A wait ends when its condition is true; on a machine that does other things, too, that may take a while.
testing.TIMEOUT_S = 60.0
