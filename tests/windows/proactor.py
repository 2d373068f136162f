"""The event loop of Windows on Linux: asyncio's own transports of completed operations, over a selector in the place of completion ports."""

import asyncio
import contextlib
import inspect
import selectors
import socket
from asyncio import proactor_events
from collections.abc import Callable
from typing import Any

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Operation = Callable[[], Any]


class SelectProactor:
    """Starts operations on sockets and completes their futures, as ``asyncio.IocpProactor`` does."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._loop: Any = None

    def set_loop(self, loop: Any) -> None:
        """Take the loop whose futures are completed."""
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        """Wait, and complete what can be completed; the loop has no events to handle then."""
        for key, mask in self._selector.select(timeout):
            for event in (READ, WRITE):
                if mask & event and (waiting := key.data.get(event)) is not None:
                    self._complete(key.fileobj, event, *waiting)
        return []

    def close(self) -> None:
        """Forget what is not completed."""
        self._selector.close()

    def recv(self, sock: socket.socket, size: int, flags: int = 0) -> asyncio.Future[bytes]:
        """Receive bytes."""
        return self._start(sock, READ, lambda: sock.recv(size, flags))

    def recv_into(self, sock: socket.socket, buffer: Any, flags: int = 0) -> asyncio.Future[int]:
        """Receive into a buffer, and return how many bytes."""
        return self._start(sock, READ, lambda: sock.recv_into(buffer, 0, flags))

    def send(self, sock: socket.socket, data: Any, flags: int = 0) -> asyncio.Future[int]:
        """Send all of ``data``: a completion port completes a send when the system has taken every byte of it."""
        view = memoryview(data)
        sent = 0

        def send_rest() -> int:
            nonlocal sent
            while sent < len(view):
                sent += sock.send(view[sent:], flags)
            return sent

        return self._start(sock, WRITE, send_rest)

    def accept(self, sock: socket.socket) -> asyncio.Future[tuple[socket.socket, Any]]:
        """Accept a connection."""

        def accept() -> tuple[socket.socket, Any]:
            conn, address = sock.accept()
            conn.setblocking(False)
            return conn, address

        return self._start(sock, READ, accept)

    def connect(self, sock: socket.socket, address: Any) -> asyncio.Future[None]:
        """Connect."""
        error = sock.connect_ex(address)
        if error not in {0, 115}:  # EINPROGRESS
            raise OSError(error, f"Connect call failed {address}")

        def connected() -> None:
            if failed := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(failed, f"Connect call failed {address}")
            sock.getpeername()

        return self._start(sock, WRITE, connected, at_once=False)

    def _stop_serving(self, sock: socket.socket) -> None:
        self._forget(sock)

    def _start(self, sock: socket.socket, event: int, operation: Operation, *, at_once: bool = True) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        if at_once and self._try(future, operation):
            return future
        key = self._selector.get_map().get(sock)
        if key is not None and key.fileobj is not sock:  # a socket that was closed, and had the same descriptor
            self._forget(key.fd)
            key = None
        events = {} if key is None else key.data
        if key is None:
            self._selector.register(sock, event, events)
        assert event not in events, "two operations of one kind"
        events[event] = (future, operation)
        self._selector.modify(sock, sum(events), events)
        future.add_done_callback(lambda done: self._end(sock, event, done))
        return future

    @staticmethod
    def _try(future: asyncio.Future[Any], operation: Operation) -> bool:
        """Try an operation; return whether it is complete, or has failed."""
        try:
            future.set_result(operation())
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as e:
            future.set_exception(e)
        return True

    def _complete(self, sock: Any, event: int, future: asyncio.Future[Any], operation: Operation) -> None:
        if future.done() or self._try(future, operation):
            self._end(sock, event, future)

    def _end(self, sock: Any, event: int, future: asyncio.Future[Any]) -> None:
        """Wait no longer for ``event`` on behalf of ``future``."""
        if self._selector.get_map() is None:
            return
        try:
            key = self._selector.get_key(sock)
        except (KeyError, ValueError):
            return
        events = key.data
        if key.fileobj is not sock or events.get(event, (None,))[0] is not future:
            return
        del events[event]
        if events and sock.fileno() >= 0:
            self._selector.modify(sock, sum(events), events)
        else:
            self._forget(sock)

    def _forget(self, sock: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)


class ProactorLoop(proactor_events.BaseProactorEventLoop):
    """What ``asyncio.new_event_loop`` returns on Windows."""

    def __init__(self) -> None:
        super().__init__(SelectProactor())

    def run_forever(self) -> None:
        """Run, and hear calls from other threads meanwhile."""
        try:
            self.call_soon(self._loop_self_reading)
            super().run_forever()
        finally:
            if self._self_reading_future is not None:
                self._self_reading_future.cancel()
                self._self_reading_future = None


def _close_anyway(lost: Callable[..., None]) -> Callable[..., None]:
    """Return asyncio's end of a connection that closes the socket also when shutting it down fails, as for a peer that has reset it."""

    def end(transport: Any, error: BaseException | None) -> None:
        sock = transport._sock
        try:
            lost(transport, error)
        except OSError:
            sock.close()
            transport._sock = None
            transport._called_connection_lost = True
            if transport._server is not None:
                transport._server._detach()
                transport._server = None

    return end


proactor_events._ProactorBasePipeTransport._call_connection_lost = _close_anyway(  # type: ignore[attr-defined]
    proactor_events._ProactorBasePipeTransport._call_connection_lost  # type: ignore[attr-defined]
)


class Policy(asyncio.DefaultEventLoopPolicy):
    """Gives every loop of Windows, but to a cluster of this process one of Linux."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Return a new loop."""
        frame = inspect.currentframe()
        while frame is not None:
            if str(frame.f_globals.get("__name__", "")).startswith("sprocketmq.embedded."):
                return asyncio.SelectorEventLoop()
            frame = frame.f_back
        return ProactorLoop()
