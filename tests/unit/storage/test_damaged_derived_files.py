"""Queues, snapshot and checkpoint follow from the log: whatever happens to them, a start makes them right again and loses nothing."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.inside import queue_of

from sprocketmq.protocol.hashing import tags_code

SENT = {queue: [b"%d/%d " % (queue, i) + b"x" * (i % 7) for i in range(130)] for queue in range(3)}


@pytest.fixture
def full(bench: Any) -> Any:
    """130 messages in each of three queues, so three files a queue, stopped in order."""
    for i in range(130):
        for queue in range(3):
            bench.stage(SENT[queue][i], queue=queue, tag="abc"[i % 3])
        if i % 10 == 9:
            bench.store.commit()
    bench.stop()
    return bench


def check(bench: Any) -> None:
    bench.reopen()
    for queue, sent in SENT.items():
        assert bench.bodies(queue=queue) == sent
        assert bench.bodies(queue=queue, tag_codes=frozenset({tags_code("b")})) == sent[1::3]
        assert bench.store.offset_by_time("orders", queue, bench.clock.time_ms() + 1) == 130
        assert bench.send(b"next", queue=queue)[0] == 130
    bench.crash()
    for queue, sent in SENT.items():
        assert bench.bodies(queue=queue) == [*sent, b"next"]


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:333])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 500)


def zero(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def scramble(path: Path) -> None:
    path.write_bytes(random.Random(3).randbytes(path.stat().st_size))


def fill(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


DAMAGES = [remove, empty, shorten, lengthen, zero, scramble, fill]


@pytest.mark.parametrize("start", [0, 1000, 2000])
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_to_a_queue_file_is_repaired(full: Any, damage: Any, start: int) -> None:
    damage(full.queue_file(queue=1, start=start))
    check(full)


@pytest.fixture
def aged(bench: Any) -> Any:
    """A store that has lost the first segment of its log, stopped in order.

    ``left`` are the bodies that each queue still has, ``files`` the files of queue 1 that lead to them.
    """
    for i in range(0, 2100, 30):
        for j in range(i, i + 30):
            bench.stage(b"%d" % j + b"x" * (j % 7), queue=j % 3)
        bench.store.commit()
    bench.store.flush()
    bench.store.delete_before(bench.config["commitlog_segment_bytes"])
    bench.left = {queue: bench.bodies(queue=queue) for queue in range(3)}
    assert all(300 < len(left) < 600 for left in bench.left.values())
    first = bench.store.min_offset("orders", 1) // 50
    bench.stop()
    bench.files = sorted(bench.queue_file(queue=1).parent.iterdir())[first:]
    return bench


def check_aged(bench: Any) -> None:
    """What is left is read, whatever else the store takes for left."""
    bench.reopen()
    for queue, left in bench.left.items():
        assert bench.bodies(queue=queue) == left
    bench.store.flush()
    bench.store.delete_before(2 * bench.config["commitlog_segment_bytes"])
    for queue, left in bench.left.items():
        bodies = bench.bodies(queue=queue)
        assert 0 < len(bodies) < len(left)
        assert bodies == left[-len(bodies) :]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_to_a_queue_file_of_a_store_whose_log_begins_later_is_repaired(aged: Any, damage: Any, number: int) -> None:
    """A damaged unit is not taken for one whose record has left the log."""
    damage(aged.files[number])
    check_aged(aged)


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bits_in_queues_of_a_store_whose_log_begins_later_hide_nothing(aged: Any, seed: int) -> None:
    rng = random.Random(seed)
    for path in aged.files:
        data = bytearray(path.read_bytes())
        at = rng.randrange(50) * 20 + rng.randrange(12)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    check_aged(aged)


@pytest.mark.parametrize("name", ["dispatched", "checkpoint"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_to_snapshot_or_checkpoint_of_a_store_whose_log_begins_later_is_survived(aged: Any, damage: Any, name: str) -> None:
    damage(aged.root / name)
    check_aged(aged)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_queue_and_a_lost_snapshot_of_a_store_whose_log_begins_later_are_repaired(aged: Any, damage: Any) -> None:
    for path in aged.files[:3]:
        damage(path)
    (aged.root / "dispatched").unlink()
    check_aged(aged)


@pytest.mark.parametrize("name", ["dispatched", "checkpoint"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_to_snapshot_or_checkpoint_is_survived(full: Any, damage: Any, name: str) -> None:
    damage(full.root / name)
    check(full)


def test_missing_directories_of_derived_files_are_made_again(full: Any) -> None:
    shutil.rmtree(full.root / "consumequeue")
    check(full)


def test_one_missing_queue_directory_is_made_again(full: Any) -> None:
    shutil.rmtree(full.queue_file(queue=2).parent)
    check(full)


def test_queues_of_an_earlier_day_are_brought_up_to_date(full: Any, make_bench: Any) -> None:
    stale = full.root.parent / "stale"
    shutil.copytree(full.root / "consumequeue", stale)
    full.reopen()
    later = [b"later %d" % i for i in range(100)]
    for body in later:
        full.send(body, queue=0)
    full.stop()
    shutil.rmtree(full.root / "consumequeue")
    shutil.copytree(stale, full.root / "consumequeue")
    full.reopen()
    assert full.bodies(queue=0) == SENT[0] + later
    assert full.bodies(queue=1) == SENT[1]


def test_queues_of_another_store_are_replaced(full: Any, make_bench: Any) -> None:
    other = make_bench("other")
    for i in range(500):
        other.send(b"other %d" % i, queue=i % 5)
    other.stop()
    shutil.rmtree(full.root / "consumequeue")
    shutil.copytree(other.root / "consumequeue", full.root / "consumequeue")
    shutil.copy(other.root / "dispatched", full.root / "dispatched")
    shutil.copy(other.root / "checkpoint", full.root / "checkpoint")
    check(full)
    assert full.store.topics_on_disk() == ["orders"]
    assert full.store.max_offset("orders", 4) == 0


def test_files_that_do_not_belong_there_are_left_alone(full: Any) -> None:
    strays = [
        full.root / "commitlog" / "notes.txt",
        full.root / "consumequeue" / "stray-file",
        full.root / "consumequeue" / "orders" / "not-a-queue" / "x",
        full.root / "consumequeue" / "orders" / "1" / "readme",
        full.root / "index" / "notes",
    ]
    for stray in strays:
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(b"hello")
    (full.root / "abort").write_text("12345")
    check(full)
    assert all(stray.read_bytes() == b"hello" for stray in strays)


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_in_a_queue_is_noticed_when_it_is_read(full: Any, seed: int) -> None:
    """The files have the right length and the right last unit, so only reading finds out."""
    rng = random.Random(seed)
    path = full.queue_file(queue=1, start=rng.choice((0, 1000)))
    data = bytearray(path.read_bytes())
    unit = rng.randrange(50)
    at = unit * 20 + rng.randrange(12)  # place or size; a tag code is only a filter
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    full.reopen()
    assert not full.report.rebuilt
    if seed % 2:
        index = int(path.name) // 20 + unit
        assert full.store.store_time("orders", 1, index) == full.clock.time_ms()
    assert full.bodies(queue=1, max_count=rng.choice((1, 7, 200))) == SENT[1]
    full.stop()
    check(full)


@pytest.mark.parametrize("seed", range(20))
def test_a_bit_that_flips_in_a_queue_while_the_store_runs_is_noticed(bench: Any, seed: int) -> None:
    """What this process wrote is not looked at record by record when it is read, as long as places and sizes follow from each other."""
    rng = random.Random(seed)
    sent = [b"%d" % i + b"x" * (i % 5) for i in range(900)]
    for i in range(0, 900, 90):
        bench.send_batch(sent[i : i + 90])
    path = bench.queue_file(start=rng.choice((0, 1000)))
    data = bytearray(path.read_bytes())
    data[rng.randrange(50) * 20 + rng.randrange(12)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    count = rng.choice((1, 7, 200))
    assert bench.bodies(max_count=count) == sent
    assert bench.bodies(max_count=200) == sent


def test_zeroed_units_do_not_hide_messages_from_filtered_readers(full: Any) -> None:
    path = full.queue_file(queue=1)
    data = path.read_bytes()
    path.write_bytes(data[:200] + b"\0" * 400 + data[600:])
    full.reopen()
    assert full.bodies(queue=1, tag_codes=frozenset({tags_code("a")})) == SENT[1][0::3]


def test_a_message_whose_record_is_damaged_is_passed_over_once_and_for_all(full: Any) -> None:
    full.reopen()
    (place,) = [m.commitlog_offset for m in full.messages(queue=1) if m.queue_offset == 60]
    with full.segment().open("r+b") as f:
        f.seek(place + 4)
        f.write(b"\0\0\0\0")
        f.seek(place)
        f.write(b"\0\0\0\1")
    for _ in range(2):
        assert full.bodies(queue=1, max_count=1) == SENT[1][:60] + SENT[1][61:]
    assert queue_of(full.store, "orders", 1).bad == {60}
    assert full.store.store_time("orders", 1, 60) == -1
