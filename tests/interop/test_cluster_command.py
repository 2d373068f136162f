"""``sprocketmq broker --config`` with the file of an Apache slave, beside Apache's master, and what ``sprocketmq cluster`` shows of both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop import apache

from sprocketmq import Message, sync
from sprocketmq.cli.failover import plan_failover
from sprocketmq.errors import FatalError
from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CONF = """
brokerClusterName={cluster}
brokerName={name}
brokerId=1
brokerRole=SLAVE
flushDiskType=ASYNC_FLUSH
namesrvAddr={namesrv}
listenPort=0
storePathRootDir={store}
storePathCommitLog={store}/commitlog
mappedFileSizeCommitLog={segment}
"""


def test_our_slave_runs_with_apaches_file_and_the_command_shows_apaches_master(
    home: Path, own_namesrv: apache.ApacheNamesrv, request: pytest.FixtureRequest
) -> None:
    namesrv, name = own_namesrv.address, "broker-shown"
    settings = apache.SMALL_STORE | {"brokerRole": "SYNC_MASTER"}
    master = apache.ApacheBroker(home / "shown", namesrv, settings=settings, name=name, cluster="Shown")
    request.addfinalizer(master.kill)
    conf = home / "slave.conf"
    segment = settings["mappedFileSizeCommitLog"]
    conf.write_text(CONF.format(cluster="Shown", name=name, namesrv=namesrv, store=home / "shown-slave", segment=segment), encoding="utf-8")
    command = [sys.executable, "-m", "sprocketmq", "broker", "--config", str(conf), "--stop-with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as slave:
        request.addfinalizer(slave.kill)
        assert slave.stdout is not None
        assert slave.stdout.readline().startswith("ready broker=")
        with sync.Producer("shown", namesrv=namesrv) as producer, sync.AdminClient(namesrv=namesrv) as admin:
            admin.create_topic("ShownTopic", queues=2, cluster="Shown")
            producer.send_batch([Message("ShownTopic", b"%d" % n) for n in range(100)])
            first, second = wait_until(
                lambda: found if len(found := admin.brokers(name)) == 2 and found[1].behind_bytes == 0 and found[1].in_sync else None,
                timeout_s=90,
            )
            assert (first.role, first.version, first.epoch, first.in_sync_slaves, first.problem) == ("SYNC_MASTER", "V5_5_0", None, 1, "")
            assert (second.role, second.following, second.log_end) == ("SLAVE", "following", first.log_end)
            assert first.log_end
            with pytest.raises(FatalError, match="it has no epochs"):
                plan_failover(name, admin.brokers())
        slave.communicate(timeout=60)
        assert slave.returncode == 0
