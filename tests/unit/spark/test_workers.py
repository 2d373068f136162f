"""A worker's collector passes over what was loaded before its first tasks."""

import gc

import pytest

from sprocketmq.spark.sessions import worker_gc


@pytest.fixture
def unsettled(monkeypatch):
    monkeypatch.setattr(worker_gc, "_tasks", 0)
    gc.unfreeze()
    yield
    # As `tests/conftest.py` had it: otherwise each later collection in this process walks all modules and tests, which takes seconds.
    gc.collect()
    gc.freeze()


def test_what_is_loaded_is_frozen_in_the_first_two_tasks(unsettled):
    assert gc.get_freeze_count() == 0
    worker_gc.settle_worker()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    loaded = [[[]] for _ in range(100)]
    worker_gc.settle_worker()
    settled = gc.get_freeze_count()
    assert settled >= frozen + len(loaded), "what the first task loaded"
    later = [[[]] for _ in range(100)]
    worker_gc.settle_worker()
    assert gc.get_freeze_count() <= settled, "what later tasks make is collected as ever"
    assert len(loaded) == len(later)
