"""Event loops for threads and processes of our own."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's where it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
