"""The code blocks of the documentation run as they are printed: page by page, from top to bottom, in an empty directory, beside ``sprocketmq serve``.

Some things differ from what a reader types: servers listen on free ports, and programs get the address of the one that runs instead of
``127.0.0.1:9876``; ``rebuild`` needs a stopped broker, so the server is stopped around it; benchmarks measure for a tenth of a second, and
packages are there instead of being installed. tests/documented.py says which blocks these are.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc
from tests.documented import ADDRESS, BLOCKS, LEFT_OUT, OWN_TESTS, PAGES, ROOT, pattern, plain, relative, sessions
from tests.recorded_stores import unpack

COMMAND = re.compile(r"(\$ )?(sprocketmq|mqadmin|pip|python|make) ")
SERVERS = ("sprocketmq serve", "sprocketmq broker", "sprocketmq dashboard")
GRPC = "127.0.0.1:8081"
TRACED = "7F000001A3C5F1E2D3C400AB12CD0001"
RUNNABLE = {name: found for name, page in PAGES.items() if (found := [block for block in page if block.runs == "broker"])}

# What a reader does with a program that only defines something.
CALLS = {
    "Needs the package `fastapi`:": """
import warnings
warnings.simplefilter("ignore")  # the test client of Starlette asks for a newer httpx
from fastapi.testclient import TestClient
with TestClient(app) as client:
    booked = client.post("/bookings", params={"seat": "12A"})
assert (booked.status_code, booked.json()["status"]) == (201, "SEND_OK"), booked.text
""",
    "Needs the package `fastavro`:": """
assert decode(encode({"number": 1, "amount": 9.5})) == {"number": 1, "amount": 9.5}
""",
    "Needs the package `protobuf`:": """
assert decode(encode(Order(number=1, amount=9.5))) == Order(number=1, amount=9.5)
""",
}


class Reader:
    """Somebody who types what a page shows, in a directory of their own."""

    def __init__(self, home):
        self.home = home
        self.servers = []
        self.command = "sprocketmq serve --store mq"
        self.namesrv, self.grpc = ADDRESS, GRPC
        self.traced = TRACED
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
            *(["--namesrv-port", "0"] if command.startswith("sprocketmq serve") else []),
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
        if command.startswith("sprocketmq serve"):
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
        return text.replace(ADDRESS, self.namesrv).replace(GRPC, self.grpc).replace(TRACED, self.traced)

    def process(self, *command, code=0):
        done = subprocess.run(command, cwd=self.home, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (code, ""), f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def prepare(self, mark):
        """Make what a block needs beside a server."""
        match mark.removeprefix("Needs ").removesuffix(":"):
            case "a store with messages" | "the broker stopped":
                self.stop()
                shutil.rmtree(self.home / "mq", ignore_errors=True)
                unpack("plain", self.home).rename(self.home / "mq")
            case "a damaged store to print this":
                self.prepare("a store with messages")
                with (self.home / "mq/commitlog" / ("0" * 20)).open("r+b") as log:
                    log.seek(283 + 91)
                    byte = log.read(1)[0]
                    log.seek(-1, os.SEEK_CUR)
                    log.write(bytes([byte ^ 1]))
            case "a group that consumes":
                self.process("bash", "-ec", "sprocketmq topic create orders --queues 1; seq 9 | sprocketmq produce orders > sent")
                self.process("bash", "-ec", "sprocketmq consume orders --group billing --from first --count 5 > consumed")
            case "the id of a traced message":
                found = self.process("bash", "-ec", "sprocketmq query orders order-17 --json")
                self.traced = re.search(r'"msg_id":"(\w+)"', found)[1]

    def type(self, line, code=0):
        """Run one command line, which exits with ``code``, and return what it printed."""
        if line.startswith(SERVERS):
            return self.serve(self.here(line))
        if line.startswith("pip install"):
            return ""
        if line.startswith("sprocketmq bench batch"):
            line += " --seconds 0.1"
        if not line.startswith("sprocketmq rebuild"):
            return self.process("bash", "-c", self.here(line), code=code)
        self.stop()
        said = self.process("bash", "-c", line)
        self.serve(self.command)
        return said

    def do(self, block):
        self.prepare(block.mark)
        match block.language:
            case "console":
                for line, shown in sessions(block.text):
                    said = self.type(line, code=1 if "damaged" in block.mark else 0)
                    same = any(pattern(shown).fullmatch(plain(one)) for one in (said, relative(said, self.home)))
                    assert not shown or same, f"{line} prints\n{said}and the page shows\n{shown}"
            case "sh" if block.text.startswith(SERVERS):
                self.serve(block.text)
                if "serve" not in block.text:
                    self.servers.pop().communicate(timeout=30)
            case "sh" if block.text.startswith("sprocketmq bench batch"):
                self.type(block.text.rstrip())
            case "sh":
                self.process("bash", "-ec", self.here(block.text))
            case "python" if block.text.startswith("# conftest.py"):
                (self.home / "conftest.py").write_text(block.text, encoding="utf-8")
            case "python" if "def test_" in block.text:
                (self.home / "test_page.py").write_text(block.text, encoding="utf-8")
                self.process(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "test_page.py")
            case "python":
                self.process(sys.executable, "-W", "error", "-c", self.here(block.text) + CALLS.get(block.mark, ""))
            case "proto":
                (self.home / "order.proto").write_text(block.text, encoding="utf-8")
                assert (
                    protoc.main(["protoc", f"--proto_path={self.home}", f"--python_out={self.home}", str(self.home / "order.proto")]) == 0
                )
            case "toml" | "conf" | "yaml" | "ini" | "dockerfile":
                file = self.home / block.text.splitlines()[0].removeprefix("# ")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
            case other:
                pytest.fail(f"{block}: nothing here runs a {other} block")


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


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language], ids=str)
def test_a_block_runs_or_is_in_the_list_of_those_that_cannot(block):
    if block.runs == "spark" and (test := OWN_TESTS.get(block.page)):
        assert block.page in (ROOT / test).read_text(encoding="utf-8"), f"{test} runs this page"
    assert block.runs or block.name in LEFT_OUT, f"{block}, marked {block.mark!r}: have a test run it, or tell in LEFT_OUT why none can"


def test_the_list_of_blocks_that_cannot_run_names_blocks_of_today():
    assert set(LEFT_OUT) - {block.name for block in BLOCKS if block.language} == set()


def test_a_program_that_is_no_fragment_defines_every_name_it_uses(tmp_path):
    for block in BLOCKS:
        if block.language == "python" and not block.mark.startswith("Fragment"):
            (tmp_path / f"{block.page.replace('/', '_').removesuffix('.md')}_{block.line}.py").write_text(block.text, encoding="utf-8")
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    assert ruff, "ruff is among the development tools"
    command = [ruff, "check", "--isolated", "--no-cache", "--select", "E9,F821,F401", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_a_command_is_in_a_block_with_a_language():
    assert [str(block) for block in BLOCKS if not block.language and COMMAND.match(block.text)] == []
