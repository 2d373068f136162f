"""A disk that refuses: nothing is acknowledged that is not stored, what was stored stays, and the store says what is wrong."""

import errno
from typing import Any

import pytest
from tests.inside import log_of

from sprocketmq.errors import StoreFailed, StoreWriteFailed


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("call", ["pwrite", "pwritev", "fallocate", "open", "truncate"])
def test_a_failed_commit_stores_nothing_and_the_next_one_works(bench: Any, call: str, error: int) -> None:
    bench.fs.fail(call, error, path="commitlog")
    places = [bench.stage(b"refused")]
    if call == "pwritev":
        places.append(bench.stage(b"refused too"))
    if call != "truncate":
        with pytest.raises(StoreWriteFailed, match="commitlog"):
            bench.store.commit()
    else:
        with pytest.raises((StoreWriteFailed, StoreFailed)):
            bench.store.commit()
    assert bench.store.max_offset("orders", 0) == 0
    assert bench.store.commitlog_max_offset == 0
    bench.fs.heal()
    if log_of(bench.store).failure is None:
        assert bench.send(b"accepted") == places[0]
        assert bench.bodies() == [b"accepted"]
        assert bench.crash().bodies() == [b"accepted"]


@pytest.mark.parametrize("torn", [1, 50, 400, 401, 700, 1200, 5000])
def test_a_half_written_commit_is_taken_back(bench: Any, torn: int) -> None:
    sent = [b"%d" % i * 100 for i in range(10)]
    for body in sent:
        bench.send(body)
    bench.fs.fail("pwritev", errno.ENOSPC, path="commitlog", torn=torn)
    for i in range(10):
        bench.stage(b"refused" * 50, queue=i % 2)
    with pytest.raises(StoreWriteFailed):
        bench.store.commit()
    bench.fs.heal()
    assert not bench.segment().read_bytes()[bench.store.commitlog_max_offset :].strip(b"\0")
    assert bench.bodies() == sent
    bench.crash()
    assert bench.bodies() == sent
    assert bench.bodies(queue=1) == []


def test_remnants_of_a_failed_commit_cannot_follow_a_later_record(bench: Any) -> None:
    """Records of equal length: were the refused ones left behind the next accepted one, a restart would take them for real."""
    bench.fs.fail("pwritev", errno.EIO, path="commitlog", torn=10_000)
    for _ in range(5):
        bench.stage(b"refused!")
    with pytest.raises(StoreWriteFailed):
        bench.store.commit()
    bench.fs.heal()
    bench.send(b"accepted")
    assert bench.crash().bodies() == [b"accepted"]


def test_a_failure_in_the_second_segment_takes_the_first_back_too(bench: Any) -> None:
    bench.send(b"kept")
    end = bench.store.commitlog_max_offset
    for _ in range(80):
        bench.stage(b"x" * 1000)
    bench.fs.fail("pwritev", errno.ENOSPC, path="00065536")
    with pytest.raises(StoreWriteFailed):
        bench.store.commit()
    bench.fs.heal()
    assert not bench.segment(65536).exists()
    assert bench.send(b"next") == (1, end)
    assert bench.crash().bodies() == [b"kept", b"next"]


def test_when_even_taking_back_fails_the_store_takes_nothing_more(bench: Any) -> None:
    bench.send(b"kept")
    bench.fs.fail("pwrite", errno.EIO, path="commitlog", torn=30)
    bench.fs.fail("truncate", errno.EIO, path="commitlog")
    bench.stage(b"refused")
    with pytest.raises(StoreWriteFailed):
        bench.store.commit()
    bench.fs.heal()
    bench.stage(b"refused as well")
    with pytest.raises(StoreFailed, match="until the broker is restarted"):
        bench.store.commit()
    assert bench.bodies() == [b"kept"]
    assert bench.crash().bodies() == [b"kept"]
    assert bench.send(b"again")[0] == 1


@pytest.mark.parametrize("k", range(5))
def test_after_a_failed_flush_nothing_is_acknowledged(bench: Any, k: int) -> None:
    bench.fs.fail("fdatasync", errno.EIO, path="commitlog", skip=k)
    acknowledged = []
    with pytest.raises(StoreFailed, match="refuses writes until the broker is restarted"):
        for i in range(10):
            bench.send(b"%d" % i)
            acknowledged.append(b"%d" % i)
            bench.store.flush()
    assert len(acknowledged) == k + 1
    bench.fs.heal()  # the second fdatasync would "succeed": it must not be asked
    bench.stage(b"refused")
    with pytest.raises(StoreFailed):
        bench.store.commit()
    with pytest.raises(StoreFailed):
        bench.store.flush()
    with pytest.raises(StoreFailed):
        bench.store.close()
    assert (bench.root / "abort").exists()
    bench.reopen()
    assert bench.bodies() == acknowledged


def test_a_queue_that_cannot_be_written_costs_nothing(bench: Any) -> None:
    bench.fs.fail("pwrite", errno.ENOSPC, path="consumequeue")
    for i in range(3000):
        bench.stage(b"%d" % i)
        if i % 100 == 99:
            bench.store.commit()
    assert bench.bodies(max_count=5000) == [b"%d" % i for i in range(3000)]
    bench.fs.heal()
    bench.send(b"last")
    assert bench.store.max_offset("orders", 0) == 3001
    assert len(bench.crash().bodies(max_count=5000)) == 3001


@pytest.mark.parametrize(
    ("call", "path"), [("pwrite", "consumequeue"), ("fdatasync", "consumequeue"), ("rename", "dispatched"), ("pwrite", "checkpoint")]
)
def test_a_failed_thorough_flush_is_final_and_loses_nothing(bench: Any, call: str, path: str) -> None:
    bench.send(b"kept")
    bench.fs.fail(call, errno.EIO, path=path)
    with pytest.raises(StoreFailed):
        bench.store.flush(thorough=True)
    bench.fs.heal()
    assert bench.bodies() == [b"kept"]
    assert bench.crash().bodies() == [b"kept"]


def test_a_deletion_that_cannot_be_noted_does_not_happen(bench: Any) -> None:
    bench.send(b"kept")
    bench.fs.fail("pwrite", errno.ENOSPC, path="dispatched")
    with pytest.raises(StoreWriteFailed):
        bench.store.delete_topic("orders")
    bench.fs.heal()
    assert bench.bodies() == [b"kept"]
    assert bench.crash().bodies() == [b"kept"]


def test_a_disk_that_is_full_takes_messages_again_when_there_is_room(bench: Any) -> None:
    sent = []
    for cycle in range(3):
        for i in range(20):
            bench.send(b"%d %d" % (cycle, i))
            sent.append(b"%d %d" % (cycle, i))
        bench.fs.fail("pwrite", errno.ENOSPC, path="commitlog", torn=cycle * 60)
        for _ in range(3):
            bench.stage(b"refused")
            with pytest.raises(StoreWriteFailed, match="No space left"):
                bench.store.commit()
        assert bench.bodies() == sent
        bench.fs.heal()
    assert bench.crash().bodies() == sent
