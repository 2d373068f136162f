"""The course and the outcome of a demo run."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sprocketmq.demo.verify import Check


@dataclass(slots=True)
class Course:
    """Samples of a run: seconds since the first flight, flights sent, rows in the table; and the times the query was stopped."""

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
    """The result of a run. ``report`` is the content of report.json."""

    checks: list[Check]
    report: dict[str, Any]
    statistics: pa.Table

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)
