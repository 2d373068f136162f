"""The Spark programs of the tutorial and of guides without a test of their own run as they are printed."""

import re
from pathlib import Path

import pytest

from sprocketmq import Message, sync

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("tutorial/4-topic-to-table", "guide/exactly-once-tables", "guide/migrating-spark-kafka")


@pytest.mark.parametrize("page", PAGES)
def test_the_spark_programs_of_a_page_run(page, spark, rocketmq, tmp_path):
    with sync.Producer("shop", namesrv=rocketmq.namesrv) as producer:
        producer.send_batch([Message("orders", b'{"order": %d, "total": 10}' % number, tag="new") for number in range(20)])
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    programs = [program for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "sprocketmq.spark" in program]
    assert programs
    for program in programs:
        for said, here in (
            ("127.0.0.1:9876", rocketmq.namesrv),
            ('"checkpoints/', f'"{tmp_path}/checkpoints/'),
            ('"tables/', f'"{tmp_path}/tables/'),
        ):
            program = program.replace(said, here)  # noqa: PLW2901 - the JVM stays in the directory it was started in
        exec(program, {})
    [table] = (tmp_path / "tables").glob("orders") if page != "guide/migrating-spark-kafka" else (tmp_path / "tables").glob("moved")
    assert spark.read.parquet(str(table)).count() == 20
