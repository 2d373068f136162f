"""What tests of master and slave ask again and again."""

from sprocketmq.broker.replication.follower import FollowerState


def follows(slave):
    follower = slave.replication.follower
    return follower is not None and follower.state is FollowerState.FOLLOWING and slave.replication.metadata.synced > 0


def caught_up(master, slave):
    """Tell whether the slave has the master's log, and readers see it."""
    store = slave.store
    behind = slave.replication.follower is None or slave.store.follow().dispatched_end < store.commitlog_max_offset
    return store.commitlog_max_offset == master.store.commitlog_max_offset and not behind
