"""`sprocketmq inspect`: a store, each kind of file, and each form of output."""

import base64
import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.recorded_stores import unpack
from tests.records import stored

from sprocketmq.cli.app import main


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    found = {}
    for name in ("plain", "batchcq", "crash-lag"):
        found[name] = unpack(name, tmp_path_factory.mktemp(name))
    return found


@pytest.fixture
def inspect(capfd):
    def run(*arguments, code=0):
        assert main(["inspect", *map(str, arguments)]) == code
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return out if code == 0 else err

    return run


def rows(out):
    return [line.split("\t") for line in out.splitlines()]


def test_a_store_is_shown_with_its_log_queues_and_files(stores, inspect):
    out = inspect(stores["plain"])
    assert "stopped in order" in out
    assert "commit log   0 to 152401, 3 files of 65,536 bytes" in out
    assert "PlainB\t0\tSimpleCQ\t0\t70\t70" in out
    assert "checkpoint\t4096" in out
    assert "its broker was killed (process 8035)" in inspect(stores["crash-lag"])
    overview = json.loads(inspect(stores["batchcq"], "--json"))
    assert {(q["topic"], q["kind"]) for q in overview["queues"]} == {
        *(("SimpleAuto", "SimpleCQ"), ("Bcq1", "BatchCQ"), ("BcqAuto", "BatchCQ"), ("BcqSingle", "BatchCQ"))
    }


def test_a_segment_is_a_table_of_records(stores, inspect):
    table = rows(inspect(stores["plain"] / "commitlog" / "00000000000000000000"))
    assert table[0] == ["log offset", "bytes", "topic", "queue", "offset", "stored", "tag", "keys", "body"]
    assert table[1][:5] == ["0", "283", "PlainA", "0", "0"]
    assert table[1][6:] == ["TagA", "KEY0 K0", "plain-0-"]
    assert len(table) == 22
    assert table[21][0].startswith("... more follows")
    everything = rows(inspect(stores["plain"] / "commitlog" / "00000000000000000000", "--limit", 0))
    assert len(everything) == 85
    assert everything[-1][:3] == ["64674", "862", "(blank)"]


def test_an_offset_and_a_limit_choose_records(stores, inspect):
    segment = stores["plain"] / "commitlog" / "00000000000000000000"
    assert [row[0] for row in rows(inspect(segment, "--offset", 283, "--limit", 2))] == ["log offset", "283", "573"]
    assert [row[0] for row in rows(inspect(segment, "--offset", 284, "--limit", 1))] == ["log offset", "283"]
    assert "log offset 70000 is not in this file" in inspect(segment, "--offset", 70000, code=2)


def test_json_has_every_field_of_every_record(stores, inspect):
    lines = [json.loads(line) for line in inspect(stores["plain"] / "commitlog" / "00000000000000000000", "--json").splitlines()]
    assert len(lines) == 84
    first = lines[0]
    assert (first["kind"], first["topic"], first["body"], first["properties"]["KEYS"]) == ("record", "PlainA", "plain-0-", "KEY0 K0")
    binary = next(line for line in lines if "body_base64" in line)
    assert len(base64.b64decode(binary["body_base64"])) == binary["body_length"]


def test_hex_marks_the_fields(stores, inspect):
    out = inspect(stores["plain"] / "commitlog" / "00000000000000000000", "--hex", "--limit", 1)
    assert "000000000000  00 00 01 1b da a3 20 a7  23 1b 9e ae 00 00 00 00  ...... .#......." in out
    assert "000000000061 +6      topic                 PlainA" in out
    line = json.loads(inspect(stores["plain"] / "checkpoint", "--json", "--hex"))
    assert bytes.fromhex(line["hex"]) == (stores["plain"] / "checkpoint").read_bytes()


def test_a_terminal_without_a_character_gets_its_escape(stores):
    arguments = [
        sys.executable,
        "-m",
        "sprocketmq",
        "inspect",
        stores["plain"] / "commitlog" / "00000000000000000000",
        "--hex",
        "--limit",
        "1",
    ]
    done = subprocess.run(arguments, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u25a0 " in done.stdout


def test_full_shows_the_messages_of_a_batch(stores, inspect):
    out = inspect(stores["batchcq"], "--topic", "Bcq1", "--limit", 1, "--full")
    assert "sys flag              192 (inner batch)" in out
    assert "property INNER_NUM = 2" in out
    assert "message at 1: 7 bytes" in out
    line = json.loads(inspect(stores["batchcq"], "--topic", "Bcq1", "--limit", 1, "--full", "--json"))
    assert [m["text"] for m in line["messages"]] == ["bcq-2-0", "bcq-2-1"]


def test_a_topic_is_found_across_segments(stores, inspect):
    table = rows(inspect(stores["plain"], "--topic", "PlainB", "--limit", 0))
    assert len(table) == 71
    assert {row[2] for row in table[1:]} == {"PlainB"}
    assert [row[4] for row in table[1:]] == [str(i) for i in range(70)]
    assert inspect(stores["plain"], "--topic", "Nothing") == ""


def test_a_position_in_the_log_is_found_in_its_segment(stores, inspect):
    assert rows(inspect(stores["plain"], "--offset", 65536, "--limit", 1))[1][:2] == ["65536", "1743"]
    assert "log offset 999999 is not in its commit log, which holds 0 to 196607" in inspect(stores["plain"], "--offset", 999_999, code=2)


def test_queues_and_indexes_are_tables(stores, inspect):
    queue = rows(inspect(stores["plain"] / "consumequeue" / "PlainA" / "0" / "00000000000000000000"))
    assert queue[1][:3] == ["0", "0", "283"]
    assert queue[-1] == ["15 to 49", "", "", "(unwritten)"]
    batches = rows(inspect(stores["batchcq"] / "batchconsumequeue" / "Bcq1" / "0" / "00000000000000000000"))
    assert [(row[0], row[1]) for row in batches[1:7]] == [("0", "2"), ("2", "5"), ("7", "1"), ("8", "17"), ("25", "3"), ("28", "40")]
    out = inspect(stores["plain"] / "index" / "20261121025211689", "--limit", 2)
    assert "slots: 64" in out
    assert rows(out)[-1][0] == "2"
    assert "entries of this slot" in inspect(stores["plain"] / "index" / "20261121025211689", "--full", "--limit", 3)


def test_small_files_are_shown(stores, inspect):
    assert "queues physical offset\t152139" in inspect(stores["plain"] / "checkpoint")
    assert "PlainA\t4\t4\t6" in inspect(stores["plain"] / "config" / "topics.json")
    assert "cg_plain\tPlainA\t0\t15" in inspect(stores["plain"] / "config" / "consumerOffset.json")
    assert '"offsetTable"' in inspect(stores["plain"] / "config" / "delayOffset.json")
    assert "8035" in inspect(stores["crash-lag"] / "abort")


def test_damage_is_shown_in_every_form(stores, inspect):
    segment = stores["crash-lag"] / "commitlog" / "00000000000000131072"
    for form in ([], ["--json"], ["--hex"], ["--full"]):
        assert "topic length 0 does not fit a record of 803 bytes" in inspect(segment, "--offset", 153488, *form)


def test_what_messages_hold_cannot_move_the_cursor(tmp_path, inspect):
    evil = "\x1b[2J\x07\r\u202e"
    record = stored(evil.encode(), {"TAGS": evil, "KEYS": evil}, topic=b"t\x1b[31m")
    path = tmp_path / "commitlog" / "00000000000000000000"
    path.parent.mkdir()
    path.write_bytes(record.ljust(4096, b"\0"))
    for form in ([], ["--full"], ["--hex"], ["--json"]):
        out = inspect(path, *form)
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "\r" not in out


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("missing", [], "there is no such file or directory"),
        ("text", [], "this is not a file of a store"),
        ("empty", [], "there is no store in this directory"),
        ("store/index", [], "it is a part of the store"),
        ("store/checkpoint", ["--topic", "t"], "--topic chooses among messages"),
        ("store/checkpoint", ["--offset", "5"], "--offset means nothing"),
        ("store", ["--offset", "-5"], "--offset counts from 0"),
    ],
)
def test_anything_else_is_answered_with_what_would_work(stores, tmp_path, inspect, name, arguments, said):
    shutil.copytree(stores["plain"], tmp_path / "store")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").mkdir()
    assert said in inspect(tmp_path / name, *arguments, code=2)
