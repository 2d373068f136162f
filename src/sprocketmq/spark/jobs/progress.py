"""Progress reports and summaries: the two interfaces that all jobs share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class JobProgress:
    """``done`` of ``total`` units (None: not known yet). ``unit`` is a plural noun such as "messages", ``detail`` the current step."""

    done: int
    total: int | None
    unit: str
    detail: str = ""


Report = Callable[[JobProgress], None]


class Summary(Protocol):
    """The result of a job: a frozen dataclass with two views."""

    def rows(self) -> list[tuple[str, str]]:
        """Return label and value for each line of the summary table."""

    def as_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
