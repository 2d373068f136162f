"""What tests of master and slave ask again and again."""

from sprocketmq.broker.replication.follower import FollowerState


def follows(slave):
    follower = slave.replication.follower
    return follower is not None and follower.state is FollowerState.FOLLOWING and slave.replication.metadata.synced > 0


def caught_up(master, slave):
    return slave.store.commitlog_max_offset == master.store.commitlog_max_offset
