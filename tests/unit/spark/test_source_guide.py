"""The guide of the source against what there is: every option and every column is in its tables, and nothing else."""

import re
from pathlib import Path

from sprocketmq.arrow.schema import COLUMNS
from sprocketmq.spark.option_values import CLIENT_PREFIX, camel
from sprocketmq.spark.source.access import CLIENT_OPTIONS
from sprocketmq.spark.source.options import NAMES

DOCS = Path(__file__).parents[3] / "docs/guide"
GUIDE = (DOCS / "spark.md").read_text(encoding="utf-8")
SECURITY = (DOCS / "spark-security.md").read_text(encoding="utf-8")


def named(*headings):
    """Return the names in the first column of the tables under ``headings``."""
    return [name for heading in headings for name in first_column(GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])]


def first_column(text):
    return [name for row in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE) for name in re.findall(r"`([^`]*)`", row)]


def test_every_option_is_described_and_no_other():
    passed_on = [CLIENT_PREFIX + camel(name) for name in CLIENT_OPTIONS]
    described = named("What is read", "Where a read begins and ends", "Options")
    described += first_column(SECURITY)
    assert sorted(described) == sorted([name for name in NAMES if name != CLIENT_PREFIX] + passed_on)


def test_every_column_is_described_in_its_order():
    assert named("Columns") == list(COLUMNS)
