"""A worker's collector passes over what was loaded before the first task."""

import gc

import pytest

from sprocketmq.spark import workers


@pytest.fixture
def unsettled(monkeypatch):
    monkeypatch.setattr(workers, "_settled", False)
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_is_loaded_is_frozen_once(unsettled):
    assert gc.get_freeze_count() == 0
    workers.settle_worker()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    later = [[] for _ in range(100)]
    workers.settle_worker()
    assert gc.get_freeze_count() == frozen, "what tasks make is collected as ever"
    assert len(later) == 100
