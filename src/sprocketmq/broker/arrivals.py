"""Waking pulls on messages: at their commit, or while the store holds back when they are published."""

from collections.abc import Callable, Sequence

from sprocketmq.broker.topics import Topic
from sprocketmq.storage.store import MessageStore

# Topic, queue id, and tag code or None for several.
Arrived = tuple[Topic, int, int | None]


class Arrivals:
    """What is committed and not published yet, while the store holds back.

    ``arrived`` is called for each message that becomes visible. ``late`` is true while readers see messages later than their commit.
    """

    def __init__(self, store: MessageStore, arrived: Callable[[Topic, int, int | None], None]) -> None:
        self._store = store
        self.arrived = arrived
        self.late = store.holds_back
        # By queue: the tag code of what arrived, and the first and last end of the log at which it did.
        self._unseen: dict[tuple[Topic, int], tuple[int | None, int, int]] = {}

    def mode_changed(self) -> None:
        """Record that the store may defer the visibility of commits."""
        self.late = self._store.holds_back

    def note_unseen(self, arrivals: Sequence[Arrived]) -> None:
        """Record messages that are committed but not visible yet."""
        end = self._store.commitlog_max_offset
        unseen = self._unseen
        for topic, queue_id, tag in arrivals:
            known = unseen.get((topic, queue_id))
            if known is None:
                unseen[topic, queue_id] = (tag, end, end)
            else:
                unseen[topic, queue_id] = (tag if tag == known[0] else None, known[1], end)

    def published(self, end: int) -> None:
        """Wake the pulls on what became visible, the log up to ``end``."""
        unseen = self._unseen
        if not unseen:
            return
        self._unseen = {}
        for (topic, queue_id), (tag, first, last) in unseen.items():
            if last > end:
                self._unseen[topic, queue_id] = (tag, last, last)
            if first <= end and (topic.pops or queue_id in topic.held):
                self.arrived(topic, queue_id, tag)
