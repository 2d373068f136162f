"""Masters and slaves of either make, in processes of their own: started, asked, and compared."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop import apache
from tests.interop.ours import UNHURRIED, OurProcess

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.testing import wait_until

SEGMENT_BYTES = 1 << 20
DELAY_LEVELS = "1s 2s"
SETTINGS = apache.SMALL_STORE | {"mappedFileSizeCommitLog": str(SEGMENT_BYTES), "messageDelayLevel": DELAY_LEVELS}
# Apache's slave asks for a master every 30 s, and copies tables for the first time a minute after its start.
COPIED_S = 120.0
CLUSTER = "MixedCluster"


class OurBroker(OurProcess):
    """``sprocketmq broker`` with small files; the same directory again is a restart."""

    def __init__(self, directory: Path, namesrv: str, name: str, *, port: int = 0, slave: bool = False, **settings: object) -> None:
        files = {"commitlog_segment_bytes": SEGMENT_BYTES, "preallocate": False, "message_delay_level": DELAY_LEVELS}
        role = {"role": "SLAVE", "broker_id": 1} if slave else {"ha_port": 0, "fast_port_enable": True}
        chosen = UNHURRIED | files | role | settings
        command = ["broker", "--namesrv", namesrv, "--name", name, "--cluster", CLUSTER, "--port", str(port)]
        command += ["--store", str(directory / "store"), *(f"--set={key}={value}" for key, value in chosen.items())]
        super().__init__(directory, *command)
        self.address = self.broker


def apache_broker(
    home: Path, namesrv: str, name: str, *, port: int | None = None, version: str = apache.VERSION, **settings: str
) -> apache.ApacheBroker:
    """Start Apache's broker with the same small files; a slave when ``brokerId`` says so."""
    role = {"brokerRole": "SLAVE", "slaveReadEnable": "true"} if "brokerId" in settings else {}
    return apache.ApacheBroker(home, namesrv, name=name, cluster=CLUSTER, port=port, settings=SETTINGS | role | settings, version=version)


Broker = OurBroker | apache.ApacheBroker


def runtime(broker: Broker) -> dict[str, str]:
    """Return a broker's runtime information."""
    table: dict[str, str] = loads(apache.request(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)[1])["table"]
    return table


def log_end(broker: Broker) -> int:
    """Return where a broker's log ends."""
    return int(runtime(broker)["commitLogMaxOffset"])


def log_bytes(broker: Broker, end: int) -> bytes:
    """Return the first ``end`` bytes of a broker's log."""
    return b"".join(file.read_bytes() for file in sorted((broker.store / "commitlog").glob("0*")))[:end]


def saved(store: Path, name: str) -> dict[str, Any]:
    """Return a configuration file of a store as it is on disk now; empty without one, and while Apache's broker is writing it."""
    try:
        found: dict[str, Any] = loads((store / "config" / f"{name}.json").read_bytes())
    except (FileNotFoundError, RemoteProtocolError):
        return {}
    return found


# Fields of a topic's configuration. Releases before 5.0 have no attributes.
OLDER_FIELDS = ("readQueueNums", "writeQueueNums", "perm")
FIELDS = (*OLDER_FIELDS, "attributes")


def tables(broker: Broker, topics: Iterable[str], group: str, consumed: str, fields: Sequence[str] = FIELDS) -> dict[str, Any]:
    """Return what a broker has saved of these topics, of a group, and of the group's offsets in the topic that it has consumed."""
    known = saved(broker.store, "topics").get("topicConfigTable", {})
    groups = saved(broker.store, "subscriptionGroup").get("subscriptionGroupTable", {})
    offsets = saved(broker.store, "consumerOffset").get("offsetTable", {}).get(f"{consumed}@{group}", {})
    return {
        "topics": {name: [known.get(name, {}).get(field) for field in fields] for name in topics},
        "group": group in groups,
        "offsets": {str(queue_id): offset for queue_id, offset in offsets.items()},
    }


def caught_up(slave: Broker, master: Broker, timeout_s: float = COPIED_S) -> int:
    """Wait until a slave has the log of a master who is not written to, and return its end."""
    end = log_end(master)
    wait_until(lambda: log_end(slave) >= end, timeout_s=timeout_s, what="the slave does not catch up")
    return end


def assert_same_logs(slave: Broker, master: Broker) -> int:
    """Assert that both logs are equal byte for byte once the slave has all of it, and return their end."""
    end = caught_up(slave, master)
    ours, theirs = log_bytes(slave, end), log_bytes(master, end)
    if ours != theirs:
        at = next((i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), min(len(ours), len(theirs)))
        raise AssertionError(f"the logs differ from {at} on, of {end}")
    return end


def queue_offsets(broker: Broker, topics: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the lowest and highest offset of each queue as the broker answers them; ``topics`` has the number of queues of each."""
    found = {}
    for topic, queues in topics.items():
        for queue_id in range(queues):
            ends = []
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
                answer, _ = apache.request(broker.address, code, topic=topic, queueId=queue_id)
                assert answer["code"] == ResponseCode.SUCCESS, answer
                ends.append(int(answer["extFields"]["offset"]))
            found[f"{topic} {queue_id}"] = (max(ends[0], 0), ends[1])  # Apache says -1 for an empty batch queue
    return found


def assert_same_queues(slave: Broker, master: Broker, topics: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Wait until a slave has the same messages in the same queues as its master, and return what each queue has.

    Both derive their queues after the log, and the master may still deliver delayed messages: each look asks both.
    """
    with contextlib.suppress(AssertionError, TimeoutError):
        wait_until(lambda: queue_offsets(slave, topics) == queue_offsets(master, topics), timeout_s=30)
    expected = queue_offsets(master, topics)
    found = queue_offsets(slave, topics)
    assert found == expected, (
        f"slave and master: { {queue: (found[queue], ends) for queue, ends in expected.items() if found[queue] != ends} }"
    )
    return expected


def messages(topic: str, numbers: range, size: int = 0) -> list[dict[str, Any]]:
    """Return numbered messages, for the Java client to send."""
    return [{"topic": topic, "body": b"%d " % number + b"x" * size, "tag": "TagA", "keys": [f"key-{number}"]} for number in numbers]


def numbers_by_queue(received: Sequence[Mapping[str, Any]]) -> dict[int, list[int]]:
    """Return the numbers of messages as they were received, for each queue."""
    found: dict[int, list[int]] = {}
    for message in received:
        found.setdefault(message["queue_id"], []).append(int(message["body"].split()[0]))
    return found


def complaints(slave: apache.ApacheBroker) -> list[str]:
    """Return the errors in all logs of an Apache slave, and the warnings of the threads that copy log and tables."""
    files = sorted((slave.home / "logs" / "rocketmqlogs").glob("**/*.log"))
    lines = [line for file in files for line in file.read_text(errors="replace").splitlines()]
    assert lines
    return [line for line in lines if " ERROR " in line or re.search(" WARN (BrokerControllerScheduledThread|DefaultHAClient)", line)]
