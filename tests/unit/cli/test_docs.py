"""The code blocks of the documentation run as they are printed: page by page, from top to bottom, in an empty directory, beside ``sprocketmq serve``.

Two things differ from what a reader types: servers listen on free ports, and programs get the address of the one that runs instead of
``127.0.0.1:9876``. ``rebuild`` needs a stopped broker, so the server is stopped around it. A block that cannot run this way says so on the
page, in the line above it: ``*Needs Spark ...*`` or ``*Fragment: ...*``. A block without a language is a picture or the output of a program.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = [ROOT / "docs" / name for name in ("tutorial", "guide", "concepts", "reference")]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"\*(Needs|Fragment)\b[^*]+\*$")
COMMAND = re.compile(r"(\$ )?(sprocketmq|mqadmin|pip|python|make) ")
SERVERS = ("sprocketmq serve", "sprocketmq broker")
ADDRESS = "127.0.0.1:9876"
GRPC = "127.0.0.1:8081"


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    mark: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(page):
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        indent, language, body = match.groups()
        above = text[: match.start()].rstrip().rpartition("\n")[2].strip()
        mark = MARK.match(above)
        body = "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
        yield Block(f"{page.parent.name}/{page.name}", text.count("\n", 0, match.start()) + 1, language, body, mark[1] if mark else "")


# A Chinese page, PAGE.zh.md, has the blocks of its English one: tests/unit/test_docs_chinese.py.
PAGES = {
    f"{folder.name}/{page.stem}": list(blocks(page))
    for folder in FOLDERS
    for page in folder.glob("*.md")
    if not page.name.endswith(".zh.md")
}
BLOCKS = [block for page in PAGES.values() for block in page]
# tests/spark/test_examples.py runs the README's program for Spark.
README = [block for block in blocks(ROOT / "README.md") if block.language in ("console", "python") and "sprocketmq.spark" not in block.text]
RUNNABLE = {"README": README} | {
    name: found for name, page in PAGES.items() if (found := [block for block in page if block.language and not block.mark])
}


class Reader:
    """Somebody who types what a page shows, in a directory of their own."""

    def __init__(self, home):
        self.home = home
        self.servers = []
        self.command = "sprocketmq serve --store mq"
        self.namesrv, self.grpc = ADDRESS, GRPC
        self.env = os.environ | {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "160",
            "NO_COLOR": "1",
        }
        self.env.pop("XDG_DATA_HOME", None)

    def serve(self, command):
        """Start a server on free ports and return its ready line."""
        if command.startswith("sprocketmq serve"):
            self.stop()
            self.command = command
        ports = [
            "--port",
            "0",
            *(["--namesrv-port", "0"] if "serve" in command else []),
            *(["--metrics", "0"] if "--metrics" in command else []),
            *(["--grpc", "0"] if "--grpc" in command else []),
        ]
        child = subprocess.Popen(
            [*shlex.split(self.here(command)), *ports, "--stop-with-stdin"],
            cwd=self.home,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.servers.append(child)
        ready = child.stdout.readline()
        assert ready.startswith("ready "), command
        if "serve" in command:
            self.namesrv = re.search(r"namesrv=(\S+)", ready)[1]
            self.env["NAMESRV_ADDR"] = self.namesrv
        if "--grpc" in command:
            self.grpc = re.search(r"grpc=(\S+)", ready)[1]
        return ready

    def stop(self):
        for child in reversed(self.servers):
            child.communicate(timeout=30)
        self.servers.clear()

    def here(self, text):
        return text.replace(ADDRESS, self.namesrv).replace(GRPC, self.grpc)

    def process(self, *command):
        done = subprocess.run(command, cwd=self.home, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def type(self, line):
        """Run one command line and return what it printed."""
        if line.startswith(SERVERS):
            return self.serve(line)
        if not line.startswith("sprocketmq rebuild"):
            return self.process("bash", "-c", self.here(line))
        self.stop()
        said = self.process("bash", "-c", line)
        self.serve(self.command)
        return said

    def do(self, block):
        match block.language:
            case "console":
                for line, shown in sessions(block.text):
                    said = self.type(line)
                    assert not shown or pattern(shown).fullmatch(plain(said)), f"{line} prints\n{said}and the page shows\n{shown}"
            case "sh" if block.text.startswith(SERVERS):
                self.serve(block.text)
                if "serve" not in block.text:
                    self.servers.pop().communicate(timeout=30)
            case "sh":
                self.process("bash", "-ec", self.here(block.text))
            case "python" if block.text.startswith("# conftest.py"):
                (self.home / "conftest.py").write_text(block.text, encoding="utf-8")
            case "python" if "def test_" in block.text:
                (self.home / "test_page.py").write_text(block.text, encoding="utf-8")
                self.process(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "test_page.py")
            case "python":
                self.process(sys.executable, "-W", "error", "-c", self.here(block.text))
            case "toml" | "conf" | "yaml" | "ini" | "dockerfile":
                file = self.home / block.text.splitlines()[0].removeprefix("# ")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
            case other:
                pytest.fail(f"{block}: a {other} block needs a mark")


def sessions(text):
    """Yield each command of a console block with the output that the block shows."""
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        shown = list(takewhile(lambda line: not line.startswith("$ "), lines))
        del lines[: len(shown)]
        yield line.removeprefix("$ "), "\n".join(shown)


def plain(text):
    """Return a text with each number as 0 and each run of blanks as one."""
    return re.sub(r"[ \t]+", " ", re.sub(r"\d[\d,.:]*", "0", text)).strip()


def pattern(shown):
    """Return the pattern of an output; ``...`` stands for anything, and so does the reader's directory."""
    return re.compile(re.escape(plain(shown)).replace(r"\.\.\.", ".*").replace("/home/you", r"\S*"), re.DOTALL)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", sorted(RUNNABLE))
def test_the_blocks_of_a_page_run_in_their_order(page, tmp_path):
    reader = Reader(tmp_path)
    try:
        if not RUNNABLE[page][0].text.removeprefix("$ ").startswith("sprocketmq serve"):
            reader.serve(reader.command)
        for block in RUNNABLE[page]:
            try:
                reader.do(block)
            except AssertionError as e:
                raise AssertionError(f"{block}: {e}") from None
    finally:
        reader.stop()


def test_a_program_that_is_no_fragment_defines_every_name_it_uses(tmp_path):
    for block in BLOCKS:
        if block.language == "python" and block.mark != "Fragment":
            (tmp_path / f"{block.page.replace('/', '_').removesuffix('.md')}_{block.line}.py").write_text(block.text, encoding="utf-8")
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    assert ruff, "ruff is among the development tools"
    command = [ruff, "check", "--isolated", "--no-cache", "--select", "E9,F821,F401", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_a_command_is_in_a_block_with_a_language():
    assert [str(block) for block in BLOCKS if not block.language and COMMAND.match(block.text)] == []


# The numbers of today: a page may get more whole programs, not more fragments.
FRAGMENTS = 5
RUNS = 66


def test_few_blocks_are_left_out():
    counts = Counter(block.mark or "runs" for block in BLOCKS if block.language)
    assert counts["Fragment"] <= FRAGMENTS, "make the block a whole program"
    assert counts["runs"] >= RUNS, counts
