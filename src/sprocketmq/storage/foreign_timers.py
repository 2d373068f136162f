"""Timed messages of Apache's broker that still wait in a store. This broker does not deliver them, so it does not serve such a store.

Apache's broker takes timed messages from a queue of the log into its timer log and links them in slots of its timer wheel. The timer log
has when each of them is due, and ``config/timercheck`` what is delivered and how far the queue was taken; these two tell what waits.
"""

from sprocketmq.errors import StoreNotSupported
from sprocketmq.protocol.layout import TIMER_CHECKPOINT_LAYOUT, TIMER_MAGIC_MAX, TIMER_UNIT_LAYOUT
from sprocketmq.storage.fs import FileSystem
from sprocketmq.storage.log.segments import segment_entries

_WHEEL = "timerwheel"
_UNITS_A_READ = 65_536


def check_timer_log(fs: FileSystem, root: str) -> None:
    """Raise StoreNotSupported when a message in the timer log of Apache's broker waits. Changes nothing.

    Raises OSError when files cannot be read.
    """
    if fs.exists(f"{root}/{_WHEEL}") and _holds_due(fs, f"{root}/timerlog", _checkpoint(fs, root)[0]):
        raise _refusal(root)


def check_timer_queue(fs: FileSystem, root: str, end: int) -> None:
    """Raise StoreNotSupported when the queue of timed messages, which ends at ``end``, has one that is not in the timer log yet."""
    if fs.exists(f"{root}/{_WHEEL}") and end > _checkpoint(fs, root)[1]:
        raise _refusal(root)


def _refusal(root: str) -> StoreNotSupported:
    return StoreNotSupported(
        f"{root}/{_WHEEL}",
        "timed messages of this store wait in the timer wheel of Apache's broker, which alone delivers them",
        "run Apache's broker until they are delivered, or leave them undelivered: move this file away",
    )


def _checkpoint(fs: FileSystem, root: str) -> tuple[int, int]:
    """Return the time before which everything was delivered, and the first queue offset not taken; zeros without a checkpoint."""
    path = f"{root}/config/timercheck"
    data = fs.read(path) if fs.exists(path) else b""
    if len(data) < TIMER_CHECKPOINT_LAYOUT.size:
        return 0, 0
    delivered_ms, _, queue_offset, *_ = TIMER_CHECKPOINT_LAYOUT.struct.unpack_from(data)
    return delivered_ms, queue_offset


def _holds_due(fs: FileSystem, directory: str, delivered_ms: int) -> bool:
    """Return whether the timer log has a message that is due at ``delivered_ms`` or later."""
    import numpy as np  # here, as few stores have a timer log

    from sprocketmq.storage.layout_arrays import dtype_of

    dtype = dtype_of(TIMER_UNIT_LAYOUT)
    for _, entry in reversed(segment_entries(fs.list(directory))):
        file = fs.open(f"{directory}/{entry.name}", read_only=True)
        try:
            for pos in range(0, entry.size, _UNITS_A_READ * dtype.itemsize):
                data = file.pread(min(_UNITS_A_READ * dtype.itemsize, entry.size - pos), pos)
                units = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
                units = units[(units["size"] == dtype.itemsize) & (units["magic"] > 0) & (units["magic"] <= TIMER_MAGIC_MAX)]
                if (units["wheel_ms"] + units["later_ms"] >= delivered_ms).any():
                    return True
                if not len(units):
                    break  # the rest of the file is unused
        finally:
            file.close()
    return False
