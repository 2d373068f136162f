"""Programs run as on another operating system: with ``tests/macos/sitecustomize.py`` or ``tests/windows/sitecustomize.py``."""

import os
import subprocess
import sys
from pathlib import Path

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
