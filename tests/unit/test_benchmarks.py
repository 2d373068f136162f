"""Benchmarks run: those of hot loops here in small, and ``make bench`` names them all. Their figures mean nothing in a test."""

import json
import subprocess
import sys
from pathlib import Path

import benchmarks
import pytest
from benchmarks import profile
from benchmarks.__main__ import BENCHMARKS
from benchmarks.load import cpu

ROOT = Path(benchmarks.__file__).parent
# What benchmarks start.
PARTS = {"load.client", "load.cpu_client", "load.kafka_clients"}
# A hot loop with its sizes cut down to what takes a moment.
SMALL = {
    "broker": {"ROUNDS": 1},
    "calls": {"ROUNDS": 1, "CALLS": 100},
    "client": {"ROUNDS": 1, "MESSAGES": 1024},
    "codec": {"ROUNDS": 1, "ROUND_SECONDS": 0.0},
    "filters": {"ROUNDS": 1, "MESSAGES": 2000},
    "index": {"ROUNDS": 1, "MESSAGES": 4096, "QUESTIONS": 64},
    "pops": {"ROUNDS": 1, "MESSAGES": 12_000},
    "replica": {"ROUNDS": 1, "LOG_BYTES": 4 << 20, "SEGMENT_BYTES": 16 << 20, "SINGLES": 64},
    "store": {"ROUNDS": 1, "MESSAGES": 1000},
    "traces": {"client.MESSAGES": 1024, "ROUNDS": 1, "PULLS": 4, "REPEATS": 1},
    "turns": {"ROUNDS": 1, "TRIPS": 20, "CALLS": 20},
}
PROGRAM = """
import sys
from importlib import import_module
from pathlib import Path
from benchmarks import report

results, name, sizes = sys.argv[1:]
del sys.argv[1:]
report.RESULTS = Path(results)
benchmark = import_module("benchmarks.micro." + name)
for place, size in eval(sizes).items():
    *module, constant = place.split(".")
    owner = vars(benchmark)[module[0]] if module else benchmark
    assert hasattr(owner, constant)
    setattr(owner, constant, size)
benchmark.main()
"""


def programs():
    """Return the modules that may be run, as names below ``benchmarks``."""
    files = [file for part in ("micro", "load") for file in (ROOT / part).glob("*.py")]
    return {f"{file.parent.name}.{file.stem}" for file in files if '__name__ == "__main__"' in file.read_text()}


def test_make_bench_runs_every_benchmark():
    assert {f"benchmarks.{name}" for name in programs() - PARTS} | {"benchmarks.charts"} == set(BENCHMARKS)
    assert len(set(BENCHMARKS)) == len(BENCHMARKS)


def test_every_hot_loop_is_tried_here():
    assert {f"micro.{name}" for name in SMALL} == {name for name in programs() if name.startswith("micro.")}


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_of_a_hot_loop_runs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path, name, repr(SMALL[name])], cwd=ROOT.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / f"micro-{name}.json").read_text())
    assert result.keys() > {"machine"}


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        (profile, ["consume-plain mixed", "auto-plain uniform"], "name auto-plain mixed as well"),
        (cpu, ["--only", "consume-plain"], "leaves out auto-plain"),
    ],
)
def test_nothing_is_consumed_that_was_not_sent(program, arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    with pytest.raises(SystemExit, match="2"):
        program.main()
    assert said in capsys.readouterr().err
