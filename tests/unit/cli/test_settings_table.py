"""docs/guide/broker-settings.md against the settings there are: names, units and defaults."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.cli.apache_names import FIXED, REFUSED, SETTINGS
from sprocketmq.cli.broker_conf import SPECIAL
from sprocketmq.cli.config import KEYS, SECURITY_KEYS, Settings
from sprocketmq.cli.serving_options import LOG_SETTINGS, broker_config
from sprocketmq.errors import ConfigError
from sprocketmq.storage.config import StoreConfig

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "broker-settings.md"
ROW = re.compile(r"^\| `(\w+)` \|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|$", re.MULTILINE)
ROWS = {name: [cell.strip() for cell in cells] for name, *cells in ROW.findall(GUIDE.read_text())}
FIXED_ROWS = {
    name: (value, reason)
    for name, value, reason in re.findall(r"^\| `(\w+)` \| `([\w.]+)` \| ([^|]*) \|$", GUIDE.read_text(), re.MULTILINE)
}
REFUSED_ROWS = {
    reason: re.findall(r"`(\w+)`", names)
    for reason, names in re.findall(r"^\| ([^|]+) \| (`\w+`(?:, `\w+`)*) \|$", GUIDE.read_text(), re.MULTILINE)
}
# What the command line gives a broker in another form than as a setting.
ELSEWHERE = {"root", "store", "take_over", "ha_secret", "max_transfer_count", "max_transfer_bytes", "tls", "tls_client", "security"}


def shown(value):
    return str(value).lower() if value is True or value is False else str(value)


def test_the_guide_lists_every_setting_and_nothing_else():
    assert list(ROWS) == list(KEYS)


@pytest.mark.parametrize("name", KEYS)
def test_the_guide_tells_the_default(name):
    default = ROWS[name][1].strip("`")
    assert {"(empty)": "", "(none)": "None"}.get(default, default) == shown(getattr(Settings(), name))


@pytest.mark.parametrize(
    ("ending", "unit"),
    [("_bytes", "bytes"), ("_s", "seconds"), ("_ms", "milliseconds"), ("_hours", "hours"), ("_ratio", "part of the disk")],
)
def test_the_guide_tells_the_unit_that_the_name_says(ending, unit):
    named = [name for name in KEYS if name.endswith(ending) and not name.startswith("access_") and not name.endswith("_per_s")]
    assert named
    assert {ROWS[name][0] for name in named} == {unit}


@pytest.mark.parametrize("kind", [StoreConfig, BrokerConfig])
def test_every_field_of_a_broker_is_a_setting_with_the_same_default(kind):
    for one in fields(kind):
        if one.name not in ELSEWHERE:
            assert one.name in KEYS, one.name
            ours = one.default if one.default is not MISSING else None
            assert (getattr(Settings(), one.name) or None) == (ours or None) or ours is None, one.name


# They reach the broker in another form; test_serving_security.py has those of TLS and access control.
TRANSLATED = {"host", "port", "namesrv_port", *LOG_SETTINGS, "store", "namesrv", "advertise", "ha_secret_file", *SECURITY_KEYS}


@pytest.mark.parametrize("name", sorted(set(KEYS) - TRANSLATED))
def test_every_setting_reaches_the_broker(name):
    usual = getattr(Settings(), name)
    other = {
        "flush_disk_type": "SYNC_FLUSH",
        "delete_when": "05",
        "message_delay_level": "1s 2m",
        "consumequeue_segment_bytes": 2000,
        "batchqueue_segment_bytes": 4600,
        "register_interval_s": 20.0,
        "role": "SYNC_MASTER",
        "broker_id": 3,
        "broker_permission": 4,
        "ha_port": 10912,
        "in_sync_replicas": 3,
        "ha_max_bytes_per_s": 1 << 20,
        "ha_master_address": "127.0.0.1:10912",
        "metrics_exporter": "prom",
        "metrics_label": "env:test",
    }.get(name) or (not usual if isinstance(usual, bool) else "other" if isinstance(usual, str) else usual / 2 if usual else 3)
    settings = Settings(namesrv="127.0.0.1:9876")
    if name in ("role", "in_sync_replicas"):
        settings.role, settings.ha_port = "SYNC_MASTER", 0
    if name == "broker_id":
        settings.role = "SLAVE"
    settings.put(name, int(other) if KEYS[name] is int else other, "test")
    config = broker_config(settings)
    reached = [getattr(part, name) for part in (config, config.store) if hasattr(part, name)]
    assert reached
    assert set(reached) == {getattr(settings, name)}


def test_the_guide_has_apaches_name_of_each_setting():
    told = {name: ours for ours, cells in ROWS.items() for name in re.findall(r"`(\w+)`", cells[2])}
    told["listenPort"] = "port"  # of the broker; the nameserver's has the same name
    del told["kvConfigPath"]
    assert told == {name: setting.name for name, setting in SETTINGS.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_toml_file_with_a_name_of_apaches_is_told_ours(name):
    with pytest.raises(ConfigError, match=f"unknown key '{name}'; (it is called|write) {SETTINGS[name].name}\\b"):
        Settings().put(name, "", "test")


def test_the_guide_lists_what_apaches_settings_can_be_here():
    assert FIXED_ROWS == FIXED


def test_the_guide_tells_why_apaches_other_settings_have_no_effect():
    assert set(REFUSED_ROWS) == set(REFUSED.values())
    for reason, names in REFUSED_ROWS.items():
        assert {REFUSED[name] for name in names} == {reason}


def test_the_guide_names_the_settings_that_depend_on_others():
    text = GUIDE.read_text()
    assert [name for name in SPECIAL if f"`{name}`" not in text] == []
