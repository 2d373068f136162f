"""Answers as JSON and as streams of events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
from starlette.responses import Response, StreamingResponse

from sprocketmq.net.tasks import Background
from sprocketmq.web.failures import Failure, failure_of

JSON_TYPE = "application/json"
# A stream that is silent for this long sends a comment, so that a disconnected peer is detected.
STREAM_SILENCE_S = 15.0
WAITING_EVENTS = 16

_encode = msgspec.json.Encoder().encode


def json_response(value: object, status: int = 200) -> Response:
    """Return ``value`` as JSON."""
    return Response(_encode(value), status, media_type=JSON_TYPE)


def failure_response(status: int, failure: Failure) -> Response:
    """Return a failure as JSON: ``{"error": {"kind": ..., "text": ...}}``."""
    return json_response({"error": failure}, status)


def event_stream(events: AsyncIterator[bytes]) -> Response:
    """Return a stream of server-sent events."""
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


def event(name: str, data: object) -> bytes:
    """Return one server-sent event; JSON has no line breaks."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(data))


async def encoded(events: AsyncGenerator[tuple[str, object]], background: Background) -> AsyncGenerator[bytes]:
    """Yield ``events`` as bytes until they end, with an error as last event ``failure``, or until ``background`` is closed.

    At most WAITING_EVENTS wait for a viewer who does not read.
    """
    waiting: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING_EVENTS)
    task = background.spawn(_pump(events, waiting), "a stream", awaited=True)
    yield b": open\n\n"
    try:
        while True:
            try:
                one = await asyncio.wait_for(waiting.get(), STREAM_SILENCE_S)
            except TimeoutError:
                one = b": nothing new\n\n"
            if one is None:
                return
            yield one
    finally:
        await background.end(task)


async def _pump(events: AsyncGenerator[tuple[str, object]], waiting: "asyncio.Queue[bytes | None]") -> None:
    try:
        async with contextlib.aclosing(events):
            async for name, data in events:
                await waiting.put(event(name, data))
    except Exception as e:  # noqa: BLE001 - any error is the last event
        await waiting.put(event("failure", failure_of(e)[1]))
    finally:
        while waiting.full():
            waiting.get_nowait()
        waiting.put_nowait(None)
