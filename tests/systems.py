"""Programs and tests run as on another operating system: with ``tests/macos/sitecustomize.py`` or ``tests/windows/sitecustomize.py``."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_on(system: str, program: str, cwd: Path, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``program`` with the Python of this process, to its end."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env=environment_of(system) | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def environment_of(system: str) -> dict[str, str]:
    """Return the environment of a process that meets that system."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / system), str(ROOT / "src")])}


def leave_out(items: list[pytest.Item], reasons: Mapping[str, str]) -> None:
    """Skip the tests whose names begin with a key of ``reasons``, each with its reason."""
    for item in items:
        for name, reason in reasons.items():
            if item.nodeid.startswith(name):
                item.add_marker(pytest.mark.skip(reason=reason))
