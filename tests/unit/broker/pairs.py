"""What tests of master and slave ask again and again."""

from sprocketmq.broker.replication.follower import FollowerState


def follows(slave):
    follower = slave.replication.follower
    return follower is not None and follower.state is FollowerState.FOLLOWING and slave.replication.metadata.synced > 0


def caught_up(master, slave):
    """Return whether the slave has the master's log, and readers see it: it is in the queues and, with SYNC_FLUSH, on the disk."""
    if slave.replication.follower is None:
        return False
    return slave.store.commitlog_max_offset == slave.store.commitlog_visible_offset == master.store.commitlog_max_offset
