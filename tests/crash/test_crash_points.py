"""A crash at every file-system call of a store's life, in every way a disk can forget: nothing that was promised is lost, nothing is invented.

``SPROCKETMQ_CRASH_POINTS`` sets how many crashes (3,000 by default), ``SPROCKETMQ_CRASH_SEED`` which. A failure names the call and mode
that repeat it alone.
"""

import os

import pytest

from sprocketmq.storage.index import key_index
from sprocketmq.testing.rig.crash_explorer import Explorer

POINTS = int(os.environ.get("SPROCKETMQ_CRASH_POINTS", "3000"))
SEED = os.environ.get("SPROCKETMQ_CRASH_SEED", "1")
# One trace gives so many crashes before the next one begins: later calls of a trace differ less from earlier ones.
TRACE_POINTS = 500
SHARDS = 6


@pytest.mark.timeout(0 if POINTS > 3000 else 600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_crash_keeps_what_was_promised(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"SPROCKETMQ_CRASH_SEED={SEED}")
    tried = 0
    for trace in range(shard, -(-POINTS // TRACE_POINTS), SHARDS):
        # In half of the traces a thorough flush leaves messages to be indexed later, as with a backlog of thousands.
        monkeypatch.setattr(key_index, "INLINE_MESSAGES", 2 if trace % 4 >= 2 else 4096)
        flush = "SYNC_FLUSH" if trace % 2 else "ASYNC_FLUSH"
        tried += Explorer(f"{SEED}.{trace}", flush=flush).run(min(TRACE_POINTS, POINTS - trace * TRACE_POINTS))
    print(f"{tried} crashes survived")
