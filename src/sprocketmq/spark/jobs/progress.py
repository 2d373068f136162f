"""How a job tells how far it is, and what it returns: the two shapes every job shares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class JobProgress:
    """``done`` of ``total`` units (None: nobody knows yet); ``unit`` is a plural noun such as "messages", ``detail`` what is under way."""

    done: int
    total: int | None
    unit: str
    detail: str = ""


Report = Callable[[JobProgress], None]


class Summary(Protocol):
    """What a job returns: a frozen dataclass with these two views of itself."""

    def rows(self) -> list[tuple[str, str]]:
        """Return label and value for each line of the summary table."""

    def as_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
