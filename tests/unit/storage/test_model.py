"""The store against the simplest thing that could be right: a list of messages per queue, kept in memory."""

import errno
import shutil
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

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

topics = st.sampled_from(["orders", "payments", "%RETRY%group"])
queues = st.integers(0, 2)
tags = st.sampled_from([None, "a", "b"])
bodies = st.binary(max_size=40) | st.integers(0, 3000).map(lambda n: b"x" * n)


class StoreAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.bench = _module.Bench(self.root / "store", commitlog_segment_bytes=16384, consumequeue_segment_bytes=100)
        self.committed: dict[tuple[str, int], list[tuple[bytes, str | None, int]]] = {}
        self.staged: list[tuple[tuple[str, int], bytes, str | None, int]] = []

    def teardown(self) -> None:
        self.bench.fs.heal()
        self.bench.store.abandon()
        shutil.rmtree(self.root)

    def expect(self, key: tuple[str, int], offset: int) -> None:
        known = len(self.committed.get(key, [])) + sum(1 for staged in self.staged if staged[0] == key)
        assert offset == known

    @rule(topic=topics, queue=queues, body=bodies, tag=tags)
    def stage(self, topic: str, queue: int, body: bytes, tag: str | None) -> None:
        offset, _ = self.bench.stage(body, topic, queue, tag=tag)
        self.expect((topic, queue), offset)
        self.staged.append(((topic, queue), body, tag, self.bench.clock.time_ms()))

    @rule(topic=topics, queue=queues, batch=st.lists(bodies, min_size=1, max_size=4), tag=tags)
    def stage_batch(self, topic: str, queue: int, batch: list[bytes], tag: str | None) -> None:
        first, places = self.bench.stage_batch(batch, topic, queue, tag=tag)
        self.expect((topic, queue), first)
        assert len(places) == len(batch)
        self.staged += [((topic, queue), body, tag, self.bench.clock.time_ms()) for body in batch]

    @rule()
    def commit(self) -> None:
        self.bench.store.commit()
        for key, body, tag, at in self.staged:
            self.committed.setdefault(key, []).append((body, tag, at))
        self.staged.clear()

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
        self.bench.store.flush(thorough=thorough)

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds: int) -> None:
        self.bench.clock.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.staged.clear()
        self.bench.restart()
        assert self.bench.report.clean
        assert self.bench.report.records == 0

    @rule()
    def crash(self) -> None:
        self.staged.clear()
        self.bench.crash()
        assert (self.bench.report.damaged, self.bench.report.cut_bytes) == ([], 0)

    @rule(what=st.sampled_from(["dispatched", "checkpoint", "consumequeue"]))
    def lose_derived_files(self, what: str) -> None:
        self.staged.clear()
        self.bench.kill()
        path = self.bench.root / what
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        self.bench.reopen()

    @precondition(lambda self: not self.staged)
    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        self.bench.store.delete_topic(topic)
        self.committed = {key: messages for key, messages in self.committed.items() if key[0] != topic}
        # Made again, so that even a loss of the note about the deletion does no harm: in the log the offsets begin anew.
        for queue in range(3):
            self.bench.send(b"again", topic, queue)
            self.committed[topic, queue] = [(b"again", None, self.bench.clock.time_ms())]

    @rule(topic=topics, queue=queues, offset=st.integers(-1, 60), count=st.integers(1, 50), wanted=tags)
    def read(self, topic: str, queue: int, offset: int, count: int, wanted: str | None) -> None:
        messages = self.committed.get((topic, queue), [])
        codes = None if wanted is None else frozenset({tags_code(wanted)})
        result = self.bench.store.read(topic, queue, offset, max_count=count, tag_codes=codes)
        if not messages:
            assert result.status is ReadStatus.NO_MESSAGE_IN_QUEUE
        elif 0 <= offset < len(messages):
            found = [m for buffer in result.buffers for m in _module.decode_records(buffer, verify_crc=True)]
            expected = [(i, *m[:2]) for i, m in enumerate(messages) if i >= offset and wanted in {None, m[1]}]
            assert [(m.queue_offset, m.body, m.tag) for m in found] == expected[: len(found)]
            assert (result.count, bool(found)) == (len(found), bool(expected))
            assert offset < result.next_offset <= len(messages)
        else:
            assert result.buffers == []
            assert result.next_offset == min(max(offset, 0), len(messages))

    @rule(topic=topics, queue=queues, back=st.integers(0, 300), upper=st.booleans())
    def look_up_by_time(self, topic: str, queue: int, back: int, upper: bool) -> None:
        times = [at for _, _, at in self.committed.get((topic, queue), [])]
        when = self.bench.clock.time_ms() - back * 1000
        found = self.bench.store.offset_by_time(topic, queue, when, upper=upper)
        if upper:
            assert found == max(0, sum(1 for at in times if at <= when) - 1)
        else:
            assert found == sum(1 for at in times if at < when)

    @invariant()
    def all_queues_hold_what_was_committed(self) -> None:
        for (topic, queue), messages in self.committed.items():
            assert self.bench.store.max_offset(topic, queue) == len(messages)
            assert self.bench.bodies(topic, queue, max_count=1000) == [body for body, _, _ in messages]


TestStoreAgainstList = StoreAgainstList.TestCase
TestStoreAgainstList.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
