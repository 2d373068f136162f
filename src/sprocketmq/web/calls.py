"""The interface of a page's functions: ``Route`` registers one, ``Call`` is its argument.

::

    async def show_topic(call: Call) -> object:
        admin = await call.admin()                      # signs as the viewer
        return {"queues": len(await admin.queues(call.text("topic")))}

    async def delete_topic(call: Call) -> object:
        await (await call.admin()).delete_topic(call.text("topic"))
        return {}

    ROUTES = (
        Route("GET", "/api/topic", show_topic),
        Route("POST", "/api/topic/delete", delete_topic, confirm="topic"),
    )

A GET takes its arguments from the query, a POST from a JSON object. The result is encoded as JSON; a ``SprocketError`` becomes a status and
a sentence (``failures.py``), and a call that takes longer than its route allows becomes 504. Every POST needs the CSRF token and, unless
``changes`` is false, is refused by a read-only dashboard. With ``confirm`` the body must repeat the value of that argument as ``confirm``.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from sprocketmq.client.admin import AdminClient
from sprocketmq.client.consume.pull import PullConsumer
from sprocketmq.client.send.producer import Producer
from sprocketmq.errors import ConfigError
from sprocketmq.web.dashboard import Dashboard
from sprocketmq.web.failures import Refused
from sprocketmq.web.sessions import Session

CALL_TIMEOUT_S = 20.0
MAX_BODY_BYTES = 256 << 10
MAX_TEXT = 4096
MAX_LIST = 1000

_T = TypeVar("_T")
_REQUIRED: Any = object()


@dataclass(frozen=True)
class Route:
    """A function of a page and the request that calls it; see the module."""

    method: Literal["GET", "POST"]
    path: str
    answer: "Callable[[Call], Awaitable[object]]"
    changes: bool = True
    confirm: str = ""
    timeout_s: float = CALL_TIMEOUT_S
    max_body: int = MAX_BODY_BYTES

    def __post_init__(self) -> None:
        if not self.path.startswith("/api/"):
            raise ConfigError(f"the path of a route begins with /api/, not {self.path!r}")


@dataclass(frozen=True)
class Stream:
    """A function of a page that sends events as they come (server-sent events): it yields the name and the data of each.

    The stream ends with the generator; an error becomes a last event ``failure``.
    """

    path: str
    events: "Callable[[Call], AsyncGenerator[tuple[str, object]]]"


class Call:
    """One request of a page: its arguments, and the clients of its viewer."""

    def __init__(self, dashboard: Dashboard, session: Session, arguments: Mapping[str, Any]) -> None:
        self.dashboard = dashboard
        self.session = session
        self.arguments = arguments

    # --- clients, which sign as the viewer ---

    async def admin(self) -> AdminClient:
        """Return the viewer's AdminClient. Raises NameserverUnavailable when no nameserver answers."""
        return await self.session.admin()

    async def producer(self) -> Producer:
        """Return the viewer's Producer."""
        return await self.session.producer()

    async def puller(self) -> PullConsumer:
        """Return the viewer's PullConsumer, which commits nothing."""
        return await self.session.puller()

    async def cached(self, name: str, max_age_s: float, load: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return what ``load`` returned to this viewer at most ``max_age_s`` ago as ``name``; callers at the same time share one load."""
        return await self.session.cached(name, max_age_s, load)

    # --- arguments: each raises ConfigError, with the argument's name, for an invalid value ---

    def text(self, name: str, default: str = _REQUIRED, *, most: int = MAX_TEXT) -> str:
        """Return a text of up to ``most`` characters; without a default it must be given and not empty."""
        value = self._argument(name, default)
        if value is default:
            return str(value)
        if not isinstance(value, str) or len(value) > most or (default is _REQUIRED and not value):
            raise ConfigError(f"{name} must be a text of {'1' if default is _REQUIRED else '0'} to {most} characters")
        return value

    def number(self, name: str, default: int = _REQUIRED, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """Return a whole number from ``least`` to ``most``."""
        value = self._argument(name, default)
        if isinstance(value, str) and value.lstrip("-").isdecimal() and value.isascii() and len(value) <= 20:
            value = int(value)
        if value == default and type(value) is int:
            return value
        if type(value) is not int or not least <= value <= most:
            raise ConfigError(f"{name} must be a whole number from {least} to {most}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean: true, false, 1 or 0."""
        value = self._argument(name, default)
        if isinstance(value, bool):
            return value
        if value not in ("true", "false", "1", "0"):
            raise ConfigError(f"{name} must be true or false")
        return value in ("true", "1")

    def choice(self, name: str, choices: tuple[str, ...], default: str = _REQUIRED) -> str:
        """Return one of ``choices``."""
        value = self._argument(name, default)
        if value is not default and value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}")
        return str(value)

    def texts(self, name: str, *, most: int = MAX_LIST) -> list[str]:
        """Return a list of texts from the body; an argument that is left out is an empty list."""
        value = self._argument(name, [])
        if not isinstance(value, list) or len(value) > most or not all(isinstance(one, str) and len(one) <= MAX_TEXT for one in value):
            raise ConfigError(f"{name} must be a list of up to {most} texts")
        return value

    def _argument(self, name: str, default: Any) -> Any:
        value = self.arguments.get(name, default)
        if value is _REQUIRED:
            raise ConfigError(f"{name} is missing")
        return value

    def check_confirmed(self, name: str) -> None:
        """Check that ``confirm`` repeats the argument ``name``, which the viewer has typed. Raises Refused."""
        if self.arguments.get("confirm") != self.arguments.get(name):
            raise Refused(409, "NotConfirmed", f"this destroys something: type the value of {name} to confirm it")
