"""Begin tasks at once, as programs do that set ``asyncio.eager_task_factory`` (``make test-eager``).

A task that its creator has not noted yet may then already be over. ``factory`` does the same on Python 3.11, which has none of its own.

This is a plugin of pytest: ``-p tests.eager``. Only the process of the test has such tasks, not the servers it starts.
"""

import asyncio
import sys


def _begin_at_once(loop, coro, **options):
    if not loop.is_running():
        return asyncio.Task(coro, loop=loop, **options)
    begin = []
    loop.call_soon = lambda step, *_, context=None: begin.append((step, context))  # the new task's only
    try:
        task = asyncio.tasks._PyTask(coro, loop=loop, **options)
    finally:
        del loop.call_soon
    ((step, context),) = begin
    creator = asyncio.current_task(loop)
    if creator is not None:
        asyncio.tasks._leave_task(loop, creator)
    try:
        context.run(step)
    finally:
        if creator is not None:
            asyncio.tasks._enter_task(loop, creator)
    return task


factory = asyncio.eager_task_factory if sys.version_info >= (3, 12) else _begin_at_once

_new_loop = asyncio.BaseEventLoop.__init__


def _init(self):
    _new_loop(self)
    self.set_task_factory(factory)


def pytest_configure() -> None:
    """Let all loops of asyncio begin tasks at once; called where this module is a plugin."""
    asyncio.BaseEventLoop.__init__ = _init
