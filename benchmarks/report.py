"""What every benchmark shares: facts about the machine, medians, and the JSON file its figures go to."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine_facts() -> dict[str, Any]:
    """Return what a reader needs to judge figures: cores, memory, kernel, load average, and how fast Python is here."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        model = platform.processor()
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "memory_gib": round(memory / (1 << 30), 1),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "loop_ns": loop_ns(),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def loop_ns() -> float:
    """Return the nanoseconds of processor time that one turn of a plain loop takes: the least of some tries.

    Both the machine and the build of Python decide it: one without profile-guided optimisation takes up to twice as long.
    """

    def once(turns: int = 200_000) -> float:
        began = time.process_time_ns()
        total = 0
        for turn in range(turns):
            total += turn
        return (time.process_time_ns() - began) / turns

    return round(min(once() for _ in range(5)), 1)


def spread(values: Iterable[float], digits: int = 3) -> dict[str, Any]:
    """Return median, minimum, maximum and all values, rounded."""
    rounded = [round(v, digits) for v in values]
    return {"median": round(statistics.median(rounded), digits), "min": min(rounded), "max": max(rounded), "values": rounded}


def timed(work: Callable[[], None]) -> float:
    """Return the seconds that ``work`` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def processor_us(work: Callable[[], object], count: int, rounds: int) -> list[float]:
    """Return the processor time of ``work`` over ``count`` things, us for each, of several rounds."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        found.append((time.process_time() - began) / count * 1e6)
    return found


def write_result(name: str, figures: dict[str, Any]) -> Path:
    """Write ``figures`` and the machine's facts to ``results/NAME.json`` and return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine_facts(), **figures}, indent=2) + "\n", encoding="utf-8")
    return path
