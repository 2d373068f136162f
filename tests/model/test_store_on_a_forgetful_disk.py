"""A store that lives on after every crash, failed sync and full disk, against lists in memory.

Unlike the crash points, which look at each crash once, this goes on with what a crash has left, so that one fault meets what another one
left behind. What a restart shows becomes the model: it may lack only what was never promised.
"""

import errno
import random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sprocketmq.errors import SprocketError, StoreFailed, StoreWriteFailed
from sprocketmq.protocol.batch import encode_batch, split_batch
from sprocketmq.protocol.properties import encode_properties
from sprocketmq.testing.rig.crash_book import Key
from sprocketmq.testing.rig.simulated_disk import KILL_MODES, MODES, SimFileSystem
from sprocketmq.testing.rig.small_store import BATCH_TOPIC, HOST, open_store, read_queue

keys = st.tuples(st.sampled_from(["orders", "%RETRY%g", BATCH_TOPIC]), st.integers(0, 1))
fillings = st.sampled_from([0, 10, 300, 2500])


class StoreOnAForgetfulDisk(RuleBasedStateMachine):
    """``stored`` has per queue ``(body, end in the log)`` by offset, and None where an unpromised message was lost."""

    @initialize(flush=st.sampled_from(["ASYNC_FLUSH", "SYNC_FLUSH"]))
    def begin(self, flush: str) -> None:
        self.flush_type = flush
        self.fs = SimFileSystem()
        self.stored: dict[Key, list[tuple[bytes, int] | None]] = {}
        self.staged: list[tuple[Key, int, list[bytes], list[int]]] = []
        self.count = 0
        self.flushed = 0
        self.refuses = False
        self.store = open_store(self.fs, flush)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.abandon()

    @rule(key=keys, size=st.integers(1, 5), filling=fillings, inner=st.booleans())
    def stage(self, key: Key, size: int, filling: int, inner: bool) -> None:
        bodies = [b"%d " % (self.count + i) + bytes(filling) for i in range(size)]
        self.count += size
        properties = encode_properties({"KEYS": str(self.count)})
        common: dict[str, Any] = {"born_timestamp_ms": 1, "born_host": HOST}
        batch = encode_batch([(0, body, properties) for body in bodies])
        if inner and key[0] == BATCH_TOPIC:
            offset, place = self.store.stage_inner_batch(*key, batch, properties, count=size, tags_code=0, **common)
            places = [place] * size
        else:
            offset, places = self.store.stage_batch(*key, split_batch(batch), sys_flag=0, **common)
        known = len(self.stored.get(key, [])) + sum(len(staged[2]) for staged in self.staged if staged[0] == key)
        assert offset == known
        self.staged.append((key, offset, bodies, places))

    @rule()
    def commit(self) -> None:
        before = self.store.commitlog_max_offset
        try:
            self.store.commit()
        except SprocketError:
            assert self.store.commitlog_max_offset == before
        else:
            assert not (self.refuses and self.staged), "nothing is taken after a failed sync"
            for key, _, bodies, places in self.staged:
                # Where the next one begins is not known here; a flush covers all of a commit or nothing of it.
                end = self.store.commitlog_max_offset
                self.stored.setdefault(key, []).extend((body, end) for body, _ in zip(bodies, places, strict=True))
        self.staged.clear()

    @rule(thorough=st.booleans())
    def flush(self, thorough: bool) -> None:
        try:
            end = self.store.flush(thorough=thorough)
        except SprocketError:
            assert self.refuses or self.fs.capacity is not None
        else:
            assert not self.refuses, "a flush after a failed sync would say too much"
            self.store.publish(end)
            self.flushed = end

    @rule(path=st.sampled_from(["/commitlog/", "/consumequeue/", "/index/", "/checkpoint", "/dispatched"]))
    def fail_a_sync(self, path: str) -> None:
        self.fs.fail("fdatasync", errno.EIO, path=path, times=1)
        try:
            self.store.publish(self.store.flush(thorough=True))
        except StoreFailed:
            self.refuses = True
        except StoreWriteFailed:
            assert self.fs.capacity is not None, "there was room for the queues"
        else:
            self.flushed = self.store.commitlog_flushed_offset
        self.fs.heal()

    @rule(room=st.integers(0, 30_000))
    def fill_the_disk(self, room: int) -> None:
        total, free = self.fs.usage("/")
        self.fs.capacity = total - free + room

    @rule()
    def make_room(self) -> None:
        self.fs.capacity = None

    @rule(seed=st.integers(0, 1 << 16), mode=st.sampled_from(MODES))
    def crash(self, seed: int, mode: Any) -> None:
        """Take what is left as what there is, when nothing promised is missing."""
        promised = self.store.commitlog_max_offset if mode in KILL_MODES else self.flushed
        disk = self.fs.crash(random.Random(seed), mode)
        self.store.abandon()
        self.fs = disk
        self.fs.capacity = None
        self.staged.clear()
        self.refuses = False
        self.store = open_store(disk, self.flush_type)
        for key, known in self.stored.items():
            _, high, found = read_queue(self.store, key)  # it may begin later: the first record can be the one that is torn
            assert high <= len(known)
            for offset, message in enumerate(known):
                if offset in found:
                    assert message is not None
                    assert found[offset] == message[0]
                else:
                    assert message is None or message[1] > promised
                    known[offset] = None
            del known[high:]
        self.flushed = 0
        self.store.publish(self.store.flush())  # what a restart shows stays
        self.flushed = self.store.commitlog_flushed_offset
        self.stored = {
            key: [None if message is None else (message[0], min(message[1], self.flushed)) for message in known]
            for key, known in self.stored.items()
        }

    @rule()
    def restart(self) -> None:
        self.fs.capacity = None
        if self.refuses:
            return
        self.staged.clear()
        self.store.close()
        self.store = open_store(self.fs, self.flush_type)
        self.flushed = self.store.commitlog_max_offset

    @invariant()
    def the_store_holds_what_the_lists_hold(self) -> None:
        if not hasattr(self, "store"):
            return
        for key, known in self.stored.items():
            low, high, found = read_queue(self.store, key)
            # With SYNC_FLUSH readers see what is on the disk.
            assert found == {o: m[0] for o, m in enumerate(known) if m is not None and o < high}, f"{key} [{low}, {high})"
            if self.flush_type == "ASYNC_FLUSH":
                assert high == len(known)


TestStoreOnAForgetfulDisk = StoreOnAForgetfulDisk.TestCase
TestStoreOnAForgetfulDisk.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def test_a_queue_whose_first_message_was_never_flushed_and_is_torn_begins_with_the_second() -> None:
    state = StoreOnAForgetfulDisk()
    state.begin(flush="ASYNC_FLUSH")
    for _ in range(2):
        state.stage(filling=0, inner=False, key=("orders", 0), size=1)
        state.commit()
    state.crash(mode="torn", seed=4044)
    state.the_store_holds_what_the_lists_hold()
    state.teardown()
