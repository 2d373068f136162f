"""After a crash at any call, with any part of the files surviving, a restart ends with the files of an undisturbed run."""

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for test_index, as test modules are imported by path

from test_index import ENTRIES, SLOTS, Record, Reference, as_scanned, make_records, reading

from sprocketmq.clock import ManualClock
from sprocketmq.storage.index.index_state import IndexState
from sprocketmq.storage.index.key_index import KeyIndex
from sprocketmq.testing.rig.simulated_disk import MODES, SimFileSystem, SimulatedCrash

DIRECTORY = "/store/index"
RECORDS = make_records(30)
PORTION = 4


def open_index(fs: SimFileSystem, state: IndexState | None) -> tuple[KeyIndex, int]:
    index = KeyIndex(fs, DIRECTORY, hash_slots=SLOTS, entries_per_file=ENTRIES, clock=ManualClock())
    return index, index.load(log_min=0, log_end=100 * len(RECORDS), state=state, keys_at=reading(RECORDS))


def write(index: KeyIndex, records: list[Record], states: list[IndexState | None]) -> None:
    """Index portions with a sync now and then, and record each state that a sync returned."""
    for number, at in enumerate(range(0, len(records), PORTION)):
        part = records[at : at + PORTION]
        index.add_records(as_scanned(part), part[-1][2] + 100)
        if number % 3 == 1:
            states.append(index.sync())
    states.append(index.sync())


def files(fs: SimFileSystem) -> list[bytes]:
    return [fs.read(f"{DIRECTORY}/{entry.name}") for entry in fs.list(DIRECTORY)]


def prepared() -> SimFileSystem:
    fs = SimFileSystem()
    fs.make_dirs(DIRECTORY)
    for directory in ("/", "/store"):
        fs.fsync_dir(directory)
    return fs


def calls_of_a_run() -> int:
    fs = prepared()
    before = fs.calls
    write(open_index(fs, None)[0], RECORDS, [])
    return fs.calls - before


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_a_crash_at_any_call(mode: str, behind: int) -> None:
    """With ``behind`` the state of the last sync was lost in the crash, and the one before it is used."""
    expected = Reference().put_all(RECORDS).files
    for call in range(calls_of_a_run()):
        fs = prepared()
        fs.crash_at(fs.calls + call)
        states: list[IndexState | None] = [None, None]
        with pytest.raises(SimulatedCrash):
            write(open_index(fs, None)[0], RECORDS, states)
        after = fs.crash(random.Random(call), mode)
        index, start = open_index(after, states[-1 - behind])
        index.add_records(as_scanned([record for record in RECORDS if record[2] >= start]), 100 * len(RECORDS))
        index.sync()
        assert index.failure is None
        assert files(after) == expected, f"crash at call {call}, {mode}, {behind} behind"
