"""The programs of guides without a test of their own run as they are printed, at a cluster of the test."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("guide/arrow", "guide/ordering-per-key")
# Too heavy to be installed for these tests: programs that import it run where it is.
HEAVY = "polars"


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run(page, tmp_path):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert programs
    with LocalCluster() as mq:
        with sync.Producer("shop", namesrv=mq.namesrv) as producer:
            producer.send_batch([Message("orders", b'{"order": %d, "total": 10}' % n, f"t{n % 2}", [f"order-{n}"]) for n in range(20)])
            producer.send(Message("steps", b"placed"))
        for program in programs:
            if f"import {HEAVY}" in program and find_spec(HEAVY) is None:
                continue
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", program.replace("127.0.0.1:9876", mq.namesrv)],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"{program}\n{done.stderr}"
