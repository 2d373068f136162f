"""What a server's own process exempts from garbage collection."""

import gc

import pytest

from sprocketmq.net.own_process import THAW_S, Survivors


class Node:
    """Can refer to itself."""


@pytest.fixture
def collected():
    """How many objects a full collection finds; nothing of other tests is exempt from it, before or after."""
    gc.unfreeze()
    gc.collect()
    yield gc.collect
    gc.unfreeze()


def test_what_survived_is_exempt_until_it_is_time_to_look_again(collected):
    seconds = 0.0
    survivors = Survivors(lambda: seconds)
    gc.callbacks.append(survivors)
    try:
        node = Node()
        collected()
        frozen = gc.get_freeze_count()
        assert frozen > 1000
        node.itself = node
        del node
        seconds = THAW_S - 1
        assert collected() == 0
        seconds = THAW_S
        assert collected() >= 1
        assert gc.get_freeze_count() > 1000
    finally:
        gc.callbacks.remove(survivors)


def test_a_small_collection_exempts_nothing(collected):
    survivors = Survivors()
    gc.callbacks.append(survivors)
    try:
        frozen = gc.get_freeze_count()
        gc.collect(0)
        gc.collect(1)
        assert gc.get_freeze_count() == frozen
    finally:
        gc.callbacks.remove(survivors)
