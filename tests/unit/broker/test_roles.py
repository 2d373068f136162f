"""Roles in the configuration: what can work together, and what the refusals advise."""

from pathlib import Path
from typing import Any

import pytest

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.replication.roles import Role
from sprocketmq.errors import ConfigError
from sprocketmq.storage.config import StoreConfig

NAMESRV = ("127.0.0.1:9876",)


def configured(root: Path, **settings: Any) -> BrokerConfig:
    return BrokerConfig(store=StoreConfig(root), **settings)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"role": "SLAVE"}, "must be one of Role: ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ({"broker_id": 1}, "make it a SLAVE"),
        ({"role": Role.SLAVE, "namesrv": NAMESRV}, "give a SLAVE a broker id from 1"),
        ({"role": Role.SLAVE, "broker_id": 1}, "give their addresses (namesrv)"),
        ({"role": Role.SYNC_MASTER}, "give ha_port"),
        ({"role": Role.SYNC_MASTER, "ha_port": 0, "in_sync_replicas": 1}, "give 2 or more"),
        ({"ha_port": 0, "in_sync_replicas": 2}, "give the role SYNC_MASTER"),
        ({"port": 10911, "ha_port": 10911}, "slaves need a port of their own, such as 10912"),
        ({"ha_port": 65536}, "ha_port is 65536, it must be from 0 to 65535"),
        ({"role": Role.SYNC_MASTER, "ha_port": 0, "in_sync_replicas": 18}, "in_sync_replicas is 18, it must be from 1 to 17"),
        ({"ha_port": 0, "ha_secret": "short"}, "ha_secret has 5 characters, it must have at least 16"),
        ({"ha_port": 0, "ha_master_address": "nowhere"}, "write HOST:PORT"),
        ({"ha_port": 0, "ha_housekeeping_s": 5.0}, "longer than ha_heartbeat_s"),
        ({"ha_port": 0, "ha_batch_bytes": 5}, "ha_batch_bytes is 5"),
    ],
)
def test_a_role_that_cannot_work_is_refused_with_advice(tmp_path: Path, settings: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, **settings)
    assert advice in str(caught.value)


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, ha_port=0, ha_secret="hunter2")
    assert "hunter2" not in str(caught.value)
