"""Reading the log in parts that are parsed in any order must give what reading it record by record gives."""

import os
import random
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sprocketmq.protocol.batch import encode_batch
from sprocketmq.protocol.codes import SYSFLAG_INNER_BATCH
from sprocketmq.protocol.layout import MAGIC_BLANK
from sprocketmq.protocol.records import encode_record, pack_host
from sprocketmq.storage.bulk import parsing
from sprocketmq.storage.bulk.pipeline import RING_SLOTS, LogPipeline, Ring, workers_for
from sprocketmq.storage.bulk.worker import FRAME, Setup, Task, decode_chunk, encode_chunk, read_task
from sprocketmq.storage.chunks import ParsedChunk
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.log.recovery import LogScan, data_end

HOST = pack_host("192.0.2.7", 40001)
SEGMENT = 32 << 10
TASK = 4096


class LogMaker:
    """Write a log by hand, record by record; segments of 32 KiB."""

    def __init__(self, root: Path, segment: int = SEGMENT) -> None:
        self.root = root
        self.segment = segment
        self.data = bytearray()
        self.offsets: dict[tuple[bytes, int], int] = {}
        self.places: list[tuple[int, int]] = []

    def add(self, body: bytes = b"x" * 100, *, topic: bytes = b"orders", queue: int = 0, at: int | None = None, **fields: Any) -> int:
        """Append a record; one that does not fit goes to the next segment. Returns its place."""
        physical = len(self.data)
        offset = self.offsets.get((topic, queue), 0) if at is None else at
        record = self.record(body, topic, queue, offset, physical, **fields)
        left = self.segment - physical % self.segment
        if len(record) + 8 > left:
            self.data += struct.pack(">ii", left, MAGIC_BLANK) + b"\xda\xa3\x20\xa7" * ((left - 8) // 4) + b"z" * (left % 4)
            return self.add(body, topic=topic, queue=queue, at=at, **fields)
        self.data += record
        self.offsets[topic, queue] = offset + fields.get("covers", 1)
        self.places.append((physical, len(record)))
        return physical

    def record(self, body: bytes, topic: bytes, queue: int, offset: int, physical: int, **fields: Any) -> bytes:
        number = len(self.places)
        properties = fields.get("properties", b"UNIQ_KEY\x01%032X\x02TAGS\x01t%d\x02" % (number, number % 3))
        sys_flag = fields.get("sys_flag", 0)
        if "covers" in fields:
            properties += b"INNER_BASE\x01%d\x02INNER_NUM\x01%d\x02" % (offset, fields["covers"])
            sys_flag |= SYSFLAG_INNER_BATCH
            body = encode_batch([(0, b"" if i else body, b"") for i in range(fields["covers"])])
        return encode_record(
            topic=topic,
            body=body,
            properties=properties,
            queue_id=queue,
            queue_offset=offset,
            physical_offset=physical,
            born_timestamp_ms=5,
            born_host=HOST,
            store_timestamp_ms=1_700_000_000_000 + physical,
            store_host=HOST,
            sys_flag=sys_flag,
        )

    def open(self) -> CommitLog:
        """Write what there is and open it."""
        directory = self.root / "commitlog"
        directory.mkdir(parents=True, exist_ok=True)
        for start in range(0, max(len(self.data), 1), self.segment):
            path = directory / f"{start:020d}"
            path.write_bytes(self.data[start : start + self.segment])
            os.truncate(path, self.segment)
        log = CommitLog(REAL_FS, str(directory), self.segment, preallocate=False)
        log.load()
        return log


class FakeProcess:
    """Stands for a worker's process: reads a task when it is given, but answers only when asked, as late as it likes."""

    def __init__(self, setup: Setup, seed: random.Random) -> None:
        self.setup = setup
        self.output, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.tasks: deque[tuple[int, Task]] = deque()
        self.parsed: deque[ParsedChunk] = deque()
        self.seed = seed
        self.given = 0
        os.write(self._write, b"!")  # always ready

    def give(self, number: int, task: Task) -> None:
        view = memoryview(Path(task.path).read_bytes())
        self.parsed.append(decode_chunk(encode_chunk(read_task(view, task, self.setup))[FRAME.size :]))
        self.tasks.append((number, task))
        self.given += 1

    def receive(self) -> tuple[list[ParsedChunk], bool]:
        answers = []
        while self.parsed and self.seed.random() < 0.5:
            answers.append(self.parsed.popleft())
        return answers, True

    def close(self) -> None:
        os.close(self.output)
        os.close(self._write)


class FakeWorkers(LogPipeline):
    """A pipeline whose workers live in this process and answer in random order."""

    seed = random.Random(7)

    def _start_workers(self) -> None:
        self.workers = [FakeProcess(self._setup, self.seed) for _ in range(self._wanted - 1)]  # type: ignore[misc]


def units_by_queue(chunks: Iterator[ParsedChunk]) -> tuple[dict[tuple[bytes, int], list[Any]], list[int], int]:
    """Return the runs by queue, joined where they follow on each other; all key hashes; the number of records."""
    queues: dict[tuple[bytes, int], list[Any]] = {}
    hashes: list[int] = []
    records = 0
    for chunk in chunks:
        records += chunk.records
        hashes += chunk.keys.hashes.tolist() if chunk.keys is not None else []
        for run in chunk.queue_chunks:
            found = queues.setdefault((run.topic, run.queue_id), [])
            if found and found[-1][1] == run.first_offset:
                found[-1] = (found[-1][0], run.next_offset, found[-1][2] + run.units)
            else:
                found.append((run.first_offset, run.next_offset, run.units))
    return queues, hashes, records


def same_as_classic(
    maker: LogMaker, *, workers: int = 3, resync: bool = True, kind: type[LogPipeline] = FakeWorkers, **options: Any
) -> LogPipeline:
    """Read the log both ways, compare everything, and return the pipeline."""
    log = maker.open()
    try:
        scan = LogScan(log, 0, check_crc=True, resync=resync)
        scanned = [record for records in scan.batches() for record in records]
        one_task = LogPipeline(log, 0, workers=1, resync=resync, task_bytes=maker.segment, batch_topics=frozenset(["batchy"]))
        expected = units_by_queue(one_task.chunks())
        assert expected[2] == len(scanned)
        for pipeline in (
            one_task,
            kind(log, 0, workers=workers, resync=resync, task_bytes=TASK, batch_topics=frozenset(["batchy"]), **options),
        ):
            if pipeline is not one_task:
                assert units_by_queue(pipeline.chunks()) == expected
            assert pipeline.end == scan.end
            assert pipeline.damaged == scan.damaged
        return pipeline
    finally:
        log.close()


def filled(root: Path, count: int = 600, seed: int = 1) -> LogMaker:
    maker = LogMaker(root)
    draw = random.Random(seed)
    for _ in range(count):
        body = draw.randbytes(draw.choice([0, 10, 100, 100, 100, 700, 6000]))
        topic = draw.choice([b"orders", b"orders", b"events", b"%RETRY%" + b"g" * 128])
        maker.add(body, topic=topic, queue=draw.randrange(3))
        if draw.random() < 0.1:
            maker.add(body, topic=b"batchy", covers=draw.randrange(1, 9))
    return maker


def test_a_whole_log_of_several_segments(tmp_path: Path) -> None:
    pipeline = same_as_classic(filled(tmp_path))
    assert pipeline.damaged == []
    assert pipeline.lost_workers == 0


def test_an_empty_log_and_one_without_a_record(tmp_path: Path) -> None:
    assert same_as_classic(LogMaker(tmp_path / "a")).end == 0
    zeros = LogMaker(tmp_path / "b")
    zeros.data += b"\0" * 100
    assert same_as_classic(zeros).end == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("resync", [True, False], ids=["skip-damage", "end-at-damage"])
def test_damage_in_the_middle(tmp_path: Path, seed: int, resync: bool) -> None:
    maker = filled(tmp_path, seed=seed)
    draw = random.Random(seed)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(maker.data))
        length = draw.choice([1, 1, 50, TASK, 3 * TASK])
        maker.data[at : at + length] = draw.choice([b"\0", b"\xff", b"\xda\xa3\x20\xa7"]) * length
    del maker.data[-(len(maker.data) % SEGMENT) :]
    maker.add()
    same_as_classic(maker, resync=resync)


def test_damage_at_the_end_of_a_segment_and_at_the_start_of_the_next(tmp_path: Path) -> None:
    maker = filled(tmp_path)
    for place in (SEGMENT, 2 * SEGMENT - 700, 3 * SEGMENT - 8):
        maker.data[place : place + 700] = b"\0" * 700
    assert len(same_as_classic(maker).damaged) >= 2


@pytest.mark.parametrize("cut", [1, 7, 50, 91, 150])
def test_a_torn_tail(tmp_path: Path, cut: int) -> None:
    maker = filled(tmp_path, count=200)
    del maker.data[-cut:]
    same_as_classic(maker)


def test_a_record_larger_than_several_tasks(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path)
    for _ in range(4):
        maker.add()
        maker.add(random.Random(1).randbytes(5 * TASK + 17))
        maker.add()
    assert same_as_classic(maker).damaged == []


def test_forged_records_in_a_body_at_exactly_fitting_places_never_count(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path)
    for _ in range(3):
        maker.add(b"y" * 1000)
    start = len(maker.data) + 88
    body = bytearray(3 * TASK)
    at = TASK - start % TASK  # from the first cut inside the body on, one forged record follows the other
    while at < len(body) - 300:
        forged = maker.record(b"evil" * 10, b"orders", 0, 3, start + at)
        body[at : at + len(forged)] = forged
        at += len(forged)
    maker.add(bytes(body))
    for _ in range(30):
        maker.add(b"y" * 300)
    log = maker.open()
    view = log.segments[0].view
    task = Task(log.segments[0].file.path, 0, SEGMENT, TASK, 2 * TASK)
    assert read_task(view, task, Setup([], False)).records > 10, "the worker falls for them"
    del view
    log.close()
    pipeline = same_as_classic(maker)
    assert pipeline.damaged == []


def test_offsets_that_begin_anew_and_jump(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path)
    for i in range(300):
        maker.add(at=i % 100 if i < 200 else 1000 + i)
    same_as_classic(maker)


def test_a_log_that_begins_behind_zero(tmp_path: Path) -> None:
    maker = filled(tmp_path)
    log = maker.open()
    os.unlink(log.segments[0].file.path)
    log.close()
    log = CommitLog(REAL_FS, log.directory, SEGMENT, preallocate=False)
    log.load()
    scan = LogScan(log, SEGMENT, check_crc=True, resync=True)
    expected = sum(len(records) for records in scan.batches())
    pipeline = FakeWorkers(log, SEGMENT, workers=3, resync=True, task_bytes=TASK)
    assert units_by_queue(pipeline.chunks())[2] == expected > 0
    assert pipeline.end == scan.end
    log.close()


def test_progress_and_lag_end_at_the_log_end(tmp_path: Path) -> None:
    maker = filled(tmp_path)
    log = maker.open()
    told: list[tuple[int, int]] = []
    pipeline = FakeWorkers(log, 0, workers=2, resync=True, task_bytes=TASK, progress=lambda done, total: told.append((done, total)))
    lags = [pipeline.lag() for _ in pipeline.chunks()]
    log.close()
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (pipeline.end, pipeline.end)
    assert all(later[0] < earlier[0] for earlier, later in pairwise(lags))
    assert max(ms for _, ms in lags) > 0


def test_the_ring_takes_any_order_and_gives_one(tmp_path: Path) -> None:
    ring: Ring[int] = Ring(4)
    assert ring.take() is None
    for number in (2, 0, 3):
        ring.put(number, number * 10)
    assert [ring.take(), ring.take()] == [0, None]
    assert ring.has_room(4)
    assert not ring.has_room(5)
    ring.put(1, 10)
    ring.put(4, 40)
    assert [ring.take() for _ in range(5)] == [10, 20, 30, 40, None]


def test_no_more_tasks_are_out_than_the_ring_has_slots(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path, segment=256 << 10)
    for _ in range(1500):
        maker.add()
    log = maker.open()
    pipeline = FakeWorkers(log, 0, workers=40, resync=True, task_bytes=TASK)
    for _ in pipeline.chunks():
        out = sum(len(worker.tasks) for worker in pipeline.workers)
        assert out <= RING_SLOTS
    log.close()


def test_a_chunk_survives_the_way_between_processes(tmp_path: Path) -> None:
    maker = filled(tmp_path, count=50)
    log = maker.open()
    setup = Setup([b"batchy"], True)
    chunk = read_task(log.segments[0].view, Task("", 0, SEGMENT, 0, SEGMENT), setup)
    again = decode_chunk(encode_chunk(chunk)[FRAME.size :])
    assert again[:6] == chunk[:6]
    assert chunk.keys is not None
    assert again.keys is not None
    assert [a.tolist() for a in again.keys] == [a.tolist() for a in chunk.keys]
    log.close()


def test_workers_are_as_many_as_asked_for_or_one_a_core() -> None:
    assert workers_for(7) == 7
    assert 1 <= workers_for(0) <= 4


def test_the_data_end_ignores_reserved_room(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path, segment=64 << 20)
    maker.add()
    log = maker.open()
    assert maker.places[-1][0] < data_end(log) <= 8 << 20
    log.close()
    empty = CommitLog(REAL_FS, str(tmp_path / "none"), 4096, preallocate=False)
    assert data_end(empty) == 0


# --- with real processes ---


def test_processes_read_the_log(tmp_path: Path) -> None:
    pipeline = same_as_classic(filled(tmp_path), kind=LogPipeline)
    assert pipeline.lost_workers == 0
    assert pipeline.workers == []


class Violent(LogPipeline):
    """A pipeline to whose first worker something happens as soon as it has tasks."""

    blow: Any = None

    def _hand_out(self) -> None:
        super()._hand_out()
        if self.workers and self.workers[0].tasks and self.blow is not None:
            blow, self.blow = self.blow, None
            blow(self.workers[0])


@pytest.mark.parametrize("workers", [2, 3])
def test_a_killed_worker_is_done_without(tmp_path: Path, workers: int) -> None:
    class Killed(Violent):
        blow = staticmethod(lambda worker: worker.process.kill())

    assert same_as_classic(filled(tmp_path), kind=Killed, workers=workers).lost_workers == 1


def test_a_worker_that_says_nothing_is_done_without(tmp_path: Path) -> None:
    class Stopped(Violent):
        blow = staticmethod(lambda worker: os.kill(worker.process.pid, signal.SIGSTOP))

    assert same_as_classic(filled(tmp_path), kind=Stopped, workers=2, stall_s=0.3).lost_workers == 1


def test_a_worker_that_talks_nonsense_is_done_without(tmp_path: Path) -> None:
    class Babbling(Violent):
        @staticmethod
        def blow(worker: Any) -> None:
            worker._received[:7] = FRAME.pack(3) + b"\xc1\xc1\xc1"
            worker._filled = 7

    assert same_as_classic(filled(tmp_path), kind=Babbling, workers=2).lost_workers == 1


def test_without_a_way_to_start_processes_the_log_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = filled(tmp_path)
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    assert same_as_classic(maker, kind=LogPipeline).lost_workers == 2
    monkeypatch.setattr("sys.executable", "")
    assert same_as_classic(maker, kind=LogPipeline).lost_workers == 0
    monkeypatch.undo()
    monkeypatch.setattr("sys.frozen", True, raising=False)
    monkeypatch.setattr("subprocess.Popen", None)
    assert same_as_classic(maker, kind=LogPipeline).lost_workers == 0


def test_workers_end_when_the_reading_is_given_up(tmp_path: Path) -> None:
    log = filled(tmp_path).open()
    pipeline = LogPipeline(log, 0, workers=2, resync=True, task_bytes=TASK)
    chunks = pipeline.chunks()
    next(chunks)
    [worker] = pipeline.workers
    chunks.close()
    assert worker.process.returncode is not None
    log.close()


def test_a_worker_ends_when_its_input_closes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sprocketmq.storage.bulk.worker"], input=b"", capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_stretch_full_of_keys_comes_in_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = LogMaker(tmp_path, segment=4 << 20)
    for i in range(150):
        maker.add(b"a b", properties=b"KEYS\x01" + b"k " * (5000 + i) + b"\x02")
    log = maker.open()
    expected = units_by_queue(LogPipeline(log, 0, workers=1, resync=True).chunks())
    monkeypatch.setattr(parsing, "_MANY_PROPERTY_BYTES", 100_000)
    monkeypatch.setattr(parsing, "_MAX_WORDS", 100_000)
    chunks = list(LogPipeline(log, 0, workers=1, resync=True).chunks())
    assert len(chunks) > 5
    assert all(chunk.keys is not None and len(chunk.keys.hashes) <= 110_000 for chunk in chunks)
    assert units_by_queue(iter(chunks)) == expected
    log.close()
    assert same_as_classic(maker).damaged == []


PARENT = """
import sys, time
from sprocketmq.storage.log.commit_log import CommitLog
from sprocketmq.storage.fs import REAL_FS
from sprocketmq.storage.bulk.pipeline import LogPipeline
log = CommitLog(REAL_FS, sys.argv[1], 32768, preallocate=False)
log.load()
pipeline = LogPipeline(log, 0, workers=3, resync=True, task_bytes=4096)
chunks = pipeline.chunks()
next(chunks)
print(len(pipeline.workers), flush=True)
sys.stdin.read()
"""


def test_a_killed_parent_leaves_no_worker_behind(tmp_path: Path) -> None:
    log = filled(tmp_path).open()
    directory = log.directory
    log.close()
    command = [sys.executable, "-c", PARENT, directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        assert parent.stdout.readline() == b"2\n"
        parent.kill()
        assert parent.stderr.read() == b"", "this ends when the last process that has the pipe does"
