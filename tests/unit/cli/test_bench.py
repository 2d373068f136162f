"""``sprocketmq bench batch``, and the bar charts it draws."""

import json
import os
import pty
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from sprocketmq.cli.barchart import Panel, draw
from sprocketmq.cli.errors import EXIT_USAGE

SVG = "{http://www.w3.org/2000/svg}"
FEW = ("--seconds", "20", "--messages", "300", "--in-flight", "100", "--batch", "50", "--queues", "2")


def test_all_four_ways_are_measured_against_a_broker_of_its_own(command, tmp_path):
    picture = tmp_path / "batch.svg"
    code, out, err = command("bench", "batch", *FEW, "--json", "--plot", picture)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["broker"], found["body_bytes"], found["in_flight"]) == ("embedded", 1024, 100)
    ways = {one["way"]: one for one in found["ways"]}
    assert list(ways) == ["single", "batch", "auto", "auto-batchcq"]
    assert {one["messages"] for one in ways.values()} == {300}
    assert {one["errors"] for one in ways.values()} == {0}
    assert (ways["single"]["messages_per_request"], ways["batch"]["messages_per_request"]) == (1, 50)
    assert ways["auto"]["messages_per_request"] > 1
    for one in ways.values():
        assert 0 < one["p50_ms"] <= one["p99_ms"] <= one["p999_ms"]
        assert one["disk_bytes_per_message"] > 1024
        assert one["broker_cpu_us_per_message"] is None or one["broker_cpu_us_per_message"] >= 0
    texts = [element.text for element in ET.fromstring(picture.read_text(encoding="utf-8")).iter(f"{SVG}text")]
    assert texts.count("AutoBatch + BatchCQ") == 4
    assert "Messages per second" in texts


def test_another_broker_tells_the_growth_of_its_log_and_keeps_no_topics(cli, mq):
    done = cli("bench", "batch", *FEW, "--size", "100", "--namesrv", mq.namesrv)
    assert done.code == 0
    header, *rows = [line.split("\t") for line in done.out.splitlines()]
    assert header[:2] == ["way", "messages/s"]
    assert [row[0] for row in rows] == ["single", "explicit batch", "AutoBatch", "AutoBatch + BatchCQ"]
    assert rows[0][2] == "1.0"
    assert all(int(row[7].replace(",", "")) > 100 for row in rows)
    assert {row[8] for row in rows} == {"-"}
    assert "bench-" not in cli("topic", "list").out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--plot", "figures.png"), "name the file figures.svg"),
        (("--batch", "500", "--in-flight", "100"), "--batch 500 does not fit into --in-flight 100"),
    ],
)
def test_what_cannot_be_measured_or_drawn_is_refused_before_anything_starts(command, arguments, complaint):
    code, _, err = command("bench", "batch", *arguments)
    assert code == EXIT_USAGE
    assert complaint in err


def test_on_a_terminal_the_table_fills_while_it_is_measured(mq):
    terminal, of_child = pty.openpty()
    arguments = [sys.executable, "-m", "sprocketmq", "bench", "batch", *FEW, "--namesrv", mq.namesrv]
    process = subprocess.Popen(arguments, stdout=of_child, env=os.environ | {"COLUMNS": "120", "TERM": "xterm"})
    os.close(of_child)
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:  # the child's end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(terminal)
    assert process.wait(120) == 0
    assert shown.count(b"way") > 4  # drawn again for every way
    assert "AutoBatch + BatchCQ" in shown.decode().rpartition("way")[2]


def test_bars_are_as_long_as_their_values_and_what_is_unknown_says_so():
    panel = Panel("Latency < 1 s", [("a", (10.0, None)), ("b", (5.0, 0.0))], "{:.0f}".format, ("p50", "p99"))
    root = ET.fromstring(draw("Title & more", "how", [panel]))
    widths = [float(bar.get("width")) for bar in root.iter(f"{SVG}rect") if float(bar.get("x", 0)) and bar.get("height") != "11"]
    assert widths[0] == 2 * widths[1]
    assert widths[2] == 1.0
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"Title & more", "Latency < 1 s", "not measured", "10", "5", "p99"} <= set(texts)


def test_charts_of_nothing_but_zero_can_be_drawn():
    root = ET.fromstring(draw("t", "s", [Panel("p", [("a", (0.0,))], str), Panel("q", [], str)]))
    assert root.get("width") == "1008"
