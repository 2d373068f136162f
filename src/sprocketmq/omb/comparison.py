"""Result files, and the figures of several beside each other."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from sprocketmq.errors import ConfigError
from sprocketmq.omb.result import Result, checked

COLUMNS = (
    "result",
    "driver",
    "sent/s",
    "x first",
    "received/s",
    "x first",
    "publish p50 ms",
    "p99 ms",
    "p99.9 ms",
    "end-to-end p50 ms",
    "p99 ms",
    "CPU us/msg: producers",
    "consumers",
    "servers",
)
KEYS = (
    "result",
    "driver",
    "sent_per_s",
    "sent_ratio",
    "received_per_s",
    "received_ratio",
    "publish_p50_ms",
    "publish_p99_ms",
    "publish_p999_ms",
    "end_to_end_p50_ms",
    "end_to_end_p99_ms",
    "producers_cpu_us",
    "consumers_cpu_us",
    "servers_cpu_us",
)


def read(path: Path) -> Result:
    """Return the result in a file, of this program or of OMB. Raises ConfigError."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}: give a result file") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not JSON: give a file that a run has written") from None
    return checked(found, str(path))


def row(name: str, result: Result, first: Result) -> tuple[str, ...]:
    """Return the cells of ``COLUMNS`` for one result; ratios are to ``first``."""
    cpu = (result.get("sprocketmq") or {}).get("cpuUsPerMessage") or {}
    sent, received = (_mean(result, key) for key in ("publishRate", "consumeRate"))
    return (
        name,
        str(result["driver"]),
        f"{sent:,.0f}",
        _ratio(sent, _mean(first, "publishRate")),
        f"{received:,.0f}",
        _ratio(received, _mean(first, "consumeRate")),
        *(_number(result.get(f"aggregatedPublishLatency{pct}pct"), 2) for pct in ("50", "99", "999")),
        *(_number(result.get(f"aggregatedEndToEndLatency{pct}pct"), 2) for pct in ("50", "99")),
        *(_number(cpu.get(kind), 2) for kind in ("producers", "consumers", "servers")),
    )


def table(named: Sequence[tuple[str, Result]]) -> list[tuple[str, ...]]:
    """Return a row for each result."""
    return [row(name, result, named[0][1]) for name, result in named]


def _mean(result: Result, key: str) -> float:
    rates = [rate for rate in result[key] if isinstance(rate, int | float)] if isinstance(result[key], list) else []
    return fmean(rates) if rates else 0.0


def _ratio(value: float, first: float) -> str:
    return f"{value / first:.2f}" if first else "-"


def _number(value: object, digits: int) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "-"
