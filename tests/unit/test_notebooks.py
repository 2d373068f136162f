"""The notebooks of examples/notebooks run from their first cell to their last, and are kept without outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
# Jupyter's own command, which is in no module of its own.
RUN = "from nbclient.cli import main; main()"


def executed(name: str, directory: Path) -> str:
    """Run a notebook in a kernel of its own, with ``directory`` as the current one; return all that its cells show."""
    done = directory / "done.ipynb"
    (directory / f"{name}.ipynb").write_bytes((NOTEBOOKS / f"{name}.ipynb").read_bytes())
    command = [sys.executable, "-c", RUN, f"{name}.ipynb", "--output", str(done.with_suffix("")), "--timeout", "300"]
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return done.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_as_it_is_before_it_runs(name: str) -> None:
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells), "clear its outputs before you commit it"


def test_a_topic_becomes_a_plot(tmp_path: Path) -> None:
    shown = executed("from_a_topic_to_a_plot", tmp_path)
    assert "image/png" in shown
    assert "cellar" in shown


def test_batches_are_seen_from_inside(tmp_path: Path) -> None:
    shown = executed("batches_from_inside", tmp_path)
    assert "messages per second" in shown
    assert "reading 4" in shown
