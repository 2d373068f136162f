"""A worker process that parses ranges of the commit log for its parent: ``python -m sprocketmq.storage.bulk.worker``.

It maps the segments read-only and exchanges frames over standard input and output: a length of 4 bytes, then MessagePack. The first
input frame is a ``Setup``, all others are a ``Task``; each task is answered by one ``ParsedChunk``, in order. The process ends when its
input is closed, so after its parent was killed it finishes at most its current task.
"""

import os
import signal
import sys
from struct import Struct

import msgspec

from sprocketmq.storage.chunks import KeyEntries, ParsedChunk, QueueChunk
from sprocketmq.storage.fs import REAL_FS

FRAME = Struct("<I")


class Setup(msgspec.Struct, array_like=True, frozen=True):
    """The settings of all tasks: the topics whose queues are batch queues, and whether key entries are wanted."""

    batch_topics: list[bytes]
    keys: bool


class Task(msgspec.Struct, array_like=True, frozen=True):
    """A stretch ``[begin, limit)`` of the segment file at ``path``, which has ``size`` bytes and begins at log offset ``base``."""

    path: str
    base: int
    size: int
    begin: int
    limit: int


class _Answer(msgspec.Struct, array_like=True, frozen=True):
    """A ``ParsedChunk`` in transit; arrays are bytes in native byte order."""

    start: int
    end: int
    records: int
    last_log_offset: int
    last_time_ms: int
    queue_chunks: list[QueueChunk]
    keys: tuple[bytes, bytes, bytes] | None


_encode = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


def encode_frame(value: Setup | Task) -> bytes:
    """Return a setup or a task as one frame of the worker's input."""
    data = _encode(value)
    return FRAME.pack(len(data)) + data


def encode_chunk(chunk: ParsedChunk) -> bytes:
    """Return a chunk as one frame of the worker's output."""
    keys = None if chunk.keys is None else (chunk.keys.hashes.data, chunk.keys.log_offsets.data, chunk.keys.times_ms.data)
    data = _encode((*chunk[:6], keys))
    return FRAME.pack(len(data)) + data


def decode_chunk(data: bytes | memoryview) -> ParsedChunk:
    """Return the chunk of a frame without its length. Raises msgspec.MsgspecError for anything else."""
    import numpy as np

    answer = _decode_answer(data)
    keys = None
    if answer.keys is not None:
        hashes, log_offsets, times = answer.keys
        keys = KeyEntries(np.frombuffer(hashes, np.int32), np.frombuffer(log_offsets, np.int64), np.frombuffer(times, np.int64))
    return ParsedChunk(answer.start, answer.end, answer.records, answer.last_log_offset, answer.last_time_ms, answer.queue_chunks, keys)


def read_task(view: memoryview, task: Task, setup: Setup) -> ParsedChunk:
    """Parse the records that begin in the task's range of the segment ``view``.

    The start of the first one is a guess, as the range may begin inside a record; the parent checks whether it is right.
    """
    from sprocketmq.storage.bulk.parsing import parse_chunk
    from sprocketmq.storage.bulk.record_search import find_record

    limit = task.limit - task.base
    found = find_record(view, task.base, task.begin - task.base, limit)
    if found < 0:
        return ParsedChunk(task.limit, task.limit, 0, 0, 0, [], None)
    return parse_chunk(view, task.base, found, limit, batch_topics=frozenset(setup.batch_topics), keys=setup.keys)


def main() -> None:
    """Answer tasks until the input closes."""
    # Ctrl-C reaches the whole process group; the parent handles it and closes the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from sprocketmq.storage.bulk import parsing  # noqa: F401  (so that the first task is as fast as the others)

    read = sys.stdin.buffer.read

    def frame() -> bytes:
        head = read(FRAME.size)
        size = FRAME.unpack(head)[0] if len(head) == FRAME.size else 0
        data = read(size)
        return data if len(data) == size else b""

    first = frame()
    if not first:
        return
    setup = msgspec.msgpack.decode(first, type=Setup)
    task_decoder = msgspec.msgpack.Decoder(Task)
    path = ""
    view = memoryview(b"")
    while data := frame():
        task = task_decoder.decode(data)
        if task.path != path:
            file = REAL_FS.open(task.path, read_only=True)
            view = file.map(task.size)
            file.close()
            path = task.path
        answer = memoryview(encode_chunk(read_task(view, task, setup)))
        while answer:
            answer = answer[os.write(1, answer) :]


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
