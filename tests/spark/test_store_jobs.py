"""rebuild-index and audit with real tasks: what they make and find is what they do in one process."""

import errno
import os

import pytest
from tests.recorded_stores import unpack
from tests.unit.spark.store_jobs import Writer, files, filled, index_files, queue_files

from sprocketmq.errors import StoreLocked, StoreNotWritable
from sprocketmq.spark.jobs.audit import audit
from sprocketmq.spark.jobs.rebuild_index import rebuild_index
from sprocketmq.spark.jobs.tasks import failure_of, run_tasks, tasks_at_a_time
from sprocketmq.storage.bulk.rebuild import WORK_DIRECTORY
from sprocketmq.storage.inspect.verification import verify

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.oldest
def test_a_store_with_everything_in_it_is_made_anew_and_is_in_order(spark, tmp_path):
    root = tmp_path / "store"
    filled(root, 300, max_index_entries=600, max_hash_slots=150)
    before = queue_files(root), index_files(root)
    for path in queue_files(root):
        (root / path).write_bytes((root / path).read_bytes()[:-20].ljust(len((root / path).read_bytes()), b"\1"))
    found = audit(spark, root, split_bytes=20_000)
    assert not found.ok
    told = []
    made = rebuild_index(spark, root, split_bytes=20_000, progress=told.append)
    assert (queue_files(root), index_files(root)) == before
    assert (made.tasks_at_a_time, made.splits > 2, told[-1].done) == (tasks_at_a_time(spark), True, told[-1].total)
    assert verify(str(root)).ok
    assert audit(spark, root, split_bytes=20_000).findings == ()


@pytest.mark.oldest
def test_findings_and_queues_come_as_tables(spark, tmp_path):
    writer = filled(tmp_path / "store")
    physical = writer.places["orders", 1, 30]
    path = tmp_path / "store" / "commitlog" / f"{physical - physical % 65536:020d}"
    content = bytearray(path.read_bytes())
    content[physical % 65536 + 91] ^= 1
    path.write_bytes(content)
    found = audit(spark, tmp_path / "store")
    table = found.findings_frame(spark)
    (gap,) = table.where("kind = 'gap'").collect()
    assert (gap.topic, gap.queueId, gap.queueOffset, gap["count"], gap.file) == ("orders", 1, 30, 1, str(path))
    assert found.queues_frame(spark).selectExpr("sum(messages)", "sum(gaps)").first()[:] == (sum(q.messages for q in found.queues), 1)
    empty = audit(spark, unpack("plain", tmp_path / "other")).findings_frame(spark)
    assert (empty.count(), empty.columns) == (0, table.columns)


@pytest.mark.oldest
def test_what_a_task_cannot_do_comes_as_one_of_our_errors(spark, tmp_path):
    root = unpack("plain", tmp_path)
    before = files(root)
    made = tmp_path / "made"
    made.mkdir()

    class Impatient(Exception):
        pass

    def stop(progress):
        raise Impatient

    with pytest.raises(Impatient):
        rebuild_index(spark, root, to=made, progress=stop)
    assert list(made.iterdir()) == []
    with pytest.raises(StoreNotWritable, match="File too large"):
        rebuild_index_with_a_full_disk(spark, root)
    assert not (root / WORK_DIRECTORY).exists()
    assert {path: data for path, data in files(root).items() if path != "lock"} == {p: d for p, d in before.items() if p != "lock"}


def rebuild_index_with_a_full_disk(spark, root):
    from sprocketmq.spark.jobs import rebuild_index as module

    def limited(spark, title, work, items, *, on_progress=None):
        def full(item, note):
            return failure_of(OSError(errno.EFBIG, os.strerror(errno.EFBIG), "/disk/spool")) if "queues" in title else work(item, note)

        return run_tasks(spark, title, full, items, on_progress=on_progress)

    original, module.run_tasks = module.run_tasks, limited
    try:
        return rebuild_index(spark, root)
    finally:
        module.run_tasks = original


def test_tasks_return_in_order_and_fail_with_their_own_text(spark):
    def work(item, note):
        note(item)
        if item == 13:
            raise ValueError("thirteen is too much")
        return item * 2

    told = []
    assert run_tasks(spark, "double", work, list(range(6)), on_progress=told.append) == [0, 2, 4, 6, 8, 10]
    assert told[-1] == 15
    assert run_tasks(spark, "nothing", work, []) == []
    with pytest.raises(Exception, match="thirteen is too much"):
        run_tasks(spark, "fail", work, [13])


def test_a_store_in_use_is_left_alone(spark, tmp_path):
    root = tmp_path / "store"
    writer = Writer(root)
    writer.send()
    with pytest.raises(StoreLocked, match="in use"):
        rebuild_index(spark, root)
    found = audit(spark, root)
    assert (found.in_use, found.records, found.ok) == (True, 1, True)
    writer.close()
