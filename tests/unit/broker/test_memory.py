"""The memory that a container leaves to the broker."""

import os

import pytest

from sprocketmq.broker.memory import memory_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
LIMIT = 512 << 20
V1 = "9:name=systemd:/\n4:cpu,memory:/docker/abc\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("0::/\n", {"memory.max": f"{LIMIT}\n"}, LIMIT, id="version 2, in a container"),
        pytest.param("0::/system.slice/mq.service\n", {"system.slice/mq.service/memory.max": f"{LIMIT}\n"}, LIMIT, id="a unit of systemd"),
        pytest.param("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{LIMIT}\n"}, LIMIT, id="a limit of a group above"),
        pytest.param("0::/a/b\n", {"a/b/memory.max": f"{2 * LIMIT}\n", "a/memory.max": f"{LIMIT}\n"}, LIMIT, id="the lowest of several"),
        pytest.param("0::/\n", {"memory.max": "max\n"}, MACHINE, id="no limit"),
        pytest.param("0::/\n", {"memory.max": f"{MACHINE * 2}\n"}, MACHINE, id="more than the machine has"),
        pytest.param(V1, {"memory/docker/abc/memory.limit_in_bytes": f"{LIMIT}\n"}, LIMIT, id="version 1"),
        pytest.param(V1, {"memory/memory.limit_in_bytes": f"{LIMIT}\n"}, LIMIT, id="version 1, in a container"),
        pytest.param(V1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE, id="version 1 without a limit"),
        pytest.param("not what Linux writes", {}, MACHINE, id="something else"),
        pytest.param(None, {}, MACHINE, id="another system"),
    ],
)
def test_the_limit_of_the_control_group_counts(tmp_path, groups, files, expected):
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_bytes(tmp_path) == expected
