"""The chart of the README shows the committed figures, and both READMEs show pictures that are there."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]


def test_the_committed_chart_is_what_the_script_draws_from_the_committed_figures(tmp_path):
    drawn = tmp_path / "performance.svg"
    subprocess.run([sys.executable, "-m", "benchmarks.charts", "--output", str(drawn)], cwd=ROOT, check=True, capture_output=True)
    committed = ROOT / "docs" / "images" / "performance.svg"
    assert committed.read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8"), (
        "run python -m benchmarks.charts and commit its picture"
    )


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_every_picture_of_a_readme_is_there(page):
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert {"docs/images/architecture.svg", "docs/images/performance.svg"} <= set(pictures)
    for picture in pictures:
        assert (ROOT / picture).is_file(), picture
        if picture.endswith(".svg"):
            ET.parse(ROOT / picture)
