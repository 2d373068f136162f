"""docs/guide/spark.md against what there is: every option and every column is in its tables, and nothing else."""

import re
from pathlib import Path

from sprocketmq.spark.option_values import CLIENT_PREFIX, camel
from sprocketmq.spark.source.access import CLIENT_OPTIONS
from sprocketmq.spark.source.options import NAMES
from sprocketmq.spark.source.schema import COLUMNS

GUIDE = (Path(__file__).parents[3] / "docs/guide/spark.md").read_text(encoding="utf-8")


def named(*headings):
    """Return the names in the first column of the tables under ``headings``."""
    found = []
    for heading in headings:
        section = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        for row in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE):
            found += re.findall(r"`([^`]*)`", row)
    return found


def test_every_option_is_described_and_no_other():
    passed_on = [CLIENT_PREFIX + camel(name) for name in CLIENT_OPTIONS]
    described = named("What is read", "Where a read begins and ends", "Options")
    assert sorted(described) == sorted([name for name in NAMES if name != CLIENT_PREFIX] + passed_on)


def test_every_column_is_described_in_its_order():
    assert named("Columns") == list(COLUMNS)
