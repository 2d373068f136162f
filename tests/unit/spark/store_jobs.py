"""What tests of jobs on stores share: stores to work on, and tasks that run in this process instead of in Spark's workers."""

import pickle

from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.records import pack_host
from sprocketmq.storage import fs
from sprocketmq.storage.store import MessageStore, StoreConfig

HOST = pack_host("127.0.0.1", 40001)
# Several files of each kind for some hundred messages.
SMALL_FILES = {
    "commitlog_segment_bytes": 64 << 10,
    "consumequeue_segment_bytes": 20 * 50,
    "batchqueue_segment_bytes": 46 * 10,
    "max_hash_slots": 50,
    "max_index_entries": 200,
    "preallocate": False,
}


def files(root, *names):
    """Return the content of all files, or of those under some names."""
    found = [path for path in root.rglob("*") if path.is_file()]
    return {str(p.relative_to(root)): p.read_bytes() for p in found if not names or p.relative_to(root).parts[0] in names}


def queue_files(root):
    return files(root, "consumequeue", "batchconsumequeue")


def index_files(root):
    """Return the content of the index files in order; their names are times."""
    return [data for _, data in sorted(files(root, "index").items())]


class Writer:
    """Writes a store of our own, message by message, and knows where each went."""

    def __init__(self, root, **settings):
        self.config = StoreConfig(root, **(SMALL_FILES | settings))
        self.store = MessageStore(self.config)
        self.store.store_host = HOST
        self.store.open()
        self.places = {}
        self._number = 0

    def send(self, topic="orders", queue_id=0, body=None):
        """Append a message with a key and a tag; returns its queue offset."""
        self._number += 1
        properties = b"UNIQ_KEY\x01%032X\x02KEYS\x01k%d\x02TAGS\x01t%d\x02" % (self._number, self._number, self._number % 3)
        offset, physical = self.store.stage_message(
            topic,
            queue_id,
            body if body is not None else b"body %d " % self._number + bytes(range(self._number % 200)),
            properties,
            tags_code=tags_code(f"t{self._number % 3}"),
            born_timestamp_ms=1,
            born_host=HOST,
        )
        self.store.commit()
        self.places[topic, queue_id, offset] = physical
        return offset

    def close(self):
        """Stop in order."""
        self.store.close()


def filled(root, messages=400, **settings):
    """Write a store with three queues and stop it in order; return its writer."""
    writer = Writer(root, **settings)
    for i in range(messages):
        writer.send("orders", i % 2)
        if i % 3 == 0:
            writer.send("bills")
    writer.close()
    return writer


def run_here(spark, title, work, items, *, on_progress=None):
    """Do as run_tasks does, in this process; all that crosses to workers and back is pickled on the way."""
    done = []
    results = []
    for item in items:
        there, argument = pickle.loads(pickle.dumps((work, item)))
        results.append(pickle.loads(pickle.dumps(there(argument, done.append))))
        if on_progress is not None:
            on_progress(sum(done))
    return results


def without_syncing(monkeypatch):
    """Let nothing wait for the disk: what is tested here is what is in files, not that it outlives the machine."""
    monkeypatch.setattr(fs, "_fdatasync", lambda descriptor: None)
    monkeypatch.setattr(fs.RealFileSystem, "fsync_dir", lambda self, path: None)


def without_spark(monkeypatch, *modules, at_a_time=2, run=run_here):
    """Let jobs run their tasks in this process."""
    for module in modules:
        monkeypatch.setattr(module, "run_tasks", run)
        monkeypatch.setattr(module, "tasks_at_a_time", lambda spark: at_a_time)
