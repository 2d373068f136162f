"""Disks that take their time, or fail, when told to."""

import errno
import os
import threading

from sprocketmq.storage.fs import RealFileSystem


class SlowDisk(RealFileSystem):
    """``hold`` makes every flush of the log wait for ``let_go``; ``fail`` makes it fail. ``flushes`` counts those that began.

    ``hold_queues`` and ``queue_flushes`` are the same for the files of queues.

    ``before_write`` is called before each write to the log.
    """

    def __init__(self):
        self._open = threading.Event()
        self._open.set()
        self.error = 0
        self.flushes = 0
        self._queues_open = threading.Event()
        self._queues_open.set()
        self.queue_flushes = 0
        self.before_write = lambda: None

    def hold(self):
        self._open.clear()

    def hold_queues(self):
        self._queues_open.clear()

    def let_go(self):
        self._open.set()
        self._queues_open.set()

    def fail(self, number=errno.EIO):
        self.error = number
        self._open.set()

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        if "/commitlog/" in str(path):
            return _LogFile(file, self)
        return _QueueFile(file, self) if "/consumequeue/" in str(path) else file

    def flush(self):
        self.flushes += 1
        assert self._open.wait(60), "the test never let the disk go on"
        if self.error:
            raise OSError(self.error, os.strerror(self.error))

    def flush_queue(self):
        self.queue_flushes += 1
        assert self._queues_open.wait(60), "the test never let the disk go on"


class _SlowFile:
    def __init__(self, file, disk):
        self._file = file
        self._disk = disk

    def __getattr__(self, name):
        return getattr(self._file, name)


class _QueueFile(_SlowFile):
    def fdatasync(self):
        self._disk.flush_queue()
        self._file.fdatasync()


class _LogFile(_SlowFile):
    def fdatasync(self):
        self._disk.flush()
        self._file.fdatasync()

    def pwrite(self, *args):
        self._disk.before_write()
        self._file.pwrite(*args)

    def pwritev(self, *args):
        self._disk.before_write()
        self._file.pwritev(*args)


class ColdDisk:
    """A page cache that has nothing, until ``go`` is set: a read of a part of a file waits for it. ``began`` counts these reads."""

    def __init__(self):
        self.go = threading.Event()
        self.cached = set()
        self.began = 0

    def resident(self, view, begin, end):
        return bool(self.cached)

    def read(self, path, parts):
        self.began += 1
        self.go.wait(30)
        self.cached.add(path)
