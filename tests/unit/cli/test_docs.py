"""The commands and programs of the guides run as they are printed, one guide after the other, against one ``sprocketmq serve``."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sprocketmq.testing.serving import ServeProcess

ROOT = Path(__file__).parents[3]
# In the order in which somebody reads them.
GUIDES = {
    "README.md": ("console", "python"),
    "docs/guide/getting-started.md": ("console", "python"),
    "docs/guide/administration.md": ("console", "python"),
    "docs/guide/cli.md": ("console",),
}
# A server is running already; measuring takes a while and has its own tests; tests/spark/test_examples.py runs the program for Spark.
LEFT_OUT = ("sprocketmq serve", "sprocketmq bench", "from sprocketmq.spark")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def steps(guide, kinds):
    """Return (kind, text) for each command line and program of a guide."""
    found = []
    for kind, text in BLOCK.findall((ROOT / guide).read_text(encoding="utf-8")):
        if kind == "console" and kind in kinds:
            found += [("console", line[2:]) for line in text.splitlines() if line.startswith("$ ")]
        elif kind in kinds:
            found.append((kind, program(text)))
    return found


def program(text):
    """Return a program that runs what a guide shows of one: an ``await`` belongs into a function, ``admin`` is open."""
    if "asyncio.run" in text or "await" not in text:
        return text
    opened = (
        text if "AdminClient(" in text else "async with AdminClient(namesrv='127.0.0.1:9876') as admin:\n" + textwrap.indent(text, "    ")
    )
    imports = "import asyncio\nfrom sprocketmq import AdminClient\n"
    return f"{imports}async def main():\n{textwrap.indent(opened, '    ')}\nasyncio.run(main())\n"


class Reader:
    """Somebody who types what the guides say, in a directory of their own."""

    def __init__(self, home):
        self.home = home
        self.server = ServeProcess(home / "mq")
        self.namesrv = self.server.start()

    def do(self, kind, text):
        """Run one command or program and return what it printed."""
        in_use = text.startswith("sprocketmq rebuild")
        if in_use:
            self.server.stop()
        here = text.replace("127.0.0.1:9876", self.namesrv).replace("/srv/mq", str(self.home / "mq"))
        done = subprocess.run(
            ["bash", "-c", here] if kind == "console" else [sys.executable, "-c", here],
            cwd=self.home,
            env=os.environ | {"NAMESRV_ADDR": self.namesrv, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if in_use:
            self.namesrv = self.server.start()
        assert (done.returncode, done.stderr) == (0, ""), f"{text}\n{done.stdout}"
        return done.stdout


@pytest.mark.timeout(180)
def test_what_the_guides_show_runs_in_their_order(tmp_path):
    reader = Reader(tmp_path)
    try:
        said = {
            text: reader.do(kind, text)
            for guide, kinds in GUIDES.items()
            for kind, text in steps(guide, kinds)
            if not text.startswith(LEFT_OUT)
        }
    finally:
        reader.server.close()
    assert len(said) > 20
    assert said["sprocketmq query orders order-17"] == '{"order": 17, "amount": 3}\n'
    assert said["sprocketmq topic delete payments"] == "topic payments deleted\n"
    rows = [line.split() for line in said["sprocketmq topic list"].splitlines()]
    assert rows[0] == ["topic", "queue", "type", "message", "type"]
    assert {("orders", "plain", "NORMAL"), ("payments", "BatchCQ", "NORMAL")} <= set(map(tuple, rows[1:]))
