"""Reserves disk blocks and creates segments ahead of the commit log in a background thread, so that the appender does not wait for either.

::

    segment N                                           segment N + 1
    +---------------------------+--------------------+  +-----------------+-------------------------+
    | written                   | blocks reserved    |  | blocks reserved | being reserved          |
    +---------------------------+--------------------+  +-----------------+-------------------------+
                                ^ end of the log        made at half of N ^ reserved_end

A system call that reserves blocks holds the lock of its file, and waits for the disk: hundreds of milliseconds while much is written.
Whoever writes to this file meanwhile waits as long. Therefore a segment has all of its blocks before the log reaches it; only in the first
segment after a start, and on a disk that is nearly full, are they reserved while it is written to.

Blocks are reserved so that a full disk rejects a whole commit rather than tearing it. This is best effort: when the appender arrives
first, or reserving fails here, the appender reserves the blocks itself and gets the error. The next segment is in the directory but not
in the log; after a stop it is an all-zero last file, as Apache's broker leaves one too.
"""

import contextlib
import threading
from queue import SimpleQueue
from typing import NamedTuple

from sprocketmq.storage.fs import File, FileSystem

# How much one job reserves, and in system calls of which size: short ones, so that stopping does not wait long.
STEP_BYTES = 64 << 20
_CALL_BYTES = 16 << 20
# The next segment has only its first blocks reserved while fewer segments than this fit on the disk: other files need room as well.
ROOMY_SEGMENTS = 8


class _Job(NamedTuple):
    generation: int
    path: str  # of a segment to be made; empty to go on in ``file``
    file: File | None
    segment_start: int
    segment_bytes: int
    begin: int
    end: int


class Preallocator:
    """The background worker of one log. ``reserved_end`` is the log offset its blocks reach to.

    ``busy`` tells whether a job runs, ``named`` is the start of the last segment it created whose name is on disk, ``failure`` why a name
    may not be.

    All calls come from the thread that appends. Without ``background`` each job runs synchronously in the call that requests it: a
    simulated file system needs its calls in a fixed order.
    """

    __slots__ = (
        "_background",
        "_directory",
        "_fs",
        "_generation",
        "_jobs",
        "_lock",
        "_ready",
        "_roomy",
        "_thread",
        "busy",
        "failure",
        "named",
        "reserved_end",
    )

    def __init__(self, fs: FileSystem, directory: str, *, background: bool) -> None:
        self._fs = fs
        self._directory = directory
        self._background = background
        self._generation = 0
        self.busy = False
        self._ready: tuple[int, File] | None = None  # (start of the segment, its file)
        self._roomy = False
        self._lock = threading.Lock()  # held while a job touches a segment and while its outcome is taken
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.reserved_end = 0
        self.named = -1
        self.failure: OSError | None = None

    @property
    def ready(self) -> bool:
        """Whether the next segment is ready for ``take``."""
        return self._ready is not None

    def extend(self, file: File, segment_start: int, segment_bytes: int, begin: int) -> None:
        """Ask for more blocks in the current segment, from log offset ``begin`` on; nothing happens while a job runs."""
        end = min(begin + STEP_BYTES, segment_start + segment_bytes)
        self._ask(_Job(self._generation, "", file, segment_start, segment_bytes, begin, end))

    def prepare(self, path: str, segment_start: int, segment_bytes: int) -> None:
        """Ask for the next segment, as a file of its full length with its first blocks; nothing happens while a job runs."""
        end = segment_start + min(STEP_BYTES, segment_bytes)
        self._ask(_Job(self._generation, path, None, segment_start, segment_bytes, segment_start, end))

    def extend_next(self, segment_bytes: int) -> bool:
        """Ask for more blocks in the segment that is ``ready``; nothing happens while a job runs. False when it gets no more."""
        if self._ready is None or not self._roomy:
            return False
        start, file = self._ready
        begin = max(self.reserved_end, start)
        if begin >= start + segment_bytes:
            return False
        self.extend(file, start, segment_bytes, begin)
        return True

    def take(self, segment_start: int) -> File | None:
        """Return the file of the segment that starts there, or None when it is not made; unless it is ``named`` its name must be synced.

        Waits at most for blocks that are being reserved at this moment.
        """
        if self._ready is None and self.busy:  # the appender was faster: stop the job, which must no longer touch the file
            self._generation += 1
            with self._lock:
                pass
        ready = self._ready
        if ready is None or ready[0] != segment_start:
            return None
        self._ready = None
        return ready[1]

    def reset(self, *, keep: bool = False) -> bool:
        """Cancel the job and drop the next segment, with ``keep`` leaving its file; return whether its file was removed.

        Waits for a system call in progress.
        """
        self._generation += 1
        with self._lock:
            ready, self._ready = self._ready, None
            self.reserved_end = 0
            if ready is not None:
                ready[1].close()
                if not keep:
                    with contextlib.suppress(OSError):  # recovery drops an empty segment after the end
                        self._fs.unlink(ready[1].path)
                        return True
        return False

    def close(self) -> None:
        """End the thread; a segment made ahead stays in the directory. May be called twice, and another job starts it again."""
        self.reset(keep=True)
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()
            self.busy = False

    def _ask(self, job: _Job) -> None:
        if self.busy:
            return
        self.busy = True
        if not self._background:
            self._run(job)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="sprocketmq-preallocate", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    # --- the worker ---

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(job)

    def _run(self, job: _Job) -> None:
        try:
            if job.file is None and job.generation == self._generation:
                # Otherwise a power failure may keep this name without that of the segment before it.
                self._fs.fsync_dir(self._directory)
            with self._lock:
                made = job.generation == self._generation and self._make_room(job)
            if made:
                self._sync_name(job.segment_start)
        except OSError:
            pass  # the appender gets the same error when it arrives there, and reports it
        finally:
            self.busy = False

    def _make_room(self, job: _Job) -> bool:
        """Run a job and return whether it created a segment."""
        file = job.file
        if file is not None:
            self._reserve(file, job)
            return False
        file = self._fs.open(job.path, create=True)
        try:
            file.truncate(job.segment_bytes)
            self._reserve(file, job)
            self._roomy = self._fs.usage(self._directory)[1] >= ROOMY_SEGMENTS * job.segment_bytes
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                self._fs.unlink(job.path)
            raise
        self._ready = (job.segment_start, file)
        return True

    def _sync_name(self, segment_start: int) -> None:
        """Sync the name of a segment that may be in use meanwhile. The next flush reports a failure: the system reports it only once."""
        try:
            self._fs.fsync_dir(self._directory)
        except OSError as e:
            self.failure = e
            raise
        self.named = segment_start

    def _reserve(self, file: File, job: _Job) -> None:
        log_offset = job.begin
        while log_offset < job.end and job.generation == self._generation:
            length = min(_CALL_BYTES, job.end - log_offset)
            file.fallocate(log_offset - job.segment_start, length)
            log_offset += length
            self.reserved_end = log_offset
