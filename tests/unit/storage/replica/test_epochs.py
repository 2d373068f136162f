"""Epochs: the reference's file, what a crash or damage leaves of it, and up to where two logs are equal."""

import errno
from pathlib import Path
from zlib import crc32

import pytest

from sprocketmq.errors import ConfigError, StoreFailed, StoreWriteFailed
from sprocketmq.storage.replica.epochs import Epoch, EpochFile, common_end, decode_epochs, encode_epochs

TWO = (Epoch(7, 7000), Epoch(8, 8000))


def test_the_file_is_the_references():
    lines = b"7-7000\n8-8000\n"
    assert encode_epochs(TWO) == b"2\n%d\n" % (crc32(lines) & 0x7FFFFFFF) + lines
    assert decode_epochs(encode_epochs(TWO)) == TWO
    assert decode_epochs(b"2\n0\n" + lines) == TWO
    assert decode_epochs(encode_epochs(())) == ()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"2\n",
        b"x\n1\n",
        b"2\n0\n7-7000\n",
        b"2\n1\n7-7000\n8-8000\n",
        b"2\n0\n8-1\n7-2\n",
        b"2\n0\n7-2\n8-1\n",
        b"1\n0\n7-7-7\n",
        b"1\n0\n7\n",
    ],
)
def test_a_damaged_file_has_no_epochs(damaged):
    assert decode_epochs(damaged) == ()


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "common"),
    [
        ([(1, 0)], 500, [(1, 0)], 700, 500),
        ([(1, 0)], 500, [(1, 0), (2, 300)], 700, 300),
        ([(1, 0), (2, 400)], 500, [(1, 0), (3, 300)], 700, 300),
        ([(1, 0), (2, 400)], 500, [(1, 0), (2, 400), (3, 450)], 700, 450),
        ([(1, 0), (2, 400)], 500, [(1, 0), (2, 350)], 700, 350),
        ([(2, 400)], 500, [(1, 0), (2, 400)], 700, 500),
        ([(1, 10)], 500, [(1, 0)], 700, -1),
        ([], 500, [(1, 0)], 700, -1),
        ([(1, 0), (2, 400), (3, 600)], 550, [(1, 0), (2, 400)], 700, 550),
    ],
)
def test_two_logs_are_equal_up_to_the_end_of_their_last_common_epoch(ours, our_end, theirs, their_end, common):
    ours, theirs = [Epoch(*e) for e in ours], [Epoch(*e) for e in theirs]
    assert common_end(ours, our_end, theirs, their_end) == common
    assert common_end(theirs, their_end, ours, our_end) == common


def test_an_epoch_is_on_the_disk_when_it_has_begun(bench):
    bench.stage(b"x")
    bench.store.commit()
    end = bench.store.commitlog_max_offset
    bench.store.epochs.begin(1, 0)
    bench.fs.calls.clear()
    bench.store.epochs.begin(3, end)
    calls = [call for call in bench.fs.calls if "open" not in call[0]]
    assert [name for name, _ in calls] == ["truncate", "pwrite", "fdatasync", "close", "rename", "fsync_dir"]
    assert decode_epochs((bench.root / "epochFileCheckpoint").read_bytes()) == (Epoch(1, 0), Epoch(3, end))
    bench.crash()
    assert bench.store.epochs.last == (3, end)
    for wrong in ((3, end), (2, end)):
        with pytest.raises(ConfigError, match="cannot follow"):
            bench.store.epochs.begin(*wrong)
    bench.store.epochs.begin(5, end)
    assert bench.store.epochs.entries == (Epoch(1, 0), Epoch(5, end))


def test_epochs_behind_the_end_of_the_log_are_dropped_at_the_start(bench):
    bench.stage(b"x")
    bench.store.commit()
    end = bench.store.commitlog_max_offset
    bench.store.epochs.adopt([Epoch(1, 0), Epoch(2, end), Epoch(3, end + 1)])
    bench.crash()
    assert bench.store.epochs.entries == (Epoch(1, 0), Epoch(2, end))
    with pytest.raises(ConfigError, match="not in order"):
        bench.store.epochs.adopt([Epoch(2, 0), Epoch(1, 5)])


def test_a_damaged_part_of_the_log_begins_an_epoch_and_numbers_that_a_crash_lost_are_not_used_again(bench):
    bench.stage(b"x")
    bench.store.commit()
    end = bench.store.commitlog_max_offset
    bench.store.epochs.adopt([Epoch(1, 0), Epoch(2, end), Epoch(3, end + 1)])
    bench.crash()
    assert bench.store.epochs.following == 4
    bench.store.epochs.begin(4, end - 1)
    assert bench.store.epochs.entries == (Epoch(1, 0), Epoch(4, end - 1))


@pytest.mark.parametrize(("error", "raised"), [(errno.ENOSPC, StoreWriteFailed), (errno.EIO, StoreFailed)])
def test_a_disk_that_refuses_changes_nothing(bench, error, raised):
    bench.store.epochs.begin(1, 0)
    bench.fs.fail("pwrite", error, path="epochFile")
    with pytest.raises(raised):
        bench.store.epochs.begin(2, 0)
    assert bench.store.epochs.last == (1, 0)
    bench.fs.heal()
    again = EpochFile(bench.fs, str(bench.root))
    again.load(0)
    assert again.last == (1, 0)
    assert Path(bench.root / "epochFileCheckpoint").is_file()
