"""The code blocks of README, tutorial and guides, sorted by what runs them.

A block that runs beside ``sprocketmq serve`` has no mark: tests/unit/cli/test_docs.py runs it. Others say above them what they need:
``*Needs Spark ...*``, which tests/spark/test_docs_programs.py has; something that a test can prepare (``PREPARED``); or something that it cannot
have, and the block is in ``LEFT_OUT``, checked as far as that goes by tests/unit/cli/test_docs_left_out.py. A block without a language is a picture or the output of a program.
"""

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "docs" / name for name in ("tutorial", "guide", "concepts", "reference")]
ADDRESS = "127.0.0.1:9876"

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"\*((?:Needs|Fragment)\b.+)\*$")
# What tests/unit/cli/test_docs.py makes before it runs a block with this mark.
PREPARED = (
    "Needs a store with messages:",
    "Needs a damaged store to print this:",
    "Needs the broker stopped:",
    "Needs about 15 seconds on an idle machine:",
    "Needs a group that consumes:",
    "Needs a package index and a cluster:",
    "Needs the id of a traced message:",
    "Needs the package `fastapi`:",
    "Needs the package `fastavro`:",
    "Needs the package `protobuf`:",
)
SPARK = ("Needs Spark", "Fragment: goes on from the program above")
# Spark programs that need more than a topic or a store, or have no mark.
OWN_TESTS = {"guide/spark-security.md": "tests/spark/test_secured.py", "README.md": "tests/spark/test_examples.py"}
# Blocks that no test of this suite runs, and why. Each entry is checked by tests/unit/cli/test_docs_left_out.py.
LEFT_OUT = {
    "README.md: make demo    # 336,776 real flights through a broker, in batches, into Spark and out as tables and a topic": "runs the suite",
    "README.md: pip install .                 # broker, client, command line": "installs packages",
    "tutorial/1-send-and-receive.md: pip install '.[spark]'      # step 4 uses Spark; without it: pip install .": "installs packages",
    "guide/getting-started.md: pip install .": "installs packages",
    "guide/observing-clients.md: pip install 'sprocketmq[otel]' opentelemetry-sdk": "installs packages",
    "guide/omb.md: pip install 'sprocketmq[bench]'": "installs packages",
    "guide/omb.md: export SPROCKETMQ_APACHE_JARS=$HOME/rocketmq-all-5.5.0-bin-release/lib": "Apache's brokers; `make interop` has them",
    "guide/omb.md: sprocketmq bench omb 1-topic-16-partitions-1kb --driver kafka \\": "a Kafka broker",
    "guide/broker-settings.md: mqadmin updateTopic -n 127.0.0.1:9876 -c DefaultCluster -t events -a +queue.type=BatchCQ": "Apache's mqadmin",
    "guide/mqadmin.md: export NAMESRV_ADDR=127.0.0.1:9876": "Apache's mqadmin",
    "guide/security.md: sprocketmq cluster --namesrv names:9876 --access-key-file credentials.json --tls-ca ca.pem": "Apache's broker",
    "guide/security.md: sprocketmq secure init secure --host names --host one --host two": "three machines",
    "guide/replication.md: names$ sprocketmq namesrv --host 0.0.0.0 --secure secure": "three machines",
    "guide/logs.md: [sources.sprocketmq]": "Vector",
    "guide/logs.md: [Service]": "systemd",
    "guide/systemd.md: systemctl daemon-reload": "systemd",
    "guide/docker.md: docker build --file deploy/docker/Dockerfile --tag mq-image .": "Docker",
    "guide/docker.md: docker network create shop": "Docker",
    "guide/cli.md: sprocketmq serve --host 0.0.0.0 --advertise mq --secure /secure --store /data": "a container",
    "guide/kubernetes.md: kubectl apply -f deploy/kubernetes/sprocketmq.yaml": "Kubernetes",
    "guide/kubernetes.md: kubectl port-forward deployment/mq-dashboard 8080:8080": "Kubernetes",
    "guide/spark-clusters.md: pip download --no-deps sprocketmq": "a cluster; tests/spark/test_cluster.py ships the package to one",
    "guide/spark-clusters.md: python -m venv environment": "a cluster; tests/spark/test_cluster.py ships a Python to one",
    "guide/spark-clusters.md: from pyspark.sql import SparkSession": "a server of Spark Connect elsewhere; tests/spark/test_connect.py has one",
    "guide/stores.md: sprocketmq inspect mq --topic orders --json | jq -r 'select(.kind==\"record\") | [.queue_id, .queue_offset, .body] | @tsv'": "jq",
    "guide/consuming.md: async def handle(batch):": "names of the reader's own",
    "guide/consuming.md: for queue in consumer.stats().queues:": "names of the reader's own",
    "guide/testing-with-pytest.md: from sprocketmq.testing.ledger import Ledger": "names of the reader's own",
    'guide/pipeline-land.md: land(spark, "orders", "s3a://lake/orders", nameserver=..., writer="spark")                       # Parquet': (
        "an object store, Delta and Iceberg; `make spark-tables` has the latter two"
    ),
}


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

    @property
    def name(self):
        """The page and the first line, which stay when the page grows."""
        return f"{self.page}: {self.text.splitlines()[0].removeprefix('$ ')}"

    @property
    def runs(self):
        """What runs it: ``broker``, ``spark`` or nothing."""
        if not self.language or self.name in LEFT_OUT:
            return ""
        if self.mark.startswith(SPARK) or (self.language == "python" and not self.mark and "sprocketmq.spark" in self.text):
            return "spark"
        return "broker" if not self.mark or self.mark in PREPARED else ""


def blocks(page):
    """Yield the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        indent, language, body = match.groups()
        above = text[: match.start()].rstrip().rpartition("\n")[2].strip()
        mark = MARK.match(above)
        body = "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
        name = f"{page.parent.name}/{page.name}" if page.parent != ROOT else page.name
        yield Block(name, text.count("\n", 0, match.start()) + 1, language, body, mark[1] if mark else "")


# A Chinese page, PAGE.zh.md, has the blocks of its English one: tests/unit/test_docs_chinese.py.
PAGES = {"README": list(blocks(ROOT / "README.md"))} | {
    f"{folder.name}/{page.stem}": list(blocks(page))
    for folder in FOLDERS
    for page in folder.glob("*.md")
    if not page.name.endswith(".zh.md")
}
BLOCKS = [block for page in PAGES.values() for block in page]


def sessions(text):
    """Yield each command of a console block with the output that the block shows."""
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        shown = list(takewhile(lambda line: not line.startswith("$ "), lines))
        del lines[: len(shown)]
        yield line.removeprefix("$ "), "\n".join(shown)


def relative(text, home):
    """Return an output with the paths below ``home`` relative to it, and without the quotes that a space in its name needs."""
    return re.sub(rf"'{re.escape(str(home))}/(.*?)'", r"\1", text).replace(f"{home}/", "")


def plain(text):
    """Return a text with each number as 0, what is counted in the singular, and each run of blanks as one."""
    zeros = re.sub(r"[ \t]+", " ", re.sub(r"\d[\d,.:]*", "0", text)).strip()
    return re.sub(r"(?<=\b0 )(\w+?)s\b", r"\1", zeros)


def pattern(shown):
    """Return the pattern of an output; ``...`` stands for anything, and so does the reader's directory."""
    escaped = re.escape(plain(shown)).replace(r"\.\.\.", ".*")
    # A directory whose name has a space is in quotes.
    return re.compile(re.sub(r"/home/you(\S*)", r"""["']?[^"'\n]*\1["']?""", escaped), re.DOTALL)
