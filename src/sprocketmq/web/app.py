"""The application: the routes from requests to functions, and the layers that requests pass."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import AuthenticationFailed
from sprocketmq.web.answers import JSON_TYPE, encoded, event_stream, failure_response, json_response
from sprocketmq.web.calls import Call, Route, Stream
from sprocketmq.web.dashboard import Dashboard
from sprocketmq.web.failures import Failure, Refused, failure_of
from sprocketmq.web.guard import Guard
from sprocketmq.web.pages import PAGES, Page
from sprocketmq.web.sessions import SESSION_S, Session
from sprocketmq.web.static_files import StaticFiles
from sprocketmq.web.target import ClusterTarget

MAX_LOGIN_BYTES = 4096
READ_TIMEOUT_S = 30.0
CSRF_HEADER = "X-CSRF-Token"

_Answer = Callable[[Request], Awaitable[Response]]


def create_app(
    target: ClusterTarget,
    *,
    read_only: bool = False,
    allowed_hosts: Collection[str] = (),
    pages: Sequence[Page] = PAGES,
    clock: Clock = SYSTEM_CLOCK,
) -> Starlette:
    """Return the dashboard of a cluster as an ASGI application; ``app.state.dashboard`` is its Dashboard.

    ``read_only`` refuses what changes the cluster. ``allowed_hosts`` are names, beside addresses and localhost, under which browsers may
    reach it. Raises ConfigError for a target with invalid credentials or TLS settings.
    """
    dashboard = Dashboard(target, read_only=read_only, clock=clock)
    endpoints = Endpoints(dashboard)
    static = StaticFiles([{"name": page.name, "path": page.path} for page in pages])

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await dashboard.start()
        try:
            yield
        finally:
            await dashboard.close()

    routes = [
        Endpoint("/api/session", endpoints.guarded(endpoints.session), methods=["GET"]),
        Endpoint("/api/login", endpoints.guarded(endpoints.login), methods=["POST"]),
        Endpoint("/api/logout", endpoints.guarded(endpoints.logout), methods=["POST"]),
        Endpoint("/static/{name:path}", static.file, methods=["GET"]),
        *(
            Endpoint(route.path, endpoints.guarded(endpoints.of_route(route)), methods=[route.method])
            for page in pages
            for route in page.routes
        ),
        *(
            Endpoint(stream.path, endpoints.guarded(endpoints.of_stream(stream)), methods=["GET"])
            for page in pages
            for stream in page.streams
        ),
        *(Endpoint(page.path, static.shell, methods=["GET"]) for page in pages),
        Endpoint("/login", static.shell, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, names=tuple(allowed_hosts))],
        exception_handlers={HTTPException: _http_error, Exception: _unexpected},
        lifespan=lifespan,
    )
    app.state.dashboard = dashboard
    return app


class Endpoints:
    """The requests of a dashboard: from HTTP to calls and back."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def guarded(self, answer: _Answer) -> _Answer:
        """Return ``answer`` with its errors as answers; a viewer whom the cluster has forgotten is logged out."""

        async def guarded(request: Request) -> Response:
            try:
                return await answer(request)
            except Exception as e:  # noqa: BLE001 - any error is an answer
                status, failure = failure_of(e)
                if isinstance(e, AuthenticationFailed):
                    await self._forget(request)
                return failure_response(status, failure)

        return guarded

    async def _forget(self, request: Request) -> None:
        session = await self._session(request)
        if session is None:
            return
        if session.user:
            await self._dashboard.sessions.logout(session)
        else:
            self._dashboard.sessions.need_login()

    # --- sessions ---

    async def session(self, request: Request) -> Response:
        """Return the logged-in user, and the token that requests for changes must carry."""
        session = await self._session(request)
        return json_response(
            {
                "login": self._dashboard.sessions.login_needed,
                "user": None if session is None else session.user,
                "csrf": None if session is None else session.csrf,
                "read_only": self._dashboard.read_only,
                "namesrv": self._dashboard.namesrv if session is not None else "",
            }
        )

    async def login(self, request: Request) -> Response:
        """Check a login and open its session."""
        body = await _json_body(request, MAX_LOGIN_BYTES)
        access_key, secret_key = body.get("access_key"), body.get("secret_key")
        if not isinstance(access_key, str) or not isinstance(secret_key, str):
            raise Refused(400, "ConfigError", "access_key and secret_key must be texts")
        async with self._dashboard.slot(), asyncio.timeout(READ_TIMEOUT_S):
            before = await self._session(request)
            session = await self._dashboard.sessions.login(access_key, secret_key)
        if before is not None:
            await self._dashboard.sessions.logout(before)
        self._dashboard.collector.wake()
        response = json_response({"user": session.user, "csrf": session.csrf})
        secure = request.url.scheme == "https"
        response.set_cookie(_cookie(request), session.id, max_age=int(SESSION_S), secure=secure, httponly=True, samesite="strict")
        return response

    async def logout(self, request: Request) -> Response:
        """End the session."""
        session = await self._checked_session(request)
        _check_csrf(request, session)
        await self._dashboard.sessions.logout(session)
        response = json_response({})
        response.delete_cookie(_cookie(request), httponly=True, samesite="strict")
        return response

    async def _session(self, request: Request) -> Session | None:
        return await self._dashboard.sessions.find(request.cookies.get(_cookie(request)))

    async def _checked_session(self, request: Request) -> Session:
        session = await self._session(request)
        if session is None:
            raise Refused(401, "LoginNeeded", "log in first: this cluster has access control")
        return session

    # --- pages ---

    def of_route(self, route: Route) -> _Answer:
        """Return the endpoint of a route."""

        async def answer(request: Request) -> Response:
            session = await self._checked_session(request)
            arguments: Mapping[str, Any] = request.query_params
            if route.method == "POST":
                _check_csrf(request, session)
                if route.changes and self._dashboard.read_only:
                    raise Refused(403, "ReadOnly", "this dashboard only shows: it was started with --read-only")
                arguments = await _json_body(request, route.max_body)
            call = Call(self._dashboard, session, arguments)
            if route.confirm:
                call.check_confirmed(route.confirm)
            async with self._dashboard.slot(), asyncio.timeout(route.timeout_s):
                return json_response(await route.answer(call))

        return answer

    def of_stream(self, stream: Stream) -> _Answer:
        """Return the endpoint of a stream."""

        async def answer(request: Request) -> Response:
            session = await self._checked_session(request)
            call = Call(self._dashboard, session, request.query_params)
            self._dashboard.check_stream()

            async def events() -> AsyncIterator[bytes]:
                with self._dashboard.stream_slot():
                    async with contextlib.aclosing(encoded(stream.events(call), self._dashboard.streams)) as pieces:
                        async for piece in pieces:
                            yield piece

            return event_stream(events())

        return answer


def _cookie(request: Request) -> str:
    """Return the name of the cookie: dashboards on other ports of the same host have others."""
    return f"sprocketmq-{request.url.port or request.url.scheme}"


def _check_csrf(request: Request, session: Session) -> None:
    token = request.headers.get(CSRF_HEADER, "")
    if not secrets.compare_digest(token.encode(), session.csrf.encode()):
        raise Refused(403, "NoToken", "the request has no valid token: reload the page")


async def _json_body(request: Request, most: int) -> dict[str, Any]:
    """Return the JSON object of a request. Raises Refused for one that is too large, slow or something else."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != JSON_TYPE:
        raise Refused(415, "NotJson", "send a JSON object, with Content-Type: application/json")
    body = bytearray()
    async with asyncio.timeout(READ_TIMEOUT_S):
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                raise Refused(413, "TooLarge", f"the request is larger than the {most} bytes that are allowed here")
    try:
        return msgspec.json.decode(bytes(body), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise Refused(400, "NotJson", "the request is not a JSON object") from None


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: "there is no such page", 405: "this address does not take that method"}.get(error.status_code, error.detail)
    return failure_response(error.status_code, Failure("NotFound" if error.status_code == 404 else "HttpError", text))


async def _unexpected(_: Request, error: Exception) -> Response:
    status, failure = failure_of(error)
    return failure_response(status, failure)
