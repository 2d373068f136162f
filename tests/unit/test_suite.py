"""What the tests promise about themselves: they wait for things instead of sleeping, are patient, use free ports, and touch few private names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in TESTS.rglob("*.py") if path != Path(__file__))

# Who may sleep, and why. `asyncio.sleep(0)`, a turn of the loop, is not sleeping.
SLEEPERS = {
    "waiting.py": "the one place that waits for a moment in which nothing is to happen",
    "unit/client/test_retry_with_broker.py": "paces a clock that is moved by hand",
    "unit/client/test_group_live.py": "a handler that takes its time",
    "crash/test_kill.py": "the moment of a kill is random; sends that nobody answers are paced",
    "crash/test_send_back.py": "paces questions to another process",
    "faults/test_sends.py": "a fault lasts for some time",
    "faults/test_consuming.py": "a fault lasts for some time; a handler that takes its time",
    "spark_faults/test_restarts.py": "the moment of a kill is random",
    "spark_faults/test_landing.py": "paces questions to another process",
    "interop/apache.py": "paces questions to another process",
    "interop/reading.py": "paces questions to another process",
    "interop/sides.py": "paces questions to another process",
    "interop/test_auto_batch.py": "paces questions to another process",
    "interop/test_stores_delayed.py": "paces questions to another process",
    "interop/test_mixed_groups.py": "a producer that goes on",
    "interop/test_mqadmin.py": "times of the other make's store differ",
    "interop/test_orderly.py": "a handler that takes its time",
    "interop/test_spark_source.py": "times of the other make's store differ",
    "interop/test_sync_flush.py": "a disk that is slow",
}
# A limit that ends what hangs is met by no machine that is only busy.
PATIENT_S = 30
# Calls that take such a limit, and the argument it is: by position (None: not at all), or by name.
GUARDS: dict[str, tuple[int | None, str]] = {
    "asyncio.timeout": (0, "delay"),
    "asyncio.wait_for": (1, "timeout"),
    "eventually": (None, "timeout_s"),
    "wait_until": (None, "timeout_s"),
    "subprocess.run": (None, "timeout"),
    "pytest.mark.timeout": (0, "timeout"),
}
# Waits that are to be in vain, and limits that are what a test is about.
IMPATIENT = {
    "unit/testing/test_plugin.py": "what a wait says that was in vain",
    "unit/client/test_group_live.py": "the loop of a wait that looks again",
    "spark_faults/test_restarts.py": "a pause of a producer that can be ended",
}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def name_of(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def test_nothing_is_waited_for_by_sleeping() -> None:
    sleeps: dict[str, list[int]] = {}
    for path in FILES:
        for function, call in calls(path):
            if function in ("time.sleep", "asyncio.sleep") and ast.unparse(call.args[0]) != "0":
                sleeps.setdefault(name_of(path), []).append(call.lineno)
    assert {name: lines for name, lines in sleeps.items() if name not in SLEEPERS} == {}, (
        "wait with sprocketmq.testing (eventually, wait_until), tests.waiting.stays or a ManualClock"
    )
    assert SLEEPERS.keys() - sleeps.keys() == set(), "these sleep no more: take them from the list"


def limits_of(function: str, call: ast.Call) -> Iterator[float]:
    """Yield the limits a call is given as numbers."""
    position, keyword = GUARDS.get(function, (None, ""))
    given = [word.value for word in call.keywords if word.arg == keyword]
    if position is not None:
        given += call.args[position : position + 1]
    for limit in given:
        if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float):
            yield limit.value


def test_a_limit_that_ends_what_hangs_is_patient() -> None:
    impatient = [
        f"{name_of(path)}:{call.lineno}: {function} gives up after {limit} s"
        for path in FILES
        if name_of(path) not in IMPATIENT
        for function, call in calls(path)
        for limit in limits_of(function, call)
        if limit < PATIENT_S
    ]
    assert impatient == []


def test_no_server_has_a_port_of_its_own() -> None:
    fixed = [
        f"{name_of(path)}:{call.lineno}: {function}({word.arg}={word.value.value})"
        for path in FILES
        for function, call in calls(path)
        for word in call.keywords
        if word.arg in ("port", "namesrv_port") and isinstance(word.value, ast.Constant) and word.value.value not in (0, None)
    ]
    assert fixed == []


def test_files_that_may_do_what_others_may_not_are_there() -> None:
    assert {*SLEEPERS, *IMPATIENT} <= {name_of(path) for path in FILES}
    assert all(re.fullmatch(r"[a-z].{10,}", reason) for reason in {*SLEEPERS.values(), *IMPATIENT.values()})
