"""The examples and the README's programs run as they are printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_says_something(path, tmp_path):
    assert run(str(path), cwd=tmp_path).strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40


def test_the_readmes_ten_lines_run(tmp_path):
    program = next(p for p in PROGRAMS if "LocalCluster" in p)
    assert "1000 stored" in run("-c", program, cwd=tmp_path)


def test_the_readmes_test_passes(tmp_path):
    (tmp_path / "test_shop.py").write_text(next(p for p in PROGRAMS if "def test_" in p), encoding="utf-8")
    assert "1 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "test_shop.py", cwd=tmp_path)
