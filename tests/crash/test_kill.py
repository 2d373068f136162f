"""kill -9 in the middle of appending, again and again: nothing acknowledged is lost, changed or out of order, and nothing is invented.

``SPROCKETMQ_CRASH_CYCLES`` sets how often (12 by default), ``SPROCKETMQ_CRASH_SEED`` repeats a run.
"""

import os
import random
import select
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.records import decode_records
from sprocketmq.storage.store import MessageStore, ReadStatus, StoreConfig

CYCLES = int(os.environ.get("SPROCKETMQ_CRASH_CYCLES", "12"))
SEED = os.environ.get("SPROCKETMQ_CRASH_SEED") or str(random.randrange(1 << 32))
WRITER = Path(__file__).with_name("writer.py")

_spec = spec_from_file_location("crash_writer", WRITER)
assert _spec is not None
assert _spec.loader is not None
writer = module_from_spec(_spec)
_spec.loader.exec_module(writer)


def run_and_kill(root: Path, seed: str, kill_after_s: float) -> list[tuple[int, int, str]]:
    """Let a writer work for a moment after its first acknowledgement, kill it, and return what it had acknowledged."""
    with subprocess.Popen([sys.executable, str(WRITER), str(root), seed], stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        said = b""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if select.select([child.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                more = child.stdout.read(1 << 16)
                assert more, f"the writer ended by itself with {child.wait()}"
                if not said:
                    deadline = time.monotonic() + kill_after_s
                said += more
        child.kill()
        said += child.stdout.read()
    lines = said.decode().split("\n")[:-1]  # the last one may be cut
    assert lines, "the writer acknowledged nothing within 30 s"
    return [(int(queue), int(offset), identity) for queue, offset, identity in (line.split() for line in lines)]


def read_queue(store: MessageStore, queue: int, start: int) -> list[tuple[int, bytes]]:
    found = []
    offset = start
    while True:
        result = store.read(writer.TOPIC, queue, offset, max_count=500, tag_codes=frozenset({tags_code("t")}))
        if result.status is not ReadStatus.FOUND:
            return found
        found += [(m.queue_offset, m.body) for buffer in result.buffers for m in decode_records(buffer, verify_crc=True)]
        offset = result.next_offset


@pytest.mark.timeout(0 if CYCLES > 12 else 120)
def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path) -> None:
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    rng = random.Random(SEED)
    root = tmp_path / "store"
    ledger: dict[int, dict[int, str]] = {queue: {} for queue in range(writer.QUEUES)}
    checked = dict.fromkeys(ledger, 0)
    issued: set[str] = set()
    for cycle in range(CYCLES):
        seed = f"{SEED}.{cycle}"
        for queue, offset, identity in run_and_kill(root, seed, rng.uniform(0, 0.15)):
            assert offset not in ledger[queue], f"offset {offset} of queue {queue} was given out twice (seed {SEED}, cycle {cycle})"
            ledger[queue][offset] = identity
            issued.add(identity)
        if rng.random() < 0.2:
            (root / "dispatched").unlink(missing_ok=True)
        store = MessageStore(StoreConfig(root))
        report = store.open()
        assert (report.clean, report.damaged) == (False, [])
        last_cycle = cycle == CYCLES - 1
        for queue, promised in ledger.items():
            start = 0 if last_cycle else checked[queue]
            found = read_queue(store, queue, start)
            assert [offset for offset, _ in found] == list(range(start, store.max_offset(writer.TOPIC, queue)))
            for offset, body in found:
                identity = body.partition(b" ")[0].decode()
                assert body == writer.body_of(identity), f"wrong body at {queue}/{offset} (seed {SEED}, cycle {cycle})"
                # What was written but not yet acknowledged may be there; what was acknowledged must be, and at its place.
                assert promised.setdefault(offset, identity) == identity
                issued.add(identity)
            missing = [offset for offset in promised if offset >= start + len(found)]
            assert not missing, f"acknowledged but gone: {queue}/{missing[:5]} (seed {SEED}, cycle {cycle})"
            checked[queue] = start + len(found)
        if rng.random() < 0.5:
            store.close()
        else:
            store.abandon()
    total = sum(map(len, ledger.values()))
    assert total == len(issued), "a message is stored twice"
    print(f"{CYCLES} kills, {total} messages, none lost")
