"""The checks of every request, of its host name and its origin, and the headers of every answer."""

import ipaddress
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sprocketmq.web.answers import failure_response
from sprocketmq.web.failures import Failure

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LOCAL_NAMES = frozenset({"localhost"})


class Guard:
    """Refuses requests that arrive under a foreign name or from a foreign page, and adds HEADERS to every answer.

    A page of another site can make its own name resolve to this machine (DNS rebinding), and would then share its origin with the
    dashboard: so the Host must be an IP address, localhost, or one of ``names``.
    """

    def __init__(self, app: ASGIApp, *, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = LOCAL_NAMES | {name.lower().rstrip(".") for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Headers(scope=scope), scope["path"])
        app = self._app if refusal is None else failure_response(421 if refusal.kind == "UnknownHost" else 403, refusal)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await app(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers, path: str) -> Failure | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return Failure(
                "UnknownHost", "this dashboard is not known by that name: use its IP address, or start it with --allow-host NAME"
            )
        origin = headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2].lower() != host.lower()
        # Browsers state the origin of a request; a link from another site may open a page, but nothing else.
        if path.startswith("/api/") and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            foreign = True
        if foreign:
            return Failure("OtherOrigin", "the request comes from a page of another site")
        return None

    def _is_ours(self, host: str) -> bool:
        name = host_name(host)
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def host_name(host: str) -> str:
    """Return the name or address of a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")
