"""Facts about the store beyond the reference's runtime information (28), for tools that show when messages expire.

::

    storeSegments           start,bytes,ms;start,bytes,ms;...   the oldest MAX_SEGMENTS, with when each was last written
    storeSegmentCount       12
    storeQueueCount         48
    storeBatchTopicCount    3
    indexEntries, indexRoom 17000000, 60000000                  entries in the index files, and room for how many; absent without index
    indexFailure            why the index has stopped, while it has

The answer is made on the broker's loop: MAX_SEGMENTS bounds the files whose time is read.
"""

import contextlib

from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.store import MessageStore

MAX_SEGMENTS = 64


def store_facts(store: MessageStore, fs: FileSystem) -> dict[str, str]:
    """Return the keys for request 28; see the module."""
    segments = store.segments()
    end = store.commitlog_max_offset
    written = [segment for segment in segments if segment[0] < end]
    ages = []
    for start, size, path in written[:MAX_SEGMENTS]:
        with contextlib.suppress(OSError):  # the file was deleted meanwhile
            ages.append(f"{start},{min(size, end - start)},{fs.modified_ms(path)}")
    facts = {
        "storeSegments": ";".join(ages),
        "storeSegmentCount": str(len(written)),
        "storeQueueCount": str(store.queue_count),
        "storeBatchTopicCount": str(len(store.batch_topics)),
    }
    if store.index is not None:
        facts["indexEntries"], facts["indexRoom"] = map(str, store.index.fill)
        if store.index_failure is not None:
            facts["indexFailure"] = store.index_failure
    return facts
