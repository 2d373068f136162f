"""Names and ids of the brokers of a cluster on one machine."""

import errno
import os
import re
from pathlib import Path

import pytest

from sprocketmq.errors import ConfigError, StoreNotWritable
from sprocketmq.processes.members import Member, check_arrangement, members_of


def test_masters_are_named_by_letters_and_each_is_followed_by_its_slaves():
    assert members_of(2, 2) == (
        Member("broker-a", "broker-a", 0),
        Member("broker-a-1", "broker-a", 1),
        Member("broker-a-2", "broker-a", 2),
        Member("broker-b", "broker-b", 0),
        Member("broker-b-1", "broker-b", 1),
        Member("broker-b-2", "broker-b", 2),
    )


def test_a_single_master_keeps_its_name():
    master, slave = members_of(1, 1, "orders")
    assert (master.name, slave.name, slave.broker_name) == ("orders", "orders-1", "orders")
    assert (master.is_master, slave.is_master) == (True, False)
    assert slave.store(Path("/mq")) == Path("/mq/orders-1")


@pytest.mark.parametrize(("brokers", "replicas"), [(0, 0), (27, 0), ("2", 0), (True, 0), (1, -1), (1, 17), (1, 1.0)])
def test_impossible_numbers_are_refused(brokers, replicas):
    with pytest.raises(ConfigError, match=r"must be a whole number from (1 to 26|0 to 16), not "):
        members_of(brokers, replicas)


def test_a_store_is_not_left_behind_in_another_arrangement(tmp_path):
    lone, several = members_of(1, 0), members_of(2, 0)
    for members in (lone, several):
        check_arrangement(tmp_path / "new", members)
    (tmp_path / "single" / "commitlog").mkdir(parents=True)
    check_arrangement(tmp_path / "single", lone)
    with pytest.raises(
        ConfigError, match=f"single is the store of a single broker, .* move it to {re.escape(str(tmp_path))}/single/broker-a$"
    ):
        check_arrangement(tmp_path / "single", members_of(1, 1))
    for member in several:
        (member.store(tmp_path / "cluster") / "commitlog").mkdir(parents=True)
    check_arrangement(tmp_path / "cluster", several)
    with pytest.raises(ConfigError, match=r"holds the stores of several brokers \(broker-a, broker-b\): start as many again, or name one"):
        check_arrangement(tmp_path / "cluster", lone)


def test_a_directory_that_is_hidden_from_this_user_is_named(tmp_path, monkeypatch):
    def hidden(self):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "is_dir", hidden)
    with pytest.raises(
        StoreNotWritable,
        match=f"store {re.escape(str(tmp_path))} is not writable: Permission denied; choose another directory with --store",
    ):
        check_arrangement(tmp_path, members_of(1, 0))
