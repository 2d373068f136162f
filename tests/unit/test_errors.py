"""Commands that errors suggest can be pasted into a shell."""

import shlex

import pytest

from sprocketmq.errors import GroupNotFound, NoMaster, SecretFileExposed, StoreDamaged, TopicNotFound


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (TopicNotFound("a|b"), ["sprocketmq", "topic", "create", "a|b"]),
        (GroupNotFound("a|b"), ["sprocketmq", "group", "create", "a|b"]),
        (NoMaster(["broker|a"], "orders"), ["sprocketmq", "failover", "broker|a"]),
        (SecretFileExposed("/my files/key.json", 0o644), ["chmod", "600", "/my files/key.json"]),
        (StoreDamaged("/my files/mq/commitlog/0", 7, "it ends"), ["sprocketmq", "verify", "/my files/mq"]),
    ],
)
def test_a_command_that_an_error_suggests_can_be_pasted(error, command):
    assert shlex.join(command) in str(error)
