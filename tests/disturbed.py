"""Disturb what runs when, as a busy machine does at times (``make test-disturbed``).

A test that takes two things for one, such as "the slave has the bytes" for "readers of the slave see them", passes as long as the second
follows within the same turn of the event loop. Repeating the suite finds few of these: the unlucky order is rare. Here it is common. The
event loop of the test's process stands still for some milliseconds now and then, hears of the sockets that are ready in any order and of
some of them only in a later turn; the work of threads begins and ends late. All of that may happen to a correct program.

This is a plugin of pytest: ``-p tests.disturbed``. Only the process of the test is disturbed, not the servers it starts.
"""

import asyncio
import concurrent.futures
import random
import selectors
import threading
import time

# How often, of 1, and for how long.
STALLED, STALL_S = 0.02, (0.001, 0.03)
HELD_BACK, KEPT = 0.3, 0.5
LATE, LATE_S = 0.2, (0.0005, 0.02)

# Not of the module `random`: tests seed that one, and repeat what it draws.
_chance = random.Random()


def _late() -> None:
    if _chance.random() < LATE:
        time.sleep(_chance.uniform(*LATE_S))


class DisturbedSelector(selectors.DefaultSelector):
    """Tells of what is ready late, in any order, and a part only."""

    def select(self, timeout=None):
        if _chance.random() < STALLED:
            time.sleep(_chance.uniform(*STALL_S))
        ready = super().select(timeout)
        if len(ready) > 1:
            _chance.shuffle(ready)
        if ready and _chance.random() < HELD_BACK:
            ready = [found for found in ready if _chance.random() < KEPT]  # the rest is still ready in the next turn
        return ready


_new_loop = asyncio.SelectorEventLoop.__init__
_submit = concurrent.futures.ThreadPoolExecutor.submit
_call_soon_threadsafe = asyncio.BaseEventLoop.call_soon_threadsafe


def _init(self, selector=None):
    _new_loop(self, selector or DisturbedSelector())


def _submit_late(self, fn, /, *args, **kwargs):
    def job():
        _late()
        return fn(*args, **kwargs)

    return _submit(self, job)


def _call_late(self, callback, *args, context=None):
    if threading.get_ident() != self._thread_id:
        _late()
    return _call_soon_threadsafe(self, callback, *args, context=context)


asyncio.SelectorEventLoop.__init__ = _init
asyncio.BaseEventLoop.call_soon_threadsafe = _call_late
concurrent.futures.ThreadPoolExecutor.submit = _submit_late
