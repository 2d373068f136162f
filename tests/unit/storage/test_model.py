"""A store beside plain lists: whatever is staged, committed, refused, flushed, restarted, killed, deleted or expired, both hold the same."""

import errno
import shutil
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sprocketmq.errors import StoreWriteFailed
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.storage.store import ReadStatus

# The bench is shared with the other tests of this directory; a state machine is no fixture user, so it is loaded by path.
_spec = spec_from_file_location("storage_bench", Path(__file__).with_name("conftest.py"))
assert _spec is not None
assert _spec.loader is not None
_module = module_from_spec(_spec)
_spec.loader.exec_module(_module)

BATCH_TOPICS = ["bulk", "%RETRY%bulk"]
topics = st.sampled_from(["orders", "%RETRY%group", *BATCH_TOPICS])
batch_topics = st.sampled_from(BATCH_TOPICS)
queues = st.integers(0, 2)
tags = st.sampled_from([None, "a", "b"])
bodies = st.binary(max_size=40) | st.integers(0, 3000).map(lambda n: b"x" * n)
batches = st.lists(bodies, min_size=1, max_size=4)

Key = tuple[str, int]


class Message(NamedTuple):
    """``base`` is the first queue offset of the record the message is in, ``physical`` that record's place in the log."""

    body: bytes
    tag: str | None
    at: int
    base: int
    physical: int


class StoreAgainstList(RuleBasedStateMachine):
    config: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.bench = _module.Bench(
            self.root / "store",
            **{"commitlog_segment_bytes": 16384, "consumequeue_segment_bytes": 100, "batchqueue_segment_bytes": 46 * 3, **self.config},
        )
        table = ",".join(f'"{topic}":{{"attributes":{{"queue.type":"BatchCQ"}}}}' for topic in BATCH_TOPICS)
        (self.bench.root / "config" / "topics.json").write_text(f'{{"topicConfigTable":{{{table}}}}}')
        for topic in BATCH_TOPICS:
            self.bench.store.declare_batch_topic(topic)
        self.held_back = "SYNC_FLUSH" in self.config.values()
        self.committed: dict[Key, list[Message]] = {}
        self.staged: list[tuple[Key, Message]] = []
        self.visible: dict[Key, int] = {}
        self.unpublished: list[tuple[int, Key, int]] = []  # the log's end, and how many messages of the queue there were then
        self.flushed_to = 0
        self.records: dict[int, tuple[str, str | None]] = {}  # all that ever came into the log

    def teardown(self) -> None:
        self.bench.fs.heal()
        self.bench.store.abandon()
        shutil.rmtree(self.root)

    # --- the lists ---

    def known(self, key: Key) -> int:
        return len(self.committed.get(key, [])) + sum(1 for staged in self.staged if staged[0] == key)

    def note(self, key: Key, found: list[bytes], tag: str | None, base: int, physicals: list[int]) -> None:
        assert base == self.known(key)
        at = self.bench.clock.time_ms()
        for i, body in enumerate(found):
            single = len(physicals) == len(found)
            self.staged.append((key, Message(body, tag, at, base + i if single else base, physicals[i if single else 0])))

    def take_staged(self) -> None:
        for key, message in self.staged:
            self.committed.setdefault(key, []).append(message)
            self.records[message.physical] = (key[0], message.tag)
        end = self.bench.store.commitlog_max_offset
        for key in {key for key, _ in self.staged}:
            self.unpublished.append((end, key, len(self.committed[key])))
        self.staged.clear()
        if not self.held_back:
            self.show(end)

    def show(self, end: int) -> None:
        for _, key, count in [known for known in self.unpublished if known[0] <= end]:
            self.visible[key] = count
        self.unpublished = [known for known in self.unpublished if known[0] > end]

    def reopened(self) -> None:
        self.staged.clear()
        self.show(1 << 62)

    def low(self, key: Key) -> int:
        log_min = self.bench.store.commitlog_min_offset
        messages = self.committed.get(key, [])
        return next((m.base for m in messages if m.physical >= log_min), len(messages))

    def readable(self, key: Key) -> list[Message]:
        """The messages readers see, with None-like room before the first one kept out: index 0 is offset ``low``."""
        return self.committed.get(key, [])[self.low(key) : self.visible.get(key, 0)]

    # --- appending ---

    @rule(topic=topics, queue=queues, body=bodies, tag=tags)
    def stage(self, topic: str, queue: int, body: bytes, tag: str | None) -> None:
        offset, physical = self.bench.stage(body, topic, queue, tag=tag)
        self.note((topic, queue), [body], tag, offset, [physical])

    @rule(topic=topics, queue=queues, batch=batches, tag=tags)
    def stage_batch(self, topic: str, queue: int, batch: list[bytes], tag: str | None) -> None:
        first, places = self.bench.stage_batch(batch, topic, queue, tag=tag)
        assert len(places) == len(batch)
        self.note((topic, queue), batch, tag, first, places)

    @rule(topic=batch_topics, queue=queues, batch=batches, tag=tags)
    def stage_inner_batch(self, topic: str, queue: int, batch: list[bytes], tag: str | None) -> None:
        base, physical = self.bench.stage_inner_batch(batch, topic, queue, tag=tag)
        self.note((topic, queue), batch, tag, base, [physical])

    @rule()
    def commit(self) -> None:
        self.bench.store.commit()
        self.take_staged()

    @rule(topic=topics, queue=queues)
    def fill_a_segment(self, topic: str, queue: int) -> None:
        for _ in range(6):
            self.stage(topic, queue, b"y" * 2900, "a")
        self.commit()

    @rule(torn=st.integers(0, 2000))
    def fail_to_commit(self, torn: int) -> None:
        for call in ("pwrite", "pwritev"):
            self.bench.fs.fail(call, errno.ENOSPC, path="commitlog", torn=torn)
        if self.staged:
            with pytest.raises(StoreWriteFailed):
                self.bench.store.commit()
        self.bench.fs.heal()
        self.staged.clear()

    @rule()
    def discard(self) -> None:
        self.bench.store.discard()
        self.staged.clear()

    @rule(thorough=st.booleans())
    def flush(self, thorough: bool) -> None:
        self.flushed_to = self.bench.store.flush(thorough=thorough)
        assert self.flushed_to == self.bench.store.commitlog_flushed_offset == self.bench.store.commitlog_max_offset

    @rule()
    def publish(self) -> None:
        self.bench.store.publish(self.flushed_to)
        self.show(self.flushed_to)

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds: int) -> None:
        self.bench.clock.advance(seconds)

    # --- coming back ---

    @rule()
    def restart(self) -> None:
        self.bench.restart()
        self.reopened()
        assert self.bench.report.clean
        assert self.bench.report.records == 0

    @rule()
    def crash(self) -> None:
        self.bench.crash()
        self.reopened()
        assert (self.bench.report.damaged, self.bench.report.cut_bytes) == ([], 0)

    @rule(what=st.sampled_from(["dispatched", "checkpoint", "consumequeue", "batchconsumequeue", "index"]))
    def lose_derived_files(self, what: str) -> None:
        self.bench.kill()
        path = self.bench.root / what
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        self.bench.reopen()
        self.reopened()

    # --- deleting ---

    @precondition(lambda self: not self.staged)
    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        self.bench.store.delete_topic(topic)
        for known in (self.committed, self.visible):
            for key in [key for key in known if key[0] == topic]:
                del known[key]
        self.unpublished = [known for known in self.unpublished if known[1][0] != topic]
        if topic in BATCH_TOPICS:
            self.bench.store.declare_batch_topic(topic)
        # Made again, so that even a loss of the note about the deletion does no harm: in the log the offsets begin anew. Of two messages,
        # as a single one with an offset out of turn could be a damaged one.
        for queue in range(3):
            for body in (b"again", b"and again"):
                self.stage(topic, queue, body, None)
        self.commit()

    @precondition(lambda self: not self.staged)
    @rule(which=st.integers(0, 5))
    def let_segments_expire(self, which: int) -> None:
        segments = self.bench.store.segments()
        position = segments[min(which, len(segments) - 1)][0] if segments else 0
        self.bench.store.delete_before(position)
        low = self.bench.store.commitlog_min_offset
        assert low <= position
        assert low == position or position > self.bench.store.commitlog_flushed_offset
        self.records = {physical: record for physical, record in self.records.items() if physical >= low}
        # Only its files know the offsets of a queue without a message in the log, and these may get lost.
        for key, messages in self.committed.items():
            if messages[-1].physical < low:
                self.stage(*key, b"still here", None)
        self.commit()

    # --- reading ---

    @rule(topic=topics, queue=queues, offset=st.integers(-1, 60), count=st.integers(1, 50), wanted=tags)
    def read(self, topic: str, queue: int, offset: int, count: int, wanted: str | None) -> None:
        key = (topic, queue)
        low, high = self.low(key), self.visible.get(key, 0)
        codes = None if wanted is None else frozenset({tags_code(wanted)})
        result = self.bench.store.read(topic, queue, offset, max_count=count, tag_codes=codes)
        if not high:
            assert result.status is ReadStatus.NO_MESSAGE_IN_QUEUE
        elif low <= offset < high:
            found = [m for buffer in result.buffers for m in _module.decode_records(buffer, verify_crc=True)]
            first = self.committed[key][offset].base
            expected = [(i, m) for i, m in enumerate(self.committed[key][:high]) if i >= first and wanted in {None, m.tag}]
            assert [(m.queue_offset, m.body, m.tag) for m in found] == [(i, m.body, m.tag) for i, m in expected[: len(found)]]
            assert (result.count, bool(found)) == (len(found), bool(expected))
            assert offset < result.next_offset <= high
            self.check_limits([m for _, m in expected], len(found), count)
        else:
            assert result.buffers == []
            assert result.next_offset == min(max(offset, low), high)

    def check_limits(self, expected: list[Message], found: int, count: int) -> None:
        """A batch comes whole or not at all, and the first one always."""
        sizes = [len(list(group)) for _, group in groupby(expected, key=lambda m: (m.base, m.physical))]
        total = 0
        for size in sizes:
            if total and total + size > count:
                break
            total += size
        assert found == total

    @rule(topic=topics, queue=queues, back=st.integers(0, 300), upper=st.booleans())
    def look_up_by_time(self, topic: str, queue: int, back: int, upper: bool) -> None:
        key = (topic, queue)
        messages = self.readable(key)
        when = self.bench.clock.time_ms() - back * 1000
        found = self.bench.store.offset_by_time(topic, queue, when, upper=upper)
        low = self.low(key)
        if topic in BATCH_TOPICS and messages:
            bases = {m.base: m.at for m in messages}
            before = [base for base, at in bases.items() if at <= when]
            if upper or len(before) == len(bases):
                assert found == (before[-1] if before else low)
            else:
                assert found == next(base for base, at in bases.items() if at >= when)
        elif upper:
            assert found == low + max(0, sum(1 for m in messages if m.at <= when) - 1)
        else:
            assert found == low + sum(1 for m in messages if m.at < when)

    @rule(topic=topics, tag=st.sampled_from(["a", "b"]))
    def ask_for_a_tag(self, topic: str, tag: str) -> None:
        end = self.bench.store.commitlog_visible_offset
        found = [int.from_bytes(record[28:36], "big") for record in self.bench.store.query(topic, tag, by_tag=True)]
        assert found == sorted(at for at, record in self.records.items() if record == (topic, tag) and at < end)[-64:]

    @invariant()
    def all_queues_hold_what_was_committed(self) -> None:
        for topic, queue in self.committed:
            key = (topic, queue)
            assert self.bench.store.max_offset(topic, queue) == self.visible.get(key, 0)
            if self.visible.get(key):
                assert self.bench.store.min_offset(topic, queue) == self.low(key)
                assert self.bench.bodies(topic, queue, max_count=1000) == [m.body for m in self.readable(key)]


class SyncFlushedStoreAgainstList(StoreAgainstList):
    config: ClassVar[dict[str, Any]] = {"flush_disk_type": "SYNC_FLUSH"}


TestStoreAgainstList = StoreAgainstList.TestCase
TestSyncFlushedStoreAgainstList = SyncFlushedStoreAgainstList.TestCase
for _case, _examples in ((TestStoreAgainstList, 60), (TestSyncFlushedStoreAgainstList, 30)):
    _case.settings = settings(
        max_examples=_examples,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
del _case  # a test case of that name would be collected
