"""How a run of the demo went, and what came of it."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sprocketmq.demo.verify import Check


@dataclass(slots=True)
class Course:
    """How a run went: seconds since the first flight, with how many were sent and in the table by then; and when the query was stopped."""

    seconds: list[float] = field(default_factory=lambda: [0.0])
    sent: list[int] = field(default_factory=lambda: [0])
    rows: list[int] = field(default_factory=lambda: [0])
    stopped_s: list[float] = field(default_factory=list)

    def add(self, seconds: float, sent: int, rows: int) -> None:
        self.seconds.append(seconds)
        self.sent.append(sent)
        self.rows.append(rows)


@dataclass(slots=True)
class Outcome:
    """How it went. ``report`` is what goes into report.json."""

    checks: list[Check]
    report: dict[str, Any]
    statistics: pa.Table

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)
